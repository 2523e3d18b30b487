"""The Ouro shape of the reference model, against a separately written module of that architecture."""

from __future__ import annotations

import torch

import loopverify as lv
from loopverify.models import RECURRENCES, LoopedTransformer, TransformerConfig
from tests.loopverify.adapters.lookalikes import OuroLike, tiny_ouro

TOKENS = torch.randint(29, (2, 8), generator=torch.Generator().manual_seed(0))
SHAPE = {"vocab_size": 29, "d_model": 16, "layers": 2, "heads": 2, "d_ff": 32, "rope_theta": 100.0, "trained_loops": 3}


def ported(theirs: OuroLike, readout: str = "rmsnorm", recurrence: str = "shared_boundary_norm") -> LoopedTransformer:
    """Our model with their weights, and with their MLP in the place of the SwiGLU."""
    options = {"readout": readout, **RECURRENCES[recurrence]}
    ours = LoopedTransformer(TransformerConfig(**SHAPE, **options, sandwich_norm=True, exit_gate=True))  # type: ignore[arg-type]
    body = theirs.model
    pairs = [(ours.embedding, body.embed_tokens), (ours.head, theirs.lm_head), (ours.loop_norm, body.norm)]
    for own, layer in zip(ours.layers, body.layers, strict=True):
        own.mlp_mix = layer.mlp
        pairs += [
            (own.attention_mix.qkv, layer.self_attn.qkv),
            (own.attention_mix.out, layer.self_attn.o_proj),
            (own.attention_norm, layer.input_layernorm),
            (own.attention_out_norm, layer.input_layernorm_2),
            (own.mlp_norm, layer.post_attention_layernorm),
            (own.mlp_out_norm, layer.post_attention_layernorm_2),
        ]
    with torch.no_grad():
        for own, their in pairs:
            own.weight.copy_(their.weight)
        ours.exit_gate.weight.copy_(body.early_exit_gate.weight[0])
        ours.exit_gate.bias.copy_(body.early_exit_gate.bias[0])
    return ours.eval()


@torch.no_grad()
def test_exits_and_their_probabilities_are_those_of_the_other_module() -> None:
    theirs = tiny_ouro(loops=3)
    ours = ported(theirs)
    trace = lv.unroll(ours.looped(), TOKENS)
    _, normed, gates = theirs.model(TOKENS)
    for k, hidden in enumerate(normed, start=1):
        torch.testing.assert_close(trace.logits(k), theirs.lm_head(hidden), rtol=1e-4, atol=1e-5)
    first, second = (torch.sigmoid(gate.squeeze(-1)) for gate in gates[:2])
    expected = torch.stack([first, (1 - first) * second, (1 - first) * (1 - second)], -1)
    torch.testing.assert_close(ours.exit_probabilities(trace), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_twin_without_a_readout_norm_has_the_same_states_and_shows_them_as_they_are() -> None:
    theirs = tiny_ouro(loops=3)
    normed = lv.unroll(ported(theirs).looped(), TOKENS)
    bare = lv.unroll(ported(theirs, "raw", "boundary_norm").looped(), TOKENS)
    assert all(torch.equal(a, b) for a, b in zip(normed.states, bare.states, strict=True))
    torch.testing.assert_close(bare.logits(3), bare.states[3] @ theirs.lm_head.weight.T)
    assert not torch.allclose(bare.logits(3), normed.logits(3), rtol=0.1)


def test_at_the_published_shape_it_has_the_published_number_of_parameters() -> None:
    shape = {"vocab_size": 49_152, "d_model": 2048, "heads": 16, "d_ff": 5632}
    with torch.device("meta"):
        config = TransformerConfig(
            **shape, layers=48, sandwich_norm=True, exit_gate=True, **RECURRENCES["shared_boundary_norm"]
        )
        count = sum(p.numel() for p in LoopedTransformer(config).parameters())
    assert count == 2_667_974_657  # of the safetensors of Ouro-2.6B, as its model card counts them
