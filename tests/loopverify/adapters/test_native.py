"""transformers' own looped models, tiny and random: their own forward is the reference, bit for bit, at every exit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import loopverify as lv
from loopverify.looped import Looped

pytest.importorskip("transformers", minversion="5.24", reason="needs the extra 'hf': pip install 'loopverify[hf]'")

WORDS = 31
SMALL = {"vocab_size": WORDS, "hidden_size": 16, "num_attention_heads": 2, "head_dim": 8}


def _spread(module: nn.Module) -> nn.Module:
    """Weights large enough that every part of the module shows in its output (several start at zero)."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


def dory(**options: object) -> nn.Module:
    from transformers import DoryConfig, DoryForCausalLM

    shape = {"num_hidden_layers": 5, "n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 2}
    rest = {"intermediate_size": 24, "num_key_value_heads": 1, "sliding_window": 4, "n_recurrent_loops": 3}
    return _spread(DoryForCausalLM(DoryConfig(**SMALL, **shape, **rest, **options)))


def hrm() -> nn.Module:
    from transformers import HrmTextConfig, HrmTextForCausalLM

    config = HrmTextConfig(**SMALL, intermediate_size=24, num_hidden_layers=2, H_cycles=2, L_cycles=3)
    return _spread(HrmTextForCausalLM(config))


def inkling_config(blocks: int) -> Any:
    """Two layers before the loop, two per block inside it, two after it."""
    from transformers.models.inkling2_loop import Inkling2LoopTextConfig

    layers = 4 + 2 * blocks
    attention = {"num_key_value_heads": 1, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 1}
    local = {"swa_head_dim": 8, "sliding_window_size": 4, "d_rel": 4, "rel_extent": 8}
    experts = {"moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2}
    loop = {"loop_layer_index_start": 2, "loop_layer_index_end": layers - 2, "loop_num_passes": 3, "loop_gate_rank": 4}
    return Inkling2LoopTextConfig(
        **SMALL | {"vocab_size": WORDS + 2},  # the checkpoints pad their embedding
        unpadded_vocab_size=WORDS,
        num_hidden_layers=layers,
        n_layers_per_attn_res_block=2,
        layer_types=["hybrid_sliding", "hybrid"] * (layers // 2),
        eos_token_id=1,
        **attention | local | experts | loop,
    )


def inkling(blocks: int = 2) -> nn.Module:
    from transformers.models.inkling2_loop import Inkling2LoopForCausalLM

    return _spread(Inkling2LoopForCausalLM(inkling_config(blocks)))


# name, builder, a module called exactly once per loop, cache slots per loop
MODELS = {
    "dory": (dory, "model.layers.1", 2),
    "hrm_text": (hrm, "model.H_module.layers.0", 2 * 4),
    "inkling2_loop": (inkling, "model.layers.2", 4),
}


@pytest.fixture(params=list(MODELS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def module(family: str) -> nn.Module:
    return MODELS[family][0]()


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(WORDS, (2, 9))


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def decode(model: Looped, tokens: Tensor, chunks: tuple[int, ...], loops: int) -> tuple[Tensor, Any]:
    cache, logits = None, []
    for chunk in tokens.split(chunks, dim=1):
        out, cache = model.decode(chunk, cache, loops)
        logits.append(out)
    return torch.cat(logits, dim=1), cache


def test_the_structure_is_recognized(family: str, module: nn.Module) -> None:
    model = lv.adapt(module)
    assert model.name == family
    assert model.trained_loops == {"dory": 3, "hrm_text": 2, "inkling2_loop": 3}[family]
    assert model.vocab_size == WORDS


def test_every_exit_of_one_run_equals_the_modules_forward_at_that_depth(module: nn.Module, tokens: Tensor) -> None:
    model = lv.adapt(module)
    trace = lv.unroll(model, tokens, loops=4)
    for loops in (1, 2, 3, 4):
        for name, path in model.paths.items():
            assert torch.equal(path(tokens, loops), trace.logits(loops)), (name, loops)
    assert not torch.allclose(trace.logits(3), trace.logits(4), atol=1e-3)  # loops matter


def test_the_loops_asked_are_the_loops_executed(family: str, module: nn.Module, tokens: Tensor) -> None:
    calls: list[int] = []
    module.get_submodule(MODELS[family][1]).register_forward_hook(lambda *_: calls.append(1))
    model = lv.adapt(module)
    config = module.config.to_dict()
    for loops in (1, 2, 5):
        runs = {"driver": lambda tokens, loops: lv.unroll(model, tokens, loops=loops), **model.paths}
        for name, run in runs.items():
            calls.clear()
            run(tokens, loops)
            assert len(calls) == loops, name
    assert module.config.to_dict() == config  # restored


def test_states_are_distinct_and_depend_on_their_loop(module: nn.Module, tokens: Tensor) -> None:
    trace = lv.unroll(lv.adapt(module), tokens, loops=3)
    for earlier, later in zip(trace.states[:-1], trace.states[1:], strict=True):
        assert earlier.shape == later.shape
        assert not torch.allclose(earlier, later, rtol=1e-2)


@pytest.mark.parametrize("chunks", [(1,) * 9, (4, 5)])
def test_cached_decoding_equals_the_full_forward(
    family: str, module: nn.Module, tokens: Tensor, chunks: tuple[int, ...]
) -> None:
    model = lv.adapt(module)
    for loops in (1, 3):
        logits, cache = decode(model, tokens, chunks, loops)
        assert torch.allclose(logits, lv.unroll(model, tokens, loops=loops).logits(loops), atol=1e-4)
        assert model.cache_slots(cache) == loops * MODELS[family][2]


def test_left_padding_changes_nothing(module: nn.Module, tokens: Tensor) -> None:
    model = lv.adapt(module)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :3] = False
    state, context = model.embed_masked(tokens, mask)
    for loop in (1, 2, 3):
        state = model.step(state, context, loop)
    padded = model.readout(state, context, 3, 3)
    assert torch.allclose(padded[:1, 3:], lv.unroll(model, tokens[:1, 3:], loops=3).logits(3), atol=1e-4)
    assert torch.allclose(padded[1:], lv.unroll(model, tokens[1:], loops=3).logits(3), atol=1e-4)


@torch.enable_grad()
def test_gradients_equal_those_of_the_modules_own_forward(module: nn.Module, tokens: Tensor) -> None:
    module(input_ids=tokens, use_cache=False).logits.square().mean().backward()
    own = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad(set_to_none=True)
    trace = lv.unroll(lv.adapt(module), tokens, grad=True)
    trace.logits(trace.loops).square().mean().backward()
    for name, parameter in module.named_parameters():
        if name in own:
            assert torch.allclose(parameter.grad, own[name], rtol=1e-3, atol=1e-6), name
        else:
            assert parameter.grad is None
    assert len(own) > 10


def test_a_dory_state_is_what_enters_the_norm(tokens: Tensor) -> None:
    module, entering = dory(), []
    hook = module.model.norm.register_forward_hook(lambda norm, args, out: entering.append(args[0]))
    module(input_ids=tokens, use_cache=False)
    hook.remove()
    states = lv.unroll(lv.adapt(module), tokens).states
    # The injected input, then the start of loops 1, 2 and 3, then the readout after the output layers.
    for entered, state in zip(entering[:4], (states[0], *states[:3]), strict=True):
        assert torch.equal(entered, state)
    assert len(entering) == 5


def test_an_hrm_state_is_both_streams_before_the_norms_that_end_their_stacks(tokens: Tensor) -> None:
    module, entering = hrm(), {"L_module": [], "H_module": []}
    for name, seen in entering.items():
        norm = module.model.get_submodule(name).final_norm
        norm.register_forward_hook(lambda norm, args, out, seen=seen: seen.append(args[0]))
    module(input_ids=tokens, use_cache=False)
    of_low, of_high = list(entering["L_module"]), list(entering["H_module"])
    trace = lv.unroll(lv.adapt(module), tokens)
    for loop in (1, 2):
        low, high = trace.states[loop].chunk(2, dim=-1)
        assert torch.equal(low, of_low[3 * loop - 1])  # the last of the three L cycles
        assert torch.equal(high, of_high[loop - 1])


@pytest.mark.parametrize("blocks", [1, 3])
def test_an_inkling_state_holds_as_many_streams_as_the_loop_has_blocks(tokens: Tensor, blocks: int) -> None:
    module = inkling(blocks)
    model = lv.adapt(module)
    trace = lv.unroll(model, tokens)
    assert trace.states[0].shape == (2, 9, blocks * 16)
    assert torch.equal(trace.logits(3), module(input_ids=tokens).logits)


def test_an_inkling_with_a_vision_tower_is_the_same_language_model(tokens: Tensor) -> None:
    from transformers.models.inkling2 import Inkling2VisionConfig
    from transformers.models.inkling2_loop import Inkling2LoopConfig, Inkling2LoopForConditionalGeneration

    vision = Inkling2VisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        patch_size=4,
        posemb_grid_size=2,
        projection_hidden_dim=8,
        text_hidden_size=16,
    )
    config = Inkling2LoopConfig(text_config=inkling_config(2), vision_config=vision, image_token_id=WORDS + 1)
    module = _spread(Inkling2LoopForConditionalGeneration(config))
    model = lv.adapt(module)
    for loops in (1, 3):
        assert torch.equal(lv.unroll(model, tokens, loops=loops).logits(loops), model.paths["forward"](tokens, loops))


def test_a_cache_of_the_last_loop_only_breaks_parity_and_is_declared(tokens: Tensor) -> None:
    model = lv.adapt(dory(recurrent_kv_cache_mode="last_loop"))
    assert "last_loop_cache" in model.declares
    assert "last_loop_cache" not in lv.adapt(dory()).declares
    full = lv.unroll(model, tokens).logits(3)
    one_by_one, cache = decode(model, tokens, (1,) * 9, 3)
    in_chunks, _ = decode(model, tokens, (4, 5), 3)
    assert model.cache_slots(cache) == 2  # not 3 * 2
    assert torch.equal(decode(model, tokens, (9,), 3)[0], full)  # one prefill is right
    assert (one_by_one - full).abs().max() > 0.1  # one token at a time is not
    assert (in_chunks - one_by_one).abs().max() > 0.1  # and the result depends on the chunks


def test_an_hrm_cache_is_sized_for_the_loops_of_the_run(tokens: Tensor) -> None:
    module = hrm()
    model = lv.adapt(module)
    assert model.cache_slots(decode(model, tokens, (9,), 4)[1]) == 4 * 8
    module.config.H_cycles = 4
    with pytest.raises(IndexError):  # the trap: the configuration counted the slots when it was built
        module(input_ids=tokens, use_cache=True)


def test_no_path_of_these_models_changes_with_labels(module: nn.Module, tokens: Tensor) -> None:
    plain = module(input_ids=tokens).logits
    assert torch.equal(module(input_ids=tokens, labels=tokens).logits, plain)
    assert "labels_mix_exits" not in lv.adapt(module).declares
