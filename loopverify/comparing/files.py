"""Where traces are stored, and which of them no longer belong to a test. Imported when pytest starts: no torch here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loopverify.errors import InputError
from loopverify.replacing import replace_text

__all__ = ["SUFFIX", "Collected", "stored_path", "write_atomically"]

SUFFIX = ".looped.json"
_LONGEST = 120
"""Characters of a test's name kept in a file name; many file systems allow 255 bytes."""


def stored_path(module: Path, test: str, name: str = "") -> Path:
    """The file of one trace: `<module without .py>/<test>[.<name>].looped.json`.

    Args:
        module: the test module.
        test: the test's name within it, with class and parameters, as in 'TestA::test_b[c]'.
        name: distinguishes several traces of one test.

    Raises:
        InputError: the name has characters other than letters, digits, '_' and '-'.
    """
    if name and re.search(r"[^A-Za-z0-9_-]", name):
        raise InputError(f"the name of a stored trace is {name!r}; expected letters, digits, '_' and '-' only")
    return module.with_suffix("") / f"{_stem(test)}{'.' if name else ''}{name}{SUFFIX}"


def write_atomically(path: Path, text: str) -> None:
    """Write a stored trace, see `replace_text`.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        replace_text(path, text)
    except OSError as error:
        raise InputError(f"cannot write the stored trace {path}: {error.strerror or error}") from error


class Collected:
    """The tests that a pytest session found in each module, and the modules that it collected in part only."""

    def __init__(self, modules: Iterable[tuple[str, Iterable[str]]] = (), partial: Iterable[str] = ()) -> None:
        self._tests = {module: set(tests) for module, tests in modules}
        self._partial = set(partial)

    def add(self, module: Path, test: str) -> None:
        """Record that a test exists."""
        self._tests.setdefault(str(module), set()).add(test)

    def leave_out(self, module: Path) -> None:
        """Record that not every test of a module was collected."""
        self._partial.add(str(module))

    def merge(self, other: Collected) -> None:
        """Add what another process found."""
        for module, tests in other._tests.items():
            self._tests.setdefault(module, set()).update(tests)
        self._partial |= other._partial

    def to_plain(self) -> dict[str, Any]:
        """The constructor arguments of an equal object, as lists and strings that can be sent between processes."""
        return {"modules": [(m, sorted(tests)) for m, tests in self._tests.items()], "partial": sorted(self._partial)}

    def stale(self) -> list[Path]:
        """Stored traces whose tests no longer exist, in the modules that were collected completely."""
        return [
            path
            for module, tests in sorted(self._tests.items())
            if module not in self._partial
            for path in _unclaimed(Path(module), tests)
        ]


def _unclaimed(module: Path, tests: set[str]) -> list[Path]:
    stems = {_stem(test) for test in tests}
    stored = sorted(module.with_suffix("").glob(f"*{SUFFIX}"))
    return [path for path in stored if path.name.partition(".")[0] not in stems]


def _stem(test: str) -> str:
    """The test's name as part of a file name; where characters had to be replaced, a hash keeps names distinct."""
    name, bracket, parameters = test.partition("[")
    wanted = name.replace("::", "-") + bracket + parameters
    plain = re.sub(r"[^A-Za-z0-9_\[\]-]", "_", wanted)[:_LONGEST]
    return plain if plain == wanted else f"{plain}-{hashlib.sha256(test.encode()).hexdigest()[:8]}"
