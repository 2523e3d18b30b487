"""Every reference recurrence against its closed form, and its carry against the limit that defines it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.models.recurrences import FACTORIES, TinyBlock, deep_norm, input_injection, linear_decay

TOKENS = torch.tensor([[0, 3, 9], [10, 4, 4]])
LOOPS = 6

CARRY = {
    "pre_norm": 1.0,
    "sandwich": 1.0,
    "doubling": 2.0,
    "linear_decay": 0.5,
    "post_norm": 0.0,
    "deep_norm": 0.0,
    "input_injection": 0.0,
}


def block(**options: object) -> TinyBlock:
    return TinyBlock(**options).double()


def scale(state: Tensor) -> Tensor:
    return state.square().mean(-1).sqrt()


def test_every_factory_is_listed_under_its_name() -> None:
    assert set(FACTORIES) == set(CARRY)
    for name, factory in FACTORIES.items():
        assert factory().name == name


@pytest.mark.parametrize("name", CARRY)
def test_the_carry_is_the_stated_one(name: str) -> None:
    model = FACTORIES[name](block())
    state, context = model.embed(TOKENS)
    low, high = (scale(model.step(alpha * state, context, 1)) for alpha in (1e6, 2e6))
    carry = (high - low) / (1e6 * scale(state))
    torch.testing.assert_close(carry, torch.full_like(carry, CARRY[name]), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pre_norm", lambda k: 1 + 0.25 * k),
        ("sandwich", lambda k: 1 + k),
        ("doubling", lambda k: 2**k + 0.25 * (2**k - 1)),
        ("linear_decay", lambda k: 0.5**k + 0.25 * (1 - 0.5**k) / 0.5),
        ("post_norm", lambda k: 1.0),
        ("deep_norm", lambda k: 1.0),
        ("input_injection", lambda k: 1.0),
    ],
)
def test_without_turning_the_scale_follows_its_formula(name: str, expected: object) -> None:
    trace = lv.unroll(FACTORIES[name](block(push=0.25, turn=0.0)), TOKENS, loops=LOOPS)
    for k, state in enumerate(trace.states):
        torch.testing.assert_close(scale(state), torch.full_like(scale(state), expected(k)), rtol=1e-6, atol=0)
        torch.testing.assert_close(state / scale(state)[..., None], trace.states[0], rtol=1e-6, atol=1e-6)


def numpy_steps(weights: dict[str, np.ndarray], push: float, turn: float) -> dict[str, object]:
    def unit(H: np.ndarray) -> np.ndarray:
        return H / np.sqrt((H**2).mean(-1, keepdims=True))

    def b(H: np.ndarray) -> np.ndarray:
        v = np.tanh(H @ weights["inner"].T) @ weights["outer"].T
        v = v - np.stack([h * (h @ w) / (h @ h) for h, w in zip(H, v, strict=True)])
        return push * H + turn * v

    def inject(H: np.ndarray, H0: np.ndarray) -> np.ndarray:
        x = 0.5 * H + 0.5 * H0
        return unit(x + b(unit(x)))

    return {
        "pre_norm": lambda H, _: H + b(unit(H)),
        "sandwich": lambda H, _: H + unit(b(unit(H))),
        "doubling": lambda H, _: 2 * H + b(unit(H)),
        "linear_decay": lambda H, _: 0.5 * H + b(unit(H)),
        "post_norm": lambda H, _: unit(H + b(H)),
        "deep_norm": lambda H, _: unit(2 * H + b(H)),
        "input_injection": inject,
    }


@pytest.mark.parametrize("name", CARRY)
def test_every_state_equals_the_transcription(name: str) -> None:
    ours = block(push=0.3, turn=0.7)
    step = numpy_steps({key: value.numpy() for key, value in ours.state_dict().items()}, 0.3, 0.7)[name]
    trace = lv.unroll(FACTORIES[name](ours), TOKENS, loops=LOOPS)
    start = H = trace.states[0].reshape(-1, 16).detach().numpy()
    for state in trace.states[1:]:
        H = step(H, start)
        np.testing.assert_allclose(state.reshape(-1, 16).detach().numpy(), H, rtol=1e-9, atol=1e-9)


def test_the_branch_pushes_by_exactly_its_push_and_turns_besides() -> None:
    ours = block(push=-0.4, turn=0.6)
    u = ours.embed(TOKENS)[0]
    u = u / scale(u)[..., None]  # the table was normalized in float32
    b = ours.branch(u)
    radial = (b * u).mean(-1)
    torch.testing.assert_close(radial, torch.full_like(radial, -0.4), rtol=1e-9, atol=0)
    assert (b - radial[..., None] * u).square().mean(-1).sqrt().min() > 0.05


@pytest.mark.parametrize("name", ["pre_norm", "sandwich", "doubling", "linear_decay"])
def test_declared_branches_sum_to_the_step(name: str) -> None:
    model = FACTORIES[name](block())
    state, context = model.embed(TOKENS)
    total = state + sum(out for _, out in model.branches(state, context, 1))
    torch.testing.assert_close(total, model.step(state, context, 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["post_norm", "deep_norm", "input_injection"])
def test_a_step_that_ends_in_a_norm_declares_no_branches(name: str) -> None:
    assert FACTORIES[name]().branches is None


@pytest.mark.parametrize("name", CARRY)
@pytest.mark.parametrize("readout", ["rmsnorm", "raw"])
def test_a_gradient_flows_through_all_loops_and_to_all_parameters(name: str, readout: str) -> None:
    ours = block(readout=readout)
    trace = lv.unroll(FACTORIES[name](ours), TOKENS, grad=True)
    lv.objectives.named("terminal")(trace, TOKENS).total.backward()
    assert {key for key, p in ours.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0} == {
        "table",
        "inner",
        "outer",
        "head",
    }


def test_the_readout_hides_the_scale_or_shows_it() -> None:
    for readout, grown in (("rmsnorm", 1.0), ("raw", 5.0)):
        ours = block(readout=readout)
        state, context = ours.embed(TOKENS)
        shown, scaled = (ours.readout(factor * state, context, 1, 4) for factor in (1.0, 5.0))
        torch.testing.assert_close(scaled, grown * shown, rtol=1e-10, atol=1e-12)


def test_blocks_come_from_their_seed_alone() -> None:
    before = torch.get_rng_state()
    a, b, other = TinyBlock(seed=4), TinyBlock(seed=4), TinyBlock(seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a.inner, b.inner)
    assert not torch.equal(a.inner, other.inner)


def test_the_factors_are_free() -> None:
    state, context = (part.detach() for part in block().embed(TOKENS))
    still = block(push=0.0, turn=0.0)
    torch.testing.assert_close(linear_decay(still, decay=0.3).step(state, context, 1), 0.3 * state, rtol=1e-9, atol=0)
    pulled = input_injection(still, share=1.0).step(torch.randn_like(state), context, 1)
    torch.testing.assert_close(pulled, state, rtol=1e-6, atol=1e-9)
    turning = block(push=0.0, turn=1.0)
    turns = [(deep_norm(turning, alpha=a).step(state, context, 1) - state).norm().item() for a in (10.0, 100.0)]
    assert turns[0] / turns[1] == pytest.approx(10, rel=1e-2)


def test_factors_and_readouts_that_are_none_are_refused() -> None:
    for decay in (0.0, 1.0, float("nan")):
        with pytest.raises(InputError, match=rf"decay is {decay}; expected a factor in \(0, 1\)"):
            linear_decay(decay=decay)
    with pytest.raises(InputError, match="unknown readout 'norm'; expected one of: rmsnorm, raw"):
        TinyBlock(readout="norm")  # type: ignore[arg-type]
