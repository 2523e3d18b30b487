"""What exits do to quality, against the full forward, in which every key there is is known."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import loopverify as lv
from loopverify.errors import InputError
from loopverify.generation import MISSING, EarlyExit, exit_effect
from loopverify.halting.calibration import calibrate, halt
from loopverify.halting.exit_table import exit_table
from tests.loopverify.generation.test_cached import V, transformer
from tests.loopverify.generation.test_generation import exits_of

TOKENS = torch.randint(V, (6, 10), generator=torch.Generator().manual_seed(5))
TARGETS = torch.randint(V, (6, 10), generator=torch.Generator().manual_seed(6))
BATCHES = [(TOKENS[:4], TARGETS[:4]), (TOKENS[4:], TARGETS[4:])]


def test_recomputed_exits_cost_what_the_table_of_the_full_forward_says() -> None:
    module = transformer().double()
    # Targets that depth finds: what is likeliest at its end.
    full = lv.unroll(module.looped(), TOKENS).logits(4)
    batches = [
        (tokens, full.argmax(-1)[rows]) for (tokens, _), rows in zip(BATCHES, (slice(4), slice(4, 6)), strict=True)
    ]
    threshold = calibrate(exit_table(module.looped(), batches, by="token"), 1.1)
    (found,) = exit_effect(module, batches, EarlyExit(threshold=threshold), rules=("recompute",), prefix=0)
    expected = halt(exit_table(module.looped(), batches, by="token"), threshold)
    assert 1 < expected.average_loops < 4, "a case with several exits"
    assert found.selected_loops == expected.average_loops
    assert found.loss == pytest.approx(expected.loss)
    assert found.full_loss == pytest.approx(expected.exit_losses[-1])
    assert found.perplexity_ratio == pytest.approx(expected.dynamic_perplexity / expected.fixed_perplexity)
    assert found.perplexity_ratio <= 1.1
    _, logits = exits_of(module, TOKENS, threshold)
    assert found.agreement == pytest.approx((logits.argmax(-1) == full.argmax(-1)).double().mean().item())
    assert (found.tokens, found.loops, found.missing, found.score) == (60, 4, "recompute", "margin")


def test_without_early_exits_all_rules_are_full_depth() -> None:
    module = transformer(readout="final_only").double()
    few = TARGETS.clone()
    few[:, 5] = -100
    found = exit_effect(module, [(TOKENS, few)], EarlyExit(threshold=math.inf), prefix=3)
    logits = lv.unroll(module.looped(), TOKENS).logits(4)[:, 3:]
    loss = F.cross_entropy(logits.flatten(0, 1), few[:, 3:].flatten())
    for effect in found:
        assert (effect.selected_loops, effect.executed_loops, effect.agreement, effect.tokens) == (4, 4, 1, 36)
        assert effect.loss == pytest.approx(loss.item())
        assert effect.full_loss == pytest.approx(loss.item())
    assert [effect.missing for effect in found] == list(MISSING)


def test_refusals() -> None:
    rule = EarlyExit(threshold=0)
    for prefix in (10, 1.5):
        with pytest.raises(
            InputError, match=rf"prefix is {prefix}; expected 0\.\.9, so that sequences of 10 go on after it"
        ):
            exit_effect(transformer(), BATCHES, rule, prefix=prefix)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"early_exit is 2\.0; expected an EarlyExit\(threshold=\.\.\.\)"):
        exit_effect(transformer(), BATCHES, 2.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown rule for missing keys 'hope'"):
        exit_effect(transformer(), BATCHES, rule, rules=("hope",))
