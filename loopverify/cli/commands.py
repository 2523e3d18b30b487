"""The commands: each reads its arguments, calls the library, and prints the record it returns."""

from __future__ import annotations

import json as json_format
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from loopverify.auditing.audit import audit
from loopverify.checks import check_looped_model
from loopverify.checks.loading import load_model, raised
from loopverify.claims import CLAIMS, Evidence, evaluate
from loopverify.cli import views
from loopverify.cli.doctor import diagnose
from loopverify.cli.folder import runs_folder
from loopverify.cli.runs import read_studies
from loopverify.cli.screen import Screen
from loopverify.cli.tokens import drawn_tokens, read_tokens
from loopverify.errors import InputError, LoopverifyError
from loopverify.looped import Looped
from loopverify.objectives import named
from loopverify.readonly import untouched
from loopverify.report import build

__all__ = ["run"]

HOLDS, FELL_SHORT, WRONG_USE = 0, 1, 2

Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PKG.MOD:FACTORY")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Count = Annotated[int | None, tyro.conf.arg(metavar="K")]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Which variables does a model carry from loop to loop that its loss cannot see?"""

    model: Model
    """A function without arguments that returns a Looped or a known module; also path/to/file.py:factory."""
    loops: Count = None
    """Loops to run; the trained ones when omitted."""
    tokens: File = None
    """Sequences of token ids: .json, .npy, or a text file with one per line; drawn at random when omitted."""
    objective: str = "per_loop"
    """What the model is trained with: per_loop or terminal, each optionally with +penalty."""
    penalty: float = 0.01
    """Weight of +penalty."""
    seed: int = 0
    """Seed of the tokens and of anything that the model draws."""
    json: File = None
    """Where to write the record."""

    def run(self, out: Screen) -> int:
        model = load_model(self.model, Path.cwd())
        batch = drawn_tokens(model, self.seed) if self.tokens is None else read_tokens(self.tokens, model)
        objective = named(self.objective, penalty=self.penalty)
        found = audit(model, batch.tokens, batch.targets, self.loops, objective, seed=self.seed)
        out.print(str(found))
        out.print(f"Input: {batch.source}.")
        if self.tokens is None:
            out.print(
                "Random tokens show what the loop carries, not how well it predicts: --tokens FILE for your text."
            )
        _write(self.json, {"input": batch.source, **found.to_dict()})
        return FELL_SHORT if found.verdict == "blind_spot" else HOLDS


@dataclass(frozen=True, kw_only=True)
class Check:
    """Run the conformance suite on a model."""

    model: Model
    """A function without arguments that returns a Looped or a known module; also path/to/file.py:factory."""
    expect: Annotated[
        tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="ID=WHY [ID=WHY ...]")
    ] = ()
    """Checks that are known to fail, each with the reason."""
    json: File = None
    """Where to write the records."""

    def run(self, out: Screen) -> int:
        expected = _expectations([text for group in self.expect for text in group])
        model = load_model(self.model, Path.cwd())
        _try_out(model)
        results = check_looped_model(model, expected, on_fail="return")
        out.print(*views.checks(results), sep="\n")
        counts = Counter(result.status for result in results)
        summary = ", ".join(f"{count} {status}" for status, count in counts.items())
        out.print(f"{model.name}: {len(results)} checks, {summary}")
        _write(self.json, [result.to_dict() for result in results])
        # If every check was skipped, nothing was verified.
        return FELL_SHORT if {"failed", "error", "xpassed"} & counts.keys() or not counts["passed"] else HOLDS


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """What this installation can do."""

    def run(self, out: Screen) -> int:
        out.print(views.findings(diagnose()))
        return HOLDS


@dataclass(frozen=True, kw_only=True)
class Claims:
    """List the papers' claims, or judge them on stored runs."""

    runs: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder in which `pytest train` stores its runs."""
    json: File = None
    """Where to write the records."""

    def run(self, out: Screen) -> int:
        if self.runs is None:
            unjudged = [evaluate(claim, ()) for claim in CLAIMS.values()]
            out.print(views.claims(unjudged))
            out.print(f"{len(unjudged)} claims (sentences: --json FILE). To judge them: loopverify claims --runs DIR")
            _write(self.json, [evidence.to_dict() for evidence in unjudged])
            return HOLDS
        judged: dict[str, tuple[Evidence, ...]] = {}
        for study in read_studies(runs_folder(self.runs)):
            report = build(study.runs)
            judged[study.title] = report.evidence
            out.print(views.evidence(report.evidence, f"{study.title}, runs: {report.runs}"))
            summary = ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items())
            out.print(summary + _missing_runs(report.evidence))
        _write(self.json, {title: [e.to_dict() for e in evidence] for title, evidence in judged.items()})
        verdicts = {e.verdict for evidence in judged.values() for e in evidence}
        return FELL_SHORT if "contradicted" in verdicts else HOLDS


Command = (
    Annotated[Audit, tyro.conf.subcommand("audit")]
    | Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Claims, tyro.conf.subcommand("claims")]
)
_DESCRIPTION = "Verify looped language models. Exit status: 0 it holds, 1 something fell short, 2 wrong use."


def run(argv: Sequence[str] | None) -> int:
    """Parse `argv` and run its command; returns the exit status. Errors are printed to stderr."""
    command = tyro.cli(Command, args=argv, prog="loopverify", description=_DESCRIPTION)
    try:
        return command.run(Screen(sys.stdout))
    except LoopverifyError as error:
        return _wrong(str(error) or type(error).__name__)
    except Exception as error:
        # An exception of this package and not of the user's code is a bug, which is shown with its traceback.
        cause = raised(error)
        return _wrong(f"the model raised {cause}" if cause else traceback.format_exc())


def _wrong(message: str) -> int:
    Screen(sys.stderr).print(f"error: {message}")
    return WRONG_USE


def _missing_runs(judged: Sequence[Evidence]) -> str:
    """The conditions without runs, for which some claims were not judged."""
    missing = {condition for entry in judged for condition, seeds in entry.seeds.items() if not seeds}
    return f", missing runs of {', '.join(sorted(missing))}" if missing else ""


def _try_out(model: Looped) -> None:
    """Run one loop, so that a model that does not run at all is reported once instead of by every check."""
    with untouched(model), torch.no_grad():
        try:
            state, context = model.embed(drawn_tokens(model, seed=0).tokens)
        except IndexError as error:
            raise InputError(
                f"embed refused tokens of a vocabulary of {model.vocab_size} ({raised(error) or error}); expected "
                "vocab_size to be the number of embeddings"
            ) from error
        model.readout(model.step(state, context, 1), context, 1, 1)


def _expectations(texts: Sequence[str]) -> Mapping[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (_, sign, why) in zip(texts, pairs, strict=True):
        if not sign or not why:
            raise InputError(f"--expect {text!r}; expected the id of a check and why it fails: id=why")
    return {name: why for name, _, why in pairs}


def _write(path: Path | None, record: Any) -> None:
    if path is None:
        return
    try:
        path.write_text(json_format.dumps(record, indent=1, allow_nan=False, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
