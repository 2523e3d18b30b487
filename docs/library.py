"""Tables of the contents of library and harness: checks, traits, saboteurs, presets, and the parts of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bench.results import measured
from bench.results import table as ratios
from docs.audits import audited
from docs.markdown import code
from docs.results import read_json
from loopverify.checks import CHECKS
from loopverify.checks.traits import TRAITS
from loopverify.models import READOUTS, RECURRENCES
from loopverify.objectives import ADDITIONS, LOSSES
from loopverify.report.markdown import table
from train.specification import PRESETS

__all__ = [
    "benchmarks",
    "checks",
    "clean_models",
    "losses",
    "presets",
    "readouts",
    "recurrences",
    "saboteurs",
    "traits",
]


def checks(root: Path) -> str:
    """The fault that each check catches, and the optional parts of `Looped` that it needs."""
    rows = [(f"`{check.id}`", check.catches, code(*check.needs)) for check in CHECKS.values()]
    return table(("check", "what it catches", "needs"), rows)


def traits(root: Path) -> str:
    """The meaning of each trait that a model may declare, and the check that decides it."""
    deciding = {check.decides: check.id for check in CHECKS.values() if check.decides}
    rows = [(f"`{trait}`", meaning, f"`{deciding.get(trait, 'growth_law')}`") for trait, meaning in TRAITS.items()]
    return table(("trait", "what the model says", "decided by"), rows)


def saboteurs(root: Path) -> str:
    """All planted faults, in the order of the checks that catch them."""
    results = read_json(root / "docs" / "results" / "saboteurs.json")
    planted = sorted(results["planted"], key=lambda fault: list(CHECKS).index(fault["check"]))
    rows = [(f"`{of['name']}`", f"`{of['check']}`", f"{of['caught']} of {results['seeds']}") for of in planted]
    return table(("fault planted", "check that catches it", "caught (seeds)"), rows)


def clean_models(root: Path) -> str:
    """All families without a fault."""
    results = read_json(root / "docs" / "results" / "saboteurs.json")
    families: dict[str, list[Mapping[str, int]]] = {}
    for of_check in results["clean"].values():
        for family, found in of_check.items():
            families.setdefault(family, []).append(found)
    rows = [
        (
            f"`{family}`",
            f"{sum(of['applied'] > 0 for of in found)} of {len(found)}",
            f"{sum(of['false_alarms'] for of in found)} of {len(found) * results['seeds']}",
        )
        for family, found in families.items()
    ]
    return table(("clean family", "checks that apply", "false alarms (of checks times seeds)"), rows)


def presets(root: Path) -> str:
    """Model shape and optimization of each preset."""
    headings = (
        "preset",
        "d",
        "layers",
        "heads",
        "d_ff",
        "K",
        "batch × tokens",
        "steps or epochs",
        "peak lr",
        "dropout",
    )
    rows = [
        (
            *(f"`{p.name}`", f"{p.d_model:,}", p.layers, p.heads, f"{p.d_ff:,}", p.loops, f"{p.batch} × {p.seq_len:,}"),
            *(f"{p.steps:,} steps" if p.steps is not None else f"{p.epochs} epochs", f"{p.lr:g}", f"{p.dropout:g}"),
        )
        for p in PRESETS.values()
    ]
    return table(headings, rows)


def losses(root: Path) -> str:
    """The placements of the cross-entropy, and the terms that can be added to them."""
    named = {**LOSSES, **{f"+{name}": term for name, term in ADDITIONS.items()}}
    return table(("loss", "what it is"), [(f"`{name}`", _first_sentence(term)) for name, term in named.items()])


def _first_sentence(function: Callable[..., object]) -> str:
    return " ".join((function.__doc__ or "").split("\n\n")[0].split())


def readouts(root: Path) -> str:
    """The audit of an untrained model with each readout."""
    rows = []
    for name in READOUTS:
        audit = audited(readout=name)
        *early, last = (view.visibility for view in audit.exits)
        rows.append((f"`{name}`", ", ".join(dict.fromkeys(early)), last, audit.mean.visibility, _words(audit.verdict)))
    return table(("readout", "scale at exits 1 to K − 1", "scale at exit K", "mean", "audit under per-loop loss"), rows)


def recurrences(root: Path) -> str:
    """The audit of an untrained model with each recurrence."""
    rows = []
    for name, fields in RECURRENCES.items():
        audit = audited(**fields)
        carried = f"{audit.scale.carry} (c = {audit.scale.factor:.2g})"
        rows.append((f"`{name}`", code(*(f"{field}={value!r}" for field, value in fields.items())), carried))
    return table(("recurrence", "fields of `TransformerConfig`", "carry of the scale"), rows)


def _words(verdict: str) -> str:
    return verdict.replace("_", " ")


def benchmarks(root: Path, device: str) -> str:
    """The ratios measured on a device, or a note that there are none."""
    record = root / "bench" / f"{device}.json"
    return ratios(*measured(record)) if record.exists() else f"No measurement on {device} is stored."
