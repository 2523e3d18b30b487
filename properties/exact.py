"""Random readouts and blocks at 50 digits: the counterparts of `heads` and `blocks` in the oracle's own terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from mpmath import mp, mpf
from torch import Tensor

from loopverify.theory import ClampedL2, DynamicTanh, LayerNorm, Raw, RMSNorm, Tapered, TokenReadout, oracle
from properties.blocks import generator, normal
from properties.heads import READOUTS, Case, CaseRecipe
from properties.strategies import epsilons, scales, seeds, softcaps

__all__ = ["Vector", "logits_in_mpmath", "mlp_in_mpmath", "numbers", "readout_in_mpmath", "tiny_cases"]

Vector = Sequence[Any]
Step = Callable[[Vector], list[Any]]


def numbers(x: Tensor | None) -> Any:
    return None if x is None else x.tolist()


def readout_in_mpmath(r: TokenReadout) -> Step:
    """The same readout by the oracle's definition."""
    if isinstance(r, RMSNorm):
        return lambda H: oracle.rms_norm(H, numbers(r.gain), r.eps)
    if isinstance(r, LayerNorm):
        return lambda H: oracle.layer_norm(H, numbers(r.gain), numbers(r.bias), r.eps)
    if isinstance(r, ClampedL2):
        return lambda H: oracle.clamped_l2(H, r.eps)
    if isinstance(r, DynamicTanh):
        return lambda H: oracle.dynamic_tanh(H, r.alpha, numbers(r.gain))
    if isinstance(r, Tapered):
        return lambda H: oracle.tapered(H, r.gate, numbers(r.norm.gain), r.norm.eps, numbers(r.linear))
    assert isinstance(r, Raw)
    return oracle.vector


def logits_in_mpmath(c: Case) -> Step:
    read, weight = readout_in_mpmath(c.head.readout), c.head.weight.tolist()
    if c.head.softcap is None:
        return lambda H: oracle.logits(weight, read(H))
    return lambda H: oracle.softcap(oracle.logits(weight, read(H)), c.head.softcap)


def mlp_in_mpmath(seed: int, d: int, sublayers: int, eps: float) -> tuple[Step, Step]:
    """A pre-norm MLP block at 50 digits, and its update at infinite scale."""
    rng = generator(seed)
    weights = [(normal(rng, d, d).tolist(), normal(rng, d, d).tolist()) for _ in range(sublayers)]

    def branch(W: tuple[Any, Any], x: Vector) -> list[Any]:
        return oracle.logits(W[1], [mp.tanh(v) for v in oracle.logits(W[0], x)])

    def add(x: Vector, y: Vector) -> list[Any]:
        return [p + q for p, q in zip(x, y, strict=True)]

    def step(H: Vector) -> list[Any]:
        state = oracle.vector(H)
        for W in weights:
            state = add(state, branch(W, oracle.rms_norm(state, None, eps)))
        return state

    def limit(u: Vector) -> list[Any]:
        total = [mpf(0)] * len(u)
        for W in weights:
            total = add(total, branch(W, u))
        return total

    return step, limit


@st.composite
def tiny_cases(draw: st.DrawFn, softcap: st.SearchStrategy[float | None] = softcaps) -> CaseRecipe:
    """One token of two to five channels, as many words: enough to be generic, and quick at 50 digits."""
    return CaseRecipe(
        seed=draw(seeds),
        kind=draw(st.sampled_from(READOUTS)),
        d=draw(st.integers(2, 5)),
        s=draw(scales),
        eps=draw(epsilons),
        tokens=1,
        most_words=5,
        softcap=draw(softcap),
    )
