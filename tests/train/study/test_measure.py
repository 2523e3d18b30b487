"""Measurements of stored runs: made once, stored separately, and equal to direct evaluations of the models."""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from loopverify.claims import CLAIMS
from loopverify.claims.metrics import METRICS, metric
from loopverify.errors import InputError, LoopverifyError
from loopverify.looped import Looped, Trace, unroll
from loopverify.measures.throughput import Throughput, throughput
from tests.train.micro import trained
from train.engine.open import open_examples
from train.launch.run import result
from train.specification import RunSpec
from train.store import RunStore, StoredRun
from train.study import measure, measurements
from train.study.measure import measured, wanted_by
from train.study.measurements import MEASUREMENTS, SEQUENCES
from train.study.subject import Subject, load

EVERYTHING = {kind for kind, listed in METRICS.items() if listed.source in MEASUREMENTS}
"""All kinds of metric that can be measured."""
ONE_OF_EACH = (
    "ce_run@1",
    "norm_std@1",
    "r@1",
    "clamp_delta_ce",
    "sweep_span",
    "b@late",
    "halting_loops",
    "timing_speedup@1",
)
CLAMP = ("clamp_norm_ratio", "clamp_delta_ce", "clamp_abs_delta_ce")
Stored = tuple[RunStore, RunSpec, StoredRun]


