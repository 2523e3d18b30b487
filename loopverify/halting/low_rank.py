"""Logit margins from a part of the head: approximate, of low rank, or exact, with certified bounds.

A margin needs only the two largest of V logits, yet a head product computes all of them. The certified margin computes
cheap upper bounds of all logits, and exact values of the few that can be among the two largest:

1. Change coordinates. The logits W x of a state x equal W' x' with W' = W B⁻¹ and x' = B x, for any invertible B.
   Choose B such that the first r of the D coordinates contribute most.
2. Bound every logit from above. By Cauchy-Schwarz the other coordinates add at most ‖W'_i,>r‖ · ‖x'_>r‖ to logit i, so

       W_i x <= W'_i,≤r · x'_≤r + ‖W'_i,>r‖ · ‖x'_>r‖ =: upper_i,

   a product of r + 1 instead of D numbers per row.
3. Bound the second largest logit from below: by the second largest of the exact logits of a few rows, the *seeds*. Any
   rows give a valid bound, and those with the largest upper_i a good one.
4. A row whose upper bound is below that lower bound cannot be among the two largest. Compute the exact logits of the
   remaining rows: the two largest of them are the two largest of all.

Steps 2 and 3 hold in exact arithmetic. In floating point an upper bound may come out too small and the lower bound too
large, by rounding, and the true maximum could be excluded. So the lower bound is reduced by the most that rounding can
contribute, which is proportional to ‖x‖; forgetting this would give a margin that is exact except now and then.

B balances head and states (balanced truncation; Moore 1981): in its coordinates both have the same second moment σ_j in
channel j, decreasing in j, so that neither is large where the other is small. The slack of step 2 is then of the order
of Σ_{j>r} σ_j: at most that of the singular vectors of W alone, and far less if the states use few directions.

Shapes: n sequences, T tokens, m of their tokens at a time, D channels, V vocabulary, r rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from loopverify.arguments import check_count, check_kind
from loopverify.errors import InputError
from loopverify.halting.confidence import Arrival, Score
from loopverify.halting.token_statistics import LOGITS, LinearHead, TokenStatistics, head_statistics
from loopverify.theory.polar import at_least_float32

__all__ = ["CertifiedMargin", "LowRankMargin", "balanced"]

SEEDS = 8
"""Number of exact logits whose second largest bounds the second largest of all from below."""
RIDGE = 1e-3
"""Share of the mean second moment of the states' channels that is added to each channel, because later states may use
directions that the given ones do not."""
DEAR = 64
"""Time to gather and multiply a row for one token, relative to a row in a product of many tokens. If more than V / DEAR
rows of a token remain, all V are multiplied."""


def balanced(head: LinearHead, shown: Tensor | None = None) -> Tensor:
    """B, (D, D) float64: coordinates in which head and states have equal second moments, the largest first.

    With L L' the second moment of the states and E diag(σ²) E' that of W L, B = diag(√σ) E' L⁻¹ turns both moments into
    diag(σ).

    Args:
        shown: typical inputs of the head, (..., D); None for states without preferred directions.

    Raises:
        InputError: the states do not have the channels of the head.
    """
    W = head.weight.detach().double()
    V, D = W.shape
    moment = torch.eye(D, dtype=torch.float64, device=W.device)
    if shown is not None:
        if shown.shape[-1] != D or not shown.numel():
            raise InputError(f"states {tuple(shown.shape)} for a head of {D} channels; expected (..., {D})")
        X = shown.detach().double().reshape(-1, D)
        second = X.mT @ X / len(X)
        moment = second + RIDGE * second.diagonal().mean() * moment
    L = torch.linalg.cholesky(moment)
    squares, E = torch.linalg.eigh(L.mT @ (W.mT @ W / V) @ L)
    squares, E = squares.flip(0), E.flip(1)
    scales = (
        squares.clamp_min(1e-12 * float(squares[0])).sqrt().sqrt()
    )  # clamped, so that B is invertible if the head is not of full rank
    coordinates: Tensor = scales[:, None] * torch.linalg.solve_triangular(L.mT, E, upper=True).mT
    return coordinates


class LowRankMargin(Score):
    """The logit margin of the head truncated to rank r. Its error is not bounded; see `CertifiedMargin`.

    Args:
        head: the head to approximate, with its present weights.
        rank: r, 1..D. The full rank gives the exact margin, up to rounding.
        shown: as in `balanced`.

    Raises:
        InputError: `head` is not a LinearHead, the rank is out of range, or the states do not have its channels.
    """

    def __init__(self, head: LinearHead, rank: int, shown: Tensor | None = None) -> None:
        D = _check(head, rank)
        self.name, self._head, self._share = f"margin~{rank}", head, rank * (1 / D + 1 / len(head.weight))
        dtype, B = at_least_float32(head.weight).dtype, balanced(head, shown)
        self._basis = B[:rank].to(dtype)
        self._weight = (head.weight.detach().double() @ torch.linalg.inv(B)[:, :rank]).to(dtype)

    def confidence(self, at: Arrival, reading: TokenStatistics | None = None) -> Tensor:
        """(n, T)."""
        shown = at_least_float32(self._head.shown(at.after, at.loop, at.loops))
        at.work.products += self._share * shown.shape[:2].numel()
        return head_statistics(shown @ self._basis.mT, self._weight, wants={"top"}).margin


class CertifiedMargin(Score):
    """The exact logit margin, from upper bounds of all logits and exact values of the few that can be the two largest.

    The result is the margin of the two logits that are largest in exact arithmetic, up to the rounding of these two dot
    products: a row is excluded only if no rounding could change that. Counted as head products are all multiplications
    with bounds and with rows of the head; for tokens of which more than V / DEAR rows remain, all V rows are computed.

    Args:
        head: the model's own head, with its present weights.
        rank: r, 1..D, of the bounds. More is tighter and more expensive; D / 8 to D / 4 is a good choice.
        shown: typical inputs of the head, (..., D), see `balanced`. The better they represent later states, the fewer
            rows remain; the margin is exact regardless.

    Raises:
        InputError: as `LowRankMargin`.
    """

    def __init__(self, head: LinearHead, rank: int, shown: Tensor | None = None) -> None:
        D = _check(head, rank)
        self.name, self._head, self._rank = f"margin, certified at rank {rank}", head, rank
        self._weight = at_least_float32(head.weight.detach())
        dtype = self._weight.dtype
        self._basis = balanced(head, shown).to(dtype)
        W, B = self._weight.double(), self._basis.double()
        turned = W @ torch.linalg.inv(B)
        self._bounds = torch.cat([turned[:, :rank], turned[:, rank:].norm(dim=-1, keepdim=True)], -1).to(dtype)
        # Rounding, per unit of ‖x‖, with u = eps / 2 the unit roundoff and in multiples of ‖B‖·max_i ‖W'_i‖:
        #   D·u for x' = B x, D·u for the exact logit of a seed, D·u / 2 for the norm of the tail of x',
        #   (r + 3)·u for rounding the bounds and for the product with them.
        # Together below 6 (D + 1)·u = 3 (D + 1)·eps, since r <= D. W' B differs from W by the error of the inverse,
        # which no such formula covers: it is measured in float64 and added.
        inverse = (W - turned @ B).norm(dim=-1).max()
        eps = torch.finfo(dtype).eps
        self._rounding = float(3 * (D + 1) * eps * B.norm() * turned.norm(dim=-1).max() + inverse)
        """Upper bound of the rounding error in `upper bound − logit`, per unit of ‖x‖."""

    @torch.no_grad()
    def confidence(self, at: Arrival, reading: TokenStatistics | None = None) -> Tensor:
        """(n, T)."""
        shown = at_least_float32(self._head.shown(at.after, at.loop, at.loops)).flatten(0, 1)
        chunks = torch.split(shown, max(1, LOGITS // len(self._weight)))
        margins, products = zip(*map(self._margins, chunks), strict=True)
        at.work.products += sum(products)
        return torch.cat(margins).view(at.after.shape[:2])

    def _margins(self, x: Tensor) -> tuple[Tensor, float]:
        """Exact margins of states (m, D), and their cost in head products."""
        V, D = self._weight.shape
        upper = self._upper(x)
        seeds = upper.topk(min(SEEDS, V)).indices
        exact = torch.einsum("msd,md->ms", self._weight[seeds], x)
        lower = exact.topk(2).values[:, 1] - self._rounding * x.norm(dim=-1)
        # (token, row) pairs that remain; tokens with too many are left out here and computed in full below.
        many = (upper >= lower[:, None]).count_nonzero(-1) > V // DEAR
        tokens, rows = (upper >= lower.masked_fill(many, torch.inf)[:, None]).nonzero(as_tuple=True)
        first, second = _two_largest((self._weight[rows] * x[tokens]).sum(-1), tokens, len(x))
        margin = first - second
        if many.any():
            margin[many] = head_statistics(x[None, many], self._weight, wants={"top"}).margin[0]
        bounds = len(x) * (D / V + (self._rank + 1) / D)
        return margin, bounds + (seeds.numel() + len(rows)) / V + int(many.sum())

    def _upper(self, x: Tensor) -> Tensor:
        """An upper bound of every logit of states (m, D), up to rounding, (m, V)."""
        turned = x @ self._basis.mT
        head, tail = turned[:, : self._rank], turned[:, self._rank :]
        return F.linear(torch.cat([head, tail.norm(dim=-1, keepdim=True)], -1), self._bounds)


def _two_largest(values: Tensor, groups: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest and second largest of the values (c,) in each of `count` groups; `groups` (c,) is sorted."""
    sizes = groups.bincount(minlength=count)
    within = torch.arange(len(groups), device=groups.device) - (sizes.cumsum(0) - sizes)[groups]
    table = values.new_full((count, max(2, int(sizes.max()))), -torch.inf)
    table[groups, within] = values
    first, second = table.topk(2).values.unbind(-1)
    return first, second


def _check(head: LinearHead, rank: int) -> int:
    check_kind("head", head, LinearHead, "a LinearHead, as halting.linear_head(model) returns")
    V, D = head.weight.shape
    if V < 2:
        raise InputError(f"a margin of {V} logits; expected at least two")
    check_count("rank", rank, f"1..{D} for a head of {D} channels", most=D)
    return D
