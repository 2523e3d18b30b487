"""Every metric that a claim may read: the one list of their names, units, labels and sources.

A name is a kind and, behind an @, what it belongs to: 'norm@4', 'a_rad@late', 'sweep_ce@0.1', 'sweep_span'. What the
harness measures for a claim follows from the source of its metrics; a name that is not of the list is refused where a
claim is made.
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


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One kind of metric."""

    unit: str
    """'L2' (norm over channels), 'rms', 'nats' (per token), '×' (a ratio), or '' for a pure number."""
    label: str
    """Human-readable, with {k} for what stands behind the @ and {d} for a number at the end of the kind."""
    at: tuple[At, ...]
    """What may stand behind the @: a 'state' 0..K, a 'loop' 1..K, a 'factor', 'late', or '' for nothing."""
    source: str
    """What gives it: 'training' (train.engine.evaluate), 'task' (training on a task of known depth), a measurement of
    train.study.measurements by name, or 'choices' (probes.choices, on questions that come with no package)."""
    given_where: str = ""
    """The runs that have it, where their source does not give it for every run."""


def _given(source: str, *at: At, given_where: str = "", **kinds: tuple[str, str]) -> dict[str, Metric]:
    """Metrics of one source and form, each by (unit, label)."""
    return {
        kind: Metric(unit=unit, label=label, at=at, source=source, given_where=given_where)
        for kind, (unit, label) in kinds.items()
    }


_BARE = "models with a norm in their readout"
_TURNING = "models whose scale changes over late loops"

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        **_given(
            "training",
            "state",
            norm=("L2", "‖H_{k}‖₂"),
            norm_median=("L2", "median ‖H_{k}‖₂"),
            norm_p99=("L2", "p99 ‖H_{k}‖₂"),
            norm_max=("L2", "max ‖H_{k}‖₂"),
            rms=("rms", "rms(H_{k})"),
        ),
        **_given("training", "loop", ce=("nats", "CE({k})"), ppl=("", "PPL({k})")),
        "accuracy_{d}": Metric(unit="", label="accuracy of {d}-step answers at exit {k}", at=("loop",), source="task"),
        **_given("task", "loop", ce_matched=("nats", "CE({k}) at an equal first exit")),
        **_given("task", "", step_matched=("", "step of an equal first exit")),
        **_given("depth", "loop", ce_run=("nats", "CE of a run of {k} loops")),
        **_given("norms", "state", norm_std=("L2", "std ‖H_{k}‖₂")),
        **_given("radial", "loop", r=("", "r_{k}"), r_over_floor=("×", "r_{k} / rounding floor"), g=("nats", "g_{k}")),
        **_given(
            "clamp",
            "",
            clamp_delta_ce=("nats", "ΔCE of the clamp"),
            clamp_abs_delta_ce=("nats", "|ΔCE| of the clamp"),
            clamp_norm_ratio=("×", "clamped / free ‖H_K‖₂"),
        ),
        **_given("sweep", "", sweep_span=("nats", "span of CE over α")),
        **_given(
            "sweep",
            "factor",
            sweep_ce=("nats", "CE at α = {k}"),
            sweep_entropy=("nats", "entropy at α = {k}"),
            sweep_margin=("", "logit margin at α = {k}"),
        ),
        **_given("sweep", "", given_where=_BARE, bare_sweep_span=("nats", "span of CE over α, without the norm")),
        **_given(
            "sweep",
            "factor",
            given_where=_BARE,
            bare_sweep_ce=("nats", "CE at α = {k}, without the norm"),
            bare_sweep_entropy=("nats", "entropy at α = {k}, without the norm"),
            bare_sweep_margin=("", "logit margin at α = {k}, without the norm"),
        ),
        **_given(
            "decomposition",
            "loop",
            "late",
            a_rad=("rms", "a_rad ({k})"),
            b_perp=("rms", "rms(b_perp) ({k})"),
            b=("rms", "rms(b) ({k})"),
            growth=("rms", "s_k+1 − s_k ({k})"),
        ),
        **_given("decomposition", "loop", angular_step=("rms", "rms(u_k − u_k−1) ({k})")),
        **_given(
            "decomposition",
            "late",
            b_over_a=("×", "rms(b) / |a_rad| ({k})"),
            growth_gap=("", "|s_k+1 − s_k − a_rad| / |s_k+1 − s_k| ({k})"),
        ),
        **_given(
            "decomposition",
            "late",
            given_where=_TURNING,
            step_slope=("", "slope of angular step in 1/s ({k})"),
            step_slope_gap=("", "|slope − 1| of angular step in 1/s ({k})"),
        ),
        **_given(
            "halting",
            "",
            halting_loops=("", "loops taken"),
            halting_ppl=("", "dynamic PPL"),
            halting_fixed_ppl=("", "fixed PPL"),
            halting_ppl_ratio=("×", "dynamic / fixed PPL"),
            halting_speedup=("×", "ideal speed-up of halting"),
        ),
        **_given(
            "timing",
            "loop",
            timing_tokens_per_s=("", "tokens/s at K = {k}"),
            timing_rmsnorm_tokens_per_s=("", "tokens/s of RMSNorm at K = {k}"),
            timing_vs_rmsnorm=("×", "tokens/s against RMSNorm at K = {k}"),
            timing_speedup=("×", "tokens/s at K = {k} over all loops"),
        ),
        **_given(
            "choices",
            "",
            choice_nll=("nats", "NLL of a choice"),
            choice_margin=("nats", "gold − best distractor"),
            choice_gold_probability=("", "probability of the gold choice"),
            choice_accuracy=("", "accuracy over choices"),
        ),
    }
)
"""Every kind of metric, by what stands before the @; a number at the end of a kind is written {d}."""


def metric(name: str) -> Metric:
    """The kind of a metric such as 'norm@4'.

    Raises:
        InputError: it is not of the list, or what stands behind its @ is not what its kind has there.
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
        InputError: it is not of the list.
    """
    kind, at = _parts(name)
    return metric(name).label.format(k=at, d=kind.rpartition("_")[2])


def check_source(source: str, given: Iterable[str]) -> None:
    """Hold what a source gave to the list: all that the list has of it, and nothing else.

    Raises:
        RuntimeError: a metric too many or too few, which is a fault of the source and not of its user.
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
