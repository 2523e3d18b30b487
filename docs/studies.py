"""Tables of measured results, next to the limits of the claims and the published numbers."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from docs.audits import audited
from docs.markdown import item, paragraph
from docs.results import Results
from loopverify.claims import CLAIMS, FIRST_EXIT, VERDICTS, Claim, Evidence
from loopverify.claims.p1.conditions import TABLE_2_ROWS
from loopverify.claims.p1.published import entry
from loopverify.claims.quantity import number
from loopverify.claims.template import Condition
from loopverify.report.markdown import claim_table, table

__all__ = ["claims", "findings", "hops_accuracy", "hops_claims", "hops_exits", "table_2"]

FINDINGS = (
    "P1.T2.drift.per_loop.vs_raw",
    "P1.T2.perplexity.vs_raw",
    "P1.T2.exits.fail.terminal.rmsnorm",
    "P1.T5.depth.raw",
    "hops.depth.invariant.rmsnorm",
)
"""The claims on the first screen: the mechanism, then effects that a small model does not show."""
_LOOPS = range(1, 5)


def table_2(root: Path) -> str:
    """The seven conditions of Table 2: the audit before training, the results after it, and those of the paper."""
    results = Results.read(root, "tiny")
    headings = ("loss / readout", "audit before training", "‖H₄‖₂", "PPL at K = 1, 4", "paper 44M: ‖H₄‖₂, PPL at 4")
    return table(headings, [_condition(results, condition) for condition in TABLE_2_ROWS])


def _condition(results: Results, of: Condition) -> tuple[str, ...]:
    condition = of.name
    norm, std = results.mean(condition, "norm@4"), results.std(condition, "norm@4")
    spread = "" if std is None else f" ± {number(std, like=norm)}"
    loss, readout = condition.split("/")
    verdict = audited(loss, readout=readout).verdict
    blind = verdict == "blind_spot"
    return (
        f"`{condition}`",
        "**blind spot**" if blind else verdict,
        f"**{number(norm)}**{spread}" if blind else f"{number(norm)}{spread}",
        ", ".join(number(results.mean(condition, f"ppl@{k}")) for k in (1, 4)),
        ", ".join(number(entry("T2", "44m", of, column)) for column in ("norm", "ppl")),
    )


def findings(root: Path) -> str:
    """The number of claims with each verdict, and one sentence each on some of them."""
    both = {preset: Results.read(root, preset) for preset in ("tiny", "hops")}
    judged = {claim.id: (preset, both[preset].evidence(claim)) for preset in both for claim in _claims_of(preset)}
    sentences = [item(_finding(*judged[name])) for name in FINDINGS]
    return "\n".join([*(f"{_counted(results)}." for results in both.values()), "", *sentences])


def _finding(preset: str, e: Evidence) -> str:
    published = f", paper {e.published_text}" if e.published else ""
    return f"**{e.verdict}** (`{preset}`): {e.sentence} Ours: {e.measured_text}, required {e.required_text}{published}."


def claims(root: Path) -> str:
    """All claims of the papers, on models trained on text."""
    return _judged(Results.read(root, "tiny"))


def hops_claims(root: Path) -> str:
    """All claims on models trained on the pointer task."""
    return _judged(Results.read(root, "hops"))


def _claims_of(preset: str) -> list[Claim]:
    """The claims decided by runs of a preset: those on the pointer task, or all others."""
    return [claim for claim in CLAIMS.values() if (claim.study == "hops") == (preset == "hops")]


def _judged(results: Results) -> str:
    evidence = [results.evidence(claim) for claim in _claims_of(results.preset)]
    return f"{paragraph(f'{_counted(results)}. {_origin(results)}')}\n\n{claim_table(evidence)}"


def _counted(results: Results) -> str:
    """'Preset `tiny`, 33 runs, 105 claims: 77 held, ...'."""
    counts = Counter(results.evidence(claim).verdict for claim in _claims_of(results.preset))
    summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    runs = f"{results.runs} run{'' if results.runs == 1 else 's'}"
    return f"Preset `{results.preset}`, {runs}, {counts.total()} claims: {summary}"


def _origin(results: Results) -> str:
    """The command that made the results, and its commit, date, versions and device."""
    made = results.data["provenance"]
    noted = "; ".join(f"{name} {value}" for name, value in made.items() if name not in ("command", "seeds"))
    return f"Made by `{made['command']}`; {noted}."


def hops_exits(root: Path) -> str:
    """Cross-entropy at every exit, the gain from loops, and the norm of the states."""
    results = Results.read(root, "hops")
    headings = (
        *("arm", *(f"CE({k})" for k in _LOOPS), "gain, by seed", "‖H₁‖₂", "‖H₄‖₂, by seed"),
        f"steps to CE(1) ≤ {FIRST_EXIT:g}, by seed",
    )
    rows = [
        (
            f"`{arm}`",
            *(f"{results.mean(arm, f'ce@{k}'):.3f}" for k in _LOOPS),
            _by_seed(results, arm, "ce@1-ce@4", ".3f"),
            f"{results.mean(arm, 'norm@1'):.1f}",
            _by_seed(results, arm, "norm@4", ".1f"),
            _by_seed(results, arm, "step_matched", ".0f"),
        )
        for arm in results.data["conditions"]
    ]
    return table(headings, rows)


def _by_seed(results: Results, arm: str, metric: str, form: str) -> str:
    return ", ".join(format(value, form) for value in results.seeds(arm, metric) or [math.nan])


def hops_accuracy(root: Path) -> str:
    """Accuracy at the first and the last exit, by the number of steps of a walk."""
    results = Results.read(root, "hops")
    headings = ("arm", *(f"{steps} step{'s' if steps > 1 else ''}" for steps in _LOOPS))
    return table(headings, [(f"`{arm}`", *_accuracies(results, arm)) for arm in results.data["conditions"]])


def _accuracies(results: Results, arm: str) -> list[str]:
    exits = [[results.mean(arm, f"accuracy_{steps}@{k}") for k in (1, 4)] for steps in _LOOPS]
    return [f"{first:.2f} → {last:.2f}" for first, last in exits]
