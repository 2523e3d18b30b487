"""Which tokens influence which under an attention mask, measured by changing one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from loopverify.checks.check import check
from loopverify.checks.readout.readouts import logits_form
from loopverify.checks.result import Finding, NotApplicableError, at_least, at_most, none
from loopverify.checks.subject import Subject, gap, pin, token_gaps

__all__ = ["mask_influence", "masked_run"]

HIDDEN = 2
"""Number of tokens that the mask hides at the beginning of a row."""
EVERYWHERE = "pass the mask to the attention of every layer at every loop"
"""The remedy for a mask that has no effect, everywhere or in places."""
CLEARLY = 10.0
"""In units of the limit of equality: an influence above this is counted, one below the limit is not. Between the two,
the weak influence of a distant token may be rounding."""


@check(needs=("embed_masked",), presupposes=(logits_form,))
def mask_influence(subject: Subject) -> Iterator[Finding]:
    """An attention mask that is accepted and ignored: a masked token has influence, or masking one has none.

    Also a mask that replaces the causal mask, or that hides real tokens: each real token must see the same real tokens
    as in a run without a mask.
    """
    subject.require_repeatable()
    limit = subject.logits_limit
    plain = _influence(subject, lambda rows: subject.unroll(rows).logits(subject.loops))
    if float(plain[:HIDDEN, HIDDEN:].max()) <= limit:
        raise NotApplicableError("no token influences a later one, so a mask has nothing to hide")
    real = torch.ones(len(plain), dtype=torch.bool, device=subject.device)
    hiding = real.clone()
    hiding[:HIDDEN] = False
    under = {mask: _under(subject, mask)(subject.tokens) for mask in (real, hiding)}
    for mask, logits in under.items():
        yield _finite(logits[:, mask], mask)
    yield _effect(gap(under[hiding][:, HIDDEN:], under[real][:, HIDDEN:]), limit)
    for mask in (real, hiding):
        seen = _influence(subject, _under(subject, mask))
        if not bool(mask.all()):
            yield _content(float(seen[:HIDDEN, HIDDEN:].max()), limit)
        yield _same_pairs(seen, plain, mask, limit)


def _under(subject: Subject, mask: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda rows: masked_run(subject, rows, mask.expand_as(rows))


def _influence(subject: Subject, run: Callable[[Tensor], Tensor]) -> Tensor:
    """Relative change of the logits at position t (columns) if token i (rows) is exchanged, (T, T)."""
    original = subject.tokens[0]
    T = len(original)
    rows = original.repeat(T + 1, 1)
    rows[torch.arange(T), torch.arange(T)] = subject.others(original)
    logits = run(rows)
    return token_gaps(logits[:-1], logits[-1:].expand_as(logits[:-1]))


def _named(mask: Tensor) -> str:
    return "an all-True mask" if bool(mask.all()) else f"a mask that hides the first {HIDDEN} tokens"


def _finite(logits: Tensor, mask: Tensor) -> Finding:
    return none(
        int((~logits.isfinite()).sum()),
        "values",
        fault=f"under {_named(mask)}, logits of real tokens are not finite",
        cause="a masked token may attend to nothing: its softmax is 0 / 0, and other tokens add 0 * NaN",
        remedy="let a masked token attend to itself",
    )


def _effect(far: float, limit: float) -> Finding:
    return at_least(
        far,
        limit,
        fault=f"masking the first {HIDDEN} tokens has no effect on the others",
        cause="the mask is accepted as an argument and never reaches the attention",
        remedy=EVERYWHERE,
    )


def _content(far: float, limit: float) -> Finding:
    return at_most(
        far,
        limit,
        fault=f"the content of {HIDDEN} masked tokens still changes the logits of later tokens",
        cause="the mask reaches some layers or loops and not all, or it is inverted",
        remedy=EVERYWHERE,
    )


def _same_pairs(seen: Tensor, plain: Tensor, mask: Tensor, limit: float) -> Finding:
    both = (mask[:, None] & mask[None, :]).cpu()
    more = both & (seen > CLEARLY * limit) & (plain <= limit)
    less = both & (seen <= limit) & (plain > CLEARLY * limit)
    late = bool(more.any())
    i, t = _first(more if late else less)
    return none(
        int((more | less).sum()),
        "pairs of tokens",
        fault=f"under {_named(mask)}, token {t} {'sees' if late else 'no longer sees'} token {i}, unlike unmasked",
        cause="the mask replaces the causal mask" if late else "the mask is shifted, or hides real tokens",
        remedy="allow what both the causal mask and the padding mask allow",
        note="masked tokens have no influence, masking has some, and real tokens see each other as without a mask",
    )


def _first(pairs: Tensor) -> tuple[int, int]:
    found = pairs.nonzero().tolist()
    return (int(found[0][0]), int(found[0][1])) if found else (0, 0)


def masked_run(subject: Subject, tokens: Tensor, mask: Tensor) -> Tensor:
    """Logits (B, T, V) of the last exit under a mask (B, T)."""
    embed_masked = subject.model.embed_masked
    assert embed_masked is not None
    pin()
    with torch.no_grad():
        state, context = embed_masked(tokens, mask)
        for k in range(1, subject.loops + 1):
            state = subject.model.step(state, context, k)
        return subject.model.readout(state, context, subject.loops, subject.loops)
