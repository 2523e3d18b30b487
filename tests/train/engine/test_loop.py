"""The step loop: it learns, repeats bit for bit, and stops with a reason when the loss is no number."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from train.data import DataSpec, Examples, TextExamples, load_corpus
from train.engine.loop import DivergedError, train
from train.specification import RunSpec, preset


@pytest.fixture(scope="module")
def examples(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Examples:
    data = DataSpec(source=str(text_file), vocab_max=64, min_freq=1)
    corpus = load_corpus(data, tmp_path_factory.mktemp("cache"))
    return TextExamples(corpus=corpus, length=32, stride=16, batch=4)


def micro(**changes: object) -> RunSpec:
    shape = replace(preset("tiny"), steps=40, batch=4, eval_windows=8, history_windows=4, history_every=20)
    changes = {"loss": "per_loop", "readout": "rmsnorm", **changes}
    return RunSpec(preset=replace(shape, **changes.pop("shape", {})), **changes)


def test_training_lowers_the_loss_and_reports_in_order(examples: Examples) -> None:
    events: list[dict[str, object]] = []
    _, metrics = train(micro(), examples, events.append)
    assert [event["step"] for event in events if event["event"] == "step"] == [10, 20, 30, 40]
    assert [event["step"] for event in events if event["event"] == "eval"] == [20, 40]
    assert events[-1] == {"event": "end", "step": 40, **metrics}
    uniform = math.log(examples.vocab_size)
    for k in (1, 2, 3, 4):
        # The text draws 14 words uniformly and every other token is a space: its entropy is ln(14) / 2.
        assert math.log(14) / 2 - 0.1 < metrics[f"ce@{k}"] < 0.75 * uniform
        assert metrics[f"ppl@{k}"] == pytest.approx(math.exp(metrics[f"ce@{k}"]))
        assert metrics[f"norm@{k}"] == pytest.approx(8 * metrics[f"rms@{k}"])  # sqrt(64) channels
    lrs = [event["lr"] for event in events if event["event"] == "step"]
    assert lrs == pytest.approx([1e-2 * step / 50 for step in (10, 20, 30, 40)])


def test_a_least_learning_rate_is_reached_at_the_last_step(examples: Examples) -> None:
    events = []
    train(micro(shape={"steps": 30, "warmup_steps": 10, "min_lr": 1e-3}), examples, events.append)
    lrs = [event["lr"] for event in events if event["event"] == "step"]
    assert lrs == pytest.approx([1e-2, (1e-2 + 1e-3) / 2, 1e-3])


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(examples: Examples) -> None:
    spec = micro(shape={"steps": 5})
    first, again, other = (train(s, examples, lambda _: None)[0] for s in (spec, spec, replace(spec, seed=1)))
    assert first.keys() == again.keys() == other.keys()
    assert [name for name in first if not torch.equal(first[name], again[name])] == []
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def test_the_penalty_is_felt_and_logged(examples: Examples) -> None:
    events: list[dict[str, object]] = []
    _, plain = train(micro(), examples, lambda _: None)
    _, penalized = train(micro(loss="per_loop+penalty", penalty=10.0), examples, events.append)
    assert penalized["norm@4"] < 0.7 * plain["norm@4"]
    assert set(events[0]) >= {"loss/per_loop", "loss/penalty", "gradient_norm", "lr", "tokens_per_s"}


def test_a_loss_that_is_no_number_stops_the_run_with_step_and_cause(examples: Examples) -> None:
    spec = micro(shape={"lr": 1e30, "warmup_steps": 1})
    with pytest.raises(DivergedError) as caught:
        train(spec, examples, lambda _: None)
    message = str(caught.value)
    # Step 1 sets every weight to about 1e30, so step 2 overflows in float32.
    assert "per_loop/rmsnorm seed 0: at step 2 the loss is" in message
    assert "expected finite numbers. Likely cause: " in message
    assert "lr 1e+30, last finite gradient norm before clipping: " in message
    assert "Lower the learning rate" in message


@pytest.mark.parametrize(
    ("loss", "readout", "advice"),
    [
        ("per_loop", "rmsnorm", "a norm penalty or a raw readout makes the scale of the state visible to the loss"),
        ("per_loop+penalty", "rmsnorm", r"or lower the weight of the norm penalty \(0.01\)$"),
        ("per_loop", "raw", "lengthen the warm-up$"),
    ],
)
def test_the_advice_after_divergence_is_for_the_condition_that_diverged(
    examples: Examples, loss: str, readout: str, advice: str
) -> None:
    with pytest.raises(DivergedError, match=advice):
        train(micro(loss=loss, readout=readout, shape={"lr": 1e30, "warmup_steps": 1}), examples, lambda _: None)
