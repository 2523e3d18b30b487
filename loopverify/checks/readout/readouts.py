"""Readouts: logits of the right shape, computed by the same function at every exit and on every path."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from loopverify.checks.calls import counted
from loopverify.checks.check import check
from loopverify.checks.result import Finding, NotApplicableError, at_least, at_most, none
from loopverify.checks.subject import Subject, gap, pin

__all__ = ["logits_form", "loop_count_effect", "paths_agree", "readout_chunks", "same_readout"]


@check()
def logits_form(subject: Subject) -> Iterator[Finding]:
    """Logits whose shape is not (B, T, V), whose vocabulary is not the declared one, or that are not finite."""
    # The run that other checks use comes last: a model may keep something of its latest run.
    for tokens in (subject.tokens[:1, :1], subject.tokens):
        trace = subject.trace if tokens is subject.tokens else subject.unroll(tokens)
        for k in range(1, trace.loops + 1):
            logits = trace.logits(k)
            yield _form(logits, (*trace.tokens.shape, subject.vocab_size), k)
            yield _finite(logits, k)


def _form(logits: object, expected: tuple[int, ...], k: int) -> Finding:
    description = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
    right = isinstance(logits, Tensor) and tuple(logits.shape) == expected and logits.is_floating_point()
    return none(
        not right,
        "wrong shapes",
        fault=f"exit {k} returns {description}, expected floating-point numbers of shape {expected}",
        cause="the vocabulary of the head is not the declared one, or the readout returns the last token only"
        if isinstance(logits, Tensor)
        else "the output of a whole model is returned, of which the logits are a part",
        remedy="return logits (B, T, V) for every token, and declare the vocab_size of the head",
        note="every exit returns logits of shape (B, T, V)",
    )


def _finite(logits: Tensor, k: int) -> Finding:
    return none(
        int((~logits.isfinite()).sum()),
        "values",
        fault=f"exit {k} returns logits that are not finite for a finite state",
        cause="a head or a readout norm with weights that are not finite, a division by zero, or an overflow",
        remedy="look for NaN in the parameters of the readout, and compute its norm in float32 with an epsilon",
        note=f"every exit returns finite logits over a vocabulary of {logits.shape[-1]}",
    )


@check(decides="loop_readout", presupposes=(logits_form,))
def same_readout(subject: Subject) -> Iterator[Finding]:
    """A readout that differs between exits, so that the logits of one state depend on the exit."""
    trace, readout = subject.trace, subject.model.readout
    with torch.no_grad():
        for state in (trace.states[1], trace.states[-1]):
            last = readout(state, trace.context, trace.loops, trace.loops)
            for k in range(1, trace.loops + 1):
                for loops in {k, trace.loops}:
                    yield at_most(
                        gap(readout(state, trace.context, k, loops), last),
                        subject.rounding,
                        fault=f"exit {k} of {loops} decodes a state differently from exit {trace.loops}",
                        cause="a norm on the final exit only, or a head or temperature for each loop",
                        remedy="use one readout for all exits, or declare 'loop_readout'",
                        note="every exit decodes a state to the same logits",
                    )


@check(decides="contextual_readout", presupposes=(logits_form,))
def readout_chunks(subject: Subject) -> Finding:
    """A readout that cannot be called on chunks of tokens: its logits differ from those of the whole sequence."""
    trace, state = subject.trace, subject.trace.states[-1]
    k = trace.loops
    with torch.no_grad():
        whole = subject.model.readout(state, trace.context, k, k)
        try:
            parts = [subject.model.readout(part, trace.context, k, k) for part in torch.split(state, 3, dim=1)]
        except RuntimeError as error:
            fault = f"a readout of a chunk of tokens fails ({error})"
            return Finding(held=False, message=f"{fault}. {_CHUNK_ADVICE}")
    return at_most(
        gap(torch.cat(parts, 1), whole),
        subject.logits_limit,
        fault="the logits of chunks of tokens differ from those of the whole sequence",
        cause="the readout mixes tokens (attention in a coda, a norm over positions)",
        remedy="keep the readout token by token, or declare 'contextual_readout'",
        note="chunks of tokens have the same logits as the whole sequence",
    )


_CHUNK_ADVICE = (
    "Likely cause: the readout mixes tokens or expects all positions. "
    "Remedy: keep the readout token by token, or declare 'contextual_readout'."
)


@check(needs=("paths",), decides="labels_mix_exits", presupposes=(logits_form,))
def paths_agree(subject: Subject) -> Iterator[Finding]:
    """Paths of one model that should return the same exit and do not: logits with labels differ from those without."""
    subject.require_repeatable()
    for loops in range(1, subject.loops + 1):
        expected = subject.unroll(loops=loops).logits(loops)
        for name, path in subject.model.paths.items():
            for grad in (False, True):
                pin()
                with torch.set_grad_enabled(grad):
                    logits = path(subject.tokens, loops)
                yield at_most(
                    gap(logits, expected),
                    subject.logits_limit,
                    fault=f"the path '{name}' at {loops} loops differs from the readout of H_{loops}",
                    cause="a mixture over exits with labels and a threshold exit without, another norm, or a loop "
                    "count that the path ignores",
                    remedy="let every path decode the same exit, or declare 'labels_mix_exits'",
                    note="all paths return the last exit",
                )


@check(presupposes=(logits_form,))
def loop_count_effect(subject: Subject) -> Iterator[Finding]:
    """A loop count that has no effect in a path or in cached decoding: the model runs the number it was built with."""
    model = subject.model
    ways = dict(model.paths)
    if (decode := model.decode) is not None:
        ways["cached decoding"] = lambda tokens, loops: decode(tokens, None, loops)[0]
    if not ways:
        raise NotApplicableError("the model declares neither paths nor decode, whose loop count could be ignored")
    subject.require_repeatable()

    counts = range(1, subject.loops + 2)
    exits = {loops: subject.unroll(loops=loops).logits(loops) for loops in counts}
    effective = [loops for loops in counts[:-1] if gap(exits[loops + 1], exits[loops]) > 2 * subject.logits_limit]
    for name, way in ways.items():
        runs = {loops: _count(way, subject, loops) for loops in counts}
        for loops in effective:  # counts at which one more loop changes the logits of the driver's own run
            (logits, calls), (more, more_calls) = runs[loops], runs[loops + 1]
            yield at_least(
                gap(more, logits),
                subject.logits_limit,
                fault=f"{name} gives the same logits for {loops} and for {loops + 1} loops "
                f"({calls} and {more_calls} module calls)",
                cause="the number of loops is read from the configuration at construction and the argument ignored",
                remedy="run as many loops as the argument requires",
                note=f"{name} uses the loop count ({calls} and {more_calls} module calls)",
            )
    yield Finding(held=True, message=f"{', '.join(ways)}: the loop count has an effect")


def _count(way: Callable[[Tensor, int], Tensor], subject: Subject, loops: int) -> tuple[Tensor, int]:
    """The logits of one way to compute them, and the number of module calls."""
    pin()
    with torch.no_grad(), counted() as calls:
        logits = way(subject.tokens, loops)
    return logits, calls.total()
