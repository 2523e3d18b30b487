"""Cached generation against the full forward, and early exits against their rules written out token by token."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopverify as lv
from loopverify.checks.suite import CHECKS
from loopverify.errors import InputError
from loopverify.generation import MISSING, Decoder, EarlyExit, cached, generate
from loopverify.generation.generate import padded
from loopverify.models import READOUTS, RECURRENCES, LoopedTransformer, TransformerConfig
from tests.loopverify.generation.naive import Naive

V = 19


def transformer(**changes: Any) -> LoopedTransformer:
    torch.manual_seed(3)
    settings = {"vocab_size": V, "d_model": 16, "heads": 2, "d_ff": 24, "init_std": 0.4, **changes}
    return LoopedTransformer(TransformerConfig(**settings)).eval()


KINDS = [
    {"readout": readout, "sandwich_norm": sandwich, **fields}
    for (readout, fields), sandwich in itertools.product(
        itertools.product(READOUTS, RECURRENCES.values()), (False, True)
    )
    if fields.get("inter_loop_norm") != "shared" or readout in ("rmsnorm", "layernorm")
]


@pytest.mark.parametrize(
    ("dtype", "init_std", "limit"),
    [
        (torch.float32, 0.02, 1e-5),
        (torch.float64, 0.4, 1e-11),  # far from initialization, where loops amplify what rounding does
    ],
)
@settings(max_examples=40)
@given(data=st.data())
def test_cached_equals_the_full_forward(dtype: torch.dtype, init_std: float, limit: float, data: st.DataObject) -> None:
    module = transformer(**data.draw(st.sampled_from(KINDS)), init_std=init_std).to(dtype)
    loops = data.draw(st.integers(1, 4))
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    tokens, mask = padded([torch.randint(V, (length,), generator=draw) for length in lengths])
    T = tokens.shape[1]
    cuts = data.draw(st.sets(st.integers(1, T - 1))) if T > 1 else set()
    bounds = [0, *sorted(cuts), T]

    decoder = Decoder(module, len(tokens), loops)
    parts = [decoder.logits(decoder.extend(tokens[:, a:b], mask[:, a:b])) for a, b in itertools.pairwise(bounds)]
    shown = torch.cat(parts, 1)[mask]
    state, context = module.embed_masked(tokens, mask)
    for loop in range(1, loops + 1):
        state = module.step(state, context, loop)
    full = module.readout(state, context, loops, loops)[mask]
    assert (shown - full).detach().abs().max() <= limit * full.detach().abs().max()
    assert decoder.cache.slots == loops * 2
    assert decoder.executed == loops * tokens.numel()


@pytest.mark.parametrize(
    "check",
    [
        "cached_decode",
        "second_prompt",
        "chunked_prefill",
        "cache_positions",
        "cached_batch",
        "cache_slots",
        "last_loop_cache",
    ],
)
def test_the_checks_of_caches_pass(check: str) -> None:
    result = CHECKS[check].run(cached(transformer()))
    assert result.status == "passed", str(result)


def test_greedy_generation_is_that_of_the_full_forward() -> None:
    module = transformer(readout="final_only")
    prompts = [[4, 2], [7], [1, 2, 3, 4, 5]]
    for loops in (1, 3, 4):
        made = generate(module, prompts, 6, loops=loops)
        assert made.tokens.shape == made.exits.shape == (3, 6)
        assert (made.exits == loops).all()
        for row, prompt in enumerate(prompts):
            tokens = torch.tensor([prompt])
            for _ in range(6):
                best = lv.unroll(module.looped(), tokens, loops).logits(loops)[:, -1].argmax(-1)
                tokens = torch.cat([tokens, best[:, None]], 1)
            assert made.tokens[row].tolist() == tokens[0, len(prompt) :].tolist()


def test_samples_follow_the_distribution_and_their_generator() -> None:
    module, many = transformer(), 4000
    prompts = torch.tensor([[5, 3, 1]]).expand(many, -1)
    logits = lv.unroll(module.looped(), prompts[:1]).logits(4)[0, -1] / 0.7
    drawn = generate(module, prompts, 1, temperature=0.7, generator=torch.Generator().manual_seed(0)).tokens[:, 0]
    again = generate(module, prompts, 1, temperature=0.7, generator=torch.Generator().manual_seed(0)).tokens[:, 0]
    assert torch.equal(drawn, again)
    shares, p = torch.bincount(drawn, minlength=V) / many, logits.softmax(-1)
    assert ((shares - p).abs() < 5 * (p * (1 - p) / many).sqrt() + 1e-3).all()  # five standard errors
    few = generate(module, prompts, 1, temperature=0.7, top_k=3, generator=torch.Generator().manual_seed(0)).tokens[
        :, 0
    ]
    assert set(few.tolist()) == set(logits.topk(3).indices.tolist())


def exits_of(module: LoopedTransformer, tokens: torch.Tensor, threshold: float) -> tuple[torch.Tensor, torch.Tensor]:
    """By the states of the full forward: the first exit (B, T) with a margin above the threshold, and its logits."""
    trace = lv.unroll(module.looped(), tokens)
    every = torch.stack([trace.logits(k) for k in range(1, 5)], 2)
    a, b = every.sort(-1, descending=True).values[..., :2].unbind(-1)
    sure = (a - b > threshold).int()
    sure[..., -1] = 1
    first = sure.argmax(-1)
    return first + 1, every.gather(2, first[..., None, None].expand(-1, -1, 1, V))[:, :, 0]


@pytest.mark.parametrize(
    ("readout", "recurrence"),
    [("rmsnorm", "residual"), ("rmsnorm", "shared_boundary_norm"), ("final_only", "damped")],
)
def test_recomputed_keys_are_those_of_the_full_forward(readout: str, recurrence: str) -> None:
    module = transformer(readout=readout, **RECURRENCES[recurrence]).double()
    tokens = torch.randint(V, (5, 12))
    first = lv.unroll(module.looped(), tokens).logits(1).sort(-1).values
    threshold = float((first[..., -1] - first[..., -2]).quantile(0.85))
    exits, logits = exits_of(module, tokens, threshold)
    assert len(exits.unique()) >= 3, "a case with several exits"
    decoder = Decoder(module, 5, early_exit=EarlyExit(threshold=threshold))
    for t in range(12):
        step = decoder.step(tokens[:, t])
        assert step.exits.tolist() == exits[:, t].tolist()
        torch.testing.assert_close(step.logits, logits[:, t])
    # A loop of a token is run once it, or a later token of its row, goes as deep; and once only.
    needed = exits.flip(1).cummax(1).values.flip(1)
    assert decoder.executed == int(needed.sum())


@pytest.mark.parametrize("missing", ["copy", "propagate"])
@pytest.mark.parametrize("readout", ["raw", "final_only"])
def test_cheap_rules_do_what_they_say(missing: Any, readout: str) -> None:
    module = transformer(readout=readout).double()
    tokens = torch.randint(V, (4, 11))
    threshold = 1.5
    decoder = Decoder(module, 4, early_exit=EarlyExit(threshold=threshold, missing=missing))
    decoder.extend(tokens[:, :3])
    steps = [decoder.step(tokens[:, t]) for t in range(3, 11)]
    naive = Naive(module, loops=4, threshold=threshold, missing=missing)
    exits = torch.stack([step.exits for step in steps], 1)
    assert len(exits.unique()) >= 3, "a case with several exits"
    for row in range(4):
        expected, logits = naive.run(tokens[row], first=3)
        assert exits[row].tolist() == expected
        shown = torch.stack([step.logits[row] for step in steps])
        # The module's rotary tables are float32 whatever its weights are.
        torch.testing.assert_close(shown, torch.stack(logits), rtol=1e-4, atol=1e-4)
    assert decoder.executed == 4 * 4 * 3 + int(exits.sum())


@pytest.mark.parametrize("missing", MISSING)
def test_a_row_does_not_depend_on_its_batch(missing: Any) -> None:
    module = transformer().double()
    prompts = [[4, 2, 9], [7], [1, 2, 3, 4, 5]]
    rule = EarlyExit(threshold=1.0, missing=missing, score="state_change" if missing == "copy" else "margin")
    rule = replace(rule, threshold=-0.4) if missing == "copy" else rule
    together = generate(module, prompts, 8, early_exit=rule)
    assert len(together.exits.unique()) > 1
    for row, prompt in enumerate(prompts):
        alone = generate(module, [prompt], 8, early_exit=rule)
        assert together.tokens[row].tolist() == alone.tokens[0].tolist()
        assert together.exits[row].tolist() == alone.exits[0].tolist()


def test_the_model_is_left_as_it_was() -> None:
    module = transformer(dropout=0.5).train()
    a, b = (generate(module, [[1, 2]], 5).tokens for _ in range(2))
    assert torch.equal(a, b)
    assert module.training
    assert torch.equal(a, generate(module.looped(), [[1, 2]], 5).tokens)


def test_refusals() -> None:
    module = transformer()
    other = replace(module.looped("mine"), step=lambda state, context, loop: state)
    for wrong, name in ((other, "mine"), (3, "int")):
        with pytest.raises(
            InputError, match=f"cached generation got '{name}'; expected a LoopedTransformer or its own"
        ):
            generate(wrong, [[1]], 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no prompts; expected at least one sequence of token ids"):
        generate(module, [], 1)
    with pytest.raises(
        InputError, match=r"prompt 1 is torch.float32 \(0,\); expected a sequence of at least one token"
    ):
        generate(module, [[1], []], 1)
    with pytest.raises(InputError, match="max_new_tokens is 0; expected an integer >= 1"):
        generate(module, [[1]], 0)
    with pytest.raises(InputError, match=r"temperature is -1; expected 0 \(the likeliest token\) or a positive number"):
        generate(module, [[1]], 1, temperature=-1)
    with pytest.raises(InputError, match="top_k is 0; expected an integer >= 1, or None to sample from all tokens"):
        generate(module, [[1]], 1, top_k=0)
    with pytest.raises(InputError, match="loops is 0; expected an integer >= 1"):
        generate(module, [[1]], 1, loops=0)
    with pytest.raises(
        InputError, match="unknown rule for missing keys 'hope'; expected one of: recompute, copy, prop"
    ):
        EarlyExit(threshold=0, missing="hope")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="threshold is nan; expected a confidence that an exit has to be above"):
        EarlyExit(threshold=float("nan"))
    model = cached(module)
    assert model.decode is not None
    _, cache = model.decode(torch.tensor([[1]]), None, 2)
    with pytest.raises(InputError, match="a cache of 2 loops to continue with 3; expected the same number"):
        model.decode(torch.tensor([[1]]), cache, 3)
    with pytest.raises(InputError, match="2 rows to continue a cache of 1; expected the rows it was begun with"):
        model.decode(torch.tensor([[1], [2]]), cache, 2)
