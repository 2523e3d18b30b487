"""What differs between a stored trace and the one of now, in the order of the computation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from loopverify.comparing.fingerprint import STATISTICS, Fingerprint, LoopPrint

__all__ = ["Mismatch", "mismatches"]


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One quantity that is off by more than it may be."""

    quantity: str
    loop: int | None = None
    """k; None where the runs cannot be compared at all."""
    error: float = math.inf
    """Relative."""
    ulps: float = math.inf
    tolerance: float = 0.0
    where: str = ""
    """At which token, or what was expected."""

    @property
    def headline(self) -> str:
        """Where, in one line."""
        if self.loop is None:
            return f"the run is not the one that was stored: {self.quantity} differ"
        place = "the embedding" if self.loop == 0 else f"loop {self.loop}"
        return f"the model parts from its stored trace at {place}: {self.quantity}"

    @property
    def short(self) -> str:
        """A few words."""
        return self.quantity if self.loop is None else f"{self.quantity} at loop {self.loop}"

    def size(self, dtype: str) -> str:
        """How much, in one line."""
        if self.loop is None or not math.isfinite(self.error):
            return self.where
        return f"off by {self.error:.2g} = {self.ulps:.3g} ulps of {dtype} (tolerance {self.tolerance:.2g}){self.where}"


def mismatches(stored: Fingerprint, now: Fingerprint, *, eps: float, tolerance: float) -> list[Mismatch]:
    """All that differs, the first in the order of the computation first; [] when nothing does.

    Args:
        eps: one ulp of a number of size 1.
        tolerance: relative error that one loop may make; after loop k, (k + 1) times as much.
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
    """One loop, then and now."""

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
        # What only grew or only turned is named by what changed.
        grown = [abs(b - a) / a if a else math.inf for a, b in zip(was.scales, now.scales, strict=True)]
        turned = _errors(_over(was.states, was.scales), _over(now.states, now.scales), [1.0] * len(grown))
        beyond = {name: errors for name, errors in (("scale", grown), ("direction", turned)) if not self._fine(errors)}
        name, errors = beyond.popitem() if len(beyond) == 1 else ("state", whole)
        yield self._mismatch(name, errors)

    def _statistics(self) -> Iterator[Mismatch]:
        """Over all tokens, of which the kept ones are few."""
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
        """Near ties may flip: two logits, each off by the tolerance, can exchange their order at twice of it."""
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
    """rms of the change of each token's projections, relative to the token's scale."""
    found = []
    for a, b, scale in zip(was, now, scales, strict=True):
        change = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / max(1, len(a)))
        found.append(change / scale if scale else (math.inf if change else 0.0))
    return found


def _over(projections: Sequence[Sequence[float]], scales: Sequence[float]) -> list[list[float]]:
    return [[x / scale if scale else 0.0 for x in row] for row, scale in zip(projections, scales, strict=True)]
