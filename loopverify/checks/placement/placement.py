"""Where a looped model normalizes: inside the block, at the loop boundary, in the readout, or at both.

Two independent looks, which must agree or say which to believe:
- calls: how often each norm runs in every loop and exit, counted at two loop counts while the driver owns the loop
  index. A count cannot tell a norm on the stream from one on a branch beside it.
- function: a norm's results are kept and replayed while the state is replaced by another. If the outcome stays, no
  part of the state gets past the norm. Besides, the state is scaled, to see whether the loop hands its scale on and
  whether the exits show it, by whichever module or none.
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
from loopverify.checks.placement.normalizers import apart, could_normalize, normalizes, replayed
from loopverify.checks.placement.places import NormPlace, Place, Placement
from loopverify.errors import InputError
from loopverify.looped import Looped, Trace, unroll
from loopverify.readonly import untouched
from loopverify.theory.recurrence import CarryKind

__all__ = ["norm_placement"]

SAME = 1e-4
"""Relative. Two outcomes this close are the same: what is replayed is exact, kernels of an accelerator may not be."""


def norm_placement(model: Looped, tokens: Tensor, loops: tuple[int, int] = (2, 3), seed: int = 0) -> Placement:
    """Place every norm module of a model, and say what its loops and exits do with the scale.

    The model is run in evaluation mode and left as it was; hooks are gone afterwards, also after an error. Each norm
    costs one more step and one more readout.

    Args:
        tokens: (B, T) int64.
        loops: two loop counts, the shorter first. Different counts show norms that a first loop does without, or
            whose number of calls does not follow the loops at all.
        seed: of the state that replaces the model's own.

    Raises:
        InputError: bad tokens, or loop counts that are not two increasing integers >= 1.
    """
    shorter, longer = _checked(loops)
    with untouched(model), torch.no_grad():
        short, long = _count(model, tokens, shorter), _count(model, tokens, longer)
        norms = [module for module, given in long.candidates.items() if normalizes(module, given)]
        cuts = _Cuts(model, long.trace, norms, seed)
        names = {module: name for root in model.modules() for name, module in root.named_modules()}
        places = tuple(_place(norm, names.get(norm) or type(norm).__name__, short, long, cuts) for norm in norms)
        carry = tuple(scale_carry(long.trace, loop).kind for loop in range(1, longer + 1))
        anything = torch.zeros_like(tokens)  # what an exit shows of scale does not depend on the targets
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
    """The calls of one run, by where the driver was."""

    trace: Trace
    embed: Counter[nn.Module]
    loops: list[Counter[nn.Module]]
    exits: list[Counter[nn.Module]]
    candidates: dict[nn.Module, Tensor]
    """Modules that could be norms, in the order of their first call, with what they were given then."""
    returned: set[nn.Module]
    """Those whose result is the state that the last loop returned."""

    def total(self, norm: nn.Module) -> int:
        """Calls in a forward of which only the last exit is read."""
        return self.embed[norm] + sum(loop[norm] for loop in self.loops) + self.exits[-1][norm]


def _count(model: Looped, tokens: Tensor, loops: int) -> _Counts:
    trace = unroll(
        model, tokens, loops
    )  # checks the tokens and every state; and the trace that the exits are read from
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
        returned={c.module for c in steps[-1] if c.result.shape == final.shape and apart(c.result, final) < SAME},
    )


class _Cuts:
    """Which norms everything passes through, in the last loop and in the last exit of a run."""

    def __init__(self, model: Looped, trace: Trace, norms: Sequence[nn.Module], seed: int) -> None:
        K, context = trace.loops, trace.context
        before, after = trace.states[K - 1], trace.states[K]
        self.loop = _cuts(lambda state: model.step(state, context, K), before, norms, seed)
        self.exit = _cuts(lambda state: model.readout(state, context, K, K), after, norms, seed)


def _cuts(run: Callable[[Tensor], Tensor], state: Tensor, norms: Sequence[nn.Module], seed: int) -> set[nn.Module]:
    """The norms whose results alone decide what `run` makes of a state."""
    with recorded(could_normalize) as calls:
        expected = run(state)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(state.shape, generator=generator, dtype=torch.float64).to(state)
    other = noise * state.square().mean(-1, keepdim=True).sqrt()
    if apart(run(other), expected) < SAME:
        return set()  # the outcome does not depend on the state at all

    def decide(group: set[nn.Module]) -> bool:
        with replayed([call for call in calls if call.module in group]):
            return apart(run(other), expected) < SAME

    called = {call.module for call in calls}
    alone = {norm for norm in norms if norm in called and decide({norm})}
    if alone:
        return alone
    # Parts of the state can enter through norms of their own: none of them decides alone, and all of them together do.
    entries: dict[nn.Module, Tensor] = {}
    for call in calls:
        if call.module in norms:
            entries.setdefault(call.module, call.given)
    together = {norm for norm, given in entries.items() if _is_part(given, state)}
    return together if len(together) > 1 and decide(together) else set()


def _is_part(given: Tensor, state: Tensor) -> bool:
    """Whether `given` is a run of channels of the state, perhaps in another shape."""
    if given.shape[:2] != state.shape[:2]:
        return False
    flat = given.flatten(2)
    width = flat.shape[-1]
    return any(torch.equal(flat, state[..., at : at + width]) for at in range(0, state.shape[-1] - width + 1, width))


def _place(norm: nn.Module, name: str, short: _Counts, long: _Counts, cuts: _Cuts) -> NormPlace:
    per_loop = tuple(loop[norm] for loop in long.loops)
    per_exit = tuple(exit_[norm] for exit_ in long.exits)
    looped, read = any(per_loop), any(per_exit)
    by_calls: Place = "readout" if read else "outside"
    if looped:
        by_calls = "both" if read else "boundary" if norm in long.returned else "inside"
    by_function: Place = "inside" if looped or read else "outside"
    if norm in cuts.loop:
        by_function = "both" if norm in cuts.exit else "boundary"
    elif norm in cuts.exit:
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
    loop_cut, exit_cut = by_function in ("boundary", "both"), by_function in ("readout", "both")
    facts = []
    if looped:
        facts.append("nothing of the state gets past it in a loop" if loop_cut else "the state gets past it in a loop")
    if read:
        facts.append("nor in an exit" if loop_cut and exit_cut else _in_an_exit(exit_cut))
    return f"believe the function: {', '.join(facts)}; a count cannot see that"


def _in_an_exit(cut: bool) -> str:
    return "nothing of the state gets past it in an exit" if cut else "the state gets past it in an exit"


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
            "the loop removes the scale although no norm module stands in its way: believe the function; "
            "an operation that is no module normalizes the stream, or several norms do together"
        )
    if visibility[-1] == "hidden" and not at_readout:
        notes.append(
            "the exits hide the scale although no norm module stands between it and the logits: believe the "
            "function; an operation that is no module normalizes, or several norms do together"
        )
    if visibility[-1] != "hidden" and at_readout:
        notes.append(
            f"all that the logits know passes through {at_readout[0].name}, and the scale is {visibility[-1]} all the "
            "same: believe the function; the norm lets the scale through"
        )
    if [short.loops[k] for k in range(len(short.loops))] != long.loops[: len(short.loops)]:
        notes.append("how often modules are called in a loop depends on the number of loops")
    return notes
