"""Presets carry the paper's settings; a spec is named by everything that determines its result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from loopverify.claims.p1.published import tables
from loopverify.errors import InputError
from loopverify.models import LoopedTransformer
from train.specification import PRESETS, RunSpec, preset

TINY = RunSpec(preset=preset("tiny"), loss="per_loop", readout="rmsnorm")


@pytest.mark.parametrize("size", ["44m", "129m"])
def test_the_papers_presets_are_the_papers_settings(size: str) -> None:
    setup, p = tables()["setup"], preset(size)
    own, both = setup[size], setup["both"]
    assert (p.d_model, p.heads, p.layers, p.batch) == (own["d_model"], own["heads"], own["layers"], own["batch"])
    assert (p.loops, p.seq_len, p.stride) == (both["loops"], both["seq_len"], both["stride"])
    assert (p.data.vocab_max, p.data.min_freq, p.data.source) == (20_000, both["min_token_freq"], "wikitext103")
    assert (p.lr, p.weight_decay, p.grad_clip) == (both["lr"], both["weight_decay"], both["grad_clip"])
    assert (p.dropout, p.epochs, p.steps) == (both["dropout"], both["epochs"], None)


def test_the_preset_of_the_check_at_scale_is_the_papers() -> None:
    setup, p = tables()["setup"]["1.4b"], preset("1.4b")
    assert (p.lr, p.min_lr, p.warmup_steps) == (setup["lr"], setup["min_lr"], setup["warmup_steps"])
    assert (p.weight_decay, p.grad_clip) == (setup["weight_decay"], setup["grad_clip"])
    assert (p.seq_len, p.steps, p.loops) == (setup["seq_len"], setup["steps"], 4)
    # Whole windows a step, as near as they come to the tokens of both of its models.
    tokens = [setup["tokens_baseline"], setup["tokens_no_readout_norm"]]
    assert [round(of_one / p.steps / p.seq_len) for of_one in tokens] == [p.batch, p.batch]


@pytest.mark.parametrize(
    ("vocab", "device", "chunk"), [(4095, "cpu", None), (4096, "cpu", 256), (4096, "cuda", 4096), (1024, "cuda", None)]
)
def test_logits_of_a_wide_vocabulary_come_in_chunks(
    vocab: int, device: str, chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = replace(TINY.preset.data, vocab_max=vocab)
    spec = replace(TINY, preset=replace(TINY.preset, data=data), device=device)
    assert spec.chunk_tokens == chunk
    chunks: list[object] = []
    monkeypatch.setattr(
        "train.specification.run_spec.named", lambda name, **given: chunks.append(given["chunk_tokens"])
    )
    spec.objective()
    assert chunks == [chunk]


def test_the_learning_rate_warms_up_and_then_stays_or_follows_a_half_cosine() -> None:
    flat, p = preset("44m"), preset("1.4b")
    assert [flat.learning_rate(step, 10_000) for step in (100, 200, 10_000)] == pytest.approx([1.5e-4, 3e-4, 3e-4])
    middle = (1000 + 50_000) // 2
    rates = [p.learning_rate(step, 50_000) for step in (1, 500, 1000, middle, 50_000)]
    assert rates == pytest.approx([3e-7, 1.5e-4, 3e-4, (3e-4 + 3e-5) / 2, 3e-5], rel=1e-12)


def test_epochs_become_steps_of_whole_batches() -> None:
    assert preset("44m").total_steps(windows=64 * 10 + 63) == 4 * 10
    assert preset("tiny").total_steps(windows=10**6) == 1500


def test_a_spec_builds_the_model_it_names() -> None:
    model = replace(TINY, readout="final_only").model(vocab_size=100)
    assert isinstance(model, LoopedTransformer)
    assert (model.config.readout, model.config.trained_loops, model.config.inter_loop_norm) == ("final_only", 4, "none")
    assert sum(p.numel() for p in model.parameters()) == 2 * 100 * 64 + 2 * (4 * 64**2 + 3 * 64 * 160 + 2 * 64) + 64


def test_the_check_at_scale_and_its_twin_differ_in_what_the_head_is_shown() -> None:
    base = RunSpec(preset=preset("1.4b"), loss="exit_weighted", readout="rmsnorm", recurrence="shared_boundary_norm")
    with torch.device("meta"):
        model, twin = (
            spec.model(vocab_size=49_152) for spec in (base, replace(base, readout="raw", recurrence="boundary_norm"))
        )
    assert model.loop_norm is model.readout_norm
    assert twin.readout_norm is None
    assert {name: p.shape for name, p in model.named_parameters() if "norm" not in name} == {
        name: p.shape for name, p in twin.named_parameters() if "norm" not in name
    }
    for one in (model, twin):
        assert one.exit_gate is not None
        assert one.config.sandwich_norm
        assert sum(p.numel() for p in one.parameters()) == 1_434_652_673  # as Ouro-1.4B; see test_ouro_shape.py


def test_conditions_are_named_as_in_the_claims() -> None:
    assert TINY.condition == "per_loop/rmsnorm"
    assert replace(TINY, recurrence="damped").condition == "per_loop/rmsnorm/damped"
    assert replace(TINY, loss="terminal+penalty").condition == "terminal+penalty/rmsnorm"
    assert replace(TINY, loss="per_loop+penalty", penalty=0.1).condition == "per_loop+penalty=0.1/rmsnorm"
    assert set(tables()["T2"]["44m"]) == {
        *("terminal/rmsnorm", "terminal/raw", "per_loop/rmsnorm", "per_loop/raw", "per_loop/final_only"),
        *("terminal+penalty/rmsnorm", "per_loop+penalty/rmsnorm"),
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "dense"}, "unknown loss 'dense'; expected one of: per_loop, terminal, exit_weighted"),
        (
            {"readout": "norm"},
            "unknown readout 'norm'; expected one of: rmsnorm, raw, layernorm, final_only, dynamic_tanh, tapered",
        ),
        (
            {"recurrence": "none"},
            "unknown recurrence 'none'; expected one of: residual, damped, inter_loop_norm, shared",
        ),
        ({"seed": -1}, "seed is -1; expected an integer in 0"),
        ({"lr": 0.0}, "lr is 0.0; expected a number > 0"),
        ({"loss": "per_loop+penalty", "penalty": -1.0}, "penalty is -1.0; expected a finite weight > 0"),
    ],
)
def test_unknown_names_are_rejected(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(TINY, **changes)


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown preset 'huge'; expected one of: tiny, small, 44m, 129m, 1\.4b"):
        preset("huge")
    assert set(PRESETS) == {"tiny", "small", "44m", "129m", "1.4b", "hops"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": None}, "steps=None, epochs=None; expected one of the two"),
        ({"steps": 0}, "steps is 0; expected an integer >= 1"),
        ({"loops": 0}, "loops is 0; expected an integer >= 1"),
        ({"lr": 0.0}, "lr is 0.0; expected a number > 0"),
        ({"data": preset("hops").data}, "seq_len=32, epochs=None; expected 6, the length of an instance of hops"),
        ({"min_lr": 0.1}, "min_lr is 0.1; expected a number in 0..0.01, the peak, or None"),
    ],
)
def test_a_preset_that_cannot_train_is_rejected(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(preset("tiny"), **changes)
