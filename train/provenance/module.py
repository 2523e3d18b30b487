"""A Python module as covered by a run key: its syntax tree without docstrings and comments, and its imports."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from loopverify.errors import LoopverifyError

__all__ = ["Import", "Module", "UntraceableError", "parsed"]

# Ways to access code, files or docstrings that no import statement shows: names, attributes and modules.
_HIDDEN_NAMES = frozenset(
    {
        "__import__",
        "eval",
        "exec",
        "compile",
        "__builtins__",
        "__doc__",
        "__file__",
        "__loader__",
        "__path__",
        "__spec__",
    }
)
_HIDDEN_ATTRIBUTES = frozenset(
    {"import_module", "__import__", "exec_module", "load_module", "run_module", "run_path", "entry_points"}
    | {"get_data", "getsource", "getfile", "getdoc", "__doc__", "__file__", "__loader__", "__path__", "__spec__"}
)
_HIDDEN_MODULES = frozenset({"builtins", "importlib", "imp", "runpy", "pkgutil", "pydoc", "zipimport"})
_OTHER_ENCODING = re.compile(r"\A(?:.*\n)?[ \t\f]*#.*?coding[:=][ \t]*(?!utf-?8)[-\w.]+", flags=re.IGNORECASE)
_REACHES = (ast.Name, ast.Attribute, ast.Constant, ast.Import, ast.ImportFrom)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields of a statement that contain statements, or parts with statements."""
_SHOWN_MODULES = frozenset({"importlib.metadata"})  # metadata of installed packages, not code


class UntraceableError(LoopverifyError):
    """Code on which a stored result depends accesses something that its import statements do not show."""


@dataclass(frozen=True)
class Import:
    """One name that an import statement binds."""

    module: str
    """Absolute name of the module after `import` or `from`."""
    attribute: str | None
    """The imported name; None: the module itself, or everything (`*`)."""
    binds: str | None
    """The local name; None: several names (`*`)."""
    for_types: bool
    """Whether it is under `if TYPE_CHECKING` and does not run."""


