"""The code in the keys of runs, measurements and tokens: everything that can change a result, and little else."""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import loopverify as lv
from train.provenance.closure import APART, closure, code_digest, digest, installed
from train.provenance.module import Module, parsed
from train.specification import run_spec
from train.study import measure

ROOT = Path(__file__).parents[3]
SPEC = run_spec.__name__.rpartition(".")[0]
RUNS, MEASUREMENTS, TOKENS = run_spec._ROOTS, measure._ROOTS, ("train.data.corpus",)
CLOSURES = {roots: closure(roots) for roots in (RUNS, MEASUREMENTS, TOKENS)}
CODE = {module.name: module for modules in CLOSURES.values() for module in modules}

NO_RESULTS = {
    "loopverify.plain": "writes infinities and NaN as words, which `float` reads back",
    "loopverify.claims.metrics": "refuses metrics that are not listed and changes none",
    "loopverify.claims.run": "the record that results are passed on in",
    "train.launch.run": "finds a run in the store, or has it trained and puts it there",
    f"{SPEC}.plan": "counts operations, for the throughput in the log",
    "train.study.measure": "finds a measurement in the store, or has it made and puts it there",
}
"""Files that are executed on the way to a result and cannot change it, in addition to `APART`."""


def place(module: Module) -> str:
    """Of its source file."""
    return f"{module.name.replace('.', '/')}{'/__init__' if module.is_package else ''}.py"


def digests(changes: dict[str, str]) -> dict[tuple[str, ...], str]:
    """By roots, with other texts in some places."""
    return {roots: digest(closure(roots, lambda path: changes.get(path) or installed(path))) for roots in CLOSURES}


@cache
def unchanged() -> dict[tuple[str, ...], str]:
    return digests({})


@pytest.mark.parametrize("name", CODE)
def test_a_statement_of_any_module_moves_the_keys_it_is_in_and_a_docstring_moves_none(name: str) -> None:
    at = place(CODE[name])
    text = installed(at)
    assert text is not None
    holds = {roots for roots, modules in CLOSURES.items() if name in {module.name for module in modules}}
    for changed in (f"{text}\n_more = 1\n", with_another_constant(text)):
        found = digests({at: changed})
        assert {roots for roots in found if found[roots] != unchanged()[roots]} == holds
    prose = f'"""Another module docstring."""\n# A comment.\n{with_other_docstrings(text)}\n# At the end.\n'
    assert prose != text
    assert digests({at: prose}) == unchanged()


def with_another_constant(text: str) -> str:
    """The source with its last number or text that is no docstring changed; with a statement more if it has none."""
    tree = ast.parse(text)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [
        node for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) in (int, float, str)
    ]
    own = [node for node in constants if id(node) not in prose]
    if not own:
        return f"pass\n{text}"
    own[-1].value = f"{own[-1].value}?" if isinstance(own[-1].value, str) else own[-1].value + 1
    return ast.unparse(tree)


