"""Where a looped model normalizes: inside the block, at the loop boundary, in the readout, or at both.

Each norm is placed in two independent ways; where they disagree, the report says which one to trust:
- By calls: how often the norm runs in each loop and each exit, at two loop counts. Since the driver calls step and
  readout itself, each call belongs to a known loop or exit. But a count cannot distinguish a norm on the residual
  stream from a norm at the entrance of a branch: a pre-norm block calls its norms once per loop as well.
- By function: the step (or the readout) is run on the state, and then on a random state of the same size while the norm
  returns its recorded results. If the outcome is the same, everything that the outcome depends on passed through the
  norm: it is a bottleneck, so it stands at the loop boundary (or between the state and the logits). If the outcome
  changes, part of the state bypasses the norm, which is then inside a branch.

In addition the state is scaled, to measure whether the loop carries scale and whether the exits show it. This needs no
module, and so also finds normalization by plain operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from loopverify.auditing.carry import scale_carry
from loopverify.auditing.exit_sweep import Visibility, exit_sweep
from loopverify.checks.calls import Call, recorded
from loopverify.checks.placement.normalizers import could_normalize, normalizes, relative_difference, replayed
from loopverify.checks.placement.places import NormPlace, Place, Placement
from loopverify.errors import InputError
from loopverify.looped import Looped, Trace, unroll
from loopverify.readonly import untouched
from loopverify.theory.recurrence import CarryKind

__all__ = ["norm_placement"]

SAME = 1e-4
"""Relative difference below which two outcomes are equal. Replay itself is exact; an accelerator's kernels may not be
deterministic."""


def norm_placement(model: Looped, tokens: Tensor, loops: tuple[int, int] = (2, 3), seed: int = 0) -> Placement:
    """Place every norm module of a model, and measure what its loops and exits do with the scale.

    The model runs in evaluation mode and is left unchanged; hooks are removed, also after an error. Each norm
    costs one more step and one more readout.

    Args:
        tokens: (B, T) int64.
        loops: two loop counts, the shorter first. With two, norms that the first loop omits, or whose number of calls
            does not depend on the loops, can be recognized.
        seed: seed of the random state that replaces the model's own.

    Raises:
        InputError: bad tokens, or loop counts that are not two increasing integers >= 1.
    """
    shorter, longer = _checked(loops)
    with untouched(model), torch.no_grad():
        short, long = _count(model, tokens, shorter), _count(model, tokens, longer)
        norms = [module for module, given in long.candidates.items() if normalizes(module, given)]
        bottlenecks = _Bottlenecks(model, long.trace, norms, seed)
        names = {module: name for root in model.modules() for name, module in root.named_modules()}
        places = tuple(_place(norm, names.get(norm) or type(norm).__name__, short, long, bottlenecks) for norm in norms)
        carry = tuple(scale_carry(long.trace, loop).kind for loop in range(1, longer + 1))
        anything = torch.zeros_like(tokens)  # the visibility of scale does not depend on the targets
        visibility = tuple(exit_sweep(long.trace, anything, loop).visibility for loop in range(1, longer + 1))
    notes = tuple(_notes(places, carry, visibility, short, long))
    return Placement(model=model.name, loops=loops, norms=places, carry=carry, visibility=visibility, notes=notes)


def _checked(loops: tuple[int, int]) -> tuple[int, int]:
    shorter, longer = loops
    if not (isinstance(shorter, int) and isinstance(longer, int) and 1 <= shorter < longer):
        raise InputError(f"loops are {loops!r}; expected two integers, 1 <= shorter < longer")
    return shorter, longer


@dataclass(frozen=True, eq=False)
class _Counts:
    """The calls of one run, by the part of the run in which they happened."""

    trace: Trace
    embed: Counter[nn.Module]
    loops: list[Counter[nn.Module]]
    exits: list[Counter[nn.Module]]
    candidates: dict[nn.Module, Tensor]
    """Modules that could be norms, in the order of their first call, with the input of that call."""
    returned: set[nn.Module]
    """Modules whose result is the state that the last loop returned."""

    def total(self, norm: nn.Module) -> int:
        """Calls in a forward that reads only the last exit."""
        return self.embed[norm] + sum(loop[norm] for loop in self.loops) + self.exits[-1][norm]


def _count(model: Looped, tokens: Tensor, loops: int) -> _Counts:
    trace = unroll(model, tokens, loops)  # also checks the tokens and every state
    candidates: dict[nn.Module, Tensor] = {}

    def counted(run: Callable[[], object]) -> list[Call]:
        with recorded(could_normalize) as calls:
            run()
        for call in calls:
            candidates.setdefault(call.module, call.given)
        return calls

    embed = counted(partial(model.embed, tokens))
    steps = [counted(partial(model.step, trace.states[k - 1], trace.context, k)) for k in range(1, loops + 1)]
    exits = [counted(partial(trace.logits, k)) for k in range(1, loops + 1)]
    final = trace.states[loops]
    return _Counts(
        trace=trace,
        embed=Counter(call.module for call in embed),
        loops=[Counter(call.module for call in calls) for calls in steps],
        exits=[Counter(call.module for call in calls) for calls in exits],
        candidates=candidates,
        returned={
            c.module for c in steps[-1] if c.result.shape == final.shape and relative_difference(c.result, final) < SAME
        },
    )


class _Bottlenecks:
    """The norms through which everything passes, in the last loop and in the last exit of a run."""

    def __init__(self, model: Looped, trace: Trace, norms: Sequence[nn.Module], seed: int) -> None:
        K, context = trace.loops, trace.context
        before, after = trace.states[K - 1], trace.states[K]
        self.loop = _bottlenecks(lambda state: model.step(state, context, K), before, norms, seed)
        self.exit = _bottlenecks(lambda state: model.readout(state, context, K, K), after, norms, seed)


def _bottlenecks(
    run: Callable[[Tensor], Tensor], state: Tensor, norms: Sequence[nn.Module], seed: int
) -> set[nn.Module]:
    """The norms whose recorded results alone determine the outcome of `run`."""
    with recorded(could_normalize) as calls:
        expected = run(state)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(state.shape, generator=generator, dtype=torch.float64).to(state)
    other = noise * state.square().mean(-1, keepdim=True).sqrt()
    if relative_difference(run(other), expected) < SAME:
        return set()  # the outcome does not depend on the state, so every norm would pass the test below

    def determine(group: set[nn.Module]) -> bool:
        with replayed([call for call in calls if call.module in group]):
            return relative_difference(run(other), expected) < SAME

    called = {call.module for call in calls}
    alone = {norm for norm in norms if norm in called and determine({norm})}
    if alone:
        return alone
    # A state of several parts (two streams side by side) may enter through one norm per part: no single norm determines
    # the outcome, all of them together do. Candidates are the norms whose first input is a part of the state.
    entries: dict[nn.Module, Tensor] = {}
    for call in calls:
        if call.module in norms:
            entries.setdefault(call.module, call.given)
    together = {norm for norm, given in entries.items() if _is_part(given, state)}
    return together if len(together) > 1 and determine(together) else set()


def _is_part(given: Tensor, state: Tensor) -> bool:
    """Whether `given` consists of consecutive channels of the state, possibly reshaped."""
    if given.shape[:2] != state.shape[:2]:
        return False
    flat = given.flatten(2)
    width = flat.shape[-1]
    return any(torch.equal(flat, state[..., at : at + width]) for at in range(0, state.shape[-1] - width + 1, width))


def _place(norm: nn.Module, name: str, short: _Counts, long: _Counts, bottlenecks: _Bottlenecks) -> NormPlace:
    per_loop = tuple(loop[norm] for loop in long.loops)
    per_exit = tuple(exit_[norm] for exit_ in long.exits)
    looped, read = any(per_loop), any(per_exit)
    by_calls: Place = "readout" if read else "outside"
    if looped:
        by_calls = "both" if read else "boundary" if norm in long.returned else "inside"
    by_function: Place = "inside" if looped or read else "outside"
    if norm in bottlenecks.loop:
        by_function = "both" if norm in bottlenecks.exit else "boundary"
    elif norm in bottlenecks.exit:
        by_function = "readout"
    return NormPlace(
        name=name,
        kind=type(norm).__name__,
        calls_in_embed=long.embed[norm],
        calls_per_loop=per_loop,
        calls_per_exit=per_exit,
        totals=(short.total(norm), long.total(norm)),
        by_calls=by_calls,
        by_function=by_function,
        why=_why(by_calls, by_function, looped, read),
    )


def _why(by_calls: Place, by_function: Place, looped: bool, read: bool) -> str:
    if by_calls == by_function:
        return "calls and function agree"
    loop_bottleneck, exit_bottleneck = by_function in ("boundary", "both"), by_function in ("readout", "both")
    facts = []
    if looped:
        facts.append(f"in a loop, {_passage(loop_bottleneck)}")
    if read:
        facts.append(f"in an exit, {_passage(exit_bottleneck)}")
    return f"trust the function: {'; '.join(facts)}; a count cannot show that"


def _passage(bottleneck: bool) -> str:
    return "the whole state passes through it" if bottleneck else "part of the state bypasses it"


def _notes(
    places: Sequence[NormPlace],
    carry: Sequence[CarryKind],
    visibility: Sequence[Visibility],
    short: _Counts,
    long: _Counts,
) -> list[str]:
    notes = []
    at_boundary = [norm for norm in places if norm.by_function in ("boundary", "both")]
    at_readout = [norm for norm in places if norm.by_function in ("readout", "both")]
    if carry[-1] == "removed" and not at_boundary:
        notes.append(
            "the loop removes the scale although the stream passes through no norm module: trust the function; an "
            "operation outside of modules normalizes the stream, or several norms do together"
        )
    if visibility[-1] == "hidden" and not at_readout:
        notes.append(
            "the exits hide the scale although the state passes through no norm module before the logits: trust the "
            "function; an operation outside of modules normalizes, or several norms do together"
        )
    if visibility[-1] != "hidden" and at_readout:
        notes.append(
            f"everything that the logits depend on passes through {at_readout[0].name}, yet the scale is "
            f"{visibility[-1]}: trust the function; the norm lets the scale through"
        )
    if [short.loops[k] for k in range(len(short.loops))] != long.loops[: len(short.loops)]:
        notes.append("the number of module calls in a loop depends on the number of loops")
    return notes
