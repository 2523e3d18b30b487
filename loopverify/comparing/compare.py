"""A guard for refactors and ports: the first loop and quantity in which two models differ, and by how much.

Two comparisons are made, because a difference at loop k has two possible causes. *run*: each model on its own states,
as in use, where errors accumulate. *steps*: b's step and readout on a's states, so that only the error of a single step
remains. A step that differs beyond rounding is at fault; if every step agrees, a difference of the runs is drift.

Shapes: B batch, T tokens, D channels, V vocabulary, K loops.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from loopverify._version import __version__
from loopverify.arguments import check_logits, check_targets
from loopverify.comparing.comparison import Agreement, Comparison, FirstDifference, LoopGaps, Side
from loopverify.comparing.gaps import check_sizes, loop_gaps, relative_distance
from loopverify.comparing.rounding import Rounding, check_tolerance, coarser, rounding_of
from loopverify.errors import InputError, unknown
from loopverify.looped import Looped, Trace, unroll
from loopverify.readonly import untouched

__all__ = ["compare"]


def compare(
    model_a: Looped,
    model_b: Looped,
    tokens: Tensor,
    loops: int = 8,
    *,
    targets: Tensor | None = None,
    tolerance: float | None = None,
    loops_b: int | None = None,
    path: str | None = None,
    seed: int = 0,
) -> Comparison:
    """Run two models loop by loop, and name the first loop and quantity in which they differ.

    Each model runs on its own states, as in use. In addition b's step and readout are applied to a's states, which
    distinguishes a faulty step from errors that accumulate. Both models run in evaluation mode and are left as they
    were.

    Args:
        model_a: the reference; b may have another dtype or device.
        model_b: the model to compare with it; it may be the same model, with `loops_b` or `path`.
        tokens: (B, T) int64.
        loops: K of a.
        targets: (B, T) int64, to compare cross-entropies as well; -100 leaves a token out.
        tolerance: relative error allowed per loop; what rounding explains when omitted (see
            `loopverify.comparing.rounding`). After loop k of a run, (k + 1) times as much is allowed: the same block
            runs at every loop, so that its errors may all point in the same direction.
        loops_b: K of b; that of a when omitted. Exits are compared up to the smaller K.
        path: compare the logits of this path of b instead of those of its readout: 'decode' (half of the tokens at
            once, the rest one by one), or a name in `model_b.paths`. Exit k is then the last exit of a run of k loops,
            in both models.
        seed: seed of the random numbers that the models draw in evaluation mode.

    Raises:
        InputError: a model is not a `Looped`; widths or vocabularies differ; a model cannot run that many loops;
            tokens, targets, loops, tolerance or seed are invalid; or b does not have the path.
    """
    _check(model_a, model_b, tokens, targets, tolerance)
    compute = None if path is None else _path(model_b, path)
    if compute is not None and loops_b not in (None, loops):
        raise InputError(
            f"loops_b is {loops_b} with path {path!r}; expected None: a path is run for every loop count up to {loops}"
        )
    with untouched(model_a, seed), untouched(model_b, seed), torch.no_grad():
        a = _run(model_a, tokens, loops, seed, "a")
        b = _run(model_b, tokens, loops if loops_b is None else loops_b, seed, "b")
        pair = _Pair(a, b, targets, tolerance, seed)
        return _loop_by_loop(pair) if compute is None or path is None else _by_path(pair, path, compute)


@dataclass(frozen=True, eq=False)
class _Pair:
    """The runs of both models, and how they are to be compared."""

    a: Trace
    b: Trace
    targets: Tensor | None
    given_tolerance: float | None
    seed: int

    @property
    def loops(self) -> int:
        return min(self.a.loops, self.b.loops)

    @property
    def rounding(self) -> Rounding:
        return coarser(rounding_of(self.a), rounding_of(self.b)).allowing(self.given_tolerance)

    def gaps(
        self, loop: int, states: tuple[Tensor, Tensor] | None, logits: tuple[Tensor, Tensor] | None, allowed: int
    ) -> LoopGaps:
        """The gaps of one loop, with the rounding of `allowed` loops as tolerance."""
        rounding = self.rounding
        return loop_gaps(
            loop, states, logits, targets=self.targets, eps=rounding.eps, tolerance=allowed * rounding.tolerance
        )


def _loop_by_loop(pair: _Pair) -> Comparison:
    a, b = pair.a, pair.b
    check_sizes(a.states[0], b.states[0], "H_0", "channels")  # before b's step gets a state of a
    stepped, read = _forced(pair)
    run, steps = [], []
    for k in range(pair.loops + 1):
        shown = _logits(a, k) if k else None
        free = None if shown is None else (shown, _logits(b, k))
        forced = None if shown is None else (shown, read(k))
        run.append(pair.gaps(k, (a.states[k], b.states[k]), free, k + 1))
        steps.append(pair.gaps(k, (a.states[k], stepped[k]), forced, 1))
    fault, beyond = _first(steps, "step"), _first(run, "run")
    if fault is not None and fault.loop and fault.quantity != "logits":
        fault = _locate(pair, fault)
    agreement = "differs" if fault else "drift" if beyond else _within([*run, *steps])
    return _record(pair, "readout", run, steps, agreement, fault or beyond)


def _forced(pair: _Pair) -> tuple[list[Tensor], Callable[[int], Tensor]]:
    """b's embedding followed by b's steps on a's states; and loop -> b's readout of a's state."""
    model, states = pair.b.model, pair.a.states
    with untouched(model, pair.seed), torch.no_grad():
        start, context = model.embed(pair.b.tokens)
        # Copies: a step that writes to its argument would spoil the trace of a.
        inputs = [state.to(start, copy=True) for state in states[: pair.loops]]
        stepped = [start, *(model.step(state, context, k) for k, state in enumerate(inputs, start=1))]
    return stepped, lambda k: model.readout(states[k].to(start, copy=True), context, k, pair.b.loops)


