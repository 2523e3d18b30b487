"""Padding next to the tokens of a row: if the mask hides it, only the positions of the tokens can differ."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from loopverify.checks.check import check
from loopverify.checks.readout.readouts import logits_form
from loopverify.checks.result import Finding, at_most
from loopverify.checks.sequence.masks import mask_influence, masked_run
from loopverify.checks.subject import Subject, gap, pin

__all__ = ["padding_invariance"]

PADS = 3
"""Number of padding tokens next to a row."""


@check(needs=("embed_masked",), presupposes=(logits_form, mask_influence))
def padding_invariance(subject: Subject) -> Iterator[Finding]:
    """Left padding that changes the logits of real tokens: positions count the padding.

    Masks that let the wrong tokens see each other are reported by check mask_influence, which must hold first; what can
    still differ are the positions.
    """
    subject.require_repeatable()
    expected = subject.trace.logits(subject.loops)
    all_real = torch.ones_like(subject.tokens, dtype=torch.bool)
    yield _unpadded(subject, gap(masked_run(subject, subject.tokens, all_real), expected))
    padded = _padded_run(subject, left=True)
    for row in range(len(expected)):
        yield _left(subject, gap(padded[row], expected[row]), row)


def _padded_run(subject: Subject, *, left: bool) -> Tensor:
    """Logits of the subject's tokens with padding on one side; the padding's content differs between rows."""
    pads = subject.draw(len(subject.tokens), PADS)
    pads[0] = 0
    sides = [pads, subject.tokens] if left else [subject.tokens, pads]
    mask = torch.cat([torch.full_like(side, side is subject.tokens, dtype=torch.bool) for side in sides], 1)
    logits = masked_run(subject, torch.cat(sides, 1), mask)
    return logits[:, PADS:] if left else logits[:, :-PADS]


def _unpadded(subject: Subject, far: float) -> Finding:
    assert subject.model.embed_masked is not None
    pin()
    with torch.no_grad():
        state, _ = subject.model.embed_masked(subject.tokens, torch.ones_like(subject.tokens, dtype=torch.bool))
    moved = gap(state, subject.trace.states[0]) > subject.rounding
    where = "H_0 differs" if moved else "H_0 is the same, so the positions in the context differ"
    return at_most(
        far,
        subject.logits_limit,
        fault="an all-True mask changes the logits, although the same tokens see each other: the positions differ from "
        f"those without a mask ({where})",
        cause="embed and embed_masked compute positions differently: another origin, order or scale",
        remedy="take positions from one formula: under a mask, the number of real tokens before",
    )


def _left(subject: Subject, far: float, row: int) -> Finding:
    held = far <= subject.logits_limit
    fault = f"{PADS} padding tokens on the left of row {row} change the logits of the real tokens"
    return at_most(
        far,
        subject.logits_limit,
        fault=fault if held else f"{fault}, although the mask hides them; {_on_the_right(subject, row)}",
        cause="positions are counted from the first padding token",
        remedy="count positions from the first real token of each row",
        note="left padding changes nothing",
    )


def _on_the_right(subject: Subject, row: int) -> str:
    far = gap(_padded_run(subject, left=False)[row], subject.trace.logits(subject.loops)[row])
    if far <= subject.logits_limit:
        return "on the right they change nothing, so the positions of the real tokens differ"
    return "on the right they do as well, so the logits also depend on the length of the padded row"
