"""Generation against the full forward, and early exits against their rules written out token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.generation import MISSING, Decoder, EarlyExit, generate, stream
from loopverify.halting.confidence import Arrival, Score
from loopverify.halting.token_statistics import TokenStatistics
from loopverify.models import RECURRENCES, LoopedTransformer
from tests.loopverify.generation.naive import Naive
from tests.loopverify.generation.test_cached import V, transformer


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
    assert decoder.held.executed == int(needed.sum())


@pytest.mark.parametrize("missing", ["copy", "propagate"])
@pytest.mark.parametrize(
    ("readout", "recurrence"),
    [("raw", "residual"), ("final_only", "residual"), ("raw", "inter_loop_norm"), ("raw", "boundary_norm")],
)
def test_cheap_rules_do_what_they_say(missing: Any, readout: str, recurrence: str) -> None:
    module = transformer(readout=readout, **RECURRENCES[recurrence]).double()
    with torch.no_grad():
        for gain in () if module.loop_norm is None else module.loop_norm.parameters():
            gain.uniform_(0.5, 2)
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
    assert decoder.held.executed == 4 * 4 * 3 + int(exits.sum())


class Constant(Score):
    name = "constant"

    def confidence(self, at: Arrival, reading: TokenStatistics | None) -> Tensor:
        return torch.ones(at.after.shape[:2])


@pytest.mark.parametrize(("threshold", "exit_"), [(1.0, 4), (1 - 2**-20, 1)])
def test_a_token_leaves_where_its_confidence_is_above_the_threshold(threshold: float, exit_: int) -> None:
    made = generate(transformer(), [[1, 2]], 3, early_exit=EarlyExit(threshold=threshold, score=Constant()))
    assert made.exits.tolist() == [[exit_] * 3]


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


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "no prompts; expected at least one sequence of token ids"),
        (3, "prompts are 3; expected a sequence of sequences of token ids"),
        ("ab", "prompt 0 is 'a'; expected a sequence of token ids"),
        ([[1], []], r"prompt 1 is torch.float32 \(0,\); expected a sequence of at least one token id"),
        ([[True]], r"prompt 0 is torch.bool \(1,\); expected a sequence of at least one token id"),
        (torch.tensor([1, 2]), r"prompt 0 is torch.int64 \(\); expected a sequence of at least one token id"),
        (["ab"], "prompt 0 is 'ab'; expected a sequence of token ids"),
        ([[1], [2, V, 3, -1]], rf"prompt 1 has token {V} at position 1; expected 0\.\.{V - 1} for a vocabulary of {V}"),
        ([[2, 3, -1]], r"prompt 0 has token -1 at position 2; expected 0\.\."),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused(prompts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate(transformer(), prompts, 1)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0; expected an integer >= 1"),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5; expected an integer >= 1"),
        ({"loops": 0}, "loops is 0; expected an integer >= 1"),
        ({"loops": 2.5}, "loops is 2.5; expected an integer >= 1"),
        ({"temperature": -1}, r"temperature is -1; expected 0 \(the most likely token\) or a positive number"),
        ({"temperature": "1"}, r"temperature is '1'; expected 0 \(the most likely token\) or a positive number"),
        ({"top_k": 0}, "top_k is 0; expected an integer >= 1, or None to sample from all tokens"),
        ({"top_k": 2.5}, "top_k is 2.5; expected an integer >= 1, or None"),
        ({"top_p": 0}, r"top_p is 0; expected a probability in \(0, 1\], or None to sample from all tokens"),
        ({"top_p": True}, r"top_p is True; expected a probability in \(0, 1\], or None"),
        ({"stop": V}, rf"stop is {V}; expected token ids in 0\.\.{V - 1} for a vocabulary of {V}"),
        ({"stop": [1, 2.0]}, r"stop is 2.0; expected token ids in 0\.\."),
        ({"stop": "\n"}, r"stop is '\\n'; expected token ids in 0\.\."),
        ({"generator": 3}, "generator is 3; expected a torch.Generator on cpu, where the model is, or None"),
        ({"early_exit": 2.0}, r"early_exit is 2.0; expected an EarlyExit\(threshold=...\), or None for full depth"),
    ],
)
def test_settings_out_of_range_are_refused_before_anything_runs(setting: dict[str, Any], message: str) -> None:
    for begin in (generate, stream):
        with pytest.raises(InputError, match=message):
            begin(transformer(), [[1]], **{"max_new_tokens": 1, **setting})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"missing": "hope"}, "unknown rule for missing keys 'hope'; expected one of: recompute, copy, prop"),
        ({"score": 3}, "unknown halting score 3; expected one of: margin, "),
        ({"threshold": float("nan")}, "threshold is nan; expected a confidence that an exit has to be above"),
        ({"threshold": None}, "threshold is None; expected a confidence that an exit has to be above"),
    ],
)
def test_rules_that_cannot_be_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EarlyExit(**{"threshold": 0.0, **setting})


def test_a_cache_is_continued_as_it_was_begun() -> None:
    model = transformer().looped()
    assert model.decode is not None
    _, cache = model.decode(torch.tensor([[1]]), None, 2)
    with pytest.raises(InputError, match="a cache of 2 loops to continue with 3; expected the same number"):
        model.decode(torch.tensor([[1]]), cache, 3)
    with pytest.raises(InputError, match="2 rows to continue a cache of 1; expected the rows it was begun with"):
        model.decode(torch.tensor([[1], [2]]), cache, 2)
    with pytest.raises(InputError, match=rf"tokens span {V}\.\.{V}; expected 0\.\.{V - 1} for a vocabulary of {V}"):
        model.decode(torch.tensor([[V]]), cache, 2)
    with pytest.raises(InputError, match="rows is 0; expected an integer >= 1"):
        Decoder(transformer(), 0)


def test_random_numbers_have_to_be_where_the_model_is() -> None:
    elsewhere = transformer().to("meta")
    with pytest.raises(InputError, match=r"generator is on cpu; expected a torch\.Generator on meta, where the"):
        generate(elsewhere, [[1]], 1, generator=torch.Generator())
