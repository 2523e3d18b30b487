"""The code that a stored result depends on: the import closure of what made it, inside `loopverify` and `train`.

It is computed and not listed by hand, since a list forgets: a warm-up that a listed file imports from another one could
be changed, and old runs were found under the new code. The digest errs the other way. It is one of syntax trees, so it
moves with every change of code that could change a result, and also with some that cannot: a renamed variable, an
annotation, another message of an error. To train again costs time; to find a run of other code costs the truth. What
cannot change a result at all does not move it: comments, docstrings, white space, the spelling of a number, the place
of the files.

What counts: a module of the closure with all of its imports, those inside functions, too. What does not: imports for
type checkers, and the `__init__` of a package that only passes names on, through which a name is followed to the module
that defines it. Any other `__init__` runs whenever something below it is imported, so it counts with all it imports.
That the modules which are only passed through do nothing when they are imported is tested (tests/train/provenance).
Third-party packages do not count; the version of torch is in a run's key.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from train.provenance.module import Import, Module, UntraceableError, parsed

__all__ = ["APART", "OWN", "closure", "code_digest", "digest", "installed"]

OWN = ("loopverify", "train")
"""The packages whose code counts."""
APART = {
    "train.store": "keeps bytes and verifies them by checksums; what they are is decided elsewhere",
    "train.provenance": "makes the key; a change of it that matters moves the key by itself",
    "train.engine.throughput": "tells how fast a run is trained, in its log and nowhere else",
}
"""Modules and packages of which code of the closure makes use and which cannot change a result, and why."""

Read = Callable[[str], str | None]
"""From the place of a source file, such as 'train/store/manifest.py', to its text; None: there is no such file."""


@cache
def code_digest(*roots: str) -> str:
    """16 hex digits for the code that the modules `roots` depend on, as it is installed.

    Read once in a process, and best when the code is imported: files that are changed under a running process are
    not what it runs.

    Raises:
        UntraceableError: that code reaches for something that no import shows.
    """
    return digest(closure(roots))


def digest(modules: Iterable[Module]) -> str:
    """16 hex digits for some modules: their names and their syntax."""
    told = sorted(f"{module.name} {module.digest}\n" for module in modules)
    return hashlib.sha256("".join(told).encode()).hexdigest()[:16]


@cache
def installed(place: str) -> str | None:
    """The text of an installed source file."""
    path = _folder(place.split("/")[0]) / place
    return path.read_text(encoding="utf-8") if path.is_file() else None


@cache
def _folder(package: str) -> Path:
    """The folder that holds an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UntraceableError(f"the package {package} has no source files here")
    return Path(spec.origin).parent.parent


def closure(roots: Iterable[str], read: Read = installed) -> tuple[Module, ...]:
    """The modules that `roots` depend on, themselves included, by name.

    Raises:
        UntraceableError: one of them reaches for something that no import shows, or imports what is not there.
    """
    walk = _Walk(read)
    for root in roots:
        walk.take(walk.module(root, "the roots"))
    return tuple(walk.taken[name] for name in sorted(walk.taken))


class _Walk:
    """The modules found so far, and how one import leads to others."""

    def __init__(self, read: Read) -> None:
        self.taken: dict[str, Module] = {}
        self._read = read
        self._seen: set[tuple[str, str | None]] = set()
        """(module, attribute) that were followed; a package may re-export from one that re-exports from it."""

    def module(self, name: str, asked_by: str) -> Module:
        """The module or package called `name`."""
        found = self._find(name)
        if found is None:
            raise UntraceableError(f"{asked_by}: there is no source of the module {name}")
        return found

    def take(self, module: Module) -> None:
        """Count a module and all it imports."""
        if _is_apart(module.name) or module.name in self.taken:
            return
        module.require_traceable()
        self.taken[module.name] = module
        self._run_packages_above(module)
        for one in module.imports:
            if not one.for_types:
                self._follow(one, module)

    def _follow(self, one: Import, of: Module) -> None:
        if one.module.split(".")[0] not in OWN:
            return
        if one.attribute is None and one.binds == one.module and "." in one.module:
            raise UntraceableError(
                f"{of.name}: `import {one.module}` makes everything below {one.module.split('.')[0]} reachable; write "
                f"`from ... import ...`, or `import {one.module} as ...`"
            )
        if (one.module, one.attribute) in self._seen:
            return
        self._seen.add((one.module, one.attribute))
        target = self.module(one.module, of.name)
        if one.attribute is None:
            self._take_whole(target)
        else:
            self._take_name(target, one.attribute, of)

    def _take_name(self, target: Module, name: str, of: Module) -> None:
        """What `from target import name` needs."""
        if not target.is_package:
            self.take(target)
            return
        self._run(target)
        below = self._find(f"{target.name}.{name}")
        bindings = [one for one in target.imports if one.binds == name] if target.only_re_exports else []
        if target.only_re_exports and not bindings and below is None and not _is_apart(target.name):
            raise UntraceableError(f"{of.name}: {target.name} has no name {name!r} and no module of this name")
        self._load(target, bindings)
        # Also beside a binding: which of the two a package shows depends on what was imported last.
        if below is not None:
            self._take_whole(below)

    def _take_whole(self, target: Module) -> None:
        """What a module or a package as an object needs: everything that can be reached by its attributes."""
        if not target.only_re_exports:
            self.take(target)
            return
        self._run_packages_above(target)
        self._load(target, target.imports)

    def _load(self, package: Module, bindings: Iterable[Import]) -> None:
        """What some names need that a package re-exports."""
        for one in bindings:
            if one.for_types:
                self.taken[package.name] = package  # it is lazy, and its loader now runs
            self._follow(one, package)

    def _run_packages_above(self, module: Module) -> None:
        parts = module.name.split(".")
        for length in range(1, len(parts)):
            self._run(self.module(".".join(parts[:length]), module.name))

    def _run(self, package: Module) -> None:
        """What the import of something below a package needs of its `__init__`."""
        self._run_packages_above(package)
        if not package.only_re_exports:
            self.take(package)

    def _find(self, name: str) -> Module | None:
        """As Python looks: a package first."""
        place = name.replace(".", "/")
        for path, is_package in ((f"{place}/__init__.py", True), (f"{place}.py", False)):
            if (text := self._read(path)) is not None:
                return parsed(name, is_package, text)
        return None


def _is_apart(name: str) -> bool:
    return any(f"{part}." in _prefixes(name) for part in APART)


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:length]) + "." for length in range(1, len(parts) + 1))
