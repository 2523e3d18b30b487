"""The audit as a whole: its records, its cost, its text and its errors; verdicts are in test_verdicts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import loopverify as lv
from loopverify.errors import InputError
from loopverify.objectives import Terms, named
from tests.loopverify import closed_form
from tests.loopverify.auditing.reference import TARGETS, TOKENS, reference
from tests.loopverify.closed_form import looped, radial_step, rms, rmsnorm


def test_per_loop_records_are_the_probes_measurements() -> None:
    model = reference("rmsnorm", 100.0)
    model.module.double()
    audit = lv.audit(model, TOKENS, TARGETS)
    trace = lv.unroll(model, TOKENS, grad=True)
    total = torch.autograd.grad(named("per_loop")(trace, TARGETS).total, trace.states[1:])
    assert [record.loop for record in audit.per_loop] == [1, 2, 3, 4]
    for record, before, after, g in zip(audit.per_loop, trace.states, trace.states[1:], total, strict=False):
        u, b = (before / rms(before)).detach(), (after - before).detach()
        a = (u * b).mean(-1, keepdim=True)
        assert record.norms.mean == pytest.approx(float(after.detach().norm(dim=-1).mean()))
        assert record.rms.median == pytest.approx(record.norms.median / math.sqrt(32))
        assert record.a_rad == pytest.approx(float(a.mean()))
        assert record.b_perp == pytest.approx(float(rms(b - a * u).mean()))
        assert record.update.b_rms == pytest.approx(float(rms(b).mean()))
        assert sum(record.sublayers.values()) == pytest.approx(record.update.growth, rel=1e-6)
        signal = record.direct.signal + record.indirect.signal
        assert signal == pytest.approx(float((g * after.detach()).sum()), rel=1e-6, abs=1e-12)
    assert audit.per_loop[-1].indirect.reading == "no gradient"
    assert [view.loop for view in audit.exits] == [1, 2, 3, 4]
    assert audit.depth.losses == tuple(view.loss for view in audit.exits)


def test_closed_form_of_a_radial_push() -> None:
    # F(su) = (s + 0.3)u from s = 0.5: everything about it is known.
    model = looped(radial_step(1.0, 0.3), start=0.5)
    audit = lv.audit(model, closed_form.TOKENS, closed_form.TARGETS, loops=3)
    assert [record.a_rad for record in audit.per_loop] == pytest.approx([0.3] * 3)
    assert [record.rms.mean for record in audit.per_loop] == pytest.approx([0.8, 1.1, 1.4])
    assert [record.update.angular_step for record in audit.per_loop] == pytest.approx([0.0] * 3, abs=1e-7)
    assert (audit.growth.law, audit.growth.coefficients) == ("linear", pytest.approx((0.5, 0.3)))
    assert audit.growth.loops == 16  # four times the trained four
    assert audit.depth.gain == pytest.approx(0, abs=1e-12)  # the direction never moves
    assert [point.ratio for point in audit.overshoot] == [k / 4 for k in range(1, 9)]
    assert audit.per_loop[0].direct.reading == "at the floor"
    assert audit.scale.visibility == "hidden"


def test_untrained_loop_counts_and_r0_of_one() -> None:
    audit = lv.audit(looped(radial_step(1.0, 0.1), trained_loops=1), closed_form.TOKENS, closed_form.TARGETS, loops=5)
    assert len(audit.per_loop) == 5
    assert audit.growth.loops == 8
    assert audit.overshoot[-1].ratio == 5.0


# What an audit costs.


class Meter:
    """Counts step and readout calls, forward and backward."""

    def __init__(self, model: lv.Looped) -> None:
        self.count = {"step": 0, "readout": 0, "step backward": 0, "readout backward": 0, "branches": 0}

        def watch(name: str, part: object) -> object:
            def call(state: Tensor, *rest: object) -> Tensor:
                self.count[name] += 1
                out = part(state, *rest)
                if name != "branches" and out.requires_grad:
                    out.register_hook(
                        lambda g: self.count.update({f"{name} backward": self.count[f"{name} backward"] + 1})
                    )
                return out

            return call

        parts = {name: watch(name, getattr(model, name)) for name in ("step", "readout", "branches")}
        self.model = dataclasses.replace(model, **parts)


@pytest.mark.parametrize("objective", ["per_loop", "terminal", "per_loop+penalty"])
def test_an_audit_calls_the_model_less_often_than_six_training_steps(objective: str) -> None:
    meter = Meter(reference("rmsnorm"))
    lv.audit(meter.model, TOKENS, TARGETS, objective=named(objective))
    counts = meter.count
    # One run of 16 loops, 3 of them again with a backward pass, 2 for the carry of each loop alone, and 4 + 4
    # consecutive loops for each of scale and mean.
    assert counts["step"] == 16 + 3 + 4 * 2 + 2 * (4 + 4)
    assert counts["step backward"] == 3
    assert counts["branches"] == 4
    steps = counts["step"] + counts["branches"] + counts["step backward"]
    assert steps <= 6 * 4 * 3  # a training step: each loop forward, and backward to its input and to its weights
    assert counts["readout"] + counts["readout backward"] <= 6 * 4 * 3


class Multiplications(TorchDispatchMode):
    """Adds up the floating-point operations of matrix products, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        self.flops += count(*args, **(kwargs or {}), out_val=out) if count else 0
        return out


