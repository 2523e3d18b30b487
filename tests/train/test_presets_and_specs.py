"""Presets carry the paper's settings; a spec is named by everything that determines its result."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loopverify.claims.paper import tables
from loopverify.errors import InputError
from loopverify.models import LoopedTransformer
from train.presets import PRESETS, preset
from train.spec import RunSpec, code_digest

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


def test_a_spec_builds_the_model_it_names() -> None:
    model = replace(TINY, readout="final_only").model(vocab_size=100)
    assert isinstance(model, LoopedTransformer)
    assert (model.config.readout, model.config.trained_loops, model.config.inter_loop_norm) == ("final_only", 4, "none")
    assert sum(p.numel() for p in model.parameters()) == 2 * 100 * 64 + 2 * (4 * 64**2 + 3 * 64 * 160 + 2 * 64) + 64


def test_everything_that_determines_the_result_is_in_the_key() -> None:
    base = TINY.determinants("text-a")
    others = [
        replace(TINY, seed=1).determinants("text-a"),
        replace(TINY, loss="terminal").determinants("text-a"),
        replace(TINY, readout="raw").determinants("text-a"),
        replace(TINY, recurrence="damped").determinants("text-a"),
        replace(TINY, loss="per_loop+penalty").determinants("text-a"),
        replace(TINY, loss="per_loop+penalty", penalty=0.1).determinants("text-a"),
        replace(TINY, preset=replace(TINY.preset, lr=3e-3)).determinants("text-a"),
        replace(TINY, device="cuda").determinants("text-a"),
        TINY.determinants("text-b"),
    ]
    keys = {json.dumps(determinants, sort_keys=True) for determinants in (base, *others)}
    assert len(keys) == 10
    assert base["code"] == code_digest()
    # A weight that the loss does not use changes nothing.
    assert replace(TINY, penalty=0.5).determinants("text-a") == base


def test_conditions_are_named_as_in_the_claims() -> None:
    assert TINY.condition == "per_loop/rmsnorm"
    assert replace(TINY, recurrence="damped").condition == "per_loop/rmsnorm/damped"
    assert replace(TINY, loss="terminal+penalty").condition == "terminal+penalty/rmsnorm"
    assert replace(TINY, loss="per_loop+penalty", penalty=0.1).condition == "per_loop+penalty=0.1/rmsnorm"
    assert set(tables()["P1.T2_norm_and_ppl"]["44m"]) == {
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
        ({"seed": -1}, "seed is -1; expected an integer >= 0"),
        ({"loss": "per_loop+penalty", "penalty": -1.0}, "penalty is -1.0; expected a finite weight > 0"),
    ],
)
def test_unknown_names_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(TINY, **changes)


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown preset 'huge'; expected one of: tiny, small, 44m, 129m"):
        preset("huge")
    assert set(PRESETS) == {"tiny", "small", "44m", "129m"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": None}, "steps=None, epochs=None; expected one of the two"),
        ({"steps": 0}, "steps is 0; expected an integer >= 1"),
        ({"loops": 0}, "loops is 0; expected an integer >= 1"),
        ({"lr": 0.0}, "lr is 0.0; expected a number > 0"),
    ],
)
def test_a_preset_that_cannot_train_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(preset("tiny"), **changes)
