"""Which tokens and rows may influence which: causality, and rows of a batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from loopverify.checks.check import check
from loopverify.checks.readout.readouts import logits_form
from loopverify.checks.result import Finding, at_most
from loopverify.checks.subject import Subject, gap, token_gaps

__all__ = ["batch_invariance", "causality"]


@check(decides="non_causal", presupposes=(logits_form,))
def causality(subject: Subject) -> Iterator[Finding]:
    """A token that sees later tokens: the logits of a position change with a later token or with the length."""
    trace, tokens = subject.trace, subject.tokens
    middle = tokens.shape[1] // 2
    changed = tokens.clone()
    changed[:, middle:] = subject.others(tokens[:, middle:])
    runs = [(changed, "later tokens change")]
    if subject.repeatable:  # a run of another shape draws other random numbers
        runs.append((tokens[:, :middle], "later tokens are left out"))
    for other, event in runs:
        seen = subject.unroll(other)
        for k in range(1, trace.loops + 1):
            far = token_gaps(seen.logits(k)[:, :middle], trace.logits(k)[:, :middle]).amax(0)
            first = int((far > subject.logits_limit).int().argmax())
            yield at_most(
                float(far.max()),
                subject.logits_limit,
                fault=f"the logits of exit {k} at position {first} differ when {event} from position {middle} on",
                cause="attention without (or with a shifted) causal mask, or a norm or pooling over positions",
                remedy="mask later positions in every operation that mixes tokens, or declare 'non_causal'",
                note="no position sees a later one",
            )


@check(decides="batch_dependent", presupposes=(logits_form,))
def batch_invariance(subject: Subject) -> Iterator[Finding]:
    """A row whose result depends on the other rows of its batch."""
    subject.require_repeatable()
    trace = subject.trace
    order = torch.arange(len(subject.tokens) - 1, -1, -1, device=subject.device)
    reordered = subject.unroll(subject.tokens[order])

    def finding(far: float, compared: str, k: int) -> Finding:
        return at_most(
            far,
            subject.logits_limit,
            fault=f"exit {k} of a row of a batch differs from {compared}",
            cause="statistics taken over the batch, one mask or position for all rows, or an expert capacity",
            remedy="let no operation mix rows, or declare 'batch_dependent'",
            note="a row of a batch equals the row alone",
        )

    for row in range(len(subject.tokens)):
        alone = subject.unroll(subject.tokens[row : row + 1])
        for k in range(1, trace.loops + 1):
            yield finding(gap(trace.logits(k)[row], alone.logits(k)[0]), f"row {row} alone", k)
    for k in range(1, trace.loops + 1):
        yield finding(gap(reordered.logits(k)[order], trace.logits(k)), "the same rows in another order", k)
