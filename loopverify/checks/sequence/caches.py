"""Cached decoding gives the logits of the full forward, for any prompt, chunks and batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from loopverify.checks.check import check
from loopverify.checks.readout.readouts import logits_form
from loopverify.checks.result import Finding, NotApplicableError, at_most, none
from loopverify.checks.subject import Subject, gap, pin, token_gaps

__all__ = [
    "cache_positions",
    "cache_slots",
    "cached_batch",
    "cached_decode",
    "chunked_prefill",
    "last_loop_cache",
    "second_prompt",
]

CHUNKS = (3, 1, 4, 2)
"""The lengths of the chunks in which a prompt of ten tokens is passed."""
PROMPT = (7, 1, 1, 1)
"""The same ten tokens as a prompt of seven and three single tokens."""
_BROKEN_BY = ("last_loop_cache", "non_causal", "batch_dependent")


def _decoded(subject: Subject, tokens: Tensor, loops: int, chunks: Sequence[int] = ()) -> Tensor:
    """Logits (B, T, V) of cached decoding. Tokens are passed in chunks of these lengths, by default one by one."""
    subject.require_repeatable()
    decode = subject.model.decode
    assert decode is not None
    pin()
    cache, parts = None, []
    with torch.no_grad():
        for part in torch.split(tokens, list(chunks) or 1, dim=1):
            logits, cache = decode(part, cache, loops)
            parts.append(logits)
    return torch.cat(parts, 1)


def _parity(
    subject: Subject, tokens: Tensor, loops: int, chunks: Sequence[int], *, how: str, cause: str, note: str
) -> Finding:
    """Cached decoding compared with the full forward, and the first position at which their logits differ."""
    cached = _decoded(subject, tokens, loops, chunks)
    full = subject.unroll(tokens, loops).logits(loops)
    far = token_gaps(cached, full).amax(0) if cached.shape == full.shape else torch.tensor([float("inf")])
    first = int((~(far <= subject.logits_limit)).int().argmax())
    return at_most(
        float(far.max()),
        subject.logits_limit,
        fault=f"{how}, at {loops} loops, cached decoding differs from the full forward from token {first + 1} on",
        cause=cause,
        remedy="keep keys and values for every (loop, layer), and take the position from the number of cached tokens",
        note=note,
    )


@check(needs=("decode",), explained_by=_BROKEN_BY, presupposes=(logits_form,))
def cached_decode(subject: Subject) -> Iterator[Finding]:
    """Cached decoding, token by token, that differs from the full forward after a few tokens."""
    for loops in range(1, subject.loops + 1):
        yield _parity(
            *(subject, subject.tokens, loops, ()),
            how="token by token",
            cause="the cache has one slot per layer, so that loops overwrite each other; or a position or mask is "
            "wrong",
            note=f"token by token as in the full forward, for 1..{subject.loops} loops",
        )


@check(needs=("decode",), explained_by=_BROKEN_BY, presupposes=(logits_form,))
def second_prompt(subject: Subject) -> Iterator[Finding]:
    """A second prompt in one process that fails or differs: the model keeps something of the first one."""
    prompts = [subject.tokens, subject.draw(2, 5), subject.draw(1, 12)]
    for number, prompt in enumerate(prompts, start=1):
        yield _parity(
            *(subject, prompt, subject.loops, (prompt.shape[1] - 1, 1)),
            how=f"prompt {number} of one process",
            cause="the cache, its length or its mask is kept in the module and not reset for a new sequence",
            note=f"{len(prompts)} prompts of different shape, one after the other",
        )


@check(needs=("decode",), explained_by=_BROKEN_BY, presupposes=(logits_form,))
def chunked_prefill(subject: Subject) -> Iterator[Finding]:
    """A prompt passed in chunks that differs from the same prompt at once: the mask is built for the wrong length."""
    for chunks in ((subject.tokens.shape[1],), CHUNKS):
        for loops in range(1, subject.loops + 1):
            yield _parity(
                *(subject, subject.tokens, loops, chunks),
                how=f"in chunks of {', '.join(map(str, chunks))} tokens",
                cause="the causal mask of a chunk is built for its own length instead of cached plus new tokens",
                note="a prompt in chunks equals the prompt at once",
            )


@check(needs=("decode",), explained_by=_BROKEN_BY, presupposes=(logits_form,))
def cache_positions(subject: Subject) -> Finding:
    """A constant position in cached decoding: moving a token has an effect other than in the full forward."""
    tokens = subject.draw(subject.tokens.shape[0], 6)
    tokens[:, 2] = subject.others(tokens[:, 1])
    moved = tokens.clone()
    moved[:, [1, 2]] = tokens[:, [2, 1]]
    loops = subject.loops
    plain, other = (subject.unroll(t, loops).logits(loops)[:, -1:] for t in (tokens, moved))
    if gap(other, plain) <= 10 * subject.logits_limit:
        raise NotApplicableError("moving an earlier token has no effect in the full forward")
    cached, cached_other = (_decoded(subject, t, loops)[:, -1:] for t in (tokens, moved))
    size = gap(other, plain)
    return at_most(
        gap(cached_other - cached, other - plain),
        2 * subject.logits_limit / size,  # two results, each within the limit, relative to the effect
        "of the effect",
        fault=f"swapping tokens 2 and 3 moves the last logits by {gap(cached_other, cached):.3g} in cached decoding "
        f"and by {size:.3g} in the full forward",
        cause="every decoded token gets position 0, or positions are counted within the chunk",
        remedy="take the position of a new token from the number of tokens in the cache",
        note="moving a token has the same effect with and without a cache",
    )


@check(needs=("decode",), explained_by=_BROKEN_BY, presupposes=(logits_form,))
def cached_batch(subject: Subject) -> Iterator[Finding]:
    """A batch of prompts that decodes differently from each prompt alone."""
    together = _decoded(subject, subject.tokens, subject.loops, PROMPT)
    for row in range(len(subject.tokens)):
        alone = _decoded(subject, subject.tokens[row : row + 1], subject.loops, PROMPT)
        yield at_most(
            gap(together[row], alone[0]),
            subject.logits_limit,
            fault=f"row {row} of a batch decodes differently from the row alone",
            cause="the cache, its length or its mask is shared by the rows of the batch",
            remedy="give the cache a batch dimension and keep every row's entries apart",
            note="every row of a batch decodes as the row alone",
        )


@check(needs=("decode", "cache_slots"), explained_by=("last_loop_cache",))
def cache_slots(subject: Subject) -> Finding:
    """A cache with one slot per layer instead of one per layer and loop."""
    decode, count = subject.model.decode, subject.model.cache_slots
    assert decode is not None
    assert count is not None
    slots = {}
    with torch.no_grad():
        for loops in range(1, subject.loops + 1):
            pin()
            _, cache = decode(subject.tokens[:, :4], None, loops)
            first = count(cache)
            _, cache = decode(subject.tokens[:, 4:5], cache, loops)
            slots[loops] = (first, count(cache))
    per_loop = slots[1][0]
    wrong = [loops for loops, pair in slots.items() if per_loop < 1 or pair != (loops * per_loop, loops * per_loop)]
    seen = ", ".join(f"{k}: {pair[-1]}" for k, pair in slots.items())
    return none(
        len(wrong),
        "loop counts",
        fault=f"slots in use by number of loops are {seen}; expected {max(per_loop, 1)} per loop",
        cause="the cache has one slot per layer, and each loop overwrites the keys of the previous one",
        remedy="index slots by (loop, layer), loops times layers in all",
        note=f"{per_loop} slots per loop",
    )


@check(
    needs=("decode",),
    decides="last_loop_cache",
    explained_by=("non_causal", "batch_dependent"),
    presupposes=(logits_form,),
)
def last_loop_cache(subject: Subject) -> Finding:
    """A cache that keeps the last loop only: from two loops on, results depend on how the prompt was chunked."""
    tokens, whole = subject.tokens, (subject.tokens.shape[1],)
    gaps = {
        loops: gap(_decoded(subject, tokens, loops, CHUNKS), _decoded(subject, tokens, loops, whole))
        for loops in range(1, subject.loops + 1)
    }
    if not gaps[1] <= subject.logits_limit:
        raise NotApplicableError("results depend on chunks already at one loop; see check chunked_prefill")
    return at_most(
        max(gaps.values()),
        subject.logits_limit,
        fault="results do not depend on chunks at 1 loop, but do at more: "
        + ", ".join(f"{far:.2g} at {loops}" for loops, far in gaps.items()),
        cause="only the keys of the last loop are kept, to which early loops of later tokens then attend",
        remedy="keep the keys of every loop, or declare 'last_loop_cache' and always prefill in the same way",
        note="results do not depend on how the prompt is chunked",
    )
