"""The differences between a stored trace and the current one, in the order of the computation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from loopverify.comparing.fingerprint import STATISTICS, Fingerprint, LoopPrint

__all__ = ["Mismatch", "mismatches"]


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One quantity whose error exceeds its tolerance."""

    quantity: str
    loop: int | None = None
    """k; None where the runs cannot be compared, because their setups differ."""
    error: float = math.inf
    """Relative error."""
    ulps: float = math.inf
    tolerance: float = 0.0
    where: str = ""
    """The token with the largest error; where the setups differ, both values."""

    @property
    def headline(self) -> str:
        """Loop and quantity, in one line."""
        if self.loop is None:
            return f"this is not the run that was stored: the {self.quantity} differ"
        place = "the embedding" if self.loop == 0 else f"loop {self.loop}"
        return f"the model first differs from its stored trace at {place}: {self.quantity}"

    @property
    def short(self) -> str:
        """Quantity and loop, for a list."""
        return self.quantity if self.loop is None else f"{self.quantity} at loop {self.loop}"

    def size(self, dtype: str) -> str:
        """The size of the error, in one line."""
        if self.loop is None or not math.isfinite(self.error):
            return self.where
        return f"off by {self.error:.2g} = {self.ulps:.3g} ulps of {dtype} (tolerance {self.tolerance:.2g}){self.where}"


def mismatches(stored: Fingerprint, now: Fingerprint, *, eps: float, tolerance: float) -> list[Mismatch]:
    """All differences, in the order of the computation; an empty list if there are none.

    Args:
        eps: one ulp of 1.0.
        tolerance: relative error allowed per loop; after loop k, (k + 1) times as much.
    """
    setup = list(_setup(stored, now))
    if setup:
        return setup
    found = []
    for was, entry in zip(stored.per_loop, now.per_loop, strict=True):
        found += _Loop(was, entry, stored.kept, eps, (entry.loop + 1) * tolerance).mismatches()
    return found


def _setup(stored: Fingerprint, now: Fingerprint) -> Iterator[Mismatch]:
    facts = {
        "tokens": (stored.tokens, now.tokens),
        "dtypes": (stored.dtype, now.dtype),
        "channels": (stored.channels, now.channels),
        "vocabularies": (stored.vocabulary, now.vocabulary),
        "loop counts": (len(stored.per_loop) - 1, len(now.per_loop) - 1),
        "seeds": (stored.seed, now.seed),
    }
    for name, (was, is_now) in facts.items():
        if was != is_now:
            yield Mismatch(quantity=name, where=f"stored {was}, now {is_now}")


@dataclass(frozen=True)
class _Loop:
    """One loop of the stored and of the current trace."""

    was: LoopPrint
    now: LoopPrint
    kept: tuple[tuple[int, int], ...]
    eps: float
    tolerance: float

    def mismatches(self) -> list[Mismatch]:
        return [*self._state(), *self._statistics(), *self._logits(), *self._argmax()]

    def _state(self) -> Iterator[Mismatch]:
        was, now = self.was, self.now
        whole = _errors(was.states, now.states, was.scales)
        if self._fine(whole):
            return
        # Where only the scale or only the direction exceeds the tolerance, that is named instead of the state.
        grown = [abs(b - a) / a if a else math.inf for a, b in zip(was.scales, now.scales, strict=True)]
        turned = _errors(_over(was.states, was.scales), _over(now.states, now.scales), [1.0] * len(grown))
        beyond = {name: errors for name, errors in (("scale", grown), ("direction", turned)) if not self._fine(errors)}
        name, errors = beyond.popitem() if len(beyond) == 1 else ("state", whole)
        yield self._mismatch(name, errors)

    def _statistics(self) -> Iterator[Mismatch]:
        """Statistics over all tokens: they show a change at a token of which no projections are stored."""
        for name in STATISTICS:
            was, now = self.was.statistics[name], self.now.statistics[name]
            error = abs(now - was) / was if was else abs(now)
            if not error <= self.tolerance:
                yield self._mismatch(f"{name} scale over all tokens", [error], place=False)
                return

    def _logits(self) -> Iterator[Mismatch]:
        errors = _errors(self.was.logits, self.now.logits, self.was.logit_scales)
        if not self._fine(errors):
            yield self._mismatch("logits", errors)

    def _argmax(self) -> Iterator[Mismatch]:
        """The argmax may change in a near tie: two logits, each off by the tolerance, may swap within twice it."""
        allowed = 2 * self.tolerance
        tokens = zip(self.was.argmax, self.now.argmax, self.was.margins, strict=True)
        flips = [margin if was != now and margin > allowed else 0.0 for was, now, margin in tokens]
        if any(flips):
            yield replace(self._mismatch("argmax", flips), tolerance=allowed)

    def _fine(self, errors: Sequence[float]) -> bool:
        return all(error <= self.tolerance for error in errors)

    def _mismatch(self, quantity: str, errors: Sequence[float], *, place: bool = True) -> Mismatch:
        worst = max(errors)
        row, position = self.kept[list(errors).index(worst)]
        return Mismatch(
            quantity=quantity,
            loop=self.now.loop,
            error=worst,
            ulps=worst / self.eps,
            tolerance=self.tolerance,
            where=f", most at token {position} of row {row}" if place else "",
        )


def _errors(was: Sequence[Sequence[float]], now: Sequence[Sequence[float]], scales: Sequence[float]) -> list[float]:
    """For each token, the rms change of its projections relative to its scale."""
    found = []
    for a, b, scale in zip(was, now, scales, strict=True):
        change = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / max(1, len(a)))
        found.append(change / scale if scale else (math.inf if change else 0.0))
    return found


def _over(projections: Sequence[Sequence[float]], scales: Sequence[float]) -> list[list[float]]:
    return [[x / scale if scale else 0.0 for x in row] for row, scale in zip(projections, scales, strict=True)]
