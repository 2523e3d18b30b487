"""The audit: which variables does a looped model carry from loop to loop that its objective cannot see?"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from loopverify._version import __version__
from loopverify.arguments import IGNORE, check_count, check_targets
from loopverify.auditing.carry import MOST_LOOPS, LastingCarry, LoopCarry, lasting_mean, lasting_scale, scale_carry
from loopverify.auditing.depth import DepthUse, overshoot
from loopverify.auditing.exit_sweep import HALF, Exit, exit_sweep
from loopverify.auditing.extended_run import unroll_extended
from loopverify.auditing.findings import Facts, LoopRecord, StateVariable
from loopverify.auditing.gradients import (
    ObjectiveLike,
    direct_gradients,
    indirect_gradients,
    radial_gradient,
    working_dtype,
)
from loopverify.auditing.growth import GrowthLaw, fit_growth, mean_scales
from loopverify.auditing.ledger import attribute, updates
from loopverify.auditing.norms import token_norms
from loopverify.auditing.record import Audit
from loopverify.auditing.visibility import Signal, overall, seen_by, signals
from loopverify.errors import InputError
from loopverify.looped import Looped, Trace
from loopverify.objectives import named
from loopverify.readonly import untouched

__all__ = ["audit"]

GROWTH_RATIO = 4
"""The growth law is fitted over at least this many times the trained loops."""
LEAST_LOOPS = 8
"""The growth law is fitted over at least this many loops."""
OVERSHOOT_RATIO = 2
"""Overshoot is measured up to this many times the trained loops."""


def audit(
    model: Looped,
    tokens: Tensor,
    targets: Tensor,
    loops: int | None = None,
    objective: ObjectiveLike | None = None,
    *,
    seed: int = 0,
    carry_loops: int = MOST_LOOPS,
) -> Audit:
    """Measure what `model` carries from loop to loop and what its loss sees of it.

    The model runs in evaluation mode, under the caller's autocast if there is one; the model, its gradients, its modes
    and all random states are left as they were. An audit costs less than six training steps on the same batch, unless
    the carry of scale or mean settles late (loops that damp some directions slowly): each of these may then take up to
    `carry_loops` calls of the step.

    The mean shared by all tokens is not distinguished from the means of single tokens: a LayerNorm over a whole
    sequence, which hides only the shared mean, is reported as one that sees the mean.

    Args:
        model: any `Looped`.
        tokens: (B, T) int64, a batch that is typical of the model's training.
        targets: (B, T) int64, the next token of each; -100 leaves a token out.
        loops: K; the trained loops when omitted.
        objective: (trace, targets) -> Terms, the loss that the model is trained with; the mean cross-entropy of all K
            exits when omitted.
        seed: seed of the random numbers that the model draws in evaluation mode, such as a random initial state.
        carry_loops: consecutive loops after which a carry is reported as unsettled, in a note. 2K loops, at least 8,
            are run in any case.

    Raises:
        InputError: `model` is not a Looped; tokens, targets, loops or seed are invalid; tensors and model are on
            different devices; the objective does not return Terms, or sends no gradient to any state; the readout does
            not return logits (B, T, V); or a state H_0..H_K is not finite.
    """
    _check(model, tokens, targets, loops, objective)
    check_count("carry_loops", carry_loops)
    loops = model.trained_loops if loops is None else loops
    wanted = max(loops, GROWTH_RATIO * model.trained_loops, LEAST_LOOPS)
    with untouched(model, seed):
        # Copies, so that no part of the model can change the caller's tensors.
        long, notes = unroll_extended(model, tokens.clone(), loops, wanted)
        return _measure(long, targets.clone(), loops, objective or named("per_loop"), seed, carry_loops, list(notes))


def _measure(
    long: Trace,
    targets: Tensor,
    loops: int,
    objective: ObjectiveLike,
    seed: int,
    carry_loops: int,
    notes: list[str],
) -> Audit:
    trace = long.first(loops)
    dtype = working_dtype(trace)
    exits = tuple(exit_sweep(trace, targets, loop) for loop in range(1, loops + 1))
    _check_exits(exits, targets)
    direct = direct_gradients(trace, targets, objective)
    seen = signals(trace, targets, objective, direct, exits, dtype)
    if not seen:
        raise InputError(
            f"objective {_name(objective)!r} sends no gradient to any state H_1..H_{loops}; expected a loss that reads "
            "one. Is the loss detached, are all targets left out, is the output head still zero, or is the readout "
            "saturated?"
        )
    single = _scale_carries(trace, notes)
    scale = _variable("scale", lasting_scale(trace, long.loops, carry_loops), seen, notes)
    mean = _variable("mean", lasting_mean(trace, long.loops, carry_loops), seen, notes)
    growth = _growth(long, notes)
    _note_relative_scale(scale, seen, notes)
    _note_growth_against_carry(scale, growth, notes)
    return Audit(
        facts=_facts(trace, objective, dtype, seed),
        scale=scale,
        mean=mean,
        per_loop=_loop_records(trace, direct, single, dtype, notes),
        exits=exits,
        signals=seen,
        growth=growth,
        depth=DepthUse(losses=tuple(view.loss for view in exits)),
        overshoot=overshoot(_overshooting(long, loops), targets),
        notes=tuple(notes),
    )


def _loop_records(
    trace: Trace,
    direct: Mapping[str, tuple[Tensor, ...]],
    carries: Sequence[LoopCarry | None],
    dtype: torch.dtype,
    notes: list[str],
) -> tuple[LoopRecord, ...]:
    totals = [torch.stack(terms).sum(0) for terms in zip(*direct.values(), strict=True)]
    indirect = indirect_gradients(trace, direct)
    sublayers = _sublayers(trace, notes)
    return tuple(
        LoopRecord(
            loop=loop,
            norms=token_norms(trace.states[loop]),
            rms=token_norms(trace.states[loop], unit="rms"),
            direct=radial_gradient(totals[loop - 1], trace.states[loop], dtype),
            indirect=radial_gradient(indirect[loop - 1], trace.states[loop], dtype),
            update=update,
            carry=carries[loop - 1],
            sublayers=sublayers[loop - 1],
        )
        for loop, update in enumerate(updates(trace), start=1)
    )


def _sublayers(trace: Trace, notes: list[str]) -> Sequence[Mapping[str, float] | None]:
    if trace.model.branches is None:
        return [None] * trace.loops
    try:
        return [attribute(trace, loop) for loop in range(1, trace.loops + 1)]
    except InputError as error:
        notes.append(f"growth cannot be attributed to sublayers: {error}")
        return [None] * trace.loops


def _scale_carries(trace: Trace, notes: list[str]) -> Sequence[LoopCarry | None]:
    """The carry of each loop alone; None, with a note, where it cannot be measured."""
    found: list[LoopCarry | None] = []
    for loop in range(1, trace.loops + 1):
        try:
            found.append(scale_carry(trace, loop))
        except InputError as error:  # no scale to carry yet, as in a zero initial state
            found.append(None)
            notes.append(f"the carry of loop {loop} cannot be measured: {error}")
    return found


def _variable(name: str, carry: LastingCarry, seen: Sequence[Signal], notes: list[str]) -> StateVariable:
    if carry.doubt is not None:
        notes.append(f"the carry of {name} is in doubt: {carry.doubt}")
    return StateVariable(
        name=name,
        visibility=overall([getattr(signal, name) for signal in seen]),
        seen_by=seen_by(seen, name),
        carry=carry.kind,
        factor=carry.factor,
    )


def _growth(long: Trace, notes: list[str]) -> GrowthLaw | None:
    try:
        return fit_growth(mean_scales(long)[1:])
    except InputError as error:
        notes.append(f"no growth law: {error}")
        return None


def _note_relative_scale(scale: StateVariable, seen: Sequence[Signal], notes: list[str]) -> None:
    """Say so if a term sees relative scales only, which is easily mistaken for seeing the scale."""
    terms = " and ".join(dict.fromkeys(repr(signal.term) for signal in seen if signal.relative_only))
    if scale.visibility == "hidden" and terms:
        notes.append(
            f"{terms} sees the scales of tokens relative to one another, but not their common scale: no term notices "
            "when all tokens grow together, as behind a norm over the whole sequence"
        )


def _note_growth_against_carry(scale: StateVariable, growth: GrowthLaw | None, notes: list[str]) -> None:
    """Say so if the scale is damped, yet its mean over tokens still grows after the damping should have settled it.

    Carry is a median over tokens. After n loops a damped scale has settled if c^n < 1/2; if the mean grows even then,
    something that the median does not represent is carried: a few tokens, or a few channels.
    """
    if (
        growth is not None
        and scale.factor < HALF ** (1 / growth.loops)
        and growth.law in ("linear", "exponential")
        and growth.coefficients[1] > 0
    ):
        notes.append(
            f"the scale is {scale.carry} (c = {scale.factor:.3g}), yet its mean still grew over {growth.loops} loops "
            f"({growth.law}): some tokens or channels may be carried. Inspect them separately"
        )


def _overshooting(long: Trace, loops: int) -> Trace:
    return long.first(min(long.loops, max(loops, OVERSHOOT_RATIO * long.model.trained_loops)))


def _facts(trace: Trace, objective: ObjectiveLike, dtype: torch.dtype, seed: int) -> Facts:
    state = trace.states[0]
    return Facts(
        model=trace.model.name,
        objective=_name(objective),
        loops=trace.loops,
        trained_loops=trace.model.trained_loops,
        batch=state.shape[0],
        tokens=state.shape[1],
        channels=state.shape[2],
        dtype=str(state.dtype).removeprefix("torch."),
        working_dtype=str(dtype).removeprefix("torch."),
        device=str(state.device),
        seed=seed,
        versions={"loopverify": __version__, "torch": torch.__version__, "python": platform.python_version()},
    )


def _name(objective: ObjectiveLike) -> str:
    return str(getattr(objective, "name", getattr(objective, "__name__", type(objective).__name__)))


def _check_exits(exits: Sequence[Exit], targets: Tensor) -> None:
    for view in exits:
        if not math.isfinite(view.loss) and bool((targets != IGNORE).any()):
            raise InputError(
                f"the cross-entropy of exit {view.loop} is {view.loss}; expected a finite number. "
                "Is a weight of the readout or the head not finite, or the logit of a target masked?"
            )


def _check(model: object, tokens: Tensor, targets: Tensor, loops: object, objective: object) -> None:
    if not isinstance(model, Looped):
        raise InputError(
            f"audit got a {type(model).__name__}; expected a loopverify.Looped. "
            "Describe the model with Looped(embed=..., step=..., readout=..., trained_loops=...)"
        )
    if loops is not None:
        check_count("loops", loops, "an integer >= 1, or None for the trained loops")
    if objective is not None and not callable(objective):
        raise InputError(
            f"objective is {objective!r}; expected (trace, targets) -> Terms, such as objectives.named('per_loop')"
        )
    check_targets(targets, tokens)
    _check_devices(model, tokens, targets)


def _check_devices(model: Looped, tokens: Tensor, targets: Tensor) -> None:
    parameter = next(model.parameters(), tokens)
    if len({tokens.device, targets.device, parameter.device}) > 1:
        raise InputError(
            f"tokens are on {tokens.device}, targets on {targets.device} and the model on {parameter.device}; expected "
            "one device. Move them with .to(device)"
        )