def _by_path(pair: _Pair, path: str, compute: Callable[[Tensor, int], Tensor]) -> Comparison:
    """Compare the logits that another path of b computes with a's readout."""
    run = []
    for k in range(1, pair.loops + 1):
        with untouched(pair.b.model, pair.seed), torch.no_grad():
            shown = check_logits(compute(pair.b.tokens, k), pair.b.tokens, k)
        run.append(pair.gaps(k, None, (_logits(pair.a.first(k), k), shown), k + 1))
    beyond = _first(run, "run")
    return _record(pair, path, run, [], "differs" if beyond else _within(run), beyond)


def _logits(trace: Trace, loop: int) -> Tensor:
    return check_logits(trace.logits(loop), trace.tokens, loop)


def _path(model: Looped, path: str) -> Callable[[Tensor, int], Tensor]:
    decode = model.decode
    paths = dict(model.paths)
    if decode is not None:
        paths["decode"] = lambda tokens, loops: _decoded(decode, tokens, loops)
    if not isinstance(path, str) or path not in paths:
        raise unknown(f"path of {model.name}", path, paths or ["(it declares neither paths nor decode)"])
    return paths[path]


def _decoded(decode: Callable[..., tuple[Tensor, object]], tokens: Tensor, loops: int) -> Tensor:
    """Logits by cached decoding: a prompt of half of the tokens, then token by token."""
    half = (tokens.shape[1] + 1) // 2
    chunks = [tokens[:, :half], *(tokens[:, place : place + 1] for place in range(half, tokens.shape[1]))]
    shown, cache = [], None
    for chunk in chunks:
        logits, cache = decode(chunk, cache, loops)
        shown.append(logits)
    return torch.cat(shown, dim=1)


def _first(gaps: Sequence[LoopGaps], of: Literal["step", "run"]) -> FirstDifference | None:
    for entry in gaps:
        found = entry.first_beyond()
        if found is not None:
            return FirstDifference(loop=entry.loop, quantity=found[0], gap=found[1], tolerance=entry.tolerance, of=of)
    return None


