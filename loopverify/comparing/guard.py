"""The fixture `looped_regression`: a run of a model compared with the trace stored of an earlier run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from loopverify.adapters import adapt
from loopverify.comparing.difference import Mismatch, mismatches
from loopverify.comparing.files import stored_path, write_atomically
from loopverify.comparing.fingerprint import Fingerprint, fingerprint
from loopverify.comparing.rounding import Rounding, check_tolerance, rounding_of
from loopverify.errors import InputError, LoopverifyError
from loopverify.looped import Looped, unroll
from loopverify.readonly import untouched

__all__ = ["LoopedRegression", "RegressionError"]


class RegressionError(LoopverifyError, AssertionError):
    """A model differs from its stored trace, or no trace was stored before this run."""


class LoopedRegression:
    """Compares a model with a trace that is stored next to the test."""

    def __init__(self, module: Path, test: str, *, regenerate: bool = False, command: str = "pytest") -> None:
        """
        Args:
            module: the test module.
            test: the test's name within it, with class and parameters.
            regenerate: write the trace again, and fail.
            command: the command that runs this test, for messages.
        """
        self._module, self._test = module, test
        self._regenerate, self._command = regenerate, command
        self._used: set[Path] = set()

    def check(
        self,
        model: Looped | nn.Module,
        tokens: Tensor,
        loops: int | None = None,
        *,
        name: str = "",
        tolerance: float | None = None,
        seed: int = 0,
    ) -> None:
        """Run a model and compare it, loop by loop, with its stored trace.

        Without a stored trace the run is stored and the test fails, because nothing was verified.

        Args:
            model: a `Looped`, or a module that `loopverify.adapt` recognizes. Runs in evaluation mode.
            tokens: (B, T) int64, the same in every run of the test.
            loops: K; the trained loops when omitted.
            name: distinguishes several traces of one test.
            tolerance: relative error allowed per loop, (k + 1) times as much after loop k; what rounding explains when
                omitted.
            seed: seed of the random numbers that the model draws in evaluation mode.

        Raises:
            RegressionError: the model differs from the stored trace, or the trace has only now been stored.
            InputError: an argument is invalid, the stored trace cannot be read, or a state is not finite.
        """
        __tracebackhide__ = True
        check_tolerance(tolerance)
        path = stored_path(self._module, self._test, name)
        if path in self._used:
            raise InputError(f"this test guards two traces as {path.name}; give them names: check(..., name='second')")
        self._used.add(path)
        looped = adapt(model)
        with untouched(looped, seed), torch.no_grad():
            trace = unroll(looped, tokens, loops)
            now = fingerprint(trace, seed)
            if self._regenerate or not path.exists():
                raise RegressionError(self._store(path, now))
            self._compare(_read(path, self._again), now, rounding_of(trace).allowing(tolerance), path)

    @property
    def _again(self) -> str:
        return f"{self._command} --looped-regen"

    def _store(self, path: Path, now: Fingerprint) -> str:
        existed = path.exists()
        write_atomically(path, now.to_json())
        if existed:
            return f"regenerated {path}\nReview the change, commit it, and run again without --looped-regen."
        return f"no stored trace yet: wrote {path}\nNothing was verified. Commit the file and run again."

    def _compare(self, stored: Fingerprint, now: Fingerprint, allowed: Rounding, path: Path) -> None:
        __tracebackhide__ = True
        found = mismatches(stored, now, eps=allowed.eps, tolerance=allowed.tolerance)
        if found:
            lines = [
                *_message(found, allowed.dtype),
                *_origin(stored, now, path),
                f"If the change is intended: {self._again}",
            ]
            raise RegressionError("\n".join(lines))


def _read(path: Path, again: str) -> Fingerprint:
    try:
        return Fingerprint.from_json(path.read_text(encoding="utf-8"))
    except (InputError, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the stored trace {path} cannot be used: {error}. Restore it, or write it again: {again}"
        ) from error


def _message(found: list[Mismatch], dtype: str) -> Iterator[str]:
    first, *others = found
    yield f"{first.headline}"
    yield f"  {first.size(dtype)}"
    if others:
        shown = ", ".join(mismatch.short for mismatch in others[:4])
        yield f"  and {len(others)} more: {shown}{', …' if len(others) > 4 else ''}"


def _origin(stored: Fingerprint, now: Fingerprint, path: Path) -> Iterator[str]:
    yield f"  stored in {path}"
    changed = [
        f"{library} was {version}, is {now.versions[library]}"
        for library, version in stored.versions.items()
        if now.versions.get(library, version) != version
    ]
    if stored.device != now.device:
        changed.append(f"device was {stored.device}, is {now.device}")
    if changed:
        yield f"  since then: {'; '.join(changed)}"