@pytest.fixture(scope="module")
def stored(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    store = RunStore(tmp_path_factory.mktemp("runs"))
    return store, *trained(store, text_file)


@pytest.fixture(scope="module")
def metrics(stored: Stored) -> dict[str, float]:
    """Everything that can be measured on the run."""
    store, spec, run = stored
    (found,) = measured({spec: run}, {spec.condition: ONE_OF_EACH}, store, lambda text: None)
    return dict(found.metrics)


@pytest.fixture(scope="module")
def subject(stored: Stored) -> Subject:
    store, spec, run = stored
    return Subject(spec=spec, module=load(spec, run), examples=open_examples(spec, store))


def traces(subject: Subject, loops: int) -> tuple[Trace, torch.Tensor]:
    """One run of all windows of a measurement."""
    tokens, targets = (torch.cat(parts) for parts in zip(*subject.batches(SEQUENCES), strict=True))
    subject.module.eval()
    return unroll(subject.model, tokens, loops), targets


def test_training_metrics_stay_as_they_are(stored: Stored, metrics: dict[str, float]) -> None:
    before = result(stored[2]).metrics
    assert before.items() <= metrics.items()
    kinds = {name.split("@")[0] for name in metrics.keys() - before.keys()}
    # The scale of an untrained loop may stand still, and then its angular steps have no slope.
    assert EVERYTHING - {"step_slope", "step_slope_gap"} <= kinds <= EVERYTHING
    assert {metric(name).source for name in before} == {"training"}
    assert {name.split("@")[0] for name in before} == {
        k for k, listed in METRICS.items() if listed.source == "training"
    }


def test_runs_of_the_trained_loops_are_those_of_training(metrics: dict[str, float]) -> None:
    # RMSNorm reads every exit alike, so that exit k is the end of a run of k loops, on the same windows.
    for k in (1, 2, 3, 4):
        assert metrics[f"ce_run@{k}"] == pytest.approx(metrics[f"ce@{k}"], abs=1e-5)
    assert {f"ce_run@{k}" for k in range(5, 9)} <= metrics.keys()


def test_the_clamp_leaves_every_token_the_norm_of_its_first_loop(subject: Subject, metrics: dict[str, float]) -> None:
    trace, _ = traces(subject, 4)
    first, last = (trace.states[k].norm(dim=-1).mean() for k in (1, 4))
    assert metrics["clamp_norm_ratio"] == pytest.approx(float(first / last), rel=1e-4)
    assert metrics["clamp_abs_delta_ce"] == abs(metrics["clamp_delta_ce"])


def test_the_sweep_rescales_the_last_state(subject: Subject, metrics: dict[str, float]) -> None:
    trace, targets = traces(subject, 4)
    module = subject.module
    for alpha in (0.1, 1.0, 10.0):
        state = alpha * trace.states[4]
        for name, read in (("sweep", module.head(module.readout_norm(state))), ("bare_sweep", module.head(state))):
            expected = F.cross_entropy(read.flatten(0, 1), targets.flatten())
            assert metrics[f"{name}_ce@{alpha:g}"] == pytest.approx(expected.item(), rel=1e-4)
    swept = [value for name, value in metrics.items() if name.startswith("sweep_ce@")]
    assert len(swept) == 9
    assert metrics["sweep_span"] == pytest.approx(max(swept) - min(swept))


def test_the_decomposition_is_that_of_thirty_loops(subject: Subject, metrics: dict[str, float]) -> None:
    trace, _ = traces(subject, 30)
    scales = [float(state.square().mean(-1).sqrt().mean()) for state in trace.states]
    for k in (1, 10, 30):
        assert metrics[f"growth@{k}"] == pytest.approx(scales[k] - scales[k - 1], rel=1e-3, abs=1e-6)
    late = [metrics[f"a_rad@{k}"] for k in range(10, 31)]
    assert metrics["a_rad@late"] == pytest.approx(sum(late) / 21)
    assert metrics["b_over_a@late"] == pytest.approx(metrics["b@late"] / abs(metrics["a_rad@late"]))
    assert metrics["growth@late"] == pytest.approx((scales[30] - scales[9]) / 21, rel=1e-3)


def test_the_radial_fraction_is_relative_to_the_floor_of_float32(metrics: dict[str, float]) -> None:
    floor = 2 * 2.0**-23 / math.sqrt(16)
    for k in (1, 2, 3, 4):
        assert metrics[f"r_over_floor@{k}"] == pytest.approx(metrics[f"r@{k}"] / floor, rel=1e-6)
        assert math.isfinite(metrics[f"g@{k}"])


def test_the_spread_of_norms_is_taken_over_the_windows_of_training(subject: Subject, metrics: dict[str, float]) -> None:
    tokens = torch.cat([tokens for tokens, _ in subject.batches(subject.spec.preset.eval_windows)])
    norms = unroll(subject.model, tokens).states[4].norm(dim=-1).double()
    assert metrics["norm@4"] == pytest.approx(float(norms.mean()), rel=1e-4)
    assert metrics["norm_std@4"] == pytest.approx(float(((norms - norms.mean()) ** 2).mean().sqrt()), rel=1e-3)


def test_halting_and_timing_are_within_their_ranges(metrics: dict[str, float]) -> None:
    assert 1 <= metrics["halting_loops"] <= 4
    assert metrics["halting_speedup"] == pytest.approx(4 / metrics["halting_loops"])
    assert metrics["halting_ppl_ratio"] == pytest.approx(metrics["halting_ppl"] / metrics["halting_fixed_ppl"])
    assert metrics["timing_speedup@4"] == 1
    assert metrics["timing_speedup@1"] > 1  # one loop takes less time than four
    assert all(metrics[f"timing_tokens_per_s@{k}"] > 0 for k in (1, 2, 3, 4))


def test_both_speeds_of_a_timing_are_those_of_one_measurement(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_up(models: list[Looped], *_: object, **__: object) -> tuple[Throughput, ...]:
        return tuple(
            replace(timed, depths=tuple(replace(d, tokens_per_second=place * 100.0 + d.loops) for d in timed.depths))
            for place, timed in enumerate(throughput(models, subject.batches(1), repeats=1), start=1)
        )

    monkeypatch.setattr(measurements, "throughput", made_up)
    found = MEASUREMENTS["timing"](subject)
    for k in (1, 2, 3, 4):
        assert found[f"timing_rmsnorm_tokens_per_s@{k}"] == 100 + k
        assert found[f"timing_tokens_per_s@{k}"] == 200 + k


def test_a_second_time_everything_is_found(
    stored: Stored, metrics: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, spec, run = stored
    monkeypatch.setattr(measure, "load", lambda *_: pytest.fail("the model was loaded again"))
    said: list[str] = []
    (again,) = measured({spec: run}, {spec.condition: ONE_OF_EACH}, store, said.append)
    assert (dict(again.metrics), said) == (metrics, [])
    assert again.key == run.key
    assert len(list((store.root / "measurements").iterdir())) == len(MEASUREMENTS)


def test_nothing_is_measured_that_nobody_wants(text_file: Path, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    spec, run = trained(store, text_file)
    (found,) = measured({spec: run}, {spec.condition: {"ce@4", "norm_p99@4"}}, store)
    assert found == result(run)
    assert not (tmp_path / "measurements").exists()
    assert measured({}, {}, store) == []


def test_a_run_that_a_preset_of_another_name_trained_is_one_of_the_requested_preset(
    text_file: Path, tmp_path: Path
) -> None:
    store = RunStore(tmp_path)
    spec, run = trained(store, text_file)
    named = replace(spec, preset=replace(spec.preset, name="another"))
    assert store.get(named.determinants(open_examples(named, store))) == run
    (found,) = measured({named: run}, {}, store)
    assert (found.preset, result(run).preset) == ("another", "tiny")


def test_new_code_measures_again(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path)
    spec, run = trained(store, text_file)
    said: list[str] = []
    for digest in ("old", "new", "new"):
        monkeypatch.setattr(measure, "_CODE", digest)
        measured({spec: run}, {spec.condition: {"clamp_delta_ce"}}, store, said.append)
    assert [line.split(" clamp")[0] for line in said] == ["per_loop/rmsnorm seed 0: measured"] * 2
    assert len(list((tmp_path / "measurements").iterdir())) == 2
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_damaged_measurement_is_made_again(text_file: Path, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    spec, run = trained(store, text_file)
    wanted = {spec.condition: {"clamp_delta_ce"}}
    (first,) = measured({spec: run}, wanted, store, lambda text: None)
    (file,) = (tmp_path / "measurements").glob("*/metrics.json")
    file.write_text(json.dumps({"clamp_delta_ce": 9.0}))
    said: list[str] = []
    (again,) = measured({spec: run}, wanted, store, said.append)
    assert again == first
    assert "metrics.json" in said[0]
    assert "it is measured again" in said[0]


def test_a_measurement_that_fails_is_reported_and_left_out(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    store, spec, run = stored

    def fails(subject: Subject) -> dict[str, float]:
        raise InputError("H_7 is not finite")

    monkeypatch.setattr(measure, "MEASUREMENTS", {"clamp": fails})
    again = _measured_again(monkeypatch)
    (found,) = measured({spec: run}, {spec.condition: {"clamp_delta_ce"}}, store, again.append)
    assert found == result(run)
    assert again == ["per_loop/rmsnorm seed 0: no measurement 'clamp': H_7 is not finite"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clamp_norm_ratio": 1.0, "clamp_delta_ce": 0.0}, r"lacks those that it lists: \['clamp_abs_delta_ce'\]"),
        (dict.fromkeys((*CLAMP, "clamp_spread"), 1.0), r"does not list for it: \['clamp_spread'\]"),
    ],
)
def test_a_measurement_that_gives_other_metrics_than_listed_ends_everything(
    given: dict[str, float], message: str, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, spec, run = stored
    monkeypatch.setattr(measure, "MEASUREMENTS", {"clamp": lambda subject: given})
    said = _measured_again(monkeypatch)
    with pytest.raises(RuntimeError, match=message):
        measured({spec: run}, {spec.condition: {"clamp_delta_ce"}}, store, said.append)
    assert not [path for path in (store.root / "measurements").rglob("metrics.json") if "spread" in path.read_text()]


def test_each_run_is_measured_on_its_own_text(stored: Stored, tmp_path: Path) -> None:
    store, spec, run = stored
    text = tmp_path / "other.txt"
    text.write_text("a b c d e f g h " * 500 + "\n\n" + "c a b e d h g f " * 500, encoding="utf-8")
    other, another = trained(store, text)
    wanted = {spec.condition: {"ce_run@1"}}
    both = measured({spec: run, other: another}, wanted, store, lambda text: None)
    (alone,) = measured({other: another}, wanted, RunStore(tmp_path / "again"), lambda text: None)
    assert both[1].metrics["ce_run@1"] == alone.metrics["ce_run@1"] == pytest.approx(alone.metrics["ce@1"], abs=1e-5)


def test_infinite_metrics_survive_the_store(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    store, spec, run = stored
    odd = dict(zip(CLAMP, (math.inf, math.nan, 1.0), strict=True))
    monkeypatch.setattr(measure, "MEASUREMENTS", {"clamp": lambda subject: odd})
    said = _measured_again(monkeypatch)
    (found,) = measured({spec: run}, {spec.condition: {"clamp_delta_ce"}}, store, said.append)
    assert found.metrics["clamp_norm_ratio"] == math.inf
    assert math.isnan(found.metrics["clamp_delta_ce"])


@pytest.mark.parametrize(
    "changes",
    [
        {"recurrence": "shared_inter_loop_norm"},
        {"recurrence": "damped"},
        {"loss": "exit_weighted"},
        {"readout": "tapered"},
        {"readout": "raw", "preset": {"tied_head": True}},
    ],
    ids=str,
)
def test_every_kind_of_model_is_loaded_as_it_was(changes: dict[str, object], text_file: Path, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    spec, run = trained(store, text_file, **changes)
    (found,) = measured({spec: run}, {spec.condition: {"ce_run@4"}}, store, lambda text: None)
    assert found.metrics["ce_run@4"] == pytest.approx(found.metrics["ce@4"], abs=1e-5)


def test_weights_of_another_model_are_rejected(stored: Stored) -> None:
    _, spec, run = stored
    other = RunSpec(preset=spec.preset, loss="per_loop", readout="layernorm")
    with pytest.raises(LoopverifyError, match=r"are not those of per_loop/layernorm seed 0: missing \['readout_norm"):
        load(other, run)


def test_what_claims_want_is_reported_by_condition() -> None:
    assert wanted_by([CLAIMS["P1.T10.heavy.per_loop.p99"], CLAIMS["P1.T12.size.per_loop"]]) == {
        "per_loop/rmsnorm": {"norm_p99@4", "norm_median@4", "b@late"},
        "per_loop/raw": {"b@late"},
    }


def test_every_claim_reads_metrics_of_training_or_of_a_measurement() -> None:
    for claim in CLAIMS.values():
        sources = {metric(name).source for name in wanted_by([claim])[claim.conditions[0]]}
        assert claim.needs or sources <= {"training", "task", *MEASUREMENTS}, claim.id


def test_sources_are_those_that_there_are() -> None:
    assert {listed.source for listed in METRICS.values()} == {"training", "task", "choices", *MEASUREMENTS}


def _measured_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From here on code counts as new, so that nothing is found in the store; returns a list to report into."""
    monkeypatch.setattr(measure, "_CODE", secrets.token_hex(8))
    return []
