"""What an exit shows: logits of the right form, from the raw state, by one function, on every path."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from loopverify.checks.check import check
from loopverify.checks.counting import counted
from loopverify.checks.record import Finding, NotApplicableError, at_least, at_most, first_failing
from loopverify.checks.subject import SEED, Subject, gap

__all__ = ["logits_form", "loop_count_effect", "paths_agree", "readout_chunks", "same_readout"]


@check()
def logits_form(subject: Subject) -> Finding:
    """Logits of another form than (B, T, V), of another vocabulary than declared, or not finite."""
    single = subject.unroll(subject.tokens[:1, :1])

    def findings() -> Iterator[Finding]:
        for trace in (subject.trace, single):
            expected = (*trace.tokens.shape, subject.vocab_size)
            for k in range(1, trace.loops + 1):
                logits = trace.logits(k)
                shape = tuple(logits.shape)
                form = shape == expected and logits.is_floating_point()
                bad = int((~torch.isfinite(logits)).sum())
                yield at_most(
                    float(not form) + bad,
                    0,
                    "wrong values",
                    fault=f"exit {k} shows {logits.dtype} {shape} with {bad} values that are not finite, expected "
                    f"finite numbers of shape {expected}",
                    cause="a head of another vocabulary than declared, a readout of the last token only, or overflow",
                    remedy="return logits for every token, and declare the vocab_size of the head",
                    note=f"every exit shows finite logits over {subject.vocab_size} tokens",
                )

    return first_failing(findings())


@check(decides="loop_readout")
def same_readout(subject: Subject) -> Finding:
    """A readout that changes from exit to exit, so that the exits of one state differ."""
    trace, readout = subject.trace, subject.model.readout

    def findings() -> Iterator[Finding]:
        with torch.no_grad():
            for state in (trace.states[1], trace.states[-1]):
                last = readout(state, trace.context, trace.loops, trace.loops)
                for k in range(1, trace.loops + 1):
                    for loops in {k, trace.loops}:
                        yield at_most(
                            gap(readout(state, trace.context, k, loops), last),
                            subject.rounding,
                            "relative",
                            fault=f"exit {k} of {loops} shows a state otherwise than exit {trace.loops} does",
                            cause="a norm on the final exit only, or a head or temperature for each loop",
                            remedy="use one readout for all exits, or declare 'loop_readout'",
                            note="one state is shown alike by every exit",
                        )

    return first_failing(findings())


@check(decides="contextual_readout")
def readout_chunks(subject: Subject) -> Finding:
    """A readout that cannot be called on chunks of tokens: the parts differ from the whole."""
    trace, state = subject.trace, subject.trace.states[-1]
    k = trace.loops
    with torch.no_grad():
        whole = subject.model.readout(state, trace.context, k, k)
        try:
            parts = [subject.model.readout(part, trace.context, k, k) for part in torch.split(state, 3, dim=1)]
        except RuntimeError as error:
            shape = f"a readout of a chunk of tokens fails ({error})"
            return Finding(held=False, message=f"{shape}. {_CHUNK_ADVICE}")
    return at_most(
        gap(torch.cat(parts, 1), whole),
        subject.logits_limit,
        "relative",
        fault="the logits of chunks of tokens differ from those of the whole",
        cause="the readout mixes tokens (attention in a coda, a norm over positions)",
        remedy="keep the readout token by token, or declare 'contextual_readout'",
        note="chunks of tokens are read as the whole is",
    )


_CHUNK_ADVICE = (
    "Likely cause: the readout mixes tokens or expects all positions. "
    "Remedy: keep the readout token by token, or declare 'contextual_readout'."
)


@check(needs=("paths",), decides="labels_mix_exits")
def paths_agree(subject: Subject) -> Finding:
    """Paths of one model that should show the same exit and do not: logits with labels differ from those without."""
    subject.require_repeatable()

    def findings() -> Iterator[Finding]:
        for loops in range(1, subject.loops + 1):
            expected = subject.unroll(loops=loops).logits(loops)
            for name, path in subject.model.paths.items():
                for grad in (False, True):
                    torch.manual_seed(SEED)
                    with torch.set_grad_enabled(grad):
                        shown = path(subject.tokens, loops)
                    yield at_most(
                        gap(shown, expected),
                        subject.logits_limit,
                        "relative",
                        fault=f"the path '{name}' at {loops} loops differs from the readout of H_{loops}",
                        cause="a mixture over exits with labels and a threshold exit without, another norm, or a loop "
                        "count that the path does not heed",
                        remedy="let every path decode the same exit, or declare 'labels_mix_exits'",
                        note="all paths show the last exit",
                    )

    return first_failing(findings())


@check()
def loop_count_effect(subject: Subject) -> Finding:
    """A loop count that has no effect in a path or in cached decoding: the model runs the number it was built with."""
    model = subject.model
    ways = dict(model.paths)
    if (decode := model.decode) is not None:
        ways["cached decoding"] = lambda tokens, loops: decode(tokens, None, loops)[0]
    if not ways:
        raise NotApplicableError("the model declares neither paths nor decode, whose loop count could be ignored")
    subject.require_repeatable()

    def findings() -> Iterator[Finding]:
        for name, way in ways.items():
            for loops in range(1, subject.loops + 1):
                shown, calls = _count(way, subject, loops)
                more, more_calls = _count(way, subject, loops + 1)
                exits = [subject.unroll(loops=k).logits(k) for k in (loops, loops + 1)]
                if gap(exits[1], exits[0]) <= 2 * subject.logits_limit:
                    continue  # this loop changes nothing by itself
                yield at_least(
                    gap(more, shown),
                    subject.logits_limit,
                    "relative",
                    fault=f"{name} shows the same for {loops} and for {loops + 1} loops "
                    f"({calls} and {more_calls} module calls)",
                    cause="the number of loops is read from the configuration at construction and the argument ignored",
                    remedy="loop over the count that is asked for",
                    note=f"{name} heeds the loop count ({calls} and {more_calls} module calls)",
                )
        yield Finding(held=True, message=f"{', '.join(ways)}: the loop count is heeded")

    return first_failing(findings())


def _count(way: Callable[[Tensor, int], Tensor], subject: Subject, loops: int) -> tuple[Tensor, int]:
    """The logits of a way to compute them, and the module calls that it made."""
    torch.manual_seed(SEED)
    with torch.no_grad(), counted() as calls:
        shown = way(subject.tokens, loops)
    return shown, calls.total()
