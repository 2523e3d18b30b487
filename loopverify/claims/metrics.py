"""The list of all metrics that a claim may read, with their units, labels and sources.

A name consists of a kind and, after an @, its loop or factor: 'norm@4', 'a_rad@late', 'sweep_ce@0.1', 'sweep_span'. The
source of a metric determines what the harness measures for a claim. A claim with an unknown name raises InputError.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from loopverify.errors import InputError, unknown

__all__ = ["METRICS", "Metric", "check_source", "metric", "written"]

At = Literal["state", "loop", "factor", "late", ""]
_AT: Mapping[At, tuple[str, str]] = MappingProxyType(  # the pattern, and the form with an example
    {
        "state": (r"@(?:0|[1-9]\d*)", "'{kind}@4' (a loop k >= 0)"),
        "loop": (r"@[1-9]\d*", "'{kind}@4' (a loop k >= 1)"),
        "factor": (r"@\d+(?:\.\d+)?", "'{kind}@0.1' (a factor)"),
        "late": (r"@late", "'{kind}@late'"),
        "": (r"", "'{kind}' alone"),
    }
)


@dataclass(frozen=True)
class Metric:
    """One kind of metric."""

    kind: str
    """The part of the name before the @; a number at its end is written {d}."""
    unit: str
    """'L2' (norm over channels), 'rms', 'nats' (per token), '×' (a ratio), or '' for a pure number."""
    label: str
    """Human-readable, with {k} for the part after the @ and {d} for the number of its kind."""
    at: tuple[At, ...]
    """What may follow the @: a 'state' 0..K, a 'loop' 1..K, a 'factor', 'late', or '' for nothing."""
    source: str
    """Where it is measured: 'training' (train.engine.evaluate), 'task' (training on a task of known depth), a name of
    train.study.measurements, or 'choices' (measures.choices, on questions that no package contains)."""
    given_where: str = ""
    """The runs that have it, if its source does not give it for every run."""


_BARE = "models with a norm in their readout"
_TURNING = "models whose scale changes over late loops"

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        listed.kind: listed
        for listed in (
            Metric("norm", "L2", "‖H_{k}‖₂", ("state",), "training"),
            Metric("norm_median", "L2", "median ‖H_{k}‖₂", ("state",), "training"),
            Metric("norm_p99", "L2", "p99 ‖H_{k}‖₂", ("state",), "training"),
            Metric("norm_max", "L2", "max ‖H_{k}‖₂", ("state",), "training"),
            Metric("rms", "rms", "rms(H_{k})", ("state",), "training"),
            Metric("ce", "nats", "CE({k})", ("loop",), "training"),
            Metric("ppl", "", "PPL({k})", ("loop",), "training"),
            Metric("accuracy_{d}", "", "accuracy of {d}-step answers at exit {k}", ("loop",), "task"),
            Metric("ce_matched", "nats", "CE({k}) at an equal first exit", ("loop",), "task"),
            Metric("step_matched", "", "step of an equal first exit", ("",), "task"),
            Metric("ce_run", "nats", "CE of a run of {k} loops", ("loop",), "depth"),
            Metric("norm_std", "L2", "std ‖H_{k}‖₂", ("state",), "norms"),
            Metric("r", "", "r_{k}", ("loop",), "radial"),
            Metric("r_over_floor", "×", "r_{k} / rounding floor", ("loop",), "radial"),
            Metric("g", "nats", "g_{k}", ("loop",), "radial"),
            Metric("clamp_delta_ce", "nats", "ΔCE of the clamp", ("",), "clamp"),
            Metric("clamp_abs_delta_ce", "nats", "|ΔCE| of the clamp", ("",), "clamp"),
            Metric("clamp_norm_ratio", "×", "clamped / free ‖H_K‖₂", ("",), "clamp"),
            Metric("sweep_span", "nats", "span of CE over α", ("",), "sweep"),
            Metric("sweep_ce", "nats", "CE at α = {k}", ("factor",), "sweep"),
            Metric("sweep_entropy", "nats", "entropy at α = {k}", ("factor",), "sweep"),
            Metric("sweep_margin", "", "logit margin at α = {k}", ("factor",), "sweep"),
            Metric("bare_sweep_span", "nats", "span of CE over α, without the norm", ("",), "sweep", _BARE),
            Metric("bare_sweep_ce", "nats", "CE at α = {k}, without the norm", ("factor",), "sweep", _BARE),
            Metric("bare_sweep_entropy", "nats", "entropy at α = {k}, without the norm", ("factor",), "sweep", _BARE),
            Metric("bare_sweep_margin", "", "logit margin at α = {k}, without the norm", ("factor",), "sweep", _BARE),
            Metric("a_rad", "rms", "a_rad ({k})", ("loop", "late"), "decomposition"),
            Metric("b_perp", "rms", "rms(b_perp) ({k})", ("loop", "late"), "decomposition"),
            Metric("b", "rms", "rms(b) ({k})", ("loop", "late"), "decomposition"),
            Metric("growth", "rms", "s_k+1 − s_k ({k})", ("loop", "late"), "decomposition"),
            Metric("angular_step", "rms", "rms(u_k − u_k−1) ({k})", ("loop",), "decomposition"),
            Metric("b_over_a", "×", "rms(b) / |a_rad| ({k})", ("late",), "decomposition"),
            Metric("growth_gap", "", "|s_k+1 − s_k − a_rad| / |s_k+1 − s_k| ({k})", ("late",), "decomposition"),
            Metric("step_slope", "", "slope of angular step in 1/s ({k})", ("late",), "decomposition", _TURNING),
            Metric(
                "step_slope_gap", "", "|slope − 1| of angular step in 1/s ({k})", ("late",), "decomposition", _TURNING
            ),
            Metric("halting_loops", "", "loops taken", ("",), "halting"),
            Metric("halting_ppl", "", "dynamic PPL", ("",), "halting"),
            Metric("halting_fixed_ppl", "", "fixed PPL", ("",), "halting"),
            Metric("halting_ppl_ratio", "×", "dynamic / fixed PPL", ("",), "halting"),
            Metric("halting_speedup", "×", "ideal speed-up of halting", ("",), "halting"),
            Metric("timing_tokens_per_s", "", "tokens/s at K = {k}", ("loop",), "timing"),
            Metric("timing_rmsnorm_tokens_per_s", "", "tokens/s of RMSNorm at K = {k}", ("loop",), "timing"),
            Metric("timing_vs_rmsnorm", "×", "tokens/s against RMSNorm at K = {k}", ("loop",), "timing"),
            Metric("timing_speedup", "×", "tokens/s at K = {k} over all loops", ("loop",), "timing"),
            Metric("choice_nll", "nats", "NLL of a choice", ("",), "choices"),
            Metric("choice_margin", "nats", "gold − best distractor", ("",), "choices"),
            Metric("choice_gold_probability", "", "probability of the gold choice", ("",), "choices"),
            Metric("choice_accuracy", "", "accuracy over choices", ("",), "choices"),
        )
    }
)
"""Every metric by its kind."""


def metric(name: str) -> Metric:
    """The kind of a metric such as 'norm@4'.

    Raises:
        InputError: it is unknown, or the part after the @ does not fit its kind.
    """
    kind, _ = _parts(name)
    found = METRICS.get(_listed(kind))
    if found is None:
        raise _misspelt(name)
    if not _fits(name, found):
        forms = " or ".join(_AT[at][1].format(kind=kind) for at in found.at)
        raise InputError(f"metric is {name!r}; expected {forms}")
    return found


def written(name: str) -> str:
    """A metric, human-readable: '‖H_4‖₂'.

    Raises:
        InputError: it is unknown.
    """
    kind, at = _parts(name)
    return metric(name).label.format(k=at, d=kind.rpartition("_")[2])


def check_source(source: str, given: Iterable[str]) -> None:
    """Check that a source gave exactly the metrics that are listed for it.

    Raises:
        RuntimeError: a metric is missing or not listed, which is a fault of the source and not of its user.
    """
    names = list(given)
    listed = {kind for kind, one in METRICS.items() if one.source == source}
    kinds = {_listed(_parts(name)[0]) for name in names}
    lacking = {kind for kind in listed - kinds if not METRICS[kind].given_where}
    strange = [
        name for name in names if (kind := _listed(_parts(name)[0])) not in listed or not _fits(name, METRICS[kind])
    ]
    if strange or lacking:
        raise RuntimeError(
            f"{source!r} gave metrics that loopverify.claims.metrics does not list for it: {strange}; "
            f"and lacks those that it lists: {sorted(lacking)}"
        )


def _parts(name: str) -> tuple[str, str]:
    kind, _, at = name.partition("@")
    return kind, at


def _listed(kind: str) -> str:
    """'accuracy_2' -> 'accuracy_{d}'."""
    return re.sub(r"_\d+$", "_{d}", kind)


def _fits(name: str, of: Metric) -> bool:
    behind = name[len(_parts(name)[0]) :]
    return any(re.fullmatch(_AT[at][0], behind) for at in of.at)


def _misspelt(name: str) -> InputError:
    kind, at = _parts(name)
    near = difflib.get_close_matches(_listed(kind), METRICS, n=1)
    if not near:
        return unknown("metric", name, METRICS)
    number = re.search(r"_(\d+)$", kind)
    meant = near[0].replace("{d}", number[1] if number else "1")
    whole = f"{meant}@{at}"
    if _fits(whole, METRICS[near[0]]):
        meant = whole
    return InputError(f"unknown metric {name!r}; did you mean {meant!r}? All are listed in loopverify.claims.metrics")
