"""The model that a command names: if it cannot be loaded, the error and its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loopverify.cli.calls import Cli


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("mine", "model 'mine'; expected 'package.module:factory'"),
        ("absent:f", "cannot import 'absent' (No module named 'absent')"),
        ("absent.py:f", "cannot read absent.py: No such file or directory"),
        ("mine:absent", "mine has no 'absent'"),
        ("mine:number", "is a int; expected a function that returns a model"),
        ("mine:wants_arguments", "raised TypeError: wants_arguments() missing 1 required positional argument"),
        ("mine:raises", "raised RuntimeError: no [weights] here, at"),
        ("mine:raises_without_a_word", "called without arguments, raised ValueError, at"),
        ("mine:raises_in_c_without_a_word", "called without arguments, raised StopIteration"),
        ("mine:exits_without_a_word", "called without arguments, raised SystemExit, at"),
        ("mine:step_without_a_word", "the model raised AssertionError, at"),
        ("mute.py:f", "cannot import 'mute.py' (ImportError, at"),
        ("typo.py:f", "importing typo.py raised SyntaxError: invalid syntax"),
        ("needs.py:f", "No module named 'not_installed_anywhere', at"),
        ("mine:broken_step", "the model raised RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    ],
)
@pytest.mark.parametrize("command", ["audit", "check"])
def test_a_model_that_cannot_be_loaded_is_wrong_use_with_the_place(
    cli: Cli, folder: Path, command: str, model: str, message: str
) -> None:
    (folder / "typo.py").write_text("def f(:\n")
    (folder / "mute.py").write_text("raise ImportError\n")
    (folder / "needs.py").write_text("import not_installed_anywhere\n")
    status, out, err = cli(command, model)
    assert (status, out) == (2, "")
    assert message in err
    if model == "mine:raises":
        assert "mine.py:" in err
        assert err.endswith("in raises")
    if model == "mine:broken_step":
        assert err.endswith("in step")


@pytest.mark.parametrize("command", ["audit", "check"])
def test_a_vocabulary_larger_than_the_embedding_is_wrong_use(cli: Cli, command: str) -> None:
    status, out, err = cli(command, "mine:too_many_words")
    assert (status, out) == (2, "")
    assert err.startswith("error: embed refused tokens")
    assert "(index out of range in self)" in err
