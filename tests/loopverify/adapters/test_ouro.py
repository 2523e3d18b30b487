"""The Ouro adapter on a look-alike: its own forward is the reference for every exit, and its traps are demonstrated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import loopverify as lv
from loopverify.adapters.exit_gates import first_reaching, stick_breaking
from loopverify.errors import InputError
from tests.loopverify.adapters.lookalikes import OuroLike, tiny_ouro


@pytest.fixture
def module() -> OuroLike:
    return tiny_ouro(loops=3)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(29, (2, 8))


@torch.no_grad()
def test_every_exit_equals_the_modules_own(module: OuroLike, tokens: Tensor) -> None:
    trace = lv.unroll(lv.adapt(module), tokens)
    _, normed, _ = module.model(tokens)
    assert len(normed) == trace.loops == 3
    for k, hidden in enumerate(normed, start=1):
        assert torch.equal(trace.logits(k), module.lm_head(hidden))


@torch.no_grad()
def test_states_are_taken_before_the_norm_which_the_module_applies_to_all_it_keeps(
    module: OuroLike, tokens: Tensor
) -> None:
    entering: list[Tensor] = []
    hook = module.model.norm.register_forward_hook(lambda norm, args, out: entering.append(args[0]))
    module.model(tokens)
    hook.remove()
    trace = lv.unroll(lv.adapt(module), tokens)
    for state, entered in zip(trace.states[1:], entering, strict=True):
        assert torch.equal(state, entered)
    kept = module.model(tokens)[1][-1]
    assert not torch.allclose(trace.states[3], kept, rtol=0.1)


@torch.no_grad()
@pytest.mark.parametrize("loops", [1, 2, 4])
def test_a_loop_count_set_in_the_configuration_does_nothing_and_an_argument_is_executed(
    module: OuroLike, tokens: Tensor, loops: int
) -> None:
    calls: list[int] = []
    module.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    module.config.total_ut_steps = loops
    module(tokens)
    assert len(calls) == 3  # the trap: the module copied the count when it was built
    model = lv.adapt(module)
    for name, path in model.paths.items():
        calls.clear()
        path(tokens, loops)
        assert len(calls) == loops, name
    calls.clear()
    trace = lv.unroll(model, tokens, loops=loops)
    assert len(calls) == loops
    assert torch.equal(model.paths["forward"](tokens, loops), trace.logits(loops))
    assert module.model.total_ut_steps == 3  # as it was


@torch.no_grad()
def test_labels_change_the_logits_and_the_model_declares_it(module: OuroLike, tokens: Tensor) -> None:
    model = lv.adapt(module)
    trace = lv.unroll(model, tokens)
    mixture = sum(
        probability[..., None] * trace.logits(k)
        for k, probability in enumerate(model.exit_probabilities(trace).unbind(-1), start=1)
    )
    with_labels = model.paths["forward_with_labels"](tokens, 3)
    assert torch.allclose(with_labels, mixture, atol=1e-5)
    assert (with_labels - trace.logits(3)).abs().max() > 0.1
    assert "labels_mix_exits" in model.declares


@torch.no_grad()
@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8, 1.0])
def test_the_exit_chosen_is_the_one_that_the_modules_forward_returns(
    module: OuroLike, tokens: Tensor, threshold: float
) -> None:
    model = lv.adapt(module)
    trace = lv.unroll(model, tokens)
    chosen = model.choose_exit(trace, threshold)
    exits = torch.stack([trace.logits(k) for k in (1, 2, 3)], dim=2)  # (B, T, K, V)
    expected = exits.gather(2, (chosen - 1)[..., None, None].expand(-1, -1, 1, exits.shape[-1]))[:, :, 0]
    assert torch.equal(module(tokens, exit_threshold=threshold).logits, expected)
    assert chosen.min() >= 1
    assert chosen.max() <= 3


def test_stick_breaking_by_hand() -> None:
    half, quarter = torch.zeros(1, 1), torch.full((1, 1), torch.tensor(1 / 3).log().item())  # sigmoids 1/2 and 1/4
    probabilities = stick_breaking([half, quarter, torch.full((1, 1), -9.0)])
    assert torch.allclose(probabilities, torch.tensor([[[1 / 2, 1 / 8, 3 / 8]]]))  # the last gate has no effect
    reached = [first_reaching(probabilities, t).item() for t in (0.5, 0.6, 0.7, 1.1)]
    assert reached == [1, 2, 3, 3]


def test_exit_probabilities_keep_the_dtype_of_the_gates_so_that_rounding_shows() -> None:
    gates = [torch.randn(8, 64) for _ in range(4)]
    off = {}
    for dtype in (torch.float32, torch.bfloat16):
        probabilities = stick_breaking([gate.to(dtype) for gate in gates])
        assert probabilities.dtype == dtype
        off[dtype] = (probabilities.double().sum(-1) - 1).abs().max().item()
    assert off[torch.float32] < 8 * torch.finfo(torch.float32).eps
    assert off[torch.bfloat16] > 1e-3  # the trap: they do not sum to 1


def off_by_rounding(loops: int, dtype: torch.dtype) -> float:
    """The largest error of the sum of K exit probabilities: p_k + left_k is left_(k-1) with at most two roundings,
    and after K - 1 exits (1 + u)^(2 (K - 1)), where u is half an eps."""
    return (1 + torch.finfo(dtype).eps / 2) ** (2 * (loops - 1)) - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loops", [2, 4, 8])
def test_stick_breaking_rounds_at_most_twice_per_exit(loops: int, dtype: torch.dtype) -> None:
    bound = off_by_rounding(loops, dtype)
    probabilities = stick_breaking([3 * torch.randn(64, 1024).to(dtype) for _ in range(loops)])
    off = (probabilities.double().sum(-1) - 1).abs().max().item()
    assert bound / 20 < off <= bound


def test_the_view_of_a_module_whose_gate_is_wide_conforms(module: OuroLike) -> None:
    lv.check_looped_model(module)


def test_a_gate_in_half_precision_is_a_fault_that_the_design_explains_but_does_not_excuse() -> None:
    # A limit as wide as the rounding of eight exits in bfloat16, 5.6 %, would excuse every gate.
    result = lv.checks.CHECKS["exit_half_precision"].run(lv.adapt(tiny_ouro(gate=nn.Linear)))
    assert result.status == "failed"
    assert 1e-3 < result.value <= off_by_rounding(8, torch.bfloat16) < 0.057
    assert off_by_rounding(8, torch.float32) < result.limit < 1e-5
    assert "compute gates and probabilities in float32 regardless of the dtype of the states" in result.message


@torch.no_grad()
@pytest.mark.parametrize("chunks", [(8,), (1,) * 8, (3, 5)])
def test_cached_decoding_equals_the_full_forward_with_a_slot_for_every_loop_and_layer(
    module: OuroLike, tokens: Tensor, chunks: tuple[int, ...]
) -> None:
    model = lv.adapt(module)
    for loops in (1, 3, 4):
        cache, logits = None, []
        for chunk in tokens.split(chunks, dim=1):
            out, cache = model.decode(chunk, cache, loops)
            logits.append(out)
        full = lv.unroll(model, tokens, loops=loops).logits(loops)
        assert torch.allclose(torch.cat(logits, dim=1), full, atol=1e-5)
        assert model.cache_slots(cache) == loops * 2


@torch.no_grad()
def test_left_padding_changes_nothing(module: OuroLike, tokens: Tensor) -> None:
    model = lv.adapt(module)
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[0, :3] = False
    state, context = model.embed_masked(tokens, mask)
    for loop in (1, 2, 3):
        state = model.step(state, context, loop)
    padded = model.readout(state, context, 3, 3)
    alone = lv.unroll(model, tokens[:1, 3:]).logits(3)
    assert torch.allclose(padded[:1, 3:], alone, atol=1e-5)


def test_layers_that_return_tuples_are_understood(module: OuroLike, tokens: Tensor) -> None:
    expected = lv.unroll(lv.adapt(module), tokens).states[3]
    for layer in module.model.layers:
        layer.register_forward_hook(lambda *call: (call[-1], None))
    assert torch.equal(lv.unroll(lv.adapt(module), tokens).states[3], expected)


def test_gradients_reach_the_embedding(module: OuroLike, tokens: Tensor) -> None:
    trace = lv.unroll(lv.adapt(module), tokens, grad=True)
    trace.logits(3).square().mean().backward()
    assert module.model.embed_tokens.weight.grad.abs().sum() > 0


def test_attention_that_takes_no_explicit_mask_is_refused(module: OuroLike) -> None:
    module.config._attn_implementation = "flash_attention_2"
    with pytest.raises(
        InputError, match=r"'flash_attention_2'; expected 'sdpa' or 'eager'.*attn_implementation='sdpa'"
    ):
        lv.adapt(module)
    module.config._attn_implementation = "sdpa"
    module.model.layers[1].attention_type = "sliding_attention"
    with pytest.raises(InputError, match=r"\['full_attention', 'sliding_attention'\]; expected only 'full_attention'"):
        lv.adapt(module)
