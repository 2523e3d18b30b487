"""Margins through a part of the head, against all logits in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.halting import low_rank
from loopverify.halting.calibration import calibrate
from loopverify.halting.confidence import Arrival, HeadScore
from loopverify.halting.dynamic_batch import run_batches
from loopverify.halting.exit_table import exit_table
from loopverify.halting.low_rank import CertifiedMargin, LowRankMargin, balanced
from loopverify.halting.token_statistics import LinearHead, linear_head


def head_of(weight: Tensor) -> LinearHead:
    return LinearHead(shown=lambda state, loop, loops: state, weight=weight)


def at(shown: Tensor) -> Arrival:
    return Arrival(model=None, tokens=shown[..., 0], before=shown, after=shown, context=None, loop=1, loops=2)  # type: ignore[arg-type]


def true_logits(shown: Tensor, weight: Tensor) -> Tensor:
    return shown.double() @ weight.double().mT


def true_margin(shown: Tensor, weight: Tensor) -> Tensor:
    ordered = true_logits(shown, weight).sort(-1).values
    return ordered[..., -1] - ordered[..., -2]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor | None, int]:
    """A head (V, D), states (2, 5, D), earlier states (or None) and a rank: with and without decaying spectra, heads of
    less than full rank, and rows that tie or nearly tie."""
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    V, D = draw(st.integers(2, 60)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    fall = draw(st.sampled_from([0.0, 0.5, 1.0, 3.0]))
    spectrum = 2.0 ** (-fall * torch.arange(D))
    weight = (torch.randn(V, D, generator=random) * spectrum).to(dtype)
    weight[:, draw(st.integers(1, D)) :] = 0
    if draw(st.booleans()):
        twins = torch.randint(V, (V,), generator=random)
        weight = weight[twins] * (1 + torch.finfo(dtype).eps * torch.randint(-1, 2, (V, 1), generator=random))
    shown, seen = (torch.randn(2, 5, D, generator=random).to(dtype) for _ in range(2))
    shown = shown * draw(st.sampled_from([1e-3, 1.0, 1e4]))
    if draw(st.booleans()):
        shown, seen = shown * spectrum.flip(0), seen * spectrum.flip(0)
    return weight, shown.to(dtype), seen.to(dtype) if draw(st.booleans()) else None, draw(st.integers(1, D))


@settings(max_examples=200)
@given(cases(), st.sampled_from([1, 4, 10**6]))
def test_the_certified_margin_is_exact(case: tuple[Tensor, Tensor, Tensor | None, int], dear: int) -> None:
    weight, shown, seen, rank = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(low_rank, "DEAR", dear)  # 1: no token is computed in full; a million: every token is
        patch.setattr(low_rank, "LOGITS", 3 * len(weight))  # three tokens at a time
        found = CertifiedMargin(head_of(weight), rank, seen).confidence(at(shown))
    # The rounding of two dot products and of their difference.
    limit = 2 * (shown.shape[-1] + 1) * torch.finfo(weight.dtype).eps * shown.norm(dim=-1) * weight.norm(dim=-1).max()
    assert ((found - true_margin(shown, weight)).abs() <= limit).all()


@settings(max_examples=200)
@given(cases())
def test_no_logit_is_above_its_bound(case: tuple[Tensor, Tensor, Tensor | None, int]) -> None:
    weight, shown, seen, rank = case
    score = CertifiedMargin(head_of(weight), rank, seen)
    x = shown.flatten(0, 1)
    assert (true_logits(x, weight) <= score._upper(x) + score._rounding * x.norm(dim=-1, keepdim=True)).all()


def test_rounding_has_to_be_allowed_for() -> None:
    random = torch.Generator().manual_seed(0)
    weight, x = torch.randn(200, 16, generator=random), torch.randn(50, 16, generator=random)
    score = CertifiedMargin(head_of(weight), 16)
    beyond = true_logits(x, weight) - score._upper(x)  # at full rank, nothing but rounding
    assert 0 < beyond.max() <= score._rounding * x.norm(dim=-1).max()


def test_work_is_what_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    V, D, r = 640, 8, 3
    weight = torch.randn(V, D, generator=random, dtype=torch.float64)
    weight[:, r:] = 0
    shown = torch.randn(2, 5, D, generator=random, dtype=torch.float64)
    low, certified = LowRankMargin(head_of(weight), r), CertifiedMargin(head_of(weight), r)
    for score, expected in (
        (low, r * (1 / D + 1 / V)),
        # The bounds of a head of rank r are its logits, so that only the first two remain, apart from the seeds.
        (certified, D / V + (r + 1) / D + (low_rank.SEEDS + 2) / V),
    ):
        arrival = at(shown)
        torch.testing.assert_close(score.confidence(arrival), true_margin(shown, weight))
        assert arrival.work.products == pytest.approx(10 * expected)
    monkeypatch.setattr(low_rank, "DEAR", V)  # two rows are too many
    arrival = at(shown)
    torch.testing.assert_close(certified.confidence(arrival), true_margin(shown, weight))
    assert arrival.work.products == pytest.approx(10 * (D / V + (r + 1) / D + low_rank.SEEDS / V + 1))


def test_balanced_coordinates_have_the_same_second_moments_in_head_and_states() -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(50, 6, generator=random, dtype=torch.float64) @ torch.randn(6, 6, generator=random).double()
    states = torch.randn(4000, 6, generator=random, dtype=torch.float64) * torch.tensor([1, 9, 1, 3, 1, 1.0])
    B = balanced(head_of(weight), states)
    turned = weight @ torch.linalg.inv(B)
    of_head = turned.mT @ turned / 50
    of_states = B @ (states.mT @ states / 4000) @ B.mT
    assert (of_head.diagonal().diff() < 0).all()
    torch.testing.assert_close(of_head, torch.diag(of_head.diagonal()))
    torch.testing.assert_close(of_states, of_head, rtol=0.02, atol=0.02 * float(of_head.diagonal()[0]))


def test_states_of_few_directions_are_enough_and_others_may_come() -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(50, 6, generator=random)
    for seen in (torch.eye(6)[:2], torch.eye(6)[:1].expand(3, 6)):
        shown = torch.randn(2, 5, 6, generator=random)
        found = CertifiedMargin(head_of(weight), 2, seen).confidence(at(shown))
        torch.testing.assert_close(found.double(), true_margin(shown, weight), rtol=1e-4, atol=1e-5)


def test_states_leave_fewer_rows_in_question() -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(2000, 32, generator=random) * 0.8 ** torch.arange(32)
    turn = torch.linalg.qr(torch.randn(32, 32, generator=random)).Q
    few, seen = ((torch.randn(2, 200, 32, generator=random) * 0.8 ** torch.arange(32)) @ turn for _ in range(2))
    products = []
    for states in (None, seen):
        arrival = at(few)
        CertifiedMargin(head_of(weight), 12, states).confidence(arrival)
        products.append(arrival.work.products / 400)
    assert products[1] < products[0] < 1


@given(st.integers(1, 8), st.integers(0, 2**31))
def test_a_cut_head_is_that_of_its_leading_singular_vectors(rank: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    weight, shown = (torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((30, 8), (2, 5, 8)))
    U, s, Vh = torch.linalg.svd(weight, full_matrices=False)
    cut = U[:, :rank] @ torch.diag(s[:rank]) @ Vh[:rank]
    found = LowRankMargin(head_of(weight), rank).confidence(at(shown))
    torch.testing.assert_close(found, true_margin(shown, cut))


def test_a_state_that_is_not_a_number_has_no_margin() -> None:
    shown = torch.ones(1, 2, 3)
    shown[0, 1, 1] = torch.nan
    found = CertifiedMargin(head_of(torch.eye(3) + 1), 2).confidence(at(shown))
    assert found.isnan().tolist() == [[False, True]]


def test_sequences_and_tokens_leave_where_they_would_by_the_margin() -> None:
    config = lv.models.TransformerConfig(vocab_size=40, d_model=16, heads=2, d_ff=32, init_std=0.4)
    module = lv.models.LoopedTransformer(config).eval()
    model, tokens = module.looped(), torch.randint(40, (8, 9))
    batches = [(tokens[:4, :-1], tokens[:4, 1:]), (tokens[4:, :-1], tokens[4:, 1:])]
    head = linear_head(model)
    assert head is not None
    score = CertifiedMargin(head, 8)
    tables = [exit_table(model, batches, score=which) for which in (score, "margin")]
    torch.testing.assert_close(tables[0].scores, tables[1].scores, rtol=1e-5, atol=1e-5)
    threshold = float(tables[1].scores[:, 0].median()) + 1e-3
    runs = [run_batches(model, batches, score=which, threshold=threshold) for which in (score, HeadScore())]
    assert runs[0].exits.tolist() == runs[1].exits.tolist()
    assert len(runs[0].exits.unique()) > 1
    assert calibrate(tables[0]) == pytest.approx(calibrate(tables[1]), rel=1e-4)
    exits = []
    for which in (score, "margin"):
        rule = lv.generation.EarlyExit(threshold=threshold, score=which)  # type: ignore[arg-type]
        exits.append(lv.generation.generate(module, tokens[:3], 8, early_exit=rule))
    assert torch.equal(exits[0].tokens, exits[1].tokens)
    assert torch.equal(exits[0].exits, exits[1].exits)
    assert len(exits[0].exits.unique()) > 1


@pytest.mark.parametrize("score", [LowRankMargin, CertifiedMargin])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((head_of(torch.eye(3)), 4), r"rank is 4; expected 1\.\.3 for a head of 3 channels"),
        ((head_of(torch.eye(3)), True), r"rank is True; expected 1\.\.3 for a head of 3 channels"),
        ((head_of(torch.eye(3)), 1.5), r"rank is 1.5; expected 1\.\.3 for a head of 3 channels"),
        ((None, 1), "head is None; expected a LinearHead, as halting.linear_head"),
        ((head_of(torch.ones(1, 3)), 1), "a margin of 1 logits; expected at least two"),
        (
            (head_of(torch.eye(3)), 1, torch.ones(5, 2)),
            r"states \(5, 2\) for a head of 3 channels; expected \(\.\.\., 3\)",
        ),
    ],
)
def test_refusals(score: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        score(*arguments)
