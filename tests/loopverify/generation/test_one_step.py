"""Whatever is changed about a model acts the same in its full forward and in decoding: there is one step for both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import loopverify as lv
from loopverify.errors import InputError
from loopverify.generation import Decoder, EarlyExit, generate
from loopverify.models import LoopedTransformer
from loopverify.models.layers import Context
from tests.loopverify.generation.naive import Naive
from tests.loopverify.generation.test_cached import V, transformer
from tests.loopverify.generation.test_generation import exits_of

TOKENS = torch.randint(V, (3, 9), generator=torch.Generator().manual_seed(1))
POSITIONS = torch.randn(64, 16, generator=torch.Generator().manual_seed(2))
CHUNKS = [(1,) * 9, (4, 3, 2)]
VARIANTS = [
    {},
    {"sandwich_norm": True, "damping": 0.9, "tied_head": True},
    {"inter_loop_norm": "shared", "norm_at": "start", "readout": "layernorm"},
    {"inter_loop_norm": "own", "readout": "final_only"},
]


@torch.no_grad()
def assert_one_model(model: LoopedTransformer | lv.Looped) -> Tensor:
    """Full forward, decoding in chunks and greedy generation show the same; returns the logits of the full forward."""
    view = model.looped() if isinstance(model, LoopedTransformer) else model
    full = lv.unroll(view, TOKENS).logits(view.trained_loops)
    for chunks in CHUNKS:
        decoder, cache, ways = Decoder(model, 3), None, []
        for chunk in TOKENS.split(chunks, 1):
            logits, cache = view.decode(chunk, cache, view.trained_loops)
            ways.append((decoder.extend(chunk), logits))
        for way in zip(*ways, strict=True):
            # Rotary tables are float32 whatever the weights are; the same ones in both.
            torch.testing.assert_close(torch.cat(way, 1), full, rtol=1e-9, atol=1e-9)
    prompts = [TOKENS[0, :2], TOKENS[1, :5], TOKENS[2]]
    for prompt, made in zip(prompts, generate(model, prompts, 4).tokens, strict=True):
        whole = prompt[None]
        for _ in range(4):
            whole = torch.cat([whole, lv.unroll(view, whole).logits(view.trained_loops)[:, -1:].argmax(-1)], 1)
        assert made.tolist() == whole[0, len(prompt) :].tolist()
    return full


Part = Callable[..., Any]


def stretched(step: Part) -> Part:
    """Every channel by a factor of its own, and in every loop by another."""
    return lambda state, context, loop: step(state, context, loop) * torch.linspace(0.5, 1.5, 16).to(state) ** loop


def twice(step: Part) -> Part:
    """Every layer is used twice in a loop."""
    return lambda state, context, loop: step(step(state, context, loop), context, loop)


def with_positions(embed: Part) -> Part:
    def changed(tokens: Tensor) -> tuple[Tensor, Context]:
        state, context = embed(tokens)
        return state + POSITIONS[: tokens.shape[1]].to(state), context

    return changed


def with_previous(embed: Part) -> Part:
    """Every token is embedded with the one before it."""

    def changed(tokens: Tensor) -> tuple[Tensor, Context]:
        state, context = embed(tokens)
        return state + nn.functional.pad(state, (0, 0, 1, 0))[:, :-1], context

    return changed


def with_slower_rotation(embed: Part) -> Part:
    def changed(tokens: Tensor) -> tuple[Tensor, Context]:
        state, context = embed(tokens)
        angles = torch.arange(tokens.shape[1])[:, None] * torch.tensor([0.3, 0.1, 0.02, 0.0])
        return state, replace(context, rope=(angles.cos(), angles.sin()))

    return changed


def reversed_vocabulary(readout: Part) -> Part:
    return lambda *arguments: readout(*arguments).flip(-1) * 1.5


def colder_by_position(readout: Part) -> Part:
    def changed(state: Tensor, context: Context, loop: int, loops: int) -> Tensor:
        cos = context.rope[0][..., -1:]  # (T, 1), or (R, 1, q, 1) in decoding
        return readout(state, context, loop, loops) * (2 + (cos if cos.ndim == 2 else cos[:, 0]))

    return changed


CHANGES = {
    "step": (stretched, twice),
    "embed": (with_positions, with_previous, with_slower_rotation),
    "readout": (reversed_vocabulary, colder_by_position),
}
EVERY_CHANGE = [pytest.param(part, change, id=change.__name__) for part, made in CHANGES.items() for change in made]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(("part", "change"), EVERY_CHANGE)
@pytest.mark.parametrize("by", ["subclass", "replace"])
def test_an_override_acts_in_decoding(by: str, part: str, change: Callable[[Part], Part], variant: dict) -> None:
    plain = transformer(**variant).double()
    if by == "replace":
        view = plain.looped()
        changed: Any = replace(view, **{part: change(getattr(view, part))})
    else:
        override = lambda self, *arguments: change(getattr(super(kind, self), part))(*arguments)  # noqa: E731
        kind = type("Changed", (LoopedTransformer,), {part: override})
        changed = kind(plain.config).double().eval()
        changed.load_state_dict(plain.state_dict())
    assert not torch.allclose(assert_one_model(changed), lv.unroll(plain.looped(), TOKENS).logits(4), rtol=0.01)


def turned(x: Any) -> Any:
    """Channels in another order, which no norm hides; other token ids."""
    if not isinstance(x, Tensor):
        return x
    return x.roll(1, -1) if x.is_floating_point() else (x + 1) % V


@contextmanager
def hooked(module: nn.Module, kind: str) -> Iterator[None]:
    if kind == "forward hook":
        handle = module.register_forward_hook(lambda module, inputs, output: turned(output))
    else:
        handle = module.register_forward_pre_hook(lambda module, inputs: tuple(map(turned, inputs)))
    yield
    handle.remove()


def called(module: LoopedTransformer) -> list[str]:
    """All submodules but those that are containers."""
    return [name for name, part in module.named_modules() if name and not isinstance(part, nn.ModuleList)]


RICH = {"sandwich_norm": True, "damping": 0.9, "inter_loop_norm": "own", "norm_at": "start"}


@pytest.mark.parametrize("kind", ["forward hook", "forward pre-hook"])
@pytest.mark.parametrize("name", called(transformer(**RICH)))
def test_a_hook_on_any_submodule_acts_in_decoding(name: str, kind: str) -> None:
    module = transformer(**RICH).double()
    plain = lv.unroll(module.looped(), TOKENS).logits(4)
    with hooked(module.get_submodule(name), kind):
        hooked_logits = assert_one_model(module)
    assert not torch.allclose(hooked_logits, plain, rtol=0.01)
    assert torch.equal(lv.unroll(module.looped(), TOKENS).logits(4), plain)


def test_what_is_patched_in_one_loop_is_patched_in_that_loop_of_decoding() -> None:
    module = transformer().double()
    view, at = module.looped(), [0]

    def step(state: Tensor, context: Context, loop: int) -> Tensor:
        at[0] = loop
        return module.step(state, context, loop)

    patched = replace(view, step=step)
    shown = []
    for loop in (1, 2, 4):
        handle = module.layers[0].register_forward_hook(
            lambda module, inputs, output, loop=loop: turned(output) if at[0] == loop else output
        )
        shown.append(assert_one_model(patched))
        handle.remove()
    shown.append(assert_one_model(patched))
    assert all(not torch.allclose(a, b, rtol=0.01) for i, a in enumerate(shown) for b in shown[:i])


def test_what_is_patched_at_one_place_is_patched_at_that_place_of_decoding() -> None:
    module = transformer().double()

    def patch(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return torch.cat([output[:, :2], torch.ones_like(output[:, 2:3]), output[:, 3:]], 1)[:, : output.shape[1]]

    plain = assert_one_model(module)
    module.embedding.register_forward_hook(patch)
    whole = assert_one_model(module)
    assert torch.equal(whole[:, :2], plain[:, :2])
    assert not torch.allclose(whole[:, 2], plain[:, 2], rtol=0.01)


class Halved(LoopedTransformer):
    def step(self, state: Tensor, context: Context, loop: int) -> Tensor:
        return 0.5 * super().step(state, context, loop)


def half(**changes: Any) -> Halved:
    plain = transformer(**changes)
    module = Halved(plain.config).double().eval()
    module.load_state_dict(plain.state_dict())
    return module


def test_tokens_leave_an_overridden_step_where_its_full_forward_says() -> None:
    module = half(readout="raw")
    trace = lv.unroll(module.looped(), TOKENS)
    a, b = trace.logits(1).topk(2).values.unbind(-1)
    threshold = float((a - b).quantile(0.8))
    exits, logits = exits_of(module, TOKENS, threshold)
    assert len(exits.unique()) >= 3
    decoder = Decoder(module, 3, early_exit=EarlyExit(threshold=threshold))
    steps = [decoder.step(token) for token in TOKENS.unbind(1)]
    assert torch.equal(torch.stack([step.exits for step in steps], 1), exits)
    torch.testing.assert_close(torch.stack([step.logits for step in steps], 1), logits)


@pytest.mark.parametrize("missing", ["copy", "propagate"])
def test_cheap_rules_run_through_an_overridden_step(missing: Any) -> None:
    module = half(readout="raw")
    decoder = Decoder(module, 3, early_exit=EarlyExit(threshold=2.0, missing=missing))
    steps = [decoder.step(token) for token in TOKENS.unbind(1)]
    exits = torch.stack([step.exits for step in steps], 1)
    assert len(exits.unique()) >= 3
    for row in range(3):
        expected, logits = Naive(module, loops=4, threshold=2.0, missing=missing, factor=0.5).run(TOKENS[row], 0)
        assert exits[row].tolist() == expected
        shown = torch.stack([step.logits[row] for step in steps])
        torch.testing.assert_close(shown, torch.stack(logits), rtol=1e-4, atol=1e-4)


def test_a_context_of_another_kind_needs_a_way_to_narrow_it() -> None:
    class Noted(dict[str, Context]):
        def narrowed(self, chunk: Any) -> Noted:
            return Noted(context=self["context"].narrowed(chunk))

    class Named(LoopedTransformer):
        kind: type[dict[str, Context]] = dict

        def embed(self, tokens: Tensor) -> tuple[Tensor, Any]:
            state, context = super().embed(tokens)
            return state, self.kind(context=context)

        def step(self, state: Tensor, context: Any, loop: int) -> Tensor:
            return super().step(state, context["context"], loop)

    module = Named(transformer().config).double().eval()
    with pytest.raises(
        InputError, match=r"embed returned a dict as context; expected one with a method narrowed\(chunk\)"
    ):
        generate(module, [[1]], 1)
    module.kind = Noted
    assert_one_model(module)
