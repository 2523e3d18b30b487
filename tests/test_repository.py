"""The house itself: layers, doors, sizes, documented names, and a README that says what is true."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import loopverify as lv

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "bench" / "README.md"]
SOURCES = sorted(path for folder in ("loopverify", "train", "docs") for path in (ROOT / folder).rglob("*.py"))
PACKAGES = sorted(path.parent.name for path in (ROOT / "loopverify").glob("*/__init__.py"))
DOORS = {
    "mpmath": {"loopverify/theory/oracle.py"},
    "scipy": {"loopverify/stats.py"},
    "matplotlib": {"loopverify/report"},
    "jinja2": {"loopverify/report"},
    "transformers": {"loopverify/adapters"},
    "pytest": {"loopverify/pytest_plugin.py", "loopverify/checks", "train/conftest.py", "train/test_"},
    "tyro": {"loopverify/cli", "train"},
    "rich": {"loopverify/cli", "train"},
    "datasets": {"train/data"},
    "submitit": {"train/launch/slurm.py"},
}


def imports(path: Path) -> set[str]:
    """Top-level names of every import of a file, wherever it stands in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_the_layers_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("library", DOORS)
def test_every_third_party_library_has_one_door(library: str) -> None:
    outside = [
        str(relative)
        for path in SOURCES
        if library in imports(path) and not str(relative := path.relative_to(ROOT)).startswith(tuple(DOORS[library]))
    ]
    assert outside == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_has_one_idea_and_its_functions_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400
    tree = ast.parse(text)
    assert not text.strip() or ast.get_docstring(tree), "a module says what it is for"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or node.lineno) - node.lineno < 60, node.name


def packages() -> list[Path]:
    return sorted({path.parent for path in SOURCES})


@pytest.mark.parametrize("package", packages(), ids=lambda package: str(package.relative_to(ROOT)))
def test_a_package_is_a_room_one_can_walk(package: Path) -> None:
    """Of data there may be more: a table of the paper is a module of claims, and a test that trains is one of train."""
    modules = [path.name for path in package.glob("*.py") if not path.name.startswith(("__", "table", "test_"))]
    assert len(modules) <= 15, sorted(modules)


@pytest.mark.parametrize("name", ["loopverify", *(f"loopverify.{name}" for name in PACKAGES)])
def test_a_package_exports_what_a_user_calls(name: str) -> None:
    rooms = len(PACKAGES) if name == "loopverify" else 0
    assert len(getattr(importlib.import_module(name), "__all__", ())) - rooms <= 30


def test_every_room_is_an_attribute() -> None:
    rooms = [*(name for name in PACKAGES if name != "cli"), "errors", "stats"]
    code = (
        f"import loopverify as lv\nfor name in {rooms!r}: assert getattr(lv, name).__name__ == f'loopverify.{{name}}'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_unsafe_is_loaded() -> None:
    pattern = re.compile(r"\bpickle\b|trust_remote_code\s*=\s*True|torch\.load\(|\beval\(|\bexec\(")
    text = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    assert [str(path) for path, source in text.items() if pattern.search(re.sub(r"\.eval\(", "", source))] == []


def public_modules() -> list[str]:
    files = [path.relative_to(ROOT).with_suffix("") for path in SOURCES if path.is_relative_to(ROOT / "loopverify")]
    names = [".".join(file.parts).removesuffix(".__init__") for file in files]
    return [name for name in names if not any(part.startswith(("_", "test_")) for part in name.split(".")[1:])]


@pytest.mark.parametrize("name", public_modules())
def test_every_exported_name_exists_and_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    for exported in getattr(module, "__all__", ()):
        value = getattr(module, exported)
        if callable(value) and getattr(value, "__module__", "").startswith("loopverify"):
            assert value.__doc__, f"{name}.{exported} has no docstring"
            assert not value.__doc__.startswith(f"{exported}("), f"{name}.{exported} has only a generated docstring"


def test_the_wheel_s_core_needs_no_extra() -> None:
    extras = ["mpmath", "scipy", "matplotlib", "jinja2", "transformers", "tyro", "rich", "filelock", "safetensors"]
    code = (
        f"import sys\nfor name in {extras!r}: sys.modules[name] = None\n"
        "import loopverify as lv\n"
        f"for name in {lv.__all__!r}: getattr(lv, name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_ci_runs_the_readme_s_two_commands() -> None:
    commands = re.findall(r"^\$ (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [command.rpartition(" && ")[2] for command in commands] == [
        ".venv/bin/pytest train -k T2 --preset tiny",
        ".venv/bin/pytest -n auto",
    ]
    for command in commands:
        for part in command.split(" && "):
            assert part in ci, part
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_lines_of_prose_stay_within_the_width_of_the_code() -> None:
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")] == [], page


def test_every_link_of_the_pages_leads_somewhere() -> None:
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = re.findall(r"\]\((?!https?:)([^)#]+)", prose)
        assert [link for link in links if not (page.parent / link).exists()] == []
