"""Modules built like Ouro (Zhu et al. 2025, arXiv:2510.25741): a decoder stack applied `total_ut_steps` times.

`model.norm` ends every loop, and its output has three uses: it is decoded, it feeds the exit gate, and it starts the
next loop. One norm is loop boundary and readout norm, and the module keeps normalized states only. Here H_k is taken
before the norm, which is applied where the state is next used: by the readout, the gate and loops 2..K. Loop 1 starts
from the embedding without a norm ('uneven_loops').

With labels, the module returns logits averaged over its exits; without, those of the exit that its threshold selects,
the last one at the default threshold of 1. The path `forward_with_labels` is listed nevertheless; the view declares
'labels_mix_exits'.

Exit probabilities are computed in the dtype of the gate's output, as the module does. Each exit but the last rounds
twice, so with unit roundoff u they sum to 1 within (1 + u)^(2 (K - 1)) - 1: for K = 4, 2.4 % in bfloat16 and 4e-7 in
float32. A threshold is no more precise than that, so check `exit_half_precision` fails in bfloat16; it passes for a
gate that computes in float32 regardless of the states' dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopverify.adapters.architecture import Architecture, Options, overridden
from loopverify.adapters.exit_gates import first_reaching, stick_breaking
from loopverify.adapters.native import positions_of
from loopverify.errors import InputError
from loopverify.looped import Looped, Trace

__all__ = ["OURO"]


@dataclass(frozen=True, eq=False)
class _Context:
    mask: Tensor
    """(B or 1, 1, T, T), added to the attention scores: 0 where a token may attend, the lowest number elsewhere."""
    rope: Any
    positions: Tensor


class _Ouro:
    def __init__(self, module: Any) -> None:
        self.module, self.core, self.head = module, module.model, module.lm_head

    def embed(self, tokens: Tensor) -> tuple[Tensor, _Context]:
        return self.embed_masked(tokens, None)

    def embed_masked(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, _Context]:
        state = self.core.embed_tokens(tokens)
        positions = positions_of(tokens, mask)
        return state, _Context(_added_mask(state, mask), self.core.rotary_emb(state, positions), positions)

    def step(self, state: Tensor, context: _Context, loop: int) -> Tensor:
        if loop > 1:
            state = self.core.norm(state)
        for layer in self.core.layers:
            following = layer(
                state,
                attention_mask=context.mask,
                position_ids=context.positions,
                position_embeddings=context.rope,
                current_ut=loop - 1,
            )
            state = following[0] if isinstance(following, tuple) else following
        return state

    def readout(self, state: Tensor, context: _Context, loop: int, loops: int) -> Tensor:
        logits: Tensor = self.head(self.core.norm(state))
        return logits

    def exit_probabilities(self, trace: Trace) -> Tensor:
        return stick_breaking([self.core.early_exit_gate(self.core.norm(h)).squeeze(-1) for h in trace.states[1:]])

    def choose_exit(self, trace: Trace, threshold: float) -> Tensor:
        return first_reaching(self.exit_probabilities(trace), threshold)

    def decode(self, tokens: Tensor, cache: Any, loops: int) -> tuple[Tensor, Any]:
        output = self._run(loops, input_ids=tokens, past_key_values=cache, use_cache=True, exit_at_step=loops - 1)
        return output.logits, output.past_key_values

    def paths(self) -> dict[str, Callable[[Tensor, int], Tensor]]:
        return {
            "forward": lambda tokens, loops: self._run(loops, input_ids=tokens, use_cache=False).logits,
            "forward_with_labels": lambda tokens, loops: (
                self._run(loops, input_ids=tokens, labels=tokens, use_cache=False).logits
            ),
            "cached_prefill": lambda tokens, loops: self.decode(tokens, None, loops)[0],
        }

    def _run(self, loops: int, **inputs: object) -> Any:
        # The module copies the loop count at construction, its cache reads the configuration: both must be set.
        with overridden(self.core, self.core.config, total_ut_steps=loops):
            return self.module(**inputs)


def _added_mask(state: Tensor, mask: Tensor | None) -> Tensor:
    """An explicit causal mask: without one, eager attention would attend to later tokens."""
    T = state.shape[1]
    visible = torch.ones(T, T, dtype=torch.bool, device=state.device).tril()[None, None]
    if mask is not None:
        # A padding token attends to itself: an empty row would make its softmax 0 / 0.
        visible = visible & (mask[:, None, None, :] | torch.eye(T, dtype=torch.bool, device=state.device))
    unseen = torch.zeros(visible.shape, dtype=state.dtype, device=state.device)
    return unseen.masked_fill(~visible, torch.finfo(state.dtype).min)


def _cache_slots(cache: Any) -> int:
    """Slots in use; a complete cache has loops * layers of them."""
    return sum(keys is not None for keys in cache.key_cache)


def _build(module: Any, options: Options) -> Looped:
    attention = getattr(module.model.config, "_attn_implementation", None)
    if attention not in (None, "eager", "sdpa"):
        raise InputError(
            f"the module's attention implementation is {attention!r}; expected 'sdpa' or 'eager', which accept an "
            "explicit mask. Load it with attn_implementation='sdpa'"
        )
    kinds = {getattr(layer, "attention_type", "full_attention") for layer in module.model.layers}
    if kinds != {"full_attention"}:
        raise InputError(f"the layers use {sorted(kinds)}; expected only 'full_attention' for this architecture")
    view = _Ouro(module)
    return Looped(
        embed=view.embed,
        step=view.step,
        readout=view.readout,
        trained_loops=options.loops(view.core.total_ut_steps),
        name=options.name or "ouro",
        vocab_size=view.core.embed_tokens.num_embeddings,
        module=module,
        embed_masked=view.embed_masked,
        decode=view.decode,
        cache_slots=_cache_slots,
        exit_probabilities=view.exit_probabilities,
        choose_exit=view.choose_exit,
        paths=view.paths(),
        declares=frozenset({"labels_mix_exits", "uneven_loops"}),
    )


OURO = Architecture(
    name="ouro",
    parts=(
        "model.embed_tokens",
        "model.layers",
        "model.norm",
        "model.rotary_emb",
        "model.early_exit_gate",
        "model.total_ut_steps",
        "lm_head",
    ),
    build=_build,
)
