"""What all measures over held-out batches share: input checks, pooling, and that nothing is changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

import loopverify as lv
from loopverify.errors import InputError
from loopverify.halting.calibration import halting
from loopverify.measures.clamp import clamp_effect
from loopverify.measures.decomposition import decompose
from loopverify.measures.held_out import Batches, over_batches, perplexity, pooled
from loopverify.measures.radial import radial_summary
from loopverify.measures.scale_sweep import scale_sweep
from loopverify.measures.throughput import throughput
from loopverify.measures.variable_depth import variable_depth
from tests.loopverify.closed_form import TARGETS, TOKENS, looped
from tests.loopverify.test_readonly import Restless, everything, trained_a_little

PROBES: dict[str, Callable[[lv.Looped, Batches], object]] = {
    "clamp_effect": clamp_effect,
    "variable_depth": variable_depth,
    "decompose": lambda model, batches: decompose(model, batches, 4, first=2),
    "radial_summary": radial_summary,
    "scale_sweep": scale_sweep,
    "halting": lambda model, batches: halting(model, batches := list(batches), batches),
    # A clock that advances whenever it is read.
    "throughput": lambda model, batches: throughput(model, batches, repeats=1, clock=partial(next, iter(range(99)))),
}
BATCH = (TOKENS, TARGETS)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_nothing_changes_in_any_gradient_mode(probe: str, mode: type) -> None:
    module = trained_a_little()
    before = everything(module)
    expected = PROBES[probe](module.looped(), [BATCH])
    with mode():
        tokens, targets = TOKENS.clone(), TARGETS.clone()  # inference tensors in inference mode
        assert PROBES[probe](module.looped(), iter([(tokens, targets)])) == expected
    assert everything(module) == before
    assert torch.equal(tokens, TOKENS)
    assert torch.equal(targets, TARGETS)


@pytest.mark.parametrize("probe", PROBES)
def test_buffers_and_random_states_are_put_back(probe: str) -> None:
    module = Restless()
    before = everything(module)
    assert PROBES[probe](module.looped(), [BATCH]) == PROBES[probe](module.looped(), [BATCH])
    assert everything(module) == before


@pytest.mark.parametrize("probe", PROBES)
def test_every_probe_looks_at_its_batches(probe: str) -> None:
    with pytest.raises(InputError, match=r"no batches; expected at least one pair .* already consumed\?"):
        PROBES[probe](looped(lambda H: 2 * H), [])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (TOKENS, r"batch 1 is a Tensor; expected a pair of tensors .* passed as \[\(tokens, targets\)\]"),
        ((TOKENS, TARGETS, None), "batch 1 is a tuple; expected a pair"),
        ((TOKENS, [1]), "batch 1 is a tuple; expected a pair"),
        ((TOKENS, TARGETS[:, 1:]), r"targets of batch 1 are torch.int64 \(2, 3\); expected int64 \(2, 4\)"),
        ((TOKENS, TARGETS.float()), "targets of batch 1 are torch.float32"),
        (
            (TOKENS, torch.full_like(TARGETS, -100)),
            "targets of batch 1 are all -100; expected at least one that counts",
        ),
        ((TOKENS, TARGETS + 1), r"targets of batch 1 span 1\.\.5; expected 0\.\.4 for a vocabulary of 5 \(-100 leaves"),
        ((TOKENS, TARGETS - 1), r"targets of batch 1 span -1\.\.3; expected 0\.\.4"),
        ((TOKENS + 1, TARGETS), r"tokens span 1\.\.5; expected 0\.\.4"),
    ],
)
def test_bad_batches_are_refused_by_number(batch: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        variable_depth(looped(lambda H: 2 * H), [BATCH, batch])  # type: ignore[list-item]


def test_other_models_and_loops_are_refused() -> None:
    with pytest.raises(InputError, match=r"got a Linear to measure; expected a loopverify\.Looped"):
        clamp_effect(torch.nn.Linear(2, 2), [BATCH])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="loops is 0; expected an integer >= 1"):
        clamp_effect(looped(lambda H: 2 * H), [BATCH], 0)


def test_a_model_that_writes_to_its_tokens_does_not_reach_the_caller_s() -> None:
    base = looped(lambda H: 2 * H)
    careless = lv.Looped(
        embed=lambda tokens: base.embed(tokens.zero_()), step=base.step, readout=base.readout, trained_loops=4
    )
    tokens, targets = TOKENS.clone(), TARGETS.clone()
    for probe in PROBES.values():
        probe(careless, [(tokens, targets)])
    assert torch.equal(tokens, TOKENS)
    assert torch.equal(targets, TARGETS)


def test_a_sample_says_on_what() -> None:
    half = TARGETS.clone()
    half[0] = -100
    model = looped(lambda H: 2 * H, trained_loops=3, dtype=torch.float32)
    sample, rows = over_batches(
        model, [BATCH, (TOKENS[:1], half[1:]), (TOKENS, half)], None, lambda trace, targets: trace.loops
    )
    assert rows == [3, 3, 3]
    assert (sample.loops, sample.trained_loops, sample.sequences) == (3, 3, 5)
    assert sample.counts == (8, 4, 4)
    assert sample.tokens == 16
    assert (sample.model, sample.dtype, sample.device, sample.seed) == ("closed form", "float32", "cpu", 0)
    assert sample.versions["torch"] == torch.__version__


def test_pooling_weighs_by_tokens() -> None:
    assert pooled([[1.0, 10.0], [4.0, 40.0]], [2, 1]) == pytest.approx((2.0, 20.0))


def test_perplexity_ends_where_floats_do() -> None:
    assert perplexity(math.log(5.4)) == pytest.approx(5.4)
    assert perplexity(708.0) == pytest.approx(math.exp(708.0))
    assert perplexity(710.0) == math.inf
    assert math.isnan(perplexity(math.nan))