@pytest.mark.parametrize("objective", ["per_loop", "terminal"])
def test_an_audit_multiplies_less_than_six_training_steps(objective: str) -> None:
    # The 44M shape (d = 512, 8 layers, 8 heads, 256 tokens, 20,000 words, K = 4) with every width an eighth.
    config = lv.models.TransformerConfig(vocab_size=2500, d_model=64, layers=8, heads=1, d_ff=256)
    module = lv.models.LoopedTransformer(config)
    tokens, targets = torch.randint(2500, (1, 32)), torch.randint(2500, (1, 32))
    with Multiplications() as training:
        trace = lv.unroll(module.looped(), tokens, grad=True)
        named(objective)(trace, targets).total.backward()
    with Multiplications() as auditing:
        lv.audit(module.looped(), tokens, targets, objective=named(objective))
    assert 0 < auditing.flops <= 6 * training.flops


# Its text.


def test_to_dict_is_plain_json_with_the_conclusions() -> None:
    audit = lv.audit(reference("rmsnorm"), TOKENS, TARGETS, objective=named("per_loop+penalty"))
    text = json.dumps(audit.to_dict(), allow_nan=False)
    read = json.loads(text)
    assert read == audit.to_dict()
    assert (read["verdict"], read["blind"], read["scale"]["visibility"]) == ("controlled", [], "visible")
    assert read["scale"]["seen_by"] == ["penalty"]
    assert read["per_loop"][0]["direct"]["reading"].startswith("above it by ×")
    assert read["per_loop"][0]["norms"]["unit"] == "l2"
    assert read["facts"]["versions"]["torch"] == torch.__version__
    assert {"batch": 4, "tokens": 12, "channels": 32, "loops": 4, "seed": 0}.items() <= read["facts"].items()


def test_infinities_and_nan_are_strings_in_json() -> None:
    audit = lv.audit(reference("rmsnorm"), TOKENS, TARGETS)
    endless = dataclasses.replace(audit.signals[0], scale_defect=math.inf)
    plain = dataclasses.replace(audit, signals=(endless,)).to_dict()
    assert plain["signals"][0]["scale_defect"] == "inf"


@pytest.mark.parametrize("trained_loops", [1, 4, 32])
@pytest.mark.parametrize("readout", ["layernorm", "raw"])
def test_the_text_fits_one_screen(readout: str, trained_loops: int) -> None:
    audit = lv.audit(reference(readout, 1e4, trained_loops=trained_loops, layers=4), TOKENS, TARGETS)
    lines = str(audit).splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 48
    assert ("BLIND SPOT" if readout == "layernorm" else "CONTROLLED") in lines[0]
    assert sum("← blind spot" in line for line in lines) == (2 if readout == "layernorm" else 0)


