"""Modules built like Huginn (Geiping et al. 2025, arXiv:2502.05171): prelude, a core block with injection, coda.

H_0 is random and H_k is what the core block returns; the prelude's output is injected into every loop by
`transformer.adapter`. A readout is norm, coda, norm, head: `transformer.ln_f` is called twice per readout for any loop
count, and never in the loop, whose blocks end in norms of their own. The latent states that the module returns were
taken after `ln_f`; passed back as `input_states`, they do not resume the run.

Three traps of the module's own forward, and how this adapter avoids them:
1. Every call draws a new initial state. Here the state of a position comes from a generator seeded by
   (state_seed, position), so that it does not depend on batch, length or chunking. With state_seed=None it stays
   random, and "random_state" is declared.
2. The loop count is sampled in training mode, and a single number means "no gradients". Here the pair (0, loops) is
   passed: no loops without and `loops` loops with gradients.
3. Positions start at 0 at every call, and attention masks are ignored. Here the cached positions are passed, and
   `embed_masked` is not offered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopverify.adapters.architecture import Architecture, Options
from loopverify.errors import InputError
from loopverify.looped import Looped

__all__ = ["HUGINN"]


@dataclass(frozen=True, eq=False)
class _Context:
    injected: Tensor
    """The prelude's output (B, T, D)."""
    rope: Tensor


class _Huginn:
    def __init__(self, module: Any, state_seed: int | None) -> None:
        self.module, self.parts, self.state_seed = module, module.transformer, state_seed

    def embed(self, tokens: Tensor) -> tuple[Tensor, _Context]:
        rope = self.module.freqs_cis[:, : tokens.shape[1]]
        injected = self.parts.wte(tokens)
        if self.module.emb_scale != 1:
            injected = injected * self.module.emb_scale
        injected = _apply(self.parts.prelude, injected, rope, range(len(self.parts.prelude)))
        return self._initial(tokens, 0, injected), _Context(injected, rope)

    def step(self, state: Tensor, context: _Context, loop: int) -> Tensor:
        layers = self.parts.core_block
        first = len(self.parts.prelude) + (loop - 1) * len(layers)
        state = self.parts.adapter(torch.cat([state, context.injected], dim=-1))
        return _apply(layers, state, context.rope, range(first, first + len(layers)))

    def readout(self, state: Tensor, context: _Context, loop: int, loops: int) -> Tensor:
        indices = range(-1, -1 - len(self.parts.coda), -1)
        state = _apply(self.parts.coda, self.parts.ln_f(state), context.rope, indices)
        logits: Tensor = self.module.lm_head(self.parts.ln_f(state)).float()
        return logits

    def decode(self, tokens: Tensor, cache: Any, loops: int) -> tuple[Tensor, Any]:
        past = 0 if cache is None else cache.get_seq_length()
        output = self._run(tokens, loops, past, past_key_values=cache, use_cache=True)
        return output.logits, output.past_key_values

    def cache_slots(self, cache: Any) -> int:
        """Slots of the core block in use, loops * core layers in a complete cache. The coda's have indices < 0."""
        return sum(index >= len(self.parts.prelude) for index in cache.key_cache)

    def paths(self) -> dict[str, Callable[[Tensor, int], Tensor]]:
        return {
            "forward": lambda tokens, loops: self._run(tokens, loops, 0).logits,
            "forward_with_labels": lambda tokens, loops: self._run(tokens, loops, 0, labels=tokens).logits,
            "cached_prefill": lambda tokens, loops: self.decode(tokens, None, loops)[0],
        }

    def _run(self, tokens: Tensor, loops: int, past: int, **inputs: object) -> Any:
        positions = past + torch.arange(tokens.shape[1], device=tokens.device)
        state = self._initial(tokens, past, self.parts.wte.weight)
        return self.module(tokens, input_states=state, num_steps=(0, loops), cache_position=positions, **inputs)

    def _initial(self, tokens: Tensor, past: int, like: Tensor) -> Tensor:
        """The initial states of positions past..past+T-1, (B, T, D), with the dtype and device of `like`.

        Seeded ones are drawn on the CPU by the module's own `initialize_state`; the global generator is restored.
        """
        if self.state_seed is None:
            drawn: Tensor = self.module.initialize_state(like.new_zeros(*tokens.shape, like.shape[-1]))
            return drawn
        token = torch.zeros(1, 1, like.shape[-1], dtype=like.dtype)
        with torch.random.fork_rng(devices=[]):
            rows = []
            for position in range(past, past + tokens.shape[1]):
                torch.default_generator.manual_seed(self.state_seed * 1_000_003 + position)
                rows.append(self.module.initialize_state(token))
        return torch.cat(rows, dim=1).to(like.device).repeat(tokens.shape[0], 1, 1)


def _apply(layers: Any, state: Tensor, rope: Tensor, indices: range) -> Tensor:
    for layer, index in zip(layers, indices, strict=True):
        following = layer(state, rope, torch.tensor(index), None, None)
        state = following[0] if isinstance(following, tuple) else following
    return state


def _build(module: Any, options: Options) -> Looped:
    noise = getattr(module.config, "test_time_noise", 0)
    if noise:
        raise InputError(f"test_time_noise is {noise}; expected 0, since noise inside the loop makes two runs differ")
    view = _Huginn(module, options.state_seed)
    return Looped(
        embed=view.embed,
        step=view.step,
        readout=view.readout,
        trained_loops=options.loops(module.config.mean_recurrence),
        name=options.name or "huginn",
        vocab_size=view.parts.wte.num_embeddings,
        module=module,
        decode=view.decode,
        cache_slots=view.cache_slots,
        paths=view.paths(),
        declares=frozenset({"contextual_readout"} | ({"random_state"} if options.state_seed is None else set())),
    )


HUGINN = Architecture(
    name="huginn",
    parts=(
        "transformer.wte",
        "transformer.prelude",
        "transformer.adapter",
        "transformer.core_block",
        "transformer.coda",
        "transformer.ln_f",
        "freqs_cis",
        "emb_scale",
        "initialize_state",
        "lm_head",
        "config.mean_recurrence",
    ),
    build=_build,
)
