"""The recipes of CONTRIBUTING.md, followed to the letter on a throw-away copy of the repository.

A recipe is a section of headings level 3 whose steps are lines of these forms, each with the fenced block below it:

    Create `path`:    Append to `path`:    In `path`, below `line`, add:    In `path`, replace `line` by:    Run:

Every block is used as it stands; every command must end with status 0.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_FILES = 4
_STEP = re.compile(
    r"^(?:\d+\. )?(?P<verb>Create|Append to|In|Run)(?: `(?P<path>[^`]+)`)?"
    r"(?:,\s+(?P<how>below|replace)\s+`(?P<line>[^`]+)`(?:,\s+add|\s+by))?"
    r":\n+```\w*\n(?P<block>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Step:
    """One instruction of a recipe."""

    verb: str
    path: str | None
    how: str | None
    line: str | None
    block: str


def recipes() -> dict[str, list[Step]]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = text[text.index("\n## Recipes") :]
    sections = re.split(r"^### ", part.split("\n## ", 2)[1], flags=re.MULTILINE)[1:]
    return {
        section.partition("\n")[0].strip(): [
            Step(**{name: match[name] for name in ("verb", "path", "how", "line", "block")})
            for match in _STEP.finditer(section)
        ]
        for section in sections
    }


def numbered_lines(name: str) -> int:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = re.split(r"^#{2,3} ", text[text.index(f"\n### {name}\n") + 1 :], flags=re.MULTILINE)[1]
    return len(re.findall(r"^\d+\. ", section, flags=re.MULTILINE))


def copy_of_the_repository(folder: Path) -> Path:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def follow(step: Step, root: Path) -> None:
    if step.verb == "Run":
        for command in step.block.splitlines():
            run(command.removeprefix("$ "), root)
        return
    assert step.path is not None
    file = root / step.path
    if step.verb == "Create":
        assert not file.exists(), f"{step.path} is there already"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(step.block, encoding="utf-8")
        return
    text = file.read_text(encoding="utf-8")
    if step.verb == "Append to":
        file.write_text(f"{text}\n\n{step.block}", encoding="utf-8")
        return
    lines = text.splitlines(keepends=True)
    (at,) = (number for number, line in enumerate(lines) if line.strip() == step.line)
    lines[at : at + 1] = [lines[at], step.block] if step.how == "below" else [step.block]
    file.write_text("".join(lines), encoding="utf-8")


def run(command: str, root: Path) -> None:
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PYTHONPATH": str(root), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        command, shell=True, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"


def test_there_are_the_five_recipes() -> None:
    assert list(recipes()) == ["A readout", "A check with its saboteur", "A claim", "A recurrence", "An adapter"]


@pytest.mark.parametrize("name", recipes() if (ROOT / "CONTRIBUTING.md").exists() else [])
def test_a_recipe_touches_four_files_at_most(name: str) -> None:
    touched = {step.path for step in recipes()[name] if step.path is not None}
    assert 0 < len(touched) <= MOST_FILES
    assert any(step.verb == "Run" for step in recipes()[name])
    assert len(recipes()[name]) == numbered_lines(name), "a step of another form would be passed over"


@pytest.mark.slow
@pytest.mark.parametrize("name", recipes() if (ROOT / "CONTRIBUTING.md").exists() else [])
def test_a_recipe_followed_to_the_letter_works(name: str, tmp_path: Path) -> None:
    root = copy_of_the_repository(tmp_path)
    for step in recipes()[name]:
        follow(step, root)
    touched = sorted({step.path for step in recipes()[name] if step.path is not None and step.path.endswith(".py")})
    run(f"ruff format --check {' '.join(touched)} && ruff check {' '.join(touched)}", root)
