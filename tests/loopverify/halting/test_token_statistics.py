"""Block-wise statistics against those of all logits, and the scores computed from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.halting import token_statistics
from loopverify.halting.confidence import Arrival, HeadScore, StateChange, Work, named
from loopverify.halting.exit_table import arrival
from loopverify.halting.token_statistics import exit_statistics, head_statistics, linear_head, logit_statistics

ALL = frozenset({"top", "mass", "entropy"})


def transformer(**changes: object) -> lv.models.LoopedTransformer:
    config = {"vocab_size": 11, "d_model": 8, "heads": 2, "d_ff": 16, "init_std": 0.5, **changes}
    return lv.models.LoopedTransformer(lv.models.TransformerConfig(**config)).double()  # type: ignore[arg-type]


def by_hand(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Every field computed from all logits, by sorting and by torch's own distributions and losses."""
    ordered, order = logits.sort(-1, descending=True)
    return {
        "first": ordered[..., 0],
        "second": ordered[..., 1],
        "token": order[..., 0],
        "logsumexp": logits.exp().sum(-1).log(),
        "entropy": torch.distributions.Categorical(logits=logits).entropy(),
        "loss": F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape),
    }


@given(st.integers(2, 23), st.integers(1, 9), st.integers(0, 2**31))
def test_blocks_of_the_vocabulary_say_what_the_whole_says(V: int, block: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    shown = torch.randn(2, 3, 4, generator=draw, dtype=torch.float64)
    weight = torch.randn(V, 4, generator=draw, dtype=torch.float64)
    targets = torch.randint(V, (2, 3), generator=draw)
    targets[0, 0] = -100
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_statistics, "BLOCK", block)
        found = head_statistics(shown, weight, targets=targets, wants=ALL)
    for name, expected in by_hand(shown @ weight.T, targets).items():
        torch.testing.assert_close(getattr(found, name), expected, msg=name)
    assert found.loss[0, 0] == 0


def test_a_tie_over_two_blocks_has_no_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_statistics, "BLOCK", 2)
    weight = torch.tensor([[1.0], [0.0], [2.0], [0.0], [2.0]])
    assert head_statistics(torch.ones(1, 1, 1), weight, wants={"top"}).margin.tolist() == [[0.0]]


def test_logits_of_minus_infinity_are_no_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_statistics, "BLOCK", 2)
    logits = torch.tensor([[[0.0, -torch.inf, 0.0, -torch.inf, 0.0]]])
    found = logit_statistics(logits, wants=ALL)
    assert float(found.entropy) == pytest.approx(torch.tensor(3.0).log().item())  # type: ignore[arg-type]
    assert float(found.top_probability) == pytest.approx(1 / 3)


@pytest.mark.parametrize("readout", lv.models.READOUTS)
def test_any_readout_is_read_as_it_shows_itself(readout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(readout=readout).eval().looped()
    tokens = torch.randint(11, (3, 5))
    trace = lv.unroll(model, tokens)
    assert linear_head(model) is not None
    opaque = replace(model, readout=lambda *args: model.readout(*args))
    assert linear_head(opaque) is None
    monkeypatch.setattr(token_statistics, "LOGITS", 70)  # two tokens of three rows at a time
    for loop in (1, 4):
        expected = by_hand(trace.logits(loop).detach(), tokens)
        for view in (model, opaque):
            found = exit_statistics(view, trace.states[loop], trace.context, loop, 4, targets=tokens, wants=ALL)
            for name, value in expected.items():
                torch.testing.assert_close(getattr(found, name).detach(), value)


def test_half_precision_is_read_in_float32() -> None:
    found = logit_statistics(torch.tensor([[[1.0, 2.0]]], dtype=torch.bfloat16), wants=ALL)
    assert found.margin.dtype == torch.float32


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(InputError, match=r"targets contain 3; expected 0\.\.1 for 2 logits \(-100 leaves a token out"):
        logit_statistics(torch.zeros(1, 1, 2), targets=torch.tensor([[3]]))
    with pytest.raises(InputError, match="a margin of 1 logits; expected at least two"):
        logit_statistics(torch.zeros(1, 1, 1), wants={"top"})


def test_a_readout_of_a_subclass_is_not_passed_over() -> None:
    class Doubled(lv.models.LoopedTransformer):
        def readout(self, *arguments: Any) -> Tensor:
            return 2 * super().readout(*arguments)

    model = Doubled(transformer().config).eval().looped()
    trace = lv.unroll(model, torch.randint(11, (2, 5)))
    assert linear_head(model) is None
    found = exit_statistics(model, trace.states[2], trace.context, 2, 4, wants={"top"})
    torch.testing.assert_close(found.first, trace.logits(2).amax(-1))


def at_exit(loop: int = 2, tokens: int = 7, **changes: object) -> tuple[Arrival, Tensor]:
    model = transformer(**changes).eval().looped()
    trace = lv.unroll(model, torch.randint(11, (3, tokens)))
    return replace(arrival(trace, loop, trace.tokens), work=Work()), trace.logits(loop).detach()


def test_every_nth_token_counts_back_from_the_last() -> None:
    at, logits = at_exit(tokens=7)
    confidence, full = HeadScore("margin", every=3).of(at)
    ordered = logits.sort(-1).values
    torch.testing.assert_close(confidence.detach(), (ordered[..., -1] - ordered[..., -2])[:, [0, 3, 6]])
    assert full is None
    assert at.work.products == 9


def test_a_full_score_pays_once_and_hands_its_reading_on() -> None:
    at, logits = at_exit()
    _, full = HeadScore("negative_entropy").of(at)
    assert full is not None
    torch.testing.assert_close(full.loss.detach(), by_hand(logits, at.tokens)["loss"])
    assert at.work.products == 21


def test_a_settled_state_needs_no_head() -> None:
    at, _ = at_exit()
    confidence, full = StateChange().of(at)
    change = (at.after - at.before).norm(dim=-1) / at.after.norm(dim=-1)
    torch.testing.assert_close(confidence, -change)
    assert full is None
    assert at.work.products == 0


def test_scores_that_cannot_be_are_refused() -> None:
    for every in (0, 2.5):
        with pytest.raises(
            InputError, match=f"every is {every}; expected an integer >= 1: the score uses every n-th token"
        ):
            HeadScore(every=every)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown statistic of the logits 'vibes'; expected one of: margin, max_prob"):
        HeadScore("vibes")
    with pytest.raises(InputError, match="unknown halting score 'vibes'; expected one of: margin, "):
        named("vibes")