def _locate(pair: _Pair, fault: FirstDifference) -> FirstDifference:
    """`fault` with the first sublayer that differs, where both models declare their branches."""
    a, b = pair.a, pair.b
    if a.model.branches is None or b.model.branches is None:
        return fault
    state = a.states[fault.loop - 1]
    ours = a.model.branches(state.clone(), a.context, fault.loop)
    theirs = b.model.branches(state.to(b.states[0], copy=True), b.context, fault.loop)
    if len(ours) != len(theirs):
        return replace(fault, note=f"a has {len(ours)} sublayers per loop, b has {len(theirs)}")
    for (name, out), (other, out_b) in zip(ours, theirs, strict=True):
        if out.shape != out_b.shape or not relative_distance(out, out_b) <= fault.tolerance:
            return replace(fault, sublayer=name if name == other else f"{name} (in b: {other})")
    return replace(fault, note="every sublayer agrees; the difference is outside of them (the sum, or a norm)")


def _within(gaps: Sequence[LoopGaps]) -> Agreement:
    errors = [gap.error for entry in gaps for gap in (entry.state, entry.logits) if gap is not None]
    return "rounding" if any(errors) else "identical"


def _growth(run: Sequence[LoopGaps]) -> float | None:
    """The factor per loop by which the error of the state grows: exp of the least-squares slope of its logarithm."""
    points = [(entry.loop, entry.state.error) for entry in run if entry.loop and entry.state is not None]
    points = [(loop, math.log(error)) for loop, error in points if 0 < error < math.inf]
    if len(points) < 2:
        return None
    x = torch.tensor(points, dtype=torch.float64)
    centered = x - x.mean(0)
    return float((centered[:, 0] @ centered[:, 1] / centered[:, 0].square().sum()).exp())


def _record(
    pair: _Pair,
    path: str,
    run: Sequence[LoopGaps],
    steps: Sequence[LoopGaps],
    agreement: Agreement,
    first: FirstDifference | None,
) -> Comparison:
    rounding = pair.rounding
    return Comparison(
        a=_side(pair.a, "readout"),
        b=_side(pair.b, path),
        batch=pair.a.tokens.shape[0],
        tokens=pair.a.tokens.shape[1],
        dtype=rounding.dtype,
        eps=rounding.eps,
        tolerance=rounding.tolerance,
        seed=pair.seed,
        versions={"loopverify": __version__, "torch": torch.__version__, "python": platform.python_version()},
        run=tuple(run),
        steps=tuple(steps),
        growth=_growth(run),
        agreement=agreement,
        first=first,
    )


def _side(trace: Trace, path: str) -> Side:
    state = trace.states[0]
    return Side(
        model=trace.model.name,
        path=path,
        loops=trace.loops,
        dtype=str(state.dtype).removeprefix("torch."),
        device=state.device.type,
    )


def _run(model: Looped, tokens: Tensor, loops: int, seed: int, side: str) -> Trace:
    first = next(model.parameters(), None)
    try:
        with untouched(model, seed):
            return unroll(model, tokens if first is None else tokens.to(first.device), loops)
    except InputError as error:
        raise InputError(f"model {side} ({model.name}): {error}") from error
    except Exception as error:  # a model may be built for a fixed number of loops
        if not isinstance(loops, int) or loops <= model.trained_loops:
            raise
        raise InputError(
            f"model {side} ({model.name}) cannot run {loops} loops ({type(error).__name__}: {error}); expected a "
            f"number that both models can run: it is trained with {model.trained_loops}"
        ) from error


def _check(model_a: Looped, model_b: Looped, tokens: Tensor, targets: Tensor | None, tolerance: float | None) -> None:
    for side, model in (("a", model_a), ("b", model_b)):
        if not isinstance(model, Looped):
            raise InputError(
                f"model_{side} is a {type(model).__name__}; expected a loopverify.Looped. Describe the model with "
                "Looped(embed=..., step=..., readout=..., trained_loops=...) or adapt it with loopverify.adapt(module)"
            )
    sizes = model_a.vocab_size, model_b.vocab_size
    if None not in sizes and sizes[0] != sizes[1]:
        raise InputError(f"vocabularies of {sizes[0]} (a) and {sizes[1]} tokens (b); expected one vocabulary")
    if not isinstance(tokens, Tensor):
        raise InputError(f"tokens are a {type(tokens).__name__}; expected an int64 tensor of shape (B, T)")
    if targets is not None:
        check_targets(targets, tokens)
    check_tolerance(tolerance)