@dataclass(frozen=True, eq=False)
class Module:
    """A parsed module or the `__init__` of a package."""

    name: str
    is_package: bool
    tree: ast.Module
    """The syntax tree without docstrings; it contains no comments anyway."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the tree."""
        written: list[str] = []
        _write(self.tree, written)
        return hashlib.sha256("".join(written).encode()).hexdigest()

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import statement, including those inside functions and classes."""
        return tuple(self._found(self.tree, for_types=False))

    @cached_property
    def only_re_exports(self) -> bool:
        """Whether this is the `__init__` of a package that only re-exports names.

        A top-level `__init__` may also contain a lazy loader: `_LAZY`, `__getattr__` and `__dir__`, with the lazily
        loaded names as imports under TYPE_CHECKING.
        """
        lazy = "." not in self.name
        return self.is_package and all(_passes_on(node) or (lazy and _loads_lazily(node)) for node in self.tree.body)

    def require_traceable(self) -> None:
        """Check that the module accesses code, files and docstrings through import statements only.

        Raises:
            UntraceableError: it does not; the message names the line.
        """
        if self._hides is not None:
            raise UntraceableError(
                f"{self.name}, {self._hides} hides from the run key what a stored result depends on; import it by a "
                "statement, or move it out of what trains and measures"
            )

    @cached_property
    def _hides(self) -> str | None:
        found = ((node, _hidden(node)) for node in ast.walk(self.tree) if isinstance(node, _REACHES))
        return next((f"line {getattr(node, 'lineno', '?')}: {hidden}" for node, hidden in found if hidden), None)

    def _found(self, node: ast.AST, *, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                binds = alias.asname or alias.name
                yield Import(alias.name, None, binds, for_types)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                every = alias.name == "*"
                taken = None if every else alias.name
                yield Import(self._absolute(node), taken, None if every else alias.asname or alias.name, for_types)
        elif isinstance(node, ast.If) and _is_for_types(node.test):
            for part in node.body:
                yield from self._found(part, for_types=True)
            for part in node.orelse:
                yield from self._found(part, for_types=for_types)
        else:
            for block in _BLOCKS:
                for part in getattr(node, block, ()):
                    yield from self._found(part, for_types=for_types)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        kept = len(parts) - node.level + self.is_package
        if kept < 1:
            raise UntraceableError(
                f"{self.name}, line {node.lineno}: a relative import from above the top-level package"
            )
        return ".".join([*parts[:kept], *([node.module] if node.module else [])])


@cache
def parsed(name: str, is_package: bool, text: str) -> Module:
    """The module called `name` whose source is `text`.

    Raises:
        UntraceableError: it is not valid Python, or declares an encoding other than UTF-8.
    """
    if _OTHER_ENCODING.match(text):
        raise UntraceableError(f"{name} declares an encoding; expected UTF-8, in which its constants are what is read")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise UntraceableError(f"{name} is not the source of a Python module: {error}") from error
    _strip(tree)
    return Module(name, is_package, tree)


def _strip(node: ast.AST) -> None:
    """Remove every statement that is a string: docstrings, including those of attributes."""
    for block in _BLOCKS:
        if statements := getattr(node, block, ()):
            statements[:] = [statement for statement in statements if not _is_text(statement)]
            for statement in statements:
                _strip(statement)


def _write(node: object, to: list[str]) -> None:
    """Write a tree as a unique text that, unlike `ast.dump`, is the same in every version of Python."""
    if isinstance(node, ast.AST):
        to.append(type(node).__name__)
        to.append("(")
        for field in node._fields:
            value = getattr(node, field, None)
            if value is not None and value != [] and field != "ctx":  # the context of a name follows from its position
                to.append(f"{field}=")
                _write(value, to)
        to.append(")")
    elif isinstance(node, list):
        to.append("[")
        for item in node:
            _write(item, to)
            to.append(",")
        to.append("]")
    else:
        to.append(f"{type(node).__name__} {node!r},")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_for_types(test: ast.expr) -> bool:
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(value=ast.Name(id="typing"), attr="TYPE_CHECKING"):
            return True
    return False


def _passes_on(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return all(alias.name != "*" for alias in node.names)
    return isinstance(node, ast.Import) or _assigns_literal(node, "__all__")


def _loads_lazily(node: ast.stmt) -> bool:
    match node:
        case ast.If(test=test, body=body, orelse=[]) if _is_for_types(test):
            return all(map(_passes_on, body))
        case ast.FunctionDef(name="__getattr__" | "__dir__", decorator_list=[]):
            return True
    return _assigns_literal(node, "_LAZY")


def _assigns_literal(node: ast.stmt, name: str) -> bool:
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=target)], value=value)
            | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
        ) if target == name:
            try:
                ast.literal_eval(value)
            except ValueError:
                return False
            return True
    return False


def _hidden(node: ast.AST) -> str | None:
    """How a node accesses something that is not imported by a statement; None if it does not."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if name in _HIDDEN_NAMES:
            return name
        case ast.Name(id="TYPE_CHECKING", ctx=ast.Store()):
            return "a TYPE_CHECKING of its own"
        case ast.Attribute(attr=name) | ast.Constant(value=str(name)) if name in _HIDDEN_ATTRIBUTES:
            return name
        case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
            return "sys.modules"
        case ast.Import(names=names) if any(alias.name == "sys" and alias.asname for alias in names):
            return "sys under another name"
        case ast.Import(names=names):
            return next((alias.name for alias in names if _is_hidden_module(alias.name)), None)
        case ast.ImportFrom(module="sys", names=names) if "modules" in {alias.name for alias in names}:
            return "sys.modules"
        case ast.ImportFrom(module=module, names=names) if module != "typing" and "TYPE_CHECKING" in _bound(names):
            return "a TYPE_CHECKING of its own"
        case ast.ImportFrom(module=str(module), level=0, names=names):
            taken = {f"{module}.{alias.name}" for alias in names}
            shown = module in _SHOWN_MODULES or taken <= _SHOWN_MODULES
            return None if shown else next(filter(_is_hidden_module, (module, *sorted(taken))), None)
    return None


def _bound(names: list[ast.alias]) -> set[str]:
    return {alias.asname or alias.name for alias in names}


def _is_hidden_module(name: str) -> bool:
    return name not in _SHOWN_MODULES and name.split(".")[0] in _HIDDEN_MODULES
