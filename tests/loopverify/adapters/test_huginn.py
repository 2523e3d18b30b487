"""The Huginn adapter on a look-alike: random states are seeded; the driver sets depth and positions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from tests.loopverify.adapters.lookalikes import HuginnLike, tiny_huginn


@pytest.fixture
def module() -> HuginnLike:
    return tiny_huginn(loops=3)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(29, (2, 8))


@torch.no_grad()
@pytest.mark.parametrize("loops", [1, 2, 3, 5])
def test_every_exit_equals_the_modules_own_forward_from_the_same_state(
    module: HuginnLike, tokens: Tensor, loops: int
) -> None:
    trace = lv.unroll(lv.adapt(module), tokens, loops=5)
    own = module(tokens, input_states=trace.states[0], num_steps=loops)
    assert torch.equal(trace.logits(loops), own.logits)


@torch.no_grad()
def test_states_are_taken_before_the_norm_and_the_modules_latents_do_not_resume_a_run(
    module: HuginnLike, tokens: Tensor
) -> None:
    model = lv.adapt(module)
    trace = lv.unroll(model, tokens)
    latents = module(tokens, input_states=trace.states[0], num_steps=2).latent_states
    assert torch.equal(module.transformer.ln_f(trace.states[2]), latents)
    resumed = model.step(trace.states[2], trace.context, 3)
    assert torch.equal(resumed, trace.states[3])
    wrongly = module(tokens, input_states=latents, num_steps=1).logits
    assert (wrongly - trace.logits(3)).abs().max() > 0.1


@torch.no_grad()
def test_the_modules_own_forward_is_random_and_the_view_is_not(module: HuginnLike, tokens: Tensor) -> None:
    assert not torch.equal(module(tokens).logits, module(tokens).logits)  # the trap
    left_random = lv.adapt(module, state_seed=None)
    assert not torch.equal(left_random.embed(tokens)[0], left_random.embed(tokens)[0])
    assert "random_state" in left_random.declares
    model = lv.adapt(module)
    assert "random_state" not in model.declares
    before = torch.random.get_rng_state()
    first, second = lv.unroll(model, tokens), lv.unroll(model, tokens)
    assert torch.equal(first.states[0], second.states[0])
    assert torch.equal(before, torch.random.get_rng_state())  # seeded without a change of the caller's generator
    other = lv.unroll(lv.adapt(module, state_seed=1), tokens)
    assert not torch.allclose(first.states[0], other.states[0])


@torch.no_grad()
def test_the_pinned_state_is_the_modules_own_distribution_and_belongs_to_a_position(module: HuginnLike) -> None:
    model = lv.adapt(module)
    state, _ = model.embed(torch.randint(29, (3, 32)))
    assert torch.equal(state[0], state[2])  # a row does not depend on its batch
    prefix, _ = model.embed(torch.randint(29, (1, 5)))
    assert torch.equal(state[:1, :5], prefix)  # nor on the length
    std, bound = 0.4 * module.emb_scale, 3 * 0.4 * module.emb_scale
    assert state[0].abs().max() <= bound
    # A normal cut at three standard deviations has 0.9866 of its standard deviation; 512 draws, 4 standard errors.
    assert abs(state[0].std().item() / std - 0.9866) < 4 / (2 * 512) ** 0.5


@torch.no_grad()
def test_depth_is_the_drivers_also_while_training(module: HuginnLike, tokens: Tensor) -> None:
    calls: list[int] = []
    module.transformer.core_block[0].register_forward_hook(lambda *_: calls.append(1))
    module.train()
    counts = set()
    for _ in range(20):
        calls.clear()
        module(tokens)
        counts.add(len(calls))
    assert len(counts) > 1  # the trap: a sampled depth
    model = lv.adapt(module)
    for loops in (1, 4):
        for name, path in model.paths.items():
            calls.clear()
            path(tokens, loops)
            assert len(calls) == loops, name
        calls.clear()
        lv.unroll(model, tokens, loops=loops)
        assert len(calls) == loops


def test_the_path_through_the_modules_forward_records_gradients(module: HuginnLike, tokens: Tensor) -> None:
    silent = module(tokens, num_steps=3).logits.square().mean()
    silent.backward()
    assert module.transformer.adapter.weight.grad is None  # the trap: a plain number of loops means no gradients
    module.zero_grad()
    model = lv.adapt(module)
    model.paths["forward"](tokens, 3).square().mean().backward()
    own = module.transformer.adapter.weight.grad.clone()
    module.zero_grad()
    lv.unroll(model, tokens, grad=True).logits(3).square().mean().backward()
    assert torch.allclose(module.transformer.adapter.weight.grad, own, rtol=1e-4, atol=1e-6)
    assert own.abs().max() > 0


@torch.no_grad()
@pytest.mark.parametrize("chunks", [(8,), (1,) * 8, (3, 5)])
def test_cached_decoding_equals_the_full_forward_with_a_slot_for_every_loop_and_layer(
    module: HuginnLike, tokens: Tensor, chunks: tuple[int, ...]
) -> None:
    model = lv.adapt(module)
    for loops in (1, 3):
        cache, logits = None, []
        for chunk in tokens.split(chunks, dim=1):
            out, cache = model.decode(chunk, cache, loops)
            logits.append(out)
        full = lv.unroll(model, tokens, loops=loops).logits(loops)
        assert torch.allclose(torch.cat(logits, dim=1), full, atol=1e-5)
        assert model.cache_slots(cache) == loops * 2  # the prelude's and the coda's are not counted


@torch.no_grad()
def test_no_padding_mask_is_offered_because_the_module_ignores_it(module: HuginnLike, tokens: Tensor) -> None:
    mask = torch.ones(2, 8)
    mask[:, 2] = 0
    state, _ = lv.adapt(module).embed(tokens)
    masked = module(tokens, input_states=state, num_steps=3, attention_mask=mask).logits
    assert torch.equal(masked, module(tokens, input_states=state, num_steps=3).logits)  # the trap
    assert lv.adapt(module).embed_masked is None


def test_noise_inside_the_loop_is_refused(module: HuginnLike) -> None:
    module.config.test_time_noise = 0.1
    with pytest.raises(InputError, match=r"test_time_noise is 0\.1; expected 0"):
        lv.adapt(module)
