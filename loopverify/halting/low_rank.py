"""Margins through a part of the head: of low rank as they come out, or exact, with a few rows of the whole head.

The logits of a state x are W x. With any invertible B they are W' x' of W' = W B⁻¹ and x' = B x, and the first r of
their D channels say most of it if B puts the large ones first. What the others can add to logit i is bounded row by
row (Cauchy-Schwarz): |W'_i,>r · x'_>r| <= ‖W'_i,>r‖ · ‖x'_>r‖. So r + 1 numbers a row give an upper bound of every
logit; the second largest of some exact logits is a lower bound of the second largest of all; and a row whose upper
bound is below it is not among the first two. The exact logits of the few rows left are all that a margin needs.

B balances head and states (balanced truncation; Moore 1981): channel by channel both have the same second moment σ_j,
falling, so that neither is large where the other is not. The bound then is of the order of Σ_{j>r} σ_j, at most that
of the singular vectors of W alone, and far less where the states of a trained model use few directions.

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
"""Exact logits that bound the second largest from below."""
RIDGE = 1e-3
"""Of the mean second moment of the states' channels, added to each: directions that were not seen may still come."""
DEAR = 64
"""What a row gathered for one token takes, in rows of a product of many tokens: where more than V / DEAR are in
question, all are multiplied."""


def balanced(head: LinearHead, shown: Tensor | None = None) -> Tensor:
    """B, (D, D) float64: the coordinates in which head and states weigh the same, the heaviest first.

    Args:
        shown: some of the states that the head will be given, (..., D); None: as if they had no direction.

    Raises:
        InputError: states of other channels than the head's.
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
    scales = squares.clamp_min(1e-12 * float(squares[0])).sqrt().sqrt()  # invertible where the head has no full rank
    coordinates: Tensor = scales[:, None] * torch.linalg.solve_triangular(L.mT, E, upper=True).mT
    return coordinates


class LowRankMargin(Score):
    """The logit margin through a head cut to rank r. Off by what the cut takes away; nothing bounds that here.

    Args:
        head: what to approximate, as it is now.
        rank: r, 1..D. A full rank gives the margin itself, to rounding.
        shown: as of `balanced`.

    Raises:
        InputError: not a LinearHead, a rank out of range, or states of other channels than the head's.
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
    """The exact logit margin, from bounds of all logits and the exact ones of those that may be among the first two.

    It is the margin of the two largest logits in exact arithmetic, to the rounding of these two dot products (a row is
    left out only where no rounding could bring it in). Counted as head products are all multiplications with the bounds
    and with rows of the head, the latter for all V where more than V / DEAR rows of a token stay in question.

    Args:
        head: the model's own, as it is now.
        rank: r, 1..D, of the bounds. More make the bounds tighter and dearer; D / 8 to D / 4 is a good start.
        shown: some of the states that the head will be given, (..., D), see `balanced`: the better they are, the fewer
            rows stay in question. The margin is exact whatever they are.

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
        # With u = eps / 2, D·u·‖B‖·‖W'_i‖ each: the turned state, and a logit of a seed. D·u / 2 more: the norm of its
        # tail. (r + 3)·u: the bounds and the product with them. What the inverse leaves is measured.
        inverse = (W - turned @ B).norm(dim=-1).max()
        eps = torch.finfo(dtype).eps
        self._rounding = float(3 * (D + 1) * eps * B.norm() * turned.norm(dim=-1).max() + inverse)
        """The most that rounding can move a bound against a logit, for each unit of ‖x‖."""

    @torch.no_grad()
    def confidence(self, at: Arrival, reading: TokenStatistics | None = None) -> Tensor:
        """(n, T)."""
        shown = at_least_float32(self._head.shown(at.after, at.loop, at.loops)).flatten(0, 1)
        pieces = torch.split(shown, max(1, LOGITS // len(self._weight)))
        margins, products = zip(*map(self._margins, pieces), strict=True)
        at.work.products += sum(products)
        return torch.cat(margins).view(at.after.shape[:2])

    def _margins(self, x: Tensor) -> tuple[Tensor, float]:
        """Exact margins of states (m, D), and what they cost in head products."""
        V, D = self._weight.shape
        upper = self._upper(x)
        seeds = upper.topk(min(SEEDS, V)).indices
        exact = torch.einsum("msd,md->ms", self._weight[seeds], x)
        second = exact.topk(2).values[:, 1]
        floor = second - self._rounding * x.norm(dim=-1)
        many = (upper >= floor[:, None]).count_nonzero(-1) > V // DEAR
        tokens, rows = (upper >= floor.masked_fill(many, torch.inf)[:, None]).nonzero(as_tuple=True)
        first, second = _two_largest((self._weight[rows] * x[tokens]).sum(-1), tokens, len(x))
        margin = first - second
        if many.any():
            margin[many] = head_statistics(x[None, many], self._weight, wants={"top"}).margin[0]
        bounds = len(x) * (D / V + (self._rank + 1) / D)
        return margin, bounds + (seeds.numel() + len(rows)) / V + int(many.sum())

    def _upper(self, x: Tensor) -> Tensor:
        """An upper bound of every logit of states (m, D), to rounding, (m, V)."""
        turned = x @ self._basis.mT
        known, rest = turned[:, : self._rank], turned[:, self._rank :]
        return F.linear(torch.cat([known, rest.norm(dim=-1, keepdim=True)], -1), self._bounds)


def _two_largest(values: Tensor, groups: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest and second largest of the values (c,) of each of `count` groups, given the group of each, rising."""
    sizes = groups.bincount(minlength=count)
    within = torch.arange(len(groups), device=groups.device) - (sizes.cumsum(0) - sizes)[groups]
    table = values.new_full((count, max(2, int(sizes.max()))), -torch.inf)
    table[groups, within] = values
    first, second = table.topk(2).values.unbind(-1)
    return first, second


def _check(head: LinearHead, rank: int) -> int:
    check_kind("head", head, LinearHead, "a LinearHead; see halting.linear_head, which gives a model's own")
    V, D = head.weight.shape
    if V < 2:
        raise InputError(f"a margin of {V} logits; expected at least two")
    check_count("rank", rank, f"1..{D} for a head of {D} channels", most=D)
    return D