def test_the_advice_fits_the_verdict() -> None:
    def advice(model: lv.Looped, objective: str = "per_loop") -> str:
        return " ".join(lv.audit(model, TOKENS, TARGETS, objective=named(objective)).advice)

    assert "norm penalty" in advice(reference("rmsnorm"))
    assert "second blind direction" in advice(reference("layernorm"))
    assert advice(reference("raw")).startswith("Keep 'per_loop'")
    assert advice(reference("rmsnorm"), "per_loop+penalty").startswith("Keep 'penalty'")
    assert "removes scale" in advice(reference("rmsnorm", inter_loop_norm="own"))
    damped = lv.audit(looped(radial_step(0.8, 0.6)), closed_form.TOKENS, closed_form.TARGETS)
    assert "settles near a/(1 − c) = 5 times its radial update" in damped.advice[0]


def test_a_saturating_readout_is_controlled_with_a_warning() -> None:
    head = lv.theory.readouts.Head(readout=lv.theory.readouts.DynamicTanh(alpha=0.5), weight=closed_form.HEAD)
    audit = lv.audit(looped(radial_step(1.0, 0.001), head, start=0.02), closed_form.TOKENS, closed_form.TARGETS)
    assert (audit.scale.visibility, audit.verdict) == ("saturating", "controlled")
    assert "opens with drift" in audit.advice[0]


