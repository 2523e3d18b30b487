"""compare: planted differences of known size are found where they are, and rounding is not mistaken for one."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from loopverify.comparing.compare import compare
from loopverify.models import LoopedTransformer, TransformerConfig
from tests.loopverify.comparing.compared import DELTA, TOKENS, RunningMean, Step, V, some_tokens, toy, transformer


def scaled_from(loop: int, factor: float) -> Step:
    return lambda state, context, k: 2 * state * (factor if k >= loop else 1)


def test_a_model_is_identical_to_itself() -> None:
    comparison = compare(toy(), toy(), TOKENS)
    assert (comparison.agreement, comparison.agrees, comparison.first, comparison.growth) == (
        "identical",
        True,
        None,
        None,
    )
    assert [entry.loop for entry in comparison.run] == list(range(9))
    assert {entry.state.error for entry in (*comparison.run, *comparison.steps) if entry.state} == {0.0}


def test_a_faulty_step_is_named_with_its_size_and_the_run_shows_how_it_accumulates() -> None:
    comparison = compare(toy(), toy(scaled_from(3, 1 + DELTA)), TOKENS, loops=6)
    first = comparison.first
    assert first is not None
    assert (comparison.agreement, first.loop, first.quantity, first.of) == ("differs", 3, "scale", "step")
    assert first.gap.error == pytest.approx(DELTA, rel=1e-12)
    assert first.gap.ulps == pytest.approx(DELTA * 2**52, rel=1e-12)
    for entry, step in zip(comparison.run, comparison.steps, strict=True):
        faulty = max(0, entry.loop - 2)
        assert entry.state is not None
        assert step.state is not None
        assert entry.state.error == pytest.approx((1 + DELTA) ** faulty - 1, rel=1e-12)
        assert step.state.error == (pytest.approx(DELTA, rel=1e-12) if faulty else 0)


def test_a_state_that_turns_has_lost_its_direction_and_not_its_scale() -> None:
    angle = 0.01

    def turn(state: Tensor, context: None, loop: int) -> Tensor:
        if loop != 2:
            return 2 * state
        x, y = state.chunk(2, dim=-1)
        return 2 * torch.cat([x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)], -1)

    comparison = compare(toy(), toy(turn), TOKENS, loops=3)
    assert comparison.first is not None
    assert (comparison.first.loop, comparison.first.quantity) == (2, "direction")
    assert comparison.first.gap.error == pytest.approx(2 * math.sin(angle / 2), rel=1e-9)  # the chord


def test_a_change_of_scale_and_direction_is_one_of_the_state_at_the_token_where_it_is_largest() -> None:
    def nudge(state: Tensor, context: None, loop: int) -> Tensor:
        state = 2 * state
        state[1, 2, 0] += DELTA * (loop == 4)
        return state

    comparison = compare(toy(), toy(nudge), TOKENS, loops=4)
    assert comparison.first is not None
    assert (comparison.first.loop, comparison.first.quantity, comparison.first.gap.token) == (4, "state", (1, 2))
    # rms of H_4 = 16 (1, .., 2, .., 1): 16·√((5 + 4)/6); rms of the change: δ/√6
    assert comparison.first.gap.error == pytest.approx(DELTA / (16 * 3), rel=1e-12)


def test_a_faulty_readout_is_distinguished_from_a_faulty_step() -> None:
    read = toy(readout=lambda state, context, loop, loops: state * (1 + DELTA if loop == 2 else 1))
    first = compare(toy(), read, TOKENS, loops=4).first
    assert first is not None
    assert (first.loop, first.quantity, first.gap.error) == (2, "logits", DELTA)


def test_a_faulty_embedding_is_loop_0() -> None:
    other = dataclasses.replace(toy(), embed=lambda tokens: (2 + nn.functional.one_hot(tokens, V).double(), None))
    comparison = compare(toy(), other, TOKENS, loops=2)
    assert comparison.first is not None
    assert (comparison.first.loop, comparison.first.quantity) == (0, "state")
    # a: (2, 1, 1, 1, 1, 1) with rms √(9/6); b − a is 1 in every channel
    assert comparison.first.gap.error == pytest.approx(math.sqrt(6 / 9))
    assert "They first differ at the embedding: state off by 0.82 =" in str(comparison)


def test_flips_and_cross_entropy_have_closed_forms() -> None:
    first_of_two = toy(readout=lambda state, context, loop, loops: torch.tensor([1.0, 0.0]).expand(2, 3, 2))
    other = toy(readout=lambda state, context, loop, loops: torch.tensor([1.0, 3.0]).expand(2, 3, 2))
    targets = torch.tensor([[0, 0, -100], [0, 0, 0]])
    entry = compare(first_of_two, other, TOKENS, loops=1, targets=targets).run[1]
    assert entry.argmax_flips == 6
    assert entry.cross_entropy == pytest.approx(math.log1p(math.exp(2)) - math.log1p(math.exp(-1)))
    assert entry.logits is not None
    assert entry.logits.error == 3.0


def test_what_only_accumulates_is_drift_at_its_known_rate() -> None:
    """h -> 3h - 2 triples every error around its fixed point 1, however it is written."""
    spread = 1 + 1e-6 * torch.rand(V, 64, generator=torch.Generator().manual_seed(0))
    a, b = (
        dataclasses.replace(toy(step), embed=lambda tokens: (spread[tokens], None))
        for step in (lambda h, context, loop: 3 * h - 2, lambda h, context, loop: h + 2 * (h - 1))
    )
    comparison = compare(a, b, TOKENS, loops=10)
    assert (comparison.agreement, comparison.agrees, comparison.steps_agree) == ("drift", False, True)
    assert comparison.growth == pytest.approx(3, rel=0.1)
    assert comparison.first is not None
    assert comparison.first.of == "run"
    assert "No step is at fault" in " ".join(str(comparison).split())
    assert compare(a, b, TOKENS, loops=2).agreement == "rounding"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("width", [16, 64, 256])
def test_the_default_tolerance_holds_rounding_of_float32_and_little_more(width: int, seed: int) -> None:
    torch.manual_seed(seed)
    exact = LoopedTransformer(TransformerConfig(vocab_size=50, d_model=width, d_ff=2 * width, init_std=0.1)).eval()
    model = copy.deepcopy(exact)
    comparison = compare(exact.double().looped(), model.looped(), some_tokens())
    assert comparison.agreement == "rounding"
    worst = max(gap.error for entry in comparison.steps for gap in (entry.state, entry.logits) if gap)
    assert worst < comparison.tolerance < 100 * worst


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_agrees_with_float32_and_is_measured_in_its_own_ulps(dtype: torch.dtype) -> None:
    model = transformer()
    comparison = compare(model.looped(), copy.deepcopy(model).to(dtype).looped(), some_tokens())
    assert comparison.agreement == "rounding"
    assert comparison.dtype == str(dtype).removeprefix("torch.")
    state = comparison.run[1].state
    assert state is not None
    assert state.ulps == pytest.approx(state.error / torch.finfo(dtype).eps)
    assert 0.1 < state.ulps < 10


def test_a_fault_is_found_below_half_precision_s_rounding_of_a_whole_run() -> None:
    model = transformer(init_std=0.2)
    other = copy.deepcopy(model).bfloat16()
    assert isinstance(other.layers[1].mlp_mix.down, nn.Linear)
    with torch.no_grad():
        other.layers[1].mlp_mix.down.weight.mul_(1.1)
    first = compare(model.looped(), other.looped(), some_tokens()).first
    assert first is not None
    assert (first.loop, first.sublayer) == (1, "layers.1.mlp")


FAULTS: dict[str, tuple[Callable[[LoopedTransformer], None], str | None]] = {
    "epsilon of a norm": (lambda m: setattr(m.layers[1].mlp_norm, "eps", 1e-5), "layers.1.mlp"),
    "rotary base": (
        lambda m: setattr(m, "config", dataclasses.replace(m.config, rope_theta=5e3)),
        "layers.0.attention",
    ),
    "heads swapped": (
        lambda m: m.layers[0].attention_mix.out.weight.data.copy_(
            m.layers[0].attention_mix.out.weight.data.roll(32, 1)
        ),
        "layers.0.attention",
    ),
    "a gain": (lambda m: m.layers[1].attention_norm.weight.data.mul_(1 + 1e-4), "layers.1.attention"),
    "the head": (lambda m: m.head.weight.data[7].mul_(1 + 1e-3), None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_of_a_port_is_found_in_its_sublayer(fault: str) -> None:
    plant, sublayer = FAULTS[fault]
    model = transformer()
    other = copy.deepcopy(model)
    plant(other)
    comparison = compare(model.looped(), other.looped(), some_tokens())
    assert comparison.first is not None
    assert (comparison.agreement, comparison.first.loop, comparison.first.sublayer) == ("differs", 1, sublayer)
    assert comparison.first.quantity == ("logits" if sublayer is None else comparison.first.quantity)


def test_a_difference_outside_of_the_sublayers_and_another_number_of_them_are_said() -> None:
    model = transformer().looped()
    shrunk = dataclasses.replace(model, step=lambda h, context, loop: 0.99 * model.step(h, context, loop))
    first = compare(model, shrunk, some_tokens()).first
    assert first is not None
    assert (first.quantity, first.sublayer) == ("scale", None)
    assert "outside of them" in first.note
    assert first.note in " ".join(str(compare(model, shrunk, some_tokens())).split())

    deeper = transformer(layers=3).looped()
    other = dataclasses.replace(deeper, embed=model.embed, readout=model.readout)
    assert compare(model, other, some_tokens()).first.note == "a has 4 sublayers per loop, b has 6"  # type: ignore[union-attr]


def test_one_loop_count_against_another() -> None:
    per_exit = transformer().looped()
    assert compare(per_exit, per_exit, some_tokens(), loops=8, loops_b=4).agreement == "identical"
    final_only = transformer(readout="final_only").looped()
    comparison = compare(final_only, final_only, some_tokens(), loops=8, loops_b=4)
    assert [entry.loop for entry in comparison.run] == [0, 1, 2, 3, 4]
    assert comparison.first is not None
    assert (comparison.first.loop, comparison.first.quantity) == (4, "logits")


@pytest.mark.parametrize("path", ["decode", "again"])
def test_a_complete_cache_agrees_with_the_whole_forward(path: str) -> None:
    model = RunningMean("each loop").looped()
    comparison = compare(model, model, TOKENS, loops=4, path=path)
    assert comparison.agrees
    assert (comparison.b.path, comparison.steps, comparison.growth) == (path, (), None)
    assert [entry.state for entry in comparison.run] == [None] * 4


def test_a_cache_of_the_last_loop_only_differs_at_the_second_loop() -> None:
    model = RunningMean("last loop").looped()
    comparison = compare(model, model, TOKENS, loops=4, path="decode")
    assert comparison.first is not None
    assert (comparison.agreement, comparison.first.loop, comparison.first.quantity) == ("differs", 2, "logits")
    assert "through 'decode'" in str(comparison)


def test_numbers_that_are_not_finite_never_agree() -> None:
    comparison = compare(toy(), toy(lambda h, context, loop: h * (math.nan if loop == 2 else 2)), TOKENS, loops=3)
    assert comparison.first is not None
    assert (comparison.first.loop, comparison.first.gap.error) == (2, math.inf)
    record = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert record["first"]["gap"]["error"] == "inf"
    both = toy(lambda h, context, loop: h * math.nan)
    assert not compare(both, both, TOKENS, loops=1).agrees


def test_a_tolerance_of_ones_own_replaces_the_default() -> None:
    other = toy(scaled_from(1, 1 + DELTA))
    assert compare(toy(), other, TOKENS, loops=4, tolerance=2 * DELTA).agreement == "rounding"
    assert compare(toy(), other, TOKENS, loops=4, tolerance=DELTA / 2).agreement == "differs"
    assert compare(toy(), toy(), TOKENS, loops=4, tolerance=0).agreement == "identical"


def test_both_models_are_left_as_they_were_and_random_states_are_paired() -> None:
    model = transformer(dropout=0.5).train()
    noisy = dataclasses.replace(
        model.looped(), embed=lambda tokens: (torch.randn(*tokens.shape, 64), model.embed(tokens)[1])
    )
    state = torch.get_rng_state()
    assert compare(noisy, noisy, some_tokens()).agreement == "identical"
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_text_fits_one_screen_and_names_the_difference() -> None:
    model = transformer()
    other = copy.deepcopy(model)
    other.layers[1].mlp_norm.eps = 1e-5  # type: ignore[union-attr]
    text = str(compare(model.looped("old"), other.looped("new"), some_tokens(), loops=32, targets=some_tokens()))
    lines = text.splitlines()
    assert len(lines) < 25
    assert max(map(len, lines)) <= 100
    assert lines[0] == "old (a) and new (b): DIFFER"
    flat = " ".join(text.split())
    assert "They first differ at loop 1: state off by" in flat
    assert "first in sublayer layers.1.mlp." in flat


def test_an_agreement_that_says_little_says_so() -> None:
    model = transformer()
    half = compare(model.looped(), copy.deepcopy(model).bfloat16().looped(), some_tokens())
    assert "agreement within so wide a tolerance excludes gross faults only" in " ".join(str(half).split())
    assert "gross faults" not in str(compare(model.looped(), model.looped(), some_tokens()))
