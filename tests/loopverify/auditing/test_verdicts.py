"""Verdicts at initialization, at the norms of a trained model, after training, and in every precision."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import loopverify as lv
from loopverify.models.recurrences import FACTORIES, TinyBlock
from loopverify.objectives import Terms, named
from tests.loopverify import closed_form
from tests.loopverify.auditing.reference import TARGETS, TOKENS, V, reference
from tests.loopverify.closed_form import looped, radial_step, raw, rms, rmsnorm

EXPECTED = [
    ("rmsnorm", "terminal", "blind_spot", ["scale"]),
    ("rmsnorm", "per_loop", "blind_spot", ["scale"]),
    ("layernorm", "terminal", "blind_spot", ["scale", "mean"]),
    ("layernorm", "per_loop", "blind_spot", ["scale", "mean"]),
    ("raw", "terminal", "controlled", []),
    ("raw", "per_loop", "controlled", []),
    ("final_only", "per_loop", "controlled", []),
    ("final_only", "terminal", "blind_spot", ["scale"]),  # the one exit that is supervised is normalized
    ("rmsnorm", "per_loop+penalty", "controlled", []),
    ("rmsnorm", "terminal+penalty", "controlled", []),
    ("layernorm", "per_loop+penalty", "controlled", []),
]


@pytest.mark.parametrize("drift", [1.0, 100.0, 10_000.0], ids=["init", "norm 30", "norm 3000"])
@pytest.mark.parametrize(("readout", "objective", "verdict", "blind"), EXPECTED)
def test_the_paper_s_ablations(readout: str, objective: str, verdict: str, blind: list[str], drift: float) -> None:
    audit = lv.audit(reference(readout, drift), TOKENS, TARGETS, objective=named(objective))
    assert audit.verdict == verdict
    assert audit.blind == blind
    assert audit.scale.carry == "carried"
    assert audit.scale.factor == pytest.approx(1.0, abs=1e-4)
    assert audit.scale.visibility == ("hidden" if verdict == "blind_spot" else "visible")
    # Not a close call: a norm's epsilon leaves under a hundredth of the threshold, whatever sees scale passes it.
    assert all(s.scale_defect < 0.005 or s.scale_defect >= 1 for s in audit.signals)


@pytest.mark.parametrize("readout", ["rmsnorm", "raw", "layernorm", "final_only"])
@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
def test_the_verdict_is_the_same_in_half_precision(readout: str, precision: str) -> None:
    model = reference(readout)
    expected = lv.audit(model, TOKENS, TARGETS)
    if precision == "bfloat16":
        model.module.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"):
        audit = lv.audit(model, TOKENS, TARGETS)
    assert (audit.verdict, audit.blind) == (expected.verdict, expected.blind)
    assert audit.facts.working_dtype == "bfloat16"
    assert audit.per_loop[0].direct.floor > 1e4 * expected.per_loop[0].direct.floor


@pytest.mark.parametrize("offset", [0.0, 0.5], ids=["mean 0", "mean 25 deviations"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_mean_behind_a_layernorm_is_blind_however_far_it_has_drifted(dtype: torch.dtype, offset: float) -> None:
    model = reference("layernorm")
    model.module.to(dtype)
    with torch.no_grad():
        model.module.embedding.weight += offset
    assert lv.audit(model, TOKENS, TARGETS).blind == ["scale", "mean"]


@pytest.mark.parametrize("norm", ["own", "shared"])
def test_a_norm_at_the_loop_boundary_removes_scale(norm: str) -> None:
    audit = lv.audit(reference("rmsnorm", inter_loop_norm=norm), TOKENS, TARGETS)
    assert (audit.verdict, audit.blind, audit.scale.carry, audit.scale.factor) == ("removed", [], "removed", 0.0)
    assert audit.growth.law == "constant"
    assert all(record.sublayers is None for record in audit.per_loop)


def turning(state: Tensor) -> Tensor:
    weight = torch.randn(closed_form.D, closed_form.D, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return torch.tanh((state / rms(state)) @ weight.T)


RECURRENCES = {
    "post-norm block": (lambda H: F.rms_norm(H + turning(H), (closed_form.D,), eps=1e-6), "removed", "removed", []),
    "linear state with decay": (lambda H: 0.8 * H + turning(H), "damped", "damped", []),
    "residual added again": (lambda H: 2 * H + turning(H), "blind_spot", "amplified", ["scale"]),
    "pre-norm residual": (lambda H: H + turning(H), "blind_spot", "carried", ["scale"]),
    "norm inside the branch only": (
        lambda H: H + F.rms_norm(turning(H), (8,), eps=1e-6),
        "blind_spot",
        "carried",
        ["scale"],
    ),
}


@pytest.mark.parametrize("name", RECURRENCES)
@pytest.mark.parametrize("start", [0.02, 500.0])
def test_recurrences(name: str, start: float) -> None:
    step, verdict, carry, blind = RECURRENCES[name]
    readout = lambda H: rmsnorm(H, 1e-6)  # noqa: E731
    audit = lv.audit(looped(step, readout, start=start), closed_form.TOKENS, closed_form.TARGETS)
    assert (audit.verdict, audit.scale.carry, audit.blind) == (verdict, carry, blind)


def test_a_residual_added_again_doubles_at_step_0() -> None:
    # Seen in a real project: 0.28 -> 35.7 over 8 loops, at initialization, hidden by the readout's norm.
    audit = lv.audit(looped(radial_step(2.0, 0.001), start=0.28), closed_form.TOKENS, closed_form.TARGETS, loops=7)
    assert audit.scale.factor == pytest.approx(2.0, rel=1e-3)
    assert audit.growth.law == "exponential"
    assert audit.per_loop[-1].rms.mean == pytest.approx(0.28 * 2**7, rel=0.01)
    assert "added twice" in audit.advice[0]


def test_a_raw_exit_among_normalized_ones_controls_the_scale() -> None:
    model = looped(radial_step(1.0, 0.3))
    mixed = dataclasses.replace(
        model, readout=lambda H, context, loop, loops: raw(H) if loop == 2 else rmsnorm(H, 1e-6)
    )
    audit = lv.audit(mixed, closed_form.TOKENS, closed_form.TARGETS)
    assert audit.verdict == "controlled"
    assert [view.visibility for view in audit.exits] == ["hidden", "visible", "hidden", "hidden"]
    terminal = lv.audit(mixed, closed_form.TOKENS, closed_form.TARGETS, objective=named("terminal"))
    assert terminal.verdict == "blind_spot"


def test_a_penalty_without_gradient_controls_nothing() -> None:
    def logged_only(trace: lv.Trace, targets: Tensor) -> Terms:
        parts = named("per_loop+penalty", penalty=10.0)(trace, targets).parts
        return Terms({"per_loop": parts["per_loop"], "penalty": parts["penalty"].detach()})

    audit = lv.audit(reference("rmsnorm"), TOKENS, TARGETS, objective=logged_only)
    assert audit.verdict == "blind_spot"
    assert audit.facts.objective == "logged_only"


def text_batch(start: int) -> tuple[Tensor, Tensor]:
    """Eight windows of a repetitive text from `start` on: tokens and targets."""
    text = torch.arange(600) * torch.arange(600) % V
    windows = torch.stack([text[i : i + 13] for i in range(start, start + 64, 8)])
    return windows[:, :-1], windows[:, 1:].contiguous()


def trained(model: lv.Looped, objective: str) -> lv.Looped:
    """A hundred steps: long enough to leave initialization, not to drift."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(100):
        tokens, targets = text_batch(step)
        loss = named(objective)(lv.unroll(model, tokens, grad=True), targets).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(
    ("readout", "objective", "norm", "verdict"),
    [
        ("rmsnorm", "per_loop", "none", "blind_spot"),
        ("rmsnorm", "terminal", "none", "blind_spot"),
        ("raw", "per_loop", "none", "controlled"),
        ("raw", "terminal", "none", "controlled"),
        ("final_only", "per_loop", "none", "controlled"),
        ("rmsnorm", "per_loop+penalty", "none", "controlled"),
        ("rmsnorm", "per_loop", "own", "removed"),
        ("rmsnorm", "per_loop", "shared", "removed"),
    ],
)
def test_the_verdict_holds_after_training(readout: str, objective: str, norm: str, verdict: str) -> None:
    torch.manual_seed(0)
    config = lv.models.TransformerConfig(
        vocab_size=V, d_model=32, d_ff=64, layers=1, readout=readout, trained_loops=3, inter_loop_norm=norm
    )
    model = trained(lv.models.LoopedTransformer(config).looped(), objective)
    audit = lv.audit(model, *text_batch(0), objective=named(objective))
    assert audit.verdict == verdict
    assert audit.exits[-1].loss < math.log(V) / 2  # the model has learned


@pytest.mark.parametrize(
    ("factory", "verdict", "carry"),
    [
        ("pre_norm", "blind_spot", "carried"),
        ("doubling", "blind_spot", "amplified"),
        ("linear_decay", "damped", "damped"),
        ("post_norm", "removed", "removed"),
        ("deep_norm", "removed", "removed"),
    ],
)
def test_the_verdict_on_a_recurrence_holds_after_training(factory: str, verdict: str, carry: str) -> None:
    model = FACTORIES[factory](TinyBlock(vocab_size=V))
    before = lv.audit(model, *text_batch(0))
    after = lv.audit(trained(model, "per_loop"), *text_batch(0))
    assert after.exits[-1].loss < 0.9 * before.exits[-1].loss  # the model has learned
    for audit in (before, after):
        assert (audit.verdict, audit.scale.carry) == (verdict, carry)
