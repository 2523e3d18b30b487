"""Models with one planted fault each. What is learned and reported: gradients, exits, rounding and units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import loopverify as lv
from tests.loopverify.checks.clean import CachedTransformer, D, GatedTransformer
from tests.loopverify.checks.planting import trips

# --- gradients


@trips("state_gradient", "no gradient flows from H_2 back to H_1.*remove the detach")
class CutsTheRecurrence(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return super().step(state.detach() if loop == 2 else state, context, loop)


@trips("state_gradient", "the gradient of the logits of exit 3 at H_0 is 0")
class ConnectedByNothing(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return super().step(state.detach(), context, loop) + 0 * state


@trips("gradient_is_derivative", "is not the derivative of the forward.*part of the step is detached")
class DetachedScale(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        following = super().step(state, context, loop)
        return following / following.detach().norm(dim=-1, keepdim=True)


@trips("parameter_gradient", r"no gradient reaches layers\.1\..*a hard-coded number of layers")
class OneLayerHardCoded(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return self.layers[0](state, context)

    def branches(self, state: Tensor, context: Any, loop: int) -> list[tuple[str, Tensor]]:
        return super().branches(state, context, loop)[:2]


@trips("parameter_gradient", r"no gradient reaches gate\.weight, gate\.bias")
class GateThatNoLossFeels(GatedTransformer):
    def gates(self, trace: lv.Trace) -> Tensor:
        return super().gates(trace).detach()


@trips("optimizer_step", "gradient is not finite.*derivative of a norm at zero")
class NormWithoutEpsilonAtZero(CachedTransformer):
    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state, _ = super().embed(tokens)
        return 0 * state, state

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        size = state.square().mean(-1, keepdim=True).sqrt()
        return state / (size + 1e-3) + self.layers[0].mlp(context, None)


@trips(
    "penalty_gradient",
    "radial gradient of the norm penalty at H_1 is 0, but its value changes by.*logged and has no effect",
)
class PenaltyWithoutGradient(CachedTransformer):
    @torch.no_grad()
    def penalty(self, trace: lv.Trace) -> Tensor:
        return 0.01 * torch.stack([state.square().mean() for state in trace.states[1:]]).mean()

    def looped(self, name: str | None = None) -> lv.Looped:
        return replace(super().looped(name), penalty=self.penalty)


# --- numerics and reports


class SquaresInHalf(nn.Module):
    """An RMSNorm whose squares overflow in float16 above 256."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(D)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        square = x.half().square().mean(-1, keepdim=True).to(x)
        return x * (square + self.eps).rsqrt() * self.weight


@trips("norm_numerics", "readout_norm in .* at rms .*squares or their mean in half precision")
class NormInHalfPrecision(CachedTransformer):
    def __init__(self) -> None:
        super().__init__()
        self.readout_norm = SquaresInHalf()


class OtherEpsilon(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, 1e-2)


@trips("norm_numerics", "readout_norm in .* at rms .*an epsilon other than the module states")
class NormWithAnotherEpsilon(CachedTransformer):
    def __init__(self) -> None:
        super().__init__()
        self.readout_norm = OtherEpsilon(D, eps=1e-6)


@trips("half_precision_trajectory", "in bfloat16, H_[123] differs from the run in torch.float32.*difference of two")
class CancelsLargeNumbers(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return (super().step(state, context, loop) + 1000) - 1000


@trips("units", r"the reported 'rms' is 4 times the definition, a factor of sqrt\(d\) for d = 16")
class PrintsL2BesideRms(CachedTransformer):
    def looped(self, name: str | None = None) -> lv.Looped:
        return replace(super().looped(name), reports={"rms": lambda state: state.norm(dim=-1)})


@trips("units", r"the reported 'a_rad' is 16 times the definition, a factor of d for d = 16.*divide by d")
class ReportsDTimesRadial(CachedTransformer):
    def looped(self, name: str | None = None) -> lv.Looped:
        def a_rad(state: Tensor, update: Tensor) -> Tensor:
            return (state / state.square().mean(-1, keepdim=True).sqrt() * update).sum(-1)

        return replace(super().looped(name), reports={"a_rad": a_rad})


# --- exits


@trips("exit_probabilities", "exit probabilities do not sum to 1.*last exit does not take the rest")
class LastExitTakesItsGate(GatedTransformer):
    def exit_probabilities(self, trace: lv.Trace) -> Tensor:
        gates = self.gates(trace)
        stay = (1 - gates).cumprod(-1)
        return gates * torch.cat([torch.ones_like(stay[..., :1]), stay[..., :-1]], -1)


@trips("exit_probabilities", "exit probabilities leave .0, 1.")
class GateWithoutSigmoid(GatedTransformer):
    def gates(self, trace: lv.Trace) -> Tensor:
        return super().gates(trace).logit()


class HalfGates(GatedTransformer):
    """Strong gates on the raw state, computed in the dtype of the states."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.gate.weight)
        nn.init.constant_(self.gate.bias, -1.0)

    def gates(self, trace: lv.Trace) -> Tensor:
        return torch.cat([self.gate(state) for state in trace.states[1:]], -1).sigmoid()


@trips("exit_half_precision", "in bfloat16, .* exit probabilities do not sum to 1.*computed in bfloat16")
class GatesInHalfPrecision(HalfGates):
    pass


@trips("exit_threshold", "a higher threshold makes tokens exit earlier.*wrong quantity")
class ThresholdOnStaying(GatedTransformer):
    def choose_exit(self, trace: lv.Trace, threshold: float) -> Tensor:
        return super().choose_exit(trace, 1 - threshold)


@trips("exit_threshold", r"chosen exits are torch.int64 .* in 0\.\.\d, expected int64 .* in 1\.\.8.*counted from 0")
class ExitsFromZero(GatedTransformer):
    def choose_exit(self, trace: lv.Trace, threshold: float) -> Tensor:
        return super().choose_exit(trace, threshold) - 1


@trips("never_exit_early", "a threshold of 1.0 exits early.*rounds to 1")
class RunningSumReachesOneEarly(HalfGates):
    def choose_exit(self, trace: lv.Trace, threshold: float) -> Tensor:
        reached = self.exit_probabilities(trace).cumsum(-1) >= threshold
        reached[..., -1] = True
        return reached.int().argmax(-1) + 1