def with_other_docstrings(text: str) -> str:
    """The source with a changed or an added docstring in every class and function, and one behind every attribute."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            node.body = [documented("Other words."), *body]
        if isinstance(node, ast.ClassDef | ast.Module):
            future = isinstance(node, ast.Module)
            node.body = [
                part for one in node.body for part in ((one,) if future else (one, documented("An attribute.")))
            ]
    return ast.unparse(tree)


def documented(words: str) -> ast.Expr:
    return ast.Expr(ast.Constant(words))


@pytest.mark.parametrize(
    ("at", "old", "new"),
    [
        (f"{SPEC.replace('.', '/')}/preset_fields.py", "min(1.0, step / max(1, self.warmup_steps))",
         "min(1.0, step / max(1, self.warmup_steps)) ** 2"),
        ("loopverify/models/layers.py", "return nn.Dropout(config.dropout) if config.dropout else nn.Identity()",
         "return nn.Identity()"),
        ("loopverify/objectives/compose.py", '"penalty": norm_penalty, ', ""),
        ("train/machine/hardware.py", "torch.set_flush_denormal(True)", "torch.set_flush_denormal(False)"),
        # More of the same: threads, the precision of products, what is drawn, what is evaluated, what is opened.
        ("train/machine/hardware.py", '"highest"', '"high"'),
        ("train/machine/hardware.py", "before[0] if threads is None else threads", "before[0]"),
        ("train/data/windows.py", "manual_seed(int.from_bytes(mixed[:8]", "manual_seed(int.from_bytes(mixed[1:9]"),
        ("train/data/instances.py", "_TRAINING + seed", "_TRAINING"),
        ("train/engine/open.py", "stride=p.stride", "stride=p.seq_len"),
        ("train/engine/evaluate.py", "module.training = False", "module.training = True"),
        ("loopverify/auditing/norms.py", "0.99", "0.95"),
        ("loopverify/arguments.py", "import", "import sys\nimport"),
    ],
)  # fmt: skip
def test_what_a_list_forgot_moves_the_key_of_a_run(at: str, old: str, new: str) -> None:
    text = installed(at)
    assert text is not None
    assert old in text
    changed = text.replace(old, new, 1) if not old.startswith("import") else text.replace("\nimport", f"\n{new}", 1)
    assert changed != text
    assert digests({at: changed})[RUNS] != unchanged()[RUNS]


def test_views_claims_commands_and_the_store_are_in_no_key() -> None:
    outside = (
        *("loopverify.claims", "loopverify.cli", "loopverify.report", "loopverify.checks", "loopverify.pytest_plugin"),
        *("train.commands", "train.launch", "train.store", "train.provenance", "train.conftest", "train.__main__"),
        *("train.study.expected_shortfalls", "train.study.tables", "train.study.measure", f"{SPEC}.presets"),
    )
    assert [name for name in CODE if f"{name}.".startswith(tuple(f"{one}." for one in outside))] == []


@pytest.mark.parametrize("name", sorted(APART.keys() - {"train.provenance"}))  # which imports nothing but errors
def test_what_stands_apart_leads_to_nothing_else(name: str) -> None:
    """Code that only a module apart imports would be in no key."""
    folder = ROOT / name.replace(".", "/")
    for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
        copy = {"train/copy.py": file.read_text(encoding="utf-8")}  # the same under a name that is not apart
        found = {module.name for module in closure(["train.copy"], lambda at, copy=copy: copy.get(at) or installed(at))}
        assert found - CODE.keys() <= {"train.copy", f"{SPEC}.plan", f"{SPEC}.gpus"}


def test_every_function_that_runs_is_in_the_code_or_cannot_change_a_result(text_file: Path, tmp_path: Path) -> None:
    """What is executed, looked at by the interpreter itself, and not by reading imports."""
    script = Path(__file__).with_name("traced.py")
    command = [sys.executable, str(script), str(text_file), str(tmp_path)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    executed = set(json.loads(done.stdout))
    apart = {name for name in executed if f"{name}.".startswith(tuple(f"{one}." for one in APART))}
    assert executed - CODE.keys() - apart - NO_RESULTS.keys() == set()
    # The net catches: these are run, and would be found if they were left out.
    assert {"train.engine.stepper", "train.resume.state", "train.data.tokenizer", "train.study.subject"} <= executed
    assert NO_RESULTS.keys() <= executed


def sources() -> Iterator[tuple[str, ast.stmt]]:
    """Every statement at the top level of a module of the two packages, and of the bodies of its classes."""
    for file in sorted([*(ROOT / "loopverify").rglob("*.py"), *(ROOT / "train").rglob("*.py")]):
        blocks = [ast.parse(file.read_text(encoding="utf-8")).body]
        while blocks:
            for node in blocks.pop():
                yield str(file.relative_to(ROOT)), node
                if isinstance(node, ast.ClassDef):
                    blocks.append(node.body)


HARMLESS = {
    "loopverify/theory/oracle.py": "names what to install",
    "train/__main__.py": "`python -m`",
}
"""Modules with a statement at the top that is none of the usual ones, and why it does nothing to others."""
CHANGES = ("set_", "manual_seed", "seed", "register", "setattr", "patch", "update", "append", "add", "__setitem__")


def test_no_module_does_anything_to_others_when_it_is_imported() -> None:
    """Packages that only re-export are not in a key, so nothing they import may have an effect by being imported."""
    odd = {file for file, node in sources() if not defines(node)}
    assert odd == HARMLESS.keys()


def defines(node: ast.stmt) -> bool:
    """Whether a statement does no more than bind names of its own module or class."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Pass():
            return True
        case ast.FunctionDef(decorator_list=decorators) | ast.ClassDef(decorator_list=decorators):
            return not any(map(changes, decorators))
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]):
            return True
        case ast.Assign(targets=targets, value=value):
            return all(map(is_name, targets)) and not changes(value)
        case ast.AnnAssign(target=ast.Name(), value=value):
            return value is None or not changes(value)
    return False


def is_name(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) or (isinstance(target, ast.Tuple) and all(map(is_name, target.elts)))


def changes(value: ast.expr) -> bool:
    """Whether an expression calls something by a name of what changes other objects."""
    called = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
    names = [one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in called]
    return any(name.startswith(CHANGES) for name in names)


def test_the_lazy_top_level_loads_what_its_imports_for_types_say() -> None:
    top = parsed("loopverify", True, (ROOT / "loopverify" / "__init__.py").read_text(encoding="utf-8"))
    assert top.only_re_exports
    for one in top.imports:
        if one.for_types:
            home = importlib.import_module(one.module)
            assert getattr(lv, str(one.binds)) is getattr(home, str(one.attribute)), one
    shown = {one.binds for one in top.imports if one.for_types}
    assert shown == {name for name in lv.__all__ if name != "__version__"}


def test_it_is_fast_and_takes_no_torch() -> None:
    script = (
        "import sys, time\nfrom train.provenance.closure import code_digest\nbegun = time.process_time()\n"
        f"code_digest(*{RUNS!r})\nprint(time.process_time() - begun)\nassert 'torch' not in sys.modules\n"
        f"assert code_digest(*{RUNS!r}) == {code_digest(*RUNS)!r}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    # A ratio, since a machine's seconds are its own: as often as it takes Python to parse these files.
    texts = [installed(place(module)) for module in CLOSURES[RUNS]]
    begun = time.process_time()
    for text in texts:
        ast.parse(str(text))
    parsing = time.process_time() - begun
    assert float(done.stdout) < 12 * parsing


def test_what_a_process_runs_is_what_it_says_it_runs(tmp_path: Path) -> None:
    """Code that is changed while a process runs is not what it has imported, and is not in its keys."""
    for package in ("loopverify", "train"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    script = (
        "import pathlib\n"
        "from train.specification import run_spec\n"
        "from train.study import measure\n"
        "from train.provenance import closure\n"
        "for place in ('train/engine/loop.py', 'loopverify/measures/clamp.py'):\n"
        "    file = pathlib.Path(place)\n"
        "    file.write_text(file.read_text() + 'changed = 1\\n')\n"
        "print(run_spec._CODE, measure._CODE)\n"
        "closure.installed.cache_clear()\n"
        "print(*(closure.digest(closure.closure(one._ROOTS)) for one in (run_spec, measure)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    imported, now = (line.split() for line in done.stdout.splitlines())
    assert imported == [unchanged()[RUNS], unchanged()[MEASUREMENTS]]
    assert all(one != other for one, other in zip(imported, now, strict=True))
