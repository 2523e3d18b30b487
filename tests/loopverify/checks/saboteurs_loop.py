"""Models with one planted fault each. The loop: order and memory of the states, structure of a step, randomness."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import loopverify as lv
from tests.loopverify.checks.clean import CachedTransformer, CausalMix, D, Family, Sandwich
from tests.loopverify.checks.planting import trips

# --- trajectory


@trips("trajectory_order", "H_1 and H_2 are the same state.*only the last state is exposed")
class OnlyTheLastState(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        if loop > 1:
            return state
        for _ in range(self.config.trained_loops):
            state = super().step(state, context, loop)
        return state


@trips("trajectory_order", "H_1 of a run of 2 loops is not H_1 of a run of 4.*remembers an earlier run")
class CountsItsRuns(CachedTransformer):
    runs = 0

    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        self.runs += tokens.shape[1] > 1
        return super().embed(tokens)

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return super().step(state, context, loop) + self.runs // 3


@trips("trajectory_order", "H_2 is not finite.*a division by zero.*the missing epsilon or clamp", alone=True)
class DividesByZero(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return super().step(state, context, loop) / (loop != 2)


@trips("step_reads_state", "a different H_0 of the same size gives the same H_1.*returned one by one")
class Replayed(CachedTransformer):
    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed(tokens)
        states = [state]
        for loop in range(1, 10):
            states.append(super().step(states[-1], context, loop))
        return state, states

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return context[loop]


@trips("state_dtype", "H_2 is torch.bfloat16 on cpu, H_0 is torch.float32.*casts and does not cast back", alone=True)
class CastsAndStays(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        following = super().step(state.float(), context, loop)
        return following.bfloat16() if loop > 1 else following


@trips("state_dtype", "step at loop 1 computes coarser than float32.*rounded inside step and cast back")
class RoundsItsState(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return super().step(state, context, loop).bfloat16().to(state)


class LargeStates(CachedTransformer):
    """States much larger than their updates, as after a long drift."""

    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed(tokens)
        return 1e5 * state, context


@trips("state_dtype", "computes coarser than float32.*keep the residual stream")
class RoundsALargeState(LargeStates):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        # The first loop does not round; states of later loops are in the middle of a step of bfloat16.
        following = super().step(state.bfloat16().to(state), context, loop)
        return following if loop == 1 else following.bfloat16().to(state)


@trips("state_dtype", "computes coarser than float32: at rms 1, equidistant states are not")
class RoundsABranchBesideALargeState(LargeStates):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return state + (super().step(state, context, loop) - state).bfloat16().to(state)


@trips("state_dtype", "computes coarser than float32.*autocast")
class StepsUnderAutocast(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().step(state, context, loop).to(state)


@trips("loops_executed", r"loop 3 calls 1 modules, most loops 19|loop \d calls .*capped by the configuration")
class CappedLoops(CachedTransformer):
    def __init__(self) -> None:
        super().__init__(trained_loops=5)
        self.scale = nn.Linear(D, D)

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return super().step(state, context, loop) if loop <= 4 else state + self.scale(state)


# --- memory


@trips("state_memory", r"step at loop 1 changed H_0 in place.*h = h \+ b")
class AddsInPlace(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        state += self.layers[0].mlp(state, context)
        return state


@trips("state_memory", r"step at loop 1 changed H_0 in place.*write the result to new memory")
class WritesThroughData(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        following = super().step(state, context, loop)
        state.data.copy_(following)
        return following


@trips("state_memory", r"step at loop 2 changed H_1 in place.*one output buffer for all loops")
class OneOutputBuffer(CachedTransformer):
    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed(tokens)
        self.buffer = torch.empty_like(state)
        return state, context

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        self.buffer.data.copy_(super().step(state, context, loop).detach())
        return self.buffer.detach()


@trips("state_memory", r"readout of exit 1 changed H_1 in place")
class NormsInPlace(CachedTransformer):
    def readout(self, state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
        state.data.mul_(0.5)
        return super().readout(state, context, loop, loops)


@trips("step_memory", "called again with the same H_2, returns a different H_3.*kept outside the state")
class ResidualOfThePreviousLoop(CachedTransformer):
    carried: Tensor | float = 0.0

    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        self.carried = 0.0
        return super().embed(tokens)

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        following = super().step(state, context, loop) + self.carried
        self.carried = following.detach() - state.detach()
        return following


@trips("resume", "H_1 resumed for 2 more loops is not H_3 of an unbroken run.*keys of earlier loops")
class KeepsEarlierLoopsInTheContext(Family):
    def __init__(self) -> None:
        super().__init__()
        self.mix = CausalMix()

    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        return self.embedding(tokens), {}

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        context[loop] = self.norm(state)
        return state + self.mix(torch.stack([context[k] for k in sorted(context) if k <= loop]).mean(0))


@trips("model_unchanged", "a forward in eval mode changed average.*updated in eval mode")
class AveragesInEvalMode(CachedTransformer):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(D))

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        following = super().step(state, context, loop)
        self.average.data.lerp_(following.detach().mean((0, 1)).to(self.average), 0.1)
        return following


# --- structure


@trips("residual_identity", "H_1 is not H_0 plus the branches mix, mlp.*before the norm that follows it")
class WrongSideOfTheNorm(Sandwich):
    def branches(self, state: Tensor, context: Any, loop: int) -> list[tuple[str, Tensor]]:
        mixed = self.mix(self.norms[0](state))
        return [("mix", mixed), ("mlp", self.mlp(self.norms[2](state + self.norms[1](mixed))))]

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return state + sum(added for _, added in super().branches(state, context, loop))


@trips("states_before_norm", "H_3 is normalized .* states before it are not.*includes the readout norm")
class LastStateAfterTheNorm(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        state = super().step(state, context, loop)
        return self.readout_norm(state) if loop == self.config.trained_loops else state


@trips("states_before_norm", "normalized, and a step from one of them does not give the next.*continues from a raw")
class HandsOutNormalizedStates(CachedTransformer):
    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state, self.inner = super().embed(tokens)
        self.raw = state
        return state, self.inner

    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        if self.raw.shape != state.shape:
            self.raw = state
        self.raw = super().step(self.raw, context, loop)
        return self.readout_norm(self.raw) + 0 * state


# --- determinism


@trips("determinism", "two forwards .* from H_0 on.*draws the initial state.*seeding it removes.*fix the initial")
class RandomInitialState(CachedTransformer):
    def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
        state, context = super().embed(tokens)
        return state + 0.1 * torch.randn_like(state), context


@trips("determinism", "differ, from H_1 on.*step or readout draws random numbers")
class DropoutStaysOn(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        return F.dropout(super().step(state, context, loop), 0.1, training=True)


@trips("sampled_depth", r"module calls: the depth is sampled.*draw in training mode only")
class SamplesItsDepth(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        for _ in range(int(torch.randint(1, 4, ()))):
            state = super().step(state, context, loop)
        return state


@trips("sampled_depth", "the path 'generate' gives different logits for the same tokens and loops")
class SamplesTheDepthOfAPath(CachedTransformer):
    def looped(self, name: str | None = None) -> lv.Looped:
        def generate(tokens: Tensor, loops: int) -> Tensor:
            return self.full(tokens, random.randint(1, 8))

        return replace(super().looped(name), paths={"generate": generate})


@trips("grad_mode", "with gradients recorded, H_1 differ from those without.*is_grad_enabled")
class AnotherKernelForInference(CachedTransformer):
    def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
        following = super().step(state, context, loop)
        return following if torch.is_grad_enabled() else following.round(decimals=2)
