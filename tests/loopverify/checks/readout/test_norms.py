"""Norms found by what they do, and computed independently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import loopverify as lv
from loopverify.checks import CHECKS
from loopverify.checks.readout.norms import norms_of
from loopverify.checks.subject import Subject
from tests.loopverify.checks.clean import D, UnitOffsetNorm, V


class Around(nn.Module):
    """A model whose readout calls one module before the head."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.table, self.watched, self.head = nn.Embedding(V, D), module, nn.Linear(D, V)

    def looped(self) -> lv.Looped:
        return lv.Looped(
            embed=lambda tokens: (self.table(tokens), None),
            step=lambda state, context, loop: state + state.roll(1, -1),
            readout=lambda state, context, loop, loops: self.head(self.watched(state)),
            trained_loops=2,
            module=self,
        )


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], **attributes: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def trained(norm: nn.Module) -> nn.Module:
    """Gain and bias away from one and zero."""
    for parameter in norm.parameters():
        nn.init.normal_(parameter, mean=0.7, std=0.3)
    return norm


def rms(x: np.ndarray) -> np.ndarray:
    return np.sqrt((x**2).mean(-1, keepdims=True))


KNOWN = {
    "rmsnorm": (lambda: trained(nn.RMSNorm(D, eps=1e-5)), lambda x, w: w["weight"] * x / np.sqrt(rms(x) ** 2 + 1e-5)),
    "rmsnorm, no gain": (
        lambda: nn.RMSNorm(D, eps=1e-4, elementwise_affine=False),
        lambda x, w: x / np.sqrt(rms(x) ** 2 + 1e-4),
    ),
    "layernorm": (
        lambda: trained(nn.LayerNorm(D, eps=1e-3)),
        lambda x, w: (
            w["weight"] * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3) + w["bias"]
        ),
    ),
    "gain 1 + w": (UnitOffsetNorm, lambda x, w: (1 + w["weight"]) * x / np.sqrt(rms(x) ** 2 + 1e-5)),
    "epsilon outside": (
        lambda: Function(lambda x: x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-2), eps=1e-2),
        lambda x, w: x / (rms(x) + 1e-2),
    ),
    "clamped": (
        lambda: Function(lambda x: F.normalize(x, dim=-1, eps=1e-2), eps=1e-2),
        lambda x, w: x / np.maximum(np.sqrt((x**2).sum(-1, keepdims=True)), 1e-2),
    ),
    "unit sphere": (
        lambda: Function(lambda x: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt(), eps=1e-6),
        lambda x, w: x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6),
    ),
}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("kind", KNOWN)
def test_a_norm_is_recognized_and_computed_by_its_definition(kind: str, scale: float) -> None:
    make, definition = KNOWN[kind]
    torch.manual_seed(1)
    module = make()
    (norm,) = norms_of(Subject(Around(module).looped()))
    assert norm.name == "watched"
    x = scale * torch.randn(1, 5, D)
    weights = {name: value.detach().double().numpy() for name, value in module.named_parameters()}
    expected = definition(x.double().numpy(), weights)
    np.testing.assert_allclose(norm.exact(x).numpy(), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    "module",
    [nn.Identity(), nn.Tanh(), nn.GELU(), nn.Softmax(-1), nn.Linear(D, D), nn.Dropout(0.1), nn.Hardtanh()],
    ids=lambda module: type(module).__name__,
)
def test_what_does_not_normalize_is_not_taken_for_a_norm(module: nn.Module) -> None:
    assert norms_of(Subject(Around(module).looped())) == []


@pytest.mark.parametrize("kind", KNOWN)
def test_sound_norms_pass(kind: str) -> None:
    torch.manual_seed(1)
    result = CHECKS["norm_numerics"].run(Around(KNOWN[kind][0]()).looped())
    assert result.status == "passed", result
    assert result.value < 1


@pytest.mark.parametrize(
    ("faulty", "where"),
    [
        (lambda x: x * (x.half().square().mean(-1, keepdim=True).to(x) + 1e-6).rsqrt(), "at rms 100"),
        (lambda x: x / x.square().mean(-1, keepdim=True).clamp_min(1e-3).sqrt(), "at rms 0.001"),
        (lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-4).rsqrt(), "at rms 0.001"),
        (lambda x: (x.bfloat16() * x.bfloat16().square().mean(-1, keepdim=True).rsqrt()).to(x), "torch.float32"),
    ],
    ids=["squares in half", "clamped mean square", "another epsilon", "bfloat16 inside"],
)
def test_a_norm_that_is_off_is_found_where_it_is_off_most(faulty: Callable[[Tensor], Tensor], where: str) -> None:
    torch.manual_seed(1)
    result = CHECKS["norm_numerics"].run(Around(Function(faulty, eps=1e-6)).looped())
    assert result.status == "failed", result
    assert where in result.message
    assert result.value > 10
