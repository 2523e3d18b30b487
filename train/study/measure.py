"""Measurements of stored runs, made once and stored separately: they change neither the trained run nor its key."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from loopverify import __version__
from loopverify.claims import Claim, Run
from loopverify.claims.expression import names
from loopverify.claims.metrics import check_source, metric
from loopverify.errors import LoopverifyError
from loopverify.plain import plain_dict
from train.data import Examples
from train.engine.open import open_examples
from train.launch.run import result
from train.provenance.closure import code_digest
from train.specification import RunSpec
from train.store import RunStore, Say, StoredRun
from train.study.measurements import MEASUREMENTS
from train.study.subject import Subject, load

__all__ = ["measured", "wanted_by"]

_METRICS = "metrics.json"
# The key of a measurement contains the digest of all code that these modules depend on. The code that trained the model
# is part of the run's key, which the measurement's key contains as well.
_ROOTS = ("train.study.measurements", "train.study.subject")
# Computed at import, when the files on disk are the imported ones: training comes first and may take days.
_CODE = code_digest(*_ROOTS)


def wanted_by(claims: Iterable[Claim]) -> dict[str, set[str]]:
    """The metrics that claims read, by condition."""
    wanted: dict[str, set[str]] = {}
    for claim in claims:
        for condition in claim.conditions:
            wanted.setdefault(condition, set()).update(names(claim.metric))
    return wanted


def measured(
    stored: Mapping[RunSpec, StoredRun], wanted: Mapping[str, Collection[str]], store: RunStore, say: Say = print
) -> list[Run]:
    """The runs with their training metrics and the metrics `wanted` by condition, which are measured if not stored.

    A measurement that fails is reported, and its metrics are missing from the run, so that claims on them are not run.

    Raises:
        RuntimeError: a measurement returns metrics other than those listed for it, which is a bug of the harness.
    """
    if not stored:
        return []
    examples = {preset: open_examples(spec, store) for preset, spec in {spec.preset: spec for spec in stored}.items()}
    own = RunStore(store.root, folder="measurements")
    return [
        _with_measurements(_Bench(spec, run, examples[spec.preset], own, say), wanted.get(spec.condition, ()))
        for spec, run in stored.items()
    ]


@dataclass(frozen=True, eq=False)
class _Bench:
    """One stored run, whose model is loaded when something has to be measured."""

    spec: RunSpec
    stored: StoredRun
    examples: Examples
    store: RunStore
    say: Say
    took: dict[str, float] = field(default_factory=dict)
    """Seconds of each measurement that was not found in the store."""

    @cached_property
    def subject(self) -> Subject:
        return Subject(spec=self.spec, module=load(self.spec, self.stored), examples=self.examples)

    def metrics(self, measurement: str) -> dict[str, float]:
        """The metrics of one measurement, found in the store or measured and stored.

        Raises:
            RuntimeError: it returned a metric that is not listed for it, or did not return one that is.
        """
        key = {"run": self.stored.key, "measurement": measurement, "code": _CODE}

        def make() -> None:
            begun = time.perf_counter()
            made = self.subject.metrics(MEASUREMENTS[measurement])
            check_source(measurement, made)
            self.took[measurement] = time.perf_counter() - begun
            with self.store.create(key, {"loopverify": __version__, "seconds": self.took[measurement]}) as folder:
                (folder / _METRICS).write_text(json.dumps(plain_dict(made)), encoding="utf-8")

        found = self.store.ensure(key, make, self.report, "it is measured again")
        return {name: float(value) for name, value in found.json(_METRICS).items()}

    def report(self, message: str) -> None:
        """Show a message about this run."""
        self.say(f"{self.spec.label}: {message}")


def _with_measurements(bench: _Bench, wanted: Collection[str]) -> Run:
    run = result(bench.stored)
    sources = {metric(name).source for name in wanted if name not in run.metrics}
    metrics = dict(run.metrics)
    for measurement in MEASUREMENTS:
        if measurement not in sources:
            continue
        try:
            metrics |= bench.metrics(measurement)
        except LoopverifyError as error:
            bench.report(f"no measurement {measurement!r}: {error}")
    if bench.took:
        timings = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in bench.took.items())
        bench.report(f"measured {timings}")
    return replace(run, preset=bench.spec.preset.name, metrics=metrics)  # a preset of another name may have trained it
