"""Padding beside the tokens of a row: once the mask hides it, only positions are left to differ."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from loopverify.checks.check import check
from loopverify.checks.readout.readouts import logits_form
from loopverify.checks.result import Finding, at_most, first_failing
from loopverify.checks.sequence.masks import mask_influence, masked_run
from loopverify.checks.subject import Subject, gap, pin

__all__ = ["padding_invariance"]

PADS = 3
"""Padding tokens put beside a row."""


@check(needs=("embed_masked",), presupposes=(logits_form, mask_influence))
def padding_invariance(subject: Subject) -> Finding:
    """Left padding that changes what the real tokens show: positions or masks count the padding.

    A mask that lets the wrong tokens see each other is for check mask_influence to name; what still differs is where
    the tokens are taken to stand.
    """
    subject.require_repeatable()
    expected = subject.trace.logits(subject.loops)
    all_real = torch.ones_like(subject.tokens, dtype=torch.bool)

    def findings() -> Iterator[Finding]:
        yield _unpadded(subject, gap(masked_run(subject, subject.tokens, all_real), expected))
        shown = _padded_run(subject, left=True)
        for row in range(len(expected)):
            yield _left(subject, gap(shown[row], expected[row]), row)

    return first_failing(findings())


def _padded_run(subject: Subject, *, left: bool) -> Tensor:
    """What the subject's tokens show with padding on one side, whose hidden content differs from row to row."""
    pads = subject.draw(len(subject.tokens), PADS)
    pads[0] = 0
    sides = [pads, subject.tokens] if left else [subject.tokens, pads]
    mask = torch.cat([torch.full_like(side, side is subject.tokens, dtype=torch.bool) for side in sides], 1)
    shown = masked_run(subject, torch.cat(sides, 1), mask)
    return shown[:, PADS:] if left else shown[:, :-PADS]


def _unpadded(subject: Subject, far: float) -> Finding:
    assert subject.model.embed_masked is not None
    pin()
    with torch.no_grad():
        state, _ = subject.model.embed_masked(subject.tokens, torch.ones_like(subject.tokens, dtype=torch.bool))
    moved = gap(state, subject.trace.states[0]) > subject.rounding
    where = "H_0 differs already" if moved else "H_0 is the same, so it is the positions in the context"
    return at_most(
        far,
        subject.logits_limit,
        "relative",
        fault="a mask of only True changes what is shown, although the same tokens see each other: the tokens stand at "
        f"other positions than without a mask ({where})",
        cause="embed and embed_masked compute positions in two ways, with another origin, order or scale",
        remedy="take positions from one formula: under a mask, the number of real tokens before",
    )


def _left(subject: Subject, far: float, row: int) -> Finding:
    held = far <= subject.logits_limit
    fault = f"{PADS} padding tokens on the left of row {row} change what the real tokens show"
    return at_most(
        far,
        subject.logits_limit,
        "relative",
        fault=fault if held else f"{fault}, although the mask hides them; {_on_the_right(subject, row)}",
        cause="positions are counted from the first padding token",
        remedy="count positions from the first real token of each row",
        note="left padding changes nothing",
    )


def _on_the_right(subject: Subject, row: int) -> str:
    far = gap(_padded_run(subject, left=False)[row], subject.trace.logits(subject.loops)[row])
    if far <= subject.logits_limit:
        return "on the right they change nothing, so it is the positions of the real tokens that differ"
    return "on the right they do so, too, so the length of the padded row enters as well"
