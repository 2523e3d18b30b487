"""The code that a stored result depends on: the import closure, inside `loopverify` and `train`, of what made it.

The closure is computed from the source, because a list kept by hand is incomplete sooner or later: if a listed file
imports its warm-up from an unlisted one and that file changes, old results are silently found under the new code. The
digest errs on the safe side. It covers syntax trees, so it changes with every change of code that could change a
result, and also with some that cannot: a renamed variable, an annotation, another error message. Training again costs
time; a result attributed to the wrong code is wrong. Comments, docstrings, white space, the spelling of a number and
the location of the files cannot change a result and do not change the digest.

Part of the closure is every module that is reached, with all of its imports, including those inside functions. Not part
of it are imports under TYPE_CHECKING, and the `__init__` of a package that only re-exports names: `from package import
name` is followed through it to the module that defines the name, so that a package does not pull in all of its modules.
Any other `__init__` runs whenever something below its package is imported, and is part of the closure with all of its
imports. That the skipped modules do nothing when imported is tested (tests/train/provenance). Third-party packages are
not covered; the version of torch is in a run's key.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from train.provenance.module import Import, Module, UntraceableError, parsed

__all__ = ["APART", "OWN", "closure", "code_digest", "digest", "installed"]

OWN = ("loopverify", "train")
"""The packages whose code is covered."""
BESIDE = ("bench", "docs", "properties", "tests")
"""Packages of the repository on which no stored result may depend: they are not followed."""
APART = {
    "train.store": "stores bytes and verifies checksums; other modules determine the content",
    "train.provenance": "computes the key; a change that matters changes the key directly",
    "train.engine.throughput": "reports the speed of training, in the log only",
}
"""Modules and packages that code of the closure uses but that cannot change a result, with the reason."""

Read = Callable[[str], str | None]
"""Maps the path of a source file, such as 'train/store/manifest.py', to its text; None if there is no such file."""


@cache
def code_digest(*roots: str) -> str:
    """16 hex digits of the installed code that the modules `roots` depend on.

    Files are read once per process. Call this when the code is imported: files that change later are not the code that
    the process runs.

    Raises:
        UntraceableError: the code accesses modules or files in a way that no import statement shows.
    """
    modules = closure(roots)
    for module in modules:
        _require_current(module)
    return digest(modules)


def _require_current(module: Module) -> None:
    """Raise unless an imported module runs the code of its source.

    Python takes cached bytecode for current if size and time of the source are as noted, to the second: after a quick
    edit of equal size, old code would run under the key of the new one.
    """
    spec = getattr(sys.modules.get(module.name), "__spec__", None)
    if spec is None or spec.origin is None or not hasattr(spec.loader, "get_code"):
        return
    source = compile(Path(spec.origin).read_bytes(), spec.origin, "exec", dont_inherit=True)
    if spec.loader.get_code(module.name) != source:
        raise UntraceableError(
            f"{module.name} runs from bytecode that is not that of {Path(spec.origin).name}; remove the folders "
            "__pycache__ next to it"
        )


def digest(modules: Iterable[Module]) -> str:
    """16 hex digits of the names and syntax trees of modules."""
    lines = sorted(f"{module.name} {module.digest}\n" for module in modules)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


@cache
def installed(place: str) -> str | None:
    """The text of an installed source file, or None."""
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
    """The modules that `roots` depend on, including the roots, sorted by name.

    Raises:
        UntraceableError: a module accesses something that no import statement shows, or imports a missing module.
    """
    walk = _Walk(read)
    for root in roots:
        walk.take(walk.module(root, "the roots"))
    return tuple(walk.taken[name] for name in sorted(walk.taken))


class _Walk:
    """The modules found so far, and how each import leads to further modules."""

    def __init__(self, read: Read) -> None:
        self.taken: dict[str, Module] = {}
        self._read = read
        self._seen: set[tuple[str, str | None]] = set()
        """The (module, attribute) pairs that were followed; packages may re-export from each other in a cycle."""

    def module(self, name: str, importer: str) -> Module:
        """The module or package called `name`, needed by `importer`."""
        found = self._find(name)
        if found is None:
            raise UntraceableError(f"{importer}: there is no source of the module {name}")
        return found

    def take(self, module: Module) -> None:
        """Add a module and everything it imports."""
        if _is_apart(module.name) or module.name in self.taken:
            return
        module.require_traceable()
        self.taken[module.name] = module
        self._run_packages_above(module)
        for one in module.imports:
            if not one.for_types:
                self._follow(one, module)

    def _follow(self, one: Import, of: Module) -> None:
        top = one.module.split(".")[0]
        if top in BESIDE:
            raise UntraceableError(f"{of.name}: {one.module} is no part of {' or '.join(OWN)}; move the code there")
        if top not in OWN:
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
        """Add what `from target import name` needs."""
        if not target.is_package:
            self.take(target)
            return
        self._run(target)
        below = self._find(f"{target.name}.{name}")
        bindings = [one for one in target.imports if one.binds == name] if target.only_re_exports else []
        if target.only_re_exports and not bindings and below is None and not _is_apart(target.name):
            raise UntraceableError(f"{of.name}: {target.name} has no name {name!r} and no module of this name")
        self._load(target, bindings)
        # A submodule may have the same name as a re-exported name. Which of the two the attribute is depends on the
        # order of imports, so both are added.
        if below is not None:
            self._take_whole(below)

    def _take_whole(self, target: Module) -> None:
        """Add what a module or package object needs: everything that can be reached through its attributes."""
        if not target.only_re_exports:
            self.take(target)
            return
        self._run_packages_above(target)
        self._load(target, target.imports)

    def _load(self, package: Module, bindings: Iterable[Import]) -> None:
        """Add what some re-exported names of a package need."""
        for one in bindings:
            if one.for_types:
                self.taken[package.name] = package  # a lazy package, whose loader runs for this name
            self._follow(one, package)

    def _run_packages_above(self, module: Module) -> None:
        parts = module.name.split(".")
        for length in range(1, len(parts)):
            self._run(self.module(".".join(parts[:length]), module.name))

    def _run(self, package: Module) -> None:
        """Add the `__init__` of a package, which runs when a module below it is imported."""
        self._run_packages_above(package)
        if not package.only_re_exports:
            self.take(package)

    def _find(self, name: str) -> Module | None:
        """The source of a module; as in Python, a package takes precedence."""
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
