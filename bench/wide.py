"""K exits of a wide vocabulary and the losses that can be taken of them, ours and the peers'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bench.peers import losses as peers
from bench.shapes import Wide
from loopverify.looped import Looped, Trace
from loopverify.objectives import per_loop

__all__ = ["CHUNK_TOKENS", "FORMS", "Exits", "exits_of", "forward_and_backward"]

CHUNK_TOKENS = 256
_NORMS: Mapping[str, Callable[[int], nn.Module]] = {
    "raw": lambda channels: nn.Identity(),
    "rmsnorm": nn.RMSNorm,
    "layernorm": nn.LayerNorm,
}


@dataclass(frozen=True, eq=False)
class Exits:
    """K states, the readout that reads them, and the targets."""

    states: tuple[Tensor, ...]
    norm: nn.Module
    head: nn.Linear
    targets: Tensor

    def trace(self) -> Trace:
        """As a run whose H_0 nobody reads."""

        def readout(state: Tensor, context: object, loop: int, loops: int) -> Tensor:
            logits: Tensor = self.head(self.norm(state))
            return logits

        model = Looped(
            embed=lambda tokens: (self.states[0], None),
            step=lambda state, context, loop: state,
            readout=readout,
            trained_loops=len(self.states),
            vocab_size=self.head.out_features,
            module=nn.ModuleList([self.norm, self.head]),
        )
        return Trace(model, self.targets, (self.states[0].detach(), *self.states), None)

    def leaves(self) -> list[Tensor]:
        """Everything that gets a gradient."""
        return [*self.states, *self.norm.parameters(), *self.head.parameters()]


def exits_of(wide: Wide, readout: str, device: str, dtype: torch.dtype = torch.float32) -> Exits:
    """The same numbers for everyone who asks."""
    generator = torch.Generator().manual_seed(0)
    shape = (8, wide.tokens // 8, wide.channels)
    states = tuple(
        torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for _ in range(wide.exits)
    )
    head = nn.Linear(wide.channels, wide.vocab_size, bias=False).to(device, dtype)
    with torch.no_grad():
        head.weight.copy_(0.02 * torch.randn(head.weight.shape, generator=generator))
    targets = torch.randint(wide.vocab_size, shape[:2], generator=generator).to(device)
    return Exits(states, _NORMS[readout](wide.channels).to(device, dtype), head, targets)


def _ours(exits: Exits, chunk_tokens: int | None) -> Tensor:
    return per_loop(exits.trace(), exits.targets, chunk_tokens=chunk_tokens)


def _peer(exits: Exits, loss: peers.Loss) -> Tensor:
    return loss(exits.states, exits.norm, exits.head.weight, exits.targets)


FORMS: Mapping[str, Callable[[Exits], Tensor]] = {
    "chunked": partial(_ours, chunk_tokens=CHUNK_TOKENS),
    "plain": partial(_ours, chunk_tokens=None),
    **{name: partial(_peer, loss=loss) for name, loss in peers.PEERS.items()},
}
"""The mean cross-entropy over exits: ours in both forms, and the peers'."""


def forward_and_backward(form: str, exits: Exits) -> Callable[[], Tensor]:
    """A job that leaves the gradients in the leaves."""

    def run() -> Tensor:
        for leaf in exits.leaves():
            leaf.grad = None
        loss = FORMS[form](exits)
        loss.backward()
        return loss.detach()

    return run
