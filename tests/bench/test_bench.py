"""The benchmarks run, their record becomes a table and a plot, and the peer trains the same model."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

import bench.__main__ as everything
import loopverify as lv
from bench import early_exit_tables, scale
from bench.results import Measured, measured, merged, table
from bench.scale import measure
from bench.shapes import QUICK
from loopverify.objectives import per_loop
from loopverify.report.ratios import RatioBar, draw_ratios

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_every_benchmark_runs_and_notes_its_ratios(tmp_path: Path) -> None:
    file = tmp_path / "quick.json"
    # Without xdist, beside which pytest-benchmark measures nothing.
    command = [sys.executable, "-m", "pytest", "bench", "--quick", "-q", "-p", "no:xdist", f"--benchmark-json={file}"]
    done = subprocess.run(
        [*command, "--override-ini=addopts=--import-mode=importlib"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    rows, machine = measured(file)
    assert {row.peer for row in rows} >= {
        "a training step",
        "eager",
        "a plain loop after nanoGPT",
        "one recurrent step",
    }
    assert all(row.low <= row.median <= row.high for row in rows)
    text = table(rows, machine)
    assert text.count("\n| ") == len(rows) + 1
    assert torch.__version__ in text


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        (scale, "--steps 10", "steps is 10; expected more than the 10 that are not timed"),
        (scale, "--presets tiny huge", "unknown preset 'huge'"),
        (scale, "--conditions per_loop/raw per_loop", "condition is 'per_loop'"),
        (scale, "--presets tiny --threads 0", "threads is 0"),
        (early_exit_tables, "--steps 0", "steps is 0; expected an integer >= 1"),
        (early_exit_tables, "--runs=", "--runs is ''; expected a folder"),
    ],
)
def test_wrong_use_ends_in_words_before_anything_is_measured(
    module: ModuleType, arguments: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *arguments.split()])
    monkeypatch.setattr(scale, "measure", lambda spec: pytest.fail("measured"))
    assert module.main() == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert words in output.err


def test_no_table_is_made_of_what_was_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(everything, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "--from-json", "--device", "cuda"])
    assert everything.main() == 2
    assert f"error: no measurement in {tmp_path / 'cuda.json'}" in capsys.readouterr().err


def test_a_table_tells_which_goals_are_held() -> None:
    row = {"label": "a", "shape": "b", "peer": "c", "low": 0.4, "high": 0.6}
    rows = [Measured(median=0.5, at_most=goal, **row) for goal in (None, 0.5, 0.49)]
    assert [of.held for of in rows] == [None, True, False]
    machine = {"cpu": {}, "torch": "2", "device": "cpu", "when": "today", "load": "none"}
    assert [line.split("|")[-2].strip() for line in table(rows, machine).splitlines()[-3:]] == [
        "",
        "≤ 0.5: held",
        "≤ 0.49: **not held**",
    ]


def test_what_is_measured_anew_takes_the_place_of_what_was(tmp_path: Path) -> None:
    def record(name: str, **of: int) -> Path:
        benchmarks = [{"fullname": key, "value": value} for key, value in of.items()]
        (tmp_path / name).write_text(json.dumps({"benchmarks": benchmarks, "datetime": name}))
        return tmp_path / name

    earlier, fresh = record("earlier", a=1, b=2, c=3), record("fresh", d=5, b=4)
    both = json.loads(merged(fresh, earlier))
    assert [(of["fullname"], of["value"]) for of in both["benchmarks"]] == [("a", 1), ("b", 4), ("c", 3), ("d", 5)]
    assert both["datetime"] == "fresh"
    for nothing in (None, tmp_path / "absent"):
        assert json.loads(merged(fresh, nothing)) == json.loads(fresh.read_text())


def test_the_plot_shows_every_ratio_and_what_misses_its_goal() -> None:
    bars = [RatioBar(label=f"ratio {i}", median=0.5, low=0.4, high=0.6, goal=goal) for i, goal in enumerate((1, 0.3))]
    svg = draw_ratios(bars)
    assert svg.startswith("<?xml")
    assert all(bar.label in svg for bar in bars)
    assert "#d55e00" in svg
    assert "#d55e00" not in draw_ratios(bars[:1])


@pytest.mark.parametrize("tied", [False, True])
def test_the_peer_is_the_reference_model(tied: bool) -> None:
    import dataclasses

    shape = dataclasses.replace(QUICK, preset=dataclasses.replace(QUICK.preset, tied_head=tied))
    module, peer = shape.module("rmsnorm", "cpu"), shape.peer()
    names = {
        "embedding": "wte",
        "layers": "h",
        "attention_norm": "ln_1",
        "attention_mix.qkv": "attn.c_attn",
        "attention_mix.out": "attn.c_proj",
        "mlp_norm": "ln_2",
        "mlp_mix.down": "mlp.w_down",
        "readout_norm": "ln_f",
        "head": "lm_head",
    }

    def renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        out = {}
        for name, tensor in tensors.items():
            for ours, theirs in names.items():
                name = name.replace(ours, theirs)
            if "gate_up" in name:
                for part, half in zip(("w_gate", "w_up"), tensor.chunk(2), strict=True):
                    out[name.replace("mlp_mix.gate_up", f"mlp.{part}")] = half
            else:
                out[name] = tensor
        return out

    peer.load_state_dict(renamed(module.state_dict()))
    tokens, targets = shape.batch("cpu")
    expected = per_loop(lv.unroll(module.looped(), tokens, grad=True), targets)
    loss = peer(tokens, targets)
    torch.testing.assert_close(loss, expected)
    expected.backward()
    loss.backward()
    gradients = renamed({name: p.grad for name, p in module.named_parameters()})
    assert gradients.keys() == dict(peer.named_parameters()).keys()
    for name, parameter in peer.named_parameters():
        torch.testing.assert_close(
            parameter.grad, gradients[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_preset_is_measured_as_a_run_trains_it() -> None:
    spec = QUICK.spec("per_loop", "raw")
    data = replace(spec.preset.data, vocab_max=64)
    taken = measure(replace(spec, preset=replace(spec.preset, data=data, steps=20, lr=1e-6, eval_windows=1)))
    assert taken.tokens_per_s > 0
    assert taken.mfu is None  # no guess about a CPU
    assert 0.05 < taken.peak_gib < 4
    assert taken.losses == pytest.approx((math.log(64), math.log(64)), rel=0.02)  # nothing to learn, nothing learned
