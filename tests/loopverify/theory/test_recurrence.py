"""Carry: the factor in closed form for recurrences of each kind, its names, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.models import LoopedTransformer, TransformerConfig
from loopverify.theory import carry, carry_kind


def normed(H: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(H, H.shape[-1:], eps=1e-6)


@pytest.mark.parametrize(
    ("step", "kind", "factor"),
    [
        (lambda H: H + normed(H), "carried", 1.0),
        (lambda H: H + 100 * normed(H), "carried", 1.0),  # an update as large as a hundred states shifts no slope
        (lambda H: 2 * H + normed(H), "amplified", 2.0),  # its own residual output added again
        (lambda H: 0.9 * H + normed(H), "damped", 0.9),
        (lambda H: -0.5 * H, "damped", 0.5),
        (normed, "removed", 0.0),
        (lambda H: normed(H + torch.tanh(H)), "removed", 0.0),  # a post-norm, with no norm at the boundary
        (lambda H: torch.tanh(H), "removed", 0.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_kinds_and_factors(step: object, kind: str, factor: float, dtype: torch.dtype) -> None:
    found = carry(step, torch.randn(3, 5, 16).to(dtype))  # type: ignore[arg-type]
    assert found.kind == kind
    # Two rms values of relative error eps·√(1/d), divided by a range of 0.9: float32 leaves 1e-7, bfloat16 2e-3.
    assert found.factor == pytest.approx(factor, abs=2 * torch.finfo(dtype).eps + 1e-9)
    assert found.factors.shape == (3, 5)
    assert found.ratios.shape == (3, 3, 5)


def test_ratios_approach_the_factor_as_one_over_alpha() -> None:
    """s = 1, F(αH) = αH + 3u: ratio 1 + 3/α, slope 1."""
    H = torch.ones(4, dtype=torch.float64)
    found = carry(lambda x: x + 3 * normed(x), H, alphas=(10, 100, 1000))
    assert found.ratios.tolist() == pytest.approx([1.3, 1.03, 1.003], rel=1e-6)
    assert found.factor == pytest.approx(1.0, abs=1e-9)
    assert found.alphas == (10.0, 100.0, 1000.0)


def test_a_zero_token_has_no_factor_and_does_not_spoil_the_others() -> None:
    H = torch.tensor([[0.0, 0.0], [1.0, 2.0], [2.0, 1.0]])
    found = carry(lambda x: 0.5 * x, H)
    assert found.factors[0].isnan()
    assert found.factor == pytest.approx(0.5, rel=1e-6)


def test_tokens_are_scaled_together_and_gradients_are_left_alone() -> None:
    """Each token becomes the mean of all: the factor of the whole state is 1 where tokens agree."""
    weight = torch.ones(4, requires_grad=True)
    H = torch.ones(3, 4)
    found = carry(lambda x: x.mean(0, keepdim=True).expand_as(x) * weight, H)
    assert found.factors.tolist() == pytest.approx([1.0, 1.0, 1.0], rel=1e-5)
    assert not found.factors.requires_grad
    assert weight.grad is None


@pytest.mark.parametrize(("norm", "kind"), [("none", "carried"), ("own", "removed"), ("shared", "removed")])
def test_the_reference_model(norm: str, kind: str) -> None:
    config = TransformerConfig(vocab_size=7, d_model=16, heads=2, d_ff=16, inter_loop_norm=norm)  # type: ignore[arg-type]
    model = LoopedTransformer(config).eval()
    H, context = model.embed(torch.arange(7)[None])
    assert carry(lambda x: model.step(x, context, 1), H).kind == kind


def test_names_of_factors_and_their_limits() -> None:
    named = {1.03: "amplified", 1.01: "carried", 0.99: "carried", 0.97: "damped", 0.03: "damped", 0.01: "removed"}
    assert {factor: carry_kind(factor, 0.02) for factor in named} == named


def test_messages() -> None:
    H = torch.ones(4)
    for alphas in [(10.0,), (100.0, 10.0), (0.0, 1.0), (10.0, 10.0)]:
        with pytest.raises(InputError, match=r"alphas are .*; expected at least two, positive and increasing"):
            carry(lambda x: x, H, alphas=alphas)
    with pytest.raises(InputError, match=r"every token of H \(4,\) is zero; expected a state with a scale"):
        carry(lambda x: x, torch.zeros(4))
    with pytest.raises(InputError, match=r"step turned \(4,\) into \(2,\); expected the shape of the state"):
        carry(lambda x: x[:2], H)
    with pytest.raises(InputError, match=r"scaled by 100000 gave values that are not finite in torch.float16"):
        carry(lambda x: x + 1, H.half())
