"""Measurements of stored runs, made once and kept next to them: a trained model is never changed or keyed by them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from loopverify import __version__
from loopverify.claims import Claim, Run
from loopverify.claims.expression import names
from loopverify.claims.metrics import metric
from loopverify.errors import LoopverifyError
from loopverify.models import LoopedTransformer
from train.data import Corpus
from train.launch.run import MODEL, Say, open_corpus, result
from train.spec import RunSpec, code_digest
from train.store import CorruptRunError, RunStore, StoredRun
from train.study.measurements import MEASUREMENTS, Subject, measure

__all__ = ["load", "measured", "wanted_by"]

_METRICS = "metrics.json"
# What a change of turns old measurements into those of other code; the model itself is in the key of its run.
_MEASURING = (
    "loopverify/looped.py",
    "loopverify/objectives",
    "loopverify/probes",
    "loopverify/theory",
    "train/study/measurements.py",
)


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
    """The runs with their training metrics and those `wanted` of their condition, measured where not yet in the store.

    A measurement that fails is reported and leaves its metrics out, so that the claims on them are not run. One that
    gives other metrics than those listed for it ends everything: that is a fault of the harness.
    """
    if not stored:
        return []
    corpus = open_corpus(next(iter(stored)), store)
    own = RunStore(store.root, folder="measurements")
    return [
        _with_measurements(_Bench(spec, run, corpus, own, say), wanted.get(spec.condition, ()))
        for spec, run in stored.items()
    ]


def load(spec: RunSpec, stored: StoredRun) -> LoopedTransformer:
    """The trained model of a stored run, on the device of its spec."""
    weights = stored.tensors(MODEL)
    with torch.random.fork_rng(devices=[]):
        module = spec.model(len(weights["embedding.weight"]))
    missing, unexpected = module.load_state_dict(weights, strict=False)
    # A tensor that two modules share is stored under one of its names.
    state = module.state_dict()
    filled = {state[name].data_ptr() for name in weights.keys() - set(unexpected)}
    absent = [name for name in missing if state[name].data_ptr() not in filled]
    if absent or unexpected:
        raise LoopverifyError(
            f"the weights of {stored.path} are not those of {spec.label}: missing {absent}, unexpected {unexpected}"
        )
    return module.to(spec.device)


@dataclass(frozen=True, eq=False)
class _Bench:
    """One stored run, loaded when something has to be measured on it."""

    spec: RunSpec
    stored: StoredRun
    corpus: Corpus
    store: RunStore
    say: Say
    took: dict[str, float] = field(default_factory=dict)
    """Seconds of what was measured now."""

    @cached_property
    def subject(self) -> Subject:
        return Subject(spec=self.spec, module=load(self.spec, self.stored), corpus=self.corpus)

    def metrics(self, measurement: str) -> dict[str, float]:
        """The metrics of one measurement, from the store, or made and put there."""
        key = {"run": self.stored.key, "measurement": measurement, "code": code_digest(_MEASURING)}
        with self.store.lock(key):
            found = self._find(key)
            if found is None:
                begun = time.perf_counter()
                with _threads(self.spec.preset.threads):
                    made = measure(measurement, self.subject)
                self.took[measurement] = time.perf_counter() - begun
                with self.store.create(key, {"loopverify": __version__, "seconds": self.took[measurement]}) as to:
                    (to / _METRICS).write_text(json.dumps(_plain(made)), encoding="utf-8")
                found = self._find(key)
            assert found is not None
            return {name: float(value) for name, value in found.json(_METRICS).items()}

    def _find(self, key: Mapping[str, Any]) -> StoredRun | None:
        try:
            return self.store.get(key)
        except CorruptRunError as error:
            self.say(f"{self.spec.label}: {error}. Moved to {self.store.discard(error.key)}; it is measured again")
            return None


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
            bench.say(f"{bench.spec.label}: no measurement {measurement!r}: {error}")
    if bench.took:
        timings = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in bench.took.items())
        bench.say(f"{bench.spec.label}: measured {timings}")
    return replace(run, metrics=metrics)


def _plain(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """JSON has no infinities; `float` reads them from text."""
    return {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()}


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """The threads of a preset's runs, which order their sums."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
