"""loopverify audit: the exit status is the verdict, and tokens are read from all formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.loopverify.cli.calls import Cli


@pytest.mark.parametrize(
    ("model", "options", "status", "verdict"),
    [
        ("hidden", [], 1, "BLIND SPOT"),
        ("hidden", ["--objective", "per_loop+penalty"], 0, "CONTROLLED"),
        ("raw", ["--loops", "3"], 0, "CONTROLLED"),
        ("boundary", [], 0, "REMOVED"),
    ],
)
def test_an_audit_s_exit_status_is_its_verdict(
    cli: Cli, model: str, options: list[str], status: int, verdict: str
) -> None:
    ended, out, err = cli("audit", f"mine:{model}", *options)
    assert (ended, err) == (status, "")
    assert out.splitlines()[0].endswith(verdict)
    assert "Input: 4 × 64 tokens drawn at random (seed 0) from a vocabulary of 31." in out


def test_an_audit_s_json_is_the_record_with_its_input(cli: Cli, folder: Path) -> None:
    cli("audit", "mine.py:hidden", "--json", "audit.json", "--seed", "5")
    record = json.loads((folder / "audit.json").read_text())
    assert record["verdict"] == "blind_spot"
    assert record["facts"]["seed"] == 5
    assert record["input"].startswith("4 × 64 tokens drawn at random (seed 5)")


def test_a_vocabulary_that_the_model_does_not_declare_is_read_from_its_logits(cli: Cli) -> None:
    _, out, _ = cli("audit", "mine:no_vocabulary")
    assert "from a vocabulary of 31." in out


def _npy(path: Path) -> None:
    np.save(path, np.arange(24).reshape(2, 12) % 31)


TOKEN_FILES: dict[str, Callable[[Path], object]] = {
    "tokens.json": lambda path: path.write_text(json.dumps([list(range(12)), list(range(12, 24))])),
    "tokens.npy": _npy,
    "tokens.txt": lambda path: path.write_text("0 1 2 3 4 5 6 7 8 9 10 11\n\n12, 13 14 15 16 17 18 19 20 21 22 23\n"),
}


@pytest.mark.parametrize("name", TOKEN_FILES)
def test_tokens_are_read_from_every_form(cli: Cli, folder: Path, name: str) -> None:
    TOKEN_FILES[name](folder / name)
    status, out, _ = cli("audit", "mine:hidden", "--tokens", name, "--json", "audit.json")
    assert status == 1
    assert f"Input: 2 × 11 tokens from {name}." in out
    assert "drawn at random" not in out
    facts = json.loads((folder / "audit.json").read_text())["facts"]
    assert (facts["batch"], facts["tokens"]) == (2, 11)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.json", None, "cannot read the tokens in none.json: No such file"),
        ("a.json", "{1", "the tokens in a.json are not integers"),
        ("a.json", "[[1, 2.5]]", "2.5 is a float"),
        ("a.json", "[[true, 1]]", "True is a bool"),
        (
            "a.json",
            "[[1, 2], [3]]",
            "have lengths 1, 2; expected one length of at least 2 tokens: a sequence of T + 1 gives T tokens and "
            "their T next tokens as targets",
        ),
        ("a.txt", "7", "have lengths 1; expected one length of at least 2 tokens"),
        ("a.json", "[]", "a.json has no sequences; expected one length of"),
        ("a.txt", "1 two 3", "expected a .json list of lists, an integer .npy, or a text"),
        ("a.npy", "text", "the tokens in a.npy are not integers"),
        ("a.txt", "1 2 99 4", "token 3 of sequence 1 in a.txt is 99; expected 0..30 for a vocabulary of 31. Was the"),
        ("a.txt", "1 2 3\n4 5 99", "token 3 of sequence 2 in a.txt is 99; expected 0..30"),  # a target only
        ("a.txt", f"1 {10**30}", f"token 2 of sequence 1 in a.txt is {10**30}; expected 0..30"),
        ("a.npy", "", "the tokens in a.npy are not integers"),
        ("a.json", "[" * 100_000, "the tokens in a.json are not integers (maximum recursion depth"),
        ("a.txt", "-1 2 3", "token 1 of sequence 1 in a.txt is -1; expected 0..30"),
    ],
)
def test_tokens_that_cannot_be_used_are_wrong_use(
    cli: Cli, folder: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (folder / name).write_text(content)
    status, out, err = cli("audit", "mine:hidden", "--tokens", name)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("seed", ["-1", str(2**63)])
def test_a_seed_that_cannot_be_used_is_wrong_use(cli: Cli, seed: str) -> None:
    assert cli("audit", "mine:hidden", "--seed", seed) == (
        2,
        "",
        f"error: seed is {seed}; expected an integer in 0..2^63 - 1",
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("last_token", "error: exit 1 returned torch.float32 (4, 31); expected floating logits (4, 64, V)"),
        ("mute", "error: exit 1 returned NoneType; expected floating logits (1, 1, V), one row for every token"),
        (
            "no_words",
            "error: model 'mine:no_words': the factory, called without arguments, raised InputError: Looped.voc",
        ),
    ],
)
def test_a_model_whose_vocabulary_cannot_be_determined_is_wrong_use(cli: Cli, model: str, message: str) -> None:
    status, out, err = cli("audit", f"mine:{model}")
    assert (status, out) == (2, "")
    assert err.startswith(message)
