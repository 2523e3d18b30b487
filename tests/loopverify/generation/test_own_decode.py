"""Generation by a `decode` that only the model can look into: adapted modules, one cache for each row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import loopverify as lv
from loopverify.errors import InputError
from loopverify.generation import PAD, Decoder, EarlyExit, exit_effect, generate
from tests.loopverify.adapters.lookalikes import tiny_huginn, tiny_ouro
from tests.loopverify.checks.clean import CachedTransformer
from tests.loopverify.generation.test_cached import transformer

MODELS = {
    "ouro": lambda: lv.adapt(tiny_ouro(loops=3)),
    "huginn": lambda: lv.adapt(tiny_huginn(loops=3)),
    "a decode of its own": lambda: CachedTransformer().eval().looped(),
}
PROMPTS = [[4, 2], [7], [1, 2, 3, 4, 5]]


def greedy(model: lv.Looped, prompt: list[int], count: int, loops: int) -> list[int]:
    """By the full forward."""
    whole = torch.tensor([prompt])
    for _ in range(count):
        whole = torch.cat([whole, lv.unroll(model, whole, loops).logits(loops)[:, -1:].argmax(-1)], 1)
    return whole[0, len(prompt) :].tolist()


@pytest.mark.parametrize("loops", [1, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_greedy_generation_is_that_of_the_full_forward(kind: str, loops: int) -> None:
    model = MODELS[kind]()
    expected = [greedy(model, prompt, 5, loops) for prompt in PROMPTS]
    made = generate(model, PROMPTS, 5, loops=loops)
    assert made.tokens.tolist() == expected
    assert (made.exits == loops).all()
    assert made.executed == loops * (sum(map(len, PROMPTS)) + 4 * 3)
    stop = expected[1][0]
    stopped = generate(model, PROMPTS, 5, loops=loops, stop=stop)
    for row, full in enumerate(expected):
        length = full.index(stop) + 1 if stop in full else 5
        assert stopped.lengths[row] == length
        kept = [token for token in stopped.tokens[row].tolist() if token != PAD]
        assert kept == full[:length]


def test_a_vocabulary_of_unknown_size_has_no_largest_token() -> None:
    model = replace(CachedTransformer().eval().looped(), vocab_size=None)
    assert generate(model, PROMPTS, 5, stop=10**6).tokens.tolist() == [
        greedy(model, prompt, 5, 3) for prompt in PROMPTS
    ]
    with pytest.raises(InputError, match="prompt 0 has token -1 at position 0; expected 0 and above"):
        generate(model, [[-1]], 1)


def test_early_exits_need_a_decode_that_steps_the_model() -> None:
    model, batch = CachedTransformer().eval().looped("mine"), torch.zeros(1, 4, dtype=torch.int64)
    rule = EarlyExit(threshold=1.0)
    message = r"early_exit with 'mine', whose decode runs all loops in one call; .* loopverify\.models\.StepwiseDecode"
    for begin in (
        lambda: generate(model, PROMPTS, 1, early_exit=rule),
        lambda: Decoder(model, 1, early_exit=rule),
        lambda: exit_effect(model, [(batch, batch)], rule),
    ):
        with pytest.raises(InputError, match=message):
            begin()


@pytest.mark.parametrize("part", ["embed", "step", "readout"])
def test_a_decode_that_runs_another_model_is_refused(part: str) -> None:
    model = CachedTransformer().eval().looped("mine")
    other: Any = {part: lambda *arguments: getattr(model, part)(*arguments)}
    message = rf"'mine' has another {part} than its decode was declared with; expected a decode of the same model"
    with pytest.raises(InputError, match=message):
        generate(replace(model, **other), [[1]], 1)
    assert model.decode is not None
    again = replace(model, **other, decode=lambda *arguments: model.decode(*arguments))
    assert torch.equal(generate(again, [[1]], 3).tokens, generate(model, [[1]], 3).tokens)
    assert torch.equal(generate(replace(again, name="other"), [[1]], 3).tokens, generate(model, [[1]], 3).tokens)


def test_models_that_cannot_decode_are_refused() -> None:
    for wrong, name in ((replace(transformer().looped("mine"), decode=None), "mine"), (3, "int")):
        with pytest.raises(
            InputError, match=f"generation got '{name}'; expected a LoopedTransformer, or a Looped that declares decode"
        ):
            generate(wrong, [[1]], 1)  # type: ignore[arg-type]
