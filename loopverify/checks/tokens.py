"""Which tokens and rows may influence which: causality, rows of a batch, padding and masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from loopverify.checks.check import check
from loopverify.checks.record import Finding, NotApplicableError, at_least, at_most, first_failing
from loopverify.checks.subject import SEED, Subject, gap, token_gaps

__all__ = ["batch_invariance", "causality", "mask_influence", "padding_invariance"]

PADS = 3
"""Padding tokens put on the left of a row."""


@check(decides="non_causal")
def causality(subject: Subject) -> Finding:
    """A token that sees later tokens: what an earlier position shows changes with a later token or with the length."""
    trace, tokens = subject.trace, subject.tokens
    middle = tokens.shape[1] // 2
    changed = tokens.clone()
    changed[:, middle:] = subject.others(tokens[:, middle:])
    runs = [(changed, "the later tokens change")]
    if subject.repeatable:  # another shape draws other random numbers
        runs.append((tokens[:, :middle], "the later tokens are left out"))

    def findings() -> Iterator[Finding]:
        for other, event in runs:
            seen = subject.unroll(other)
            for k in range(1, trace.loops + 1):
                far = token_gaps(seen.logits(k)[:, :middle], trace.logits(k)[:, :middle]).amax(0)
                first = int((far > subject.logits_limit).int().argmax())
                yield at_most(
                    float(far.max()),
                    subject.logits_limit,
                    "relative",
                    fault=f"exit {k} shows something else at position {first} when {event} from position {middle} on",
                    cause="attention without (or with a shifted) causal mask, or a norm or pooling over positions",
                    remedy="mask later positions in every operation that mixes tokens, or declare 'non_causal'",
                    note="no position sees a later one",
                )

    return first_failing(findings())


@check(decides="batch_dependent")
def batch_invariance(subject: Subject) -> Finding:
    """A row whose result depends on the other rows of its batch."""
    subject.require_repeatable()
    trace = subject.trace
    order = torch.arange(len(subject.tokens) - 1, -1, -1, device=subject.device)
    reordered = subject.unroll(subject.tokens[order])

    def findings() -> Iterator[Finding]:
        for row in range(len(subject.tokens)):
            alone = subject.unroll(subject.tokens[row : row + 1])
            for k in range(1, trace.loops + 1):
                yield finding(gap(trace.logits(k)[row], alone.logits(k)[0]), f"row {row} alone", k)
        for k in range(1, trace.loops + 1):
            yield finding(gap(reordered.logits(k)[order], trace.logits(k)), "the same rows in another order", k)

    def finding(far: float, compared: str, k: int) -> Finding:
        return at_most(
            far,
            subject.logits_limit,
            "relative",
            fault=f"exit {k} of a row of a batch differs from {compared}",
            cause="statistics taken over the batch, one mask or position for all rows, or an expert capacity",
            remedy="let every operation keep rows apart, or declare 'batch_dependent'",
            note="a row of a batch equals the row alone",
        )

    return first_failing(findings())


@check(needs=("embed_masked",))
def padding_invariance(subject: Subject) -> Finding:
    """Left padding that changes what the real tokens show: positions or masks count the padding."""
    subject.require_repeatable()
    tokens, (batch, length) = subject.tokens, subject.tokens.shape
    pads = [PADS * row // (batch - 1) for row in range(batch)]  # none, some, PADS
    padded = subject.draw(batch, length + PADS)
    mask = torch.zeros(padded.shape, dtype=torch.bool, device=subject.device)
    for row, pad in enumerate(pads):
        padded[row, PADS - pad : PADS] = 0
        padded[row, PADS:] = tokens[row]
        mask[row, PADS:] = True
    shown = _masked_run(subject, padded, mask)
    full = torch.ones_like(tokens, dtype=torch.bool)

    def findings() -> Iterator[Finding]:
        yield finding(
            gap(_masked_run(subject, tokens, full), subject.trace.logits(subject.loops)), "a mask of only True"
        )
        for row in range(batch):
            far = gap(shown[row, PADS:], subject.trace.logits(subject.loops)[row])
            yield finding(far, f"{PADS} padding tokens on the left of row {row}")

    def finding(far: float, padding: str) -> Finding:
        return at_most(
            far,
            subject.logits_limit,
            "relative",
            fault=f"{padding} changes what the real tokens show",
            cause="positions are counted from the first padding token, or padding is attended to",
            remedy="count positions from the first real token of each row and mask padding at every loop",
            note="left padding changes nothing",
        )

    return first_failing(findings())


@check(needs=("embed_masked",))
def mask_influence(subject: Subject) -> Finding:
    """An attention mask that is accepted and ignored: a masked token has influence, or masking one has none."""
    subject.require_repeatable()
    tokens = subject.tokens
    hidden = 2
    changed = torch.cat([subject.others(tokens[:, :hidden]), tokens[:, hidden:]], 1)
    all_real = torch.ones_like(tokens, dtype=torch.bool)
    mask = all_real.clone()
    mask[:, :hidden] = False
    shown = {
        (name, kind): _masked_run(subject, words, m)[:, hidden:]
        for name, words in (("tokens", tokens), ("changed", changed))
        for kind, m in (("masked", mask), ("real", all_real))
    }
    if gap(shown["changed", "real"], shown["tokens", "real"]) <= subject.logits_limit:
        raise NotApplicableError("no token influences a later one, so a mask has nothing to hide")
    common = {
        "cause": "the mask is accepted as an argument and never reaches the attention",
        "remedy": "hand the mask to the attention of every layer at every loop",
    }
    return first_failing(
        [
            at_least(
                gap(shown["tokens", "masked"], shown["tokens", "real"]),
                subject.logits_limit,
                "relative",
                fault=f"masking the first {hidden} tokens has no effect on the others",
                **common,
            ),
            at_most(
                gap(shown["changed", "masked"], shown["tokens", "masked"]),
                subject.logits_limit,
                "relative",
                fault=f"what stands in {hidden} masked tokens still changes what later tokens show",
                **common,
                note="a masked token has no influence, and masking has some",
            ),
        ]
    )


def _masked_run(subject: Subject, tokens: Tensor, mask: Tensor) -> Tensor:
    """Logits (B, T, V) of the last exit under a mask (B, T)."""
    embed_masked: Callable[[Tensor, Tensor], tuple[Tensor, Any]] | None = subject.model.embed_masked
    assert embed_masked is not None
    torch.manual_seed(SEED)
    with torch.no_grad():
        state, context = embed_masked(tokens, mask)
        for k in range(1, subject.loops + 1):
            state = subject.model.step(state, context, k)
        return subject.model.readout(state, context, subject.loops, subject.loops)
