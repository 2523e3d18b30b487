"""Random readouts with a head and targets, and the magnitude relative to which their radial signals are compared.

Shapes: T tokens, D channels, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopverify.theory import ClampedL2, DynamicTanh, Head, LayerNorm, Raw, RMSNorm, Tapered, TokenReadout
from properties.blocks import GENERATED, directions, generator, normal

__all__ = ["READOUTS", "Case", "CaseRecipe", "gradient", "magnitude", "readout"]

READOUTS = ("raw", "rmsnorm", "layernorm", "l2", "l2_below", "tanh", "tapered")


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A head, tokens and their targets."""

    head: Head
    H: Tensor
    """(T, D)."""
    targets: Tensor
    """(T,) int64."""

    def loss(self, H: Tensor) -> Tensor:
        """Cross-entropy of each token, (T, D) -> (T,)."""
        return torch.nn.functional.cross_entropy(self.head(H), self.targets, reduction="none")


def readout(kind: str, rng: torch.Generator, d: int, s: float, eps: float) -> TokenReadout:
    """A readout of random parameters, suited to states of scale s: each one's nonlinearity lies near s."""
    gain, vector = normal(rng, d), normal(rng, d)
    norm = RMSNorm(gain=gain, eps=eps)
    kinds: dict[str, TokenReadout] = {
        "raw": Raw(),
        "rmsnorm": norm,
        "layernorm": LayerNorm(gain=gain, bias=vector, eps=eps),
        "l2": ClampedL2(eps=1e-3 * s * d**0.5),
        "l2_below": ClampedL2(eps=1e3 * s * d**0.5),
        "tanh": DynamicTanh(alpha=1 / s, gain=gain),
        "tapered": Tapered(gate=0.5, norm=norm, linear=vector / s),
    }
    return kinds[kind]


@dataclass(frozen=True, kw_only=True)
class CaseRecipe:
    """The parameters that determine a random case: a failing example prints them, and `build` rebuilds it."""

    seed: int
    kind: str
    """One of READOUTS."""
    d: int
    s: float
    """rms scale of the states."""
    eps: float = 0.0
    softcap: float | None = None
    tokens: int = 4
    most_words: int = 41

    def build(self) -> Case:
        """The head is scaled so that logits are of order one: the lemma concerns directions, and a softmax of
        differences of 1e6 is one-hot, which tests nothing."""
        rng = generator(self.seed)
        vocab = 2 + self.seed % (self.most_words - 1)
        chosen = readout(self.kind, rng, self.d, self.s, self.eps)
        H = self.s * directions(rng, self.tokens, self.d)
        weight = normal(rng, vocab, self.d)
        typical = (chosen(H) @ weight.mT).square().mean().sqrt()
        weight = 2 * weight / typical.clamp_min(1e-300)
        targets = torch.randint(vocab, (self.tokens,), generator=rng)
        GENERATED["readouts"] += 1
        return Case(head=Head(readout=chosen, weight=weight, softcap=self.softcap), H=H, targets=targets)


def gradient(c: Case) -> Tensor:
    """∇_H of the summed losses by automatic differentiation, (T, D)."""
    H = c.H.clone().requires_grad_()
    (grad,) = torch.autograd.grad(c.loss(H).sum(), H)
    return grad


def magnitude(c: Case) -> Tensor:
    """Σ|terms| of the radial signal, (T,): Σ_v (p_v + e_v) Σ_i |W_vi r_i|, before cancellation.

    The signal is a sum of signed terms (p_v − e_v) W_vi ṙ_i, each of which floating point rounds to a few eps of its
    own size. So a sum of n <= D·V ~ 5,000 of them has an error of about √n·eps (at worst n·eps) times Σ|terms|: 1e-14
    (1e-12). Relative to the signal itself there is no bound: it may vanish by cancellation (this is the lemma). A
    LayerNorm subtracts the mean first; its terms are the two parts of that difference.
    """
    r = c.head.readout
    if isinstance(r, LayerNorm):
        mean, spread = c.H.mean(-1, keepdim=True), c.H.var(-1, keepdim=True, correction=0)
        parts = (c.H.abs() + mean.abs()) / (spread + r.eps).sqrt()
        parts = parts if r.gain is None else parts * r.gain.abs()
    elif isinstance(r, Tapered):
        parts = r.gate * r.norm(c.H).abs() + (1 - r.gate) * (c.H if r.linear is None else c.H * r.linear).abs()
    else:
        parts = r(c.H).abs()
    p = torch.softmax(c.head(c.H), -1)
    either = p + torch.nn.functional.one_hot(c.targets, p.shape[-1])
    return (either * (parts @ c.head.weight.abs().mT)).sum(-1)