# Its errors, and what it notes instead.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": torch.nn.Linear(2, 2)}, "audit got a Linear; expected a loopverify.Looped"),
        ({"tokens": TOKENS.float(), "targets": TARGETS}, "tokens are torch.float32"),
        ({"tokens": TOKENS + 1000}, r"tokens span .*; expected 0..31"),
        (
            {"targets": TARGETS[:, :5]},
            r"targets are torch.int64 \(4, 5\); expected int64 \(4, 12\) as the tokens, the next token of every token "
            r"\(-100 leaves a token out\)\. For sequences \(B, T \+ 1\): tokens = sequences\[:, :-1\], targets = ",
        ),
        ({"targets": TARGETS.float()}, "targets are torch.float32"),
        ({"targets": [1, 2]}, "targets are list"),
        ({"targets": TARGETS + 1000}, "targets contain 10[0-9][0-9]; expected 0..31 for 32 logits"),
        ({"targets": torch.full_like(TARGETS, -100)}, "sends no gradient to any state"),
        ({"loops": 0}, "loops is 0; expected an integer >= 1"),
        ({"loops": True}, "loops is True"),
        ({"carry_loops": 0}, "carry_loops is 0; expected an integer >= 1"),
        ({"carry_loops": None}, "carry_loops is None; expected an integer >= 1"),
        ({"seed": True}, r"seed is True; expected an integer in 0\.\.2\^63 - 1"),
        ({"seed": 2**63}, rf"seed is {2**63}; expected an integer in"),
        (
            {"targets": TARGETS.to("meta")},
            r"tokens are on cpu, targets on meta and the model on cpu; expected one device\. Move them with \.to",
        ),
        (
            {"tokens": TOKENS.to("meta"), "targets": TARGETS.to("meta")},
            "tokens are on meta, targets on meta and the model",
        ),
        *(
            (
                {"model": dataclasses.replace(reference("rmsnorm"), readout=lambda h, c, k, n, shown=shown: shown(h))},
                rf"exit 1 returned {seen}; expected floating logits \(4, 12, V\), one row for every token\. Does the",
            )
            for shown, seen in [
                (lambda h: None, "NoneType"),
                (lambda h: (h, h), "tuple"),
                (lambda h: h.long(), r"torch\.int64 \(4, 12, 32\)"),
                (lambda h: h[:, -1], r"torch\.float32 \(4, 32\)"),
            ]
        ),
        (
            {"objective": "per_loop"},
            r"objective is 'per_loop'; expected \(trace, targets\) -> Terms, such as objectives",
        ),
        ({"objective": lambda trace, targets: 3.0}, "the objective returned a float"),
        ({"objective": lambda trace, targets: Terms({"x": torch.ones(())})}, "sends no gradient to any state H_1..H_4"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    arguments = {"model": reference("rmsnorm"), "tokens": TOKENS, "targets": TARGETS, **change}
    with pytest.raises(InputError, match=message):
        lv.audit(**arguments)


@pytest.mark.parametrize(("broken", "advice"), [(0, "Inspect the embedding"), (3, "Inspect loop 3 of the step")])
def test_states_that_are_not_finite_are_named(broken: int, advice: str) -> None:
    model = reference("rmsnorm")

    def spoil(state: Tensor, loop: int) -> Tensor:
        return torch.full_like(state, math.nan) if loop == broken else state

    def embed(tokens: Tensor) -> tuple[Tensor, object]:
        state, context = model.embed(tokens)
        return spoil(state, 0), context

    step = lambda H, context, loop: spoil(model.step(H, context, loop), loop)  # noqa: E731
    with pytest.raises(InputError, match=rf"H_{broken} is not finite \(1536 of 1536 values\).*{advice}"):
        lv.audit(dataclasses.replace(model, embed=embed, step=step), TOKENS, TARGETS)


def test_float16_states_are_refused() -> None:
    with pytest.raises(InputError, match="states are float16"):
        lv.audit(looped(radial_step(1.0, 0.1), dtype=torch.float16), closed_form.TOKENS, closed_form.TARGETS)


def test_a_model_with_a_fixed_number_of_loops_is_audited_over_those() -> None:
    pushes = [0.1, 0.2, 0.3, 0.4]
    model = looped(radial_step(1.0, 0.0))
    model = dataclasses.replace(model, step=lambda H, context, loop: H + pushes[loop - 1] * H / rms(H))
    audit = lv.audit(model, closed_form.TOKENS, closed_form.TARGETS)
    assert audit.notes[0].startswith("runs of 4 loops only, not 16: IndexError")
    assert audit.growth.loops == 4
    assert len(audit.overshoot) == 4
    assert "Note: runs of 4 loops only" in str(audit)


def test_states_that_overflow_beyond_the_audited_loops_are_left_out() -> None:
    model = looped(lambda H: 1e4 * H, lambda H: rmsnorm(H / H.abs().amax()), dtype=torch.float32)
    audit = lv.audit(model, closed_form.TOKENS, closed_form.TARGETS)
    assert "H_10 is not finite: growth and overshoot are measured up to loop 9" in audit.notes
    assert audit.growth.loops == 9


def test_branches_that_do_not_add_up_are_noted() -> None:
    model = reference("rmsnorm")
    wrong = lambda H, context, loop: [(name, 2 * b) for name, b in model.branches(H, context, loop)]  # noqa: E731
    audit = lv.audit(dataclasses.replace(model, branches=wrong), TOKENS, TARGETS)
    assert audit.per_loop[0].sublayers is None
    assert "growth cannot be attributed to sublayers: the branches of loop 1 miss the state" in audit.notes[0]


def test_a_zero_initial_state_has_no_first_carry() -> None:
    model = looped(lambda H: H + 1.0, start=0.0)
    audit = lv.audit(model, closed_form.TOKENS, closed_form.TARGETS)
    assert audit.per_loop[0].carry is None
    assert audit.per_loop[1].carry.kind == "carried"
    assert "carry of loop 1 cannot be measured: every token of H" in audit.notes[0]


def _pre_norm(readout: Callable[[Tensor], Tensor] | None = None) -> lv.Looped:
    draw = torch.Generator().manual_seed(0)
    table, mix, head = (torch.randn(rows, 8, generator=draw) for rows in (11, 8, 11))

    def norm(h: Tensor) -> Tensor:
        return h / (h.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    return lv.Looped(
        embed=lambda tokens: (table[tokens], None),
        step=lambda h, c, k: torch.cat([h[..., :4] + (norm(h) @ mix)[..., :4] + 0.5, norm(h)[..., 4:]], -1),
        readout=lambda h, c, k, n: (readout or norm)(h) @ head.T,
        trained_loops=4,
    )


TEXT = torch.arange(22).view(2, 11) % 11


def test_an_exit_that_is_nan_is_an_error_and_not_visible() -> None:
    with pytest.raises(InputError, match="the cross-entropy of exit 1 is nan; expected a finite number"):
        lv.audit(_pre_norm(lambda h: h * float("nan")), TEXT, TEXT)


def test_a_loop_that_carries_some_channels_only_carries() -> None:
    audit = lv.audit(_pre_norm(), TEXT, TEXT)
    assert (audit.verdict, audit.scale.carry) == ("blind_spot", "carried")
    assert audit.scale.factor == pytest.approx(1.0, abs=1e-4)
    assert audit.per_loop[0].carry.kind == "damped"  # the first loop normalizes half of the channels
    assert audit.notes == ()


@pytest.mark.parametrize("fading", [0.99, 0.995])
def test_a_loop_that_carries_half_of_the_channels_and_slowly_damps_the_others_carries(fading: float) -> None:
    kept = torch.tensor([fading, 1.0], dtype=torch.float64).repeat_interleave(closed_form.D // 2)
    audit = lv.audit(looped(lambda H: kept * H), closed_form.TOKENS, closed_form.TARGETS)
    assert (audit.verdict, audit.scale.carry, audit.notes) == ("blind_spot", "carried", ())
    assert audit.scale.factor == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("carry_loops", [8, 32, None])
def test_a_carry_that_settles_late_is_noted_and_bounded_by_the_caller(carry_loops: int | None) -> None:
    fading = torch.linspace(0.98, 1.0, closed_form.D, dtype=torch.float64)
    calls = 0

    def step(state: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return fading * state

    options = {} if carry_loops is None else {"carry_loops": carry_loops}
    audit = lv.audit(looped(step), closed_form.TOKENS, closed_form.TARGETS, **options)
    allowed = carry_loops or 256
    assert calls <= 16 + 3 + 4 * 2 + 2 * allowed  # as counted above, with what is allowed for each of scale and mean
    message = f"the carry of scale is in doubt: the factor still changes after {allowed} consecutive loops"
    assert audit.notes[0].startswith(message)


def test_a_norm_over_the_whole_sequence_leaves_the_common_scale_a_blind_spot() -> None:
    def readout(state: Tensor) -> Tensor:
        return closed_form.raw(state / state.square().mean((1, 2), keepdim=True).sqrt())

    model = looped(radial_step(1.0, 0.3), readout)
    audit = lv.audit(model, closed_form.TOKENS, closed_form.TARGETS)
    assert (audit.verdict, audit.blind, audit.scale.seen_by) == ("blind_spot", ["scale"], ())
    assert audit.notes == (
        "'per_loop' sees the scales of tokens relative to one another, but not their common scale: no term notices "
        "when all tokens grow together, as behind a norm over the whole sequence",
    )
    penalized = lv.audit(
        model, closed_form.TOKENS, closed_form.TARGETS, objective=named("per_loop+penalty", penalty=0.01)
    )
    assert (penalized.verdict, penalized.notes) == ("controlled", ())


def test_growth_that_the_carry_does_not_explain_is_noted() -> None:
    # Most tokens are normalized, one in four is carried: the median says removed.
    def step(state: Tensor) -> Tensor:
        grown = state + state / rms(state)
        return torch.cat([grown[:, :1], grown[:, 1:] / rms(grown[:, 1:])], 1)

    audit = lv.audit(looped(step), closed_form.TOKENS, closed_form.TARGETS)
    assert audit.verdict == "removed"
    assert "yet its mean still grew over 16 loops (linear): some tokens or channels may be carried" in audit.notes[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"objective": "per_loop"}, r"objective is 'per_loop'; expected \(trace, targets\) -> Terms"),
        ({"seed": "x"}, "seed is 'x'; expected an integer in 0"),
        ({"seed": 10**30}, "expected an integer in 0"),
    ],
)
def test_an_objective_or_seed_of_another_form_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        lv.audit(_pre_norm(), TEXT, TEXT, **arguments)
