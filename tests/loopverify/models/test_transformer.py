"""The reference transformer against a plain numpy transcription of its equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import loopverify as lv
from loopverify.errors import InputError
from loopverify.models import LoopedTransformer, TransformerConfig

CONFIG = {"vocab_size": 13, "d_model": 12, "layers": 2, "heads": 3, "d_ff": 10, "trained_loops": 3, "init_std": 0.4}
TOKENS = torch.tensor([[1, 5, 9, 2], [12, 0, 0, 7]])


def build(**overrides: object) -> LoopedTransformer:
    return LoopedTransformer(TransformerConfig(**{**CONFIG, **overrides})).double().eval()


def rms_norm(x: np.ndarray, gain: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gain


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rotate(x: np.ndarray) -> np.ndarray:
    """x (T, C): channel pairs (c, c + C/2) turn by t * 10000^(-2c/C)."""
    length, channels = x.shape
    half = channels // 2
    z = x[:, :half] + 1j * x[:, half:]
    z = z * np.exp(1j * np.outer(np.arange(length), 10000.0 ** (-np.arange(half) * 2 / channels)))
    return np.concatenate([z.real, z.imag], -1)


def numpy_step(weights: dict[str, np.ndarray], h: np.ndarray, layers: int, heads: int) -> np.ndarray:
    """One loop over one sequence h (T, D)."""
    length, width = h.shape
    for i in range(layers):
        w = {name.removeprefix(f"layers.{i}."): value for name, value in weights.items()}
        q, k, v = np.split(rms_norm(h, w["attention_norm.weight"]) @ w["attention_mix.qkv.weight"].T, 3, -1)
        mixed = np.zeros((length, width))
        for n in range(heads):
            c = slice(n * width // heads, (n + 1) * width // heads)
            scores = rotate(q[:, c]) @ rotate(k[:, c]).T / np.sqrt(width // heads)
            scores[np.triu_indices(length, 1)] = -np.inf
            mixed[:, c] = softmax(scores) @ v[:, c]
        h = h + mixed @ w["attention_mix.out.weight"].T
        gate, up = np.split(rms_norm(h, w["mlp_norm.weight"]) @ w["mlp_mix.gate_up.weight"].T, 2, -1)
        h = h + (gate / (1 + np.exp(-gate)) * up) @ w["mlp_mix.down.weight"].T
    return h


def test_every_state_equals_the_transcription() -> None:
    module = build()
    for parameter in module.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    weights = {name: value.numpy() for name, value in module.state_dict().items()}
    trace = lv.unroll(module.looped(), TOKENS, loops=3)
    for row, tokens in enumerate(TOKENS.numpy()):
        h = weights["embedding.weight"][tokens]
        for k in range(4):
            # Rotary tables are float32 by design, hence 1e-6 and not 1e-14.
            np.testing.assert_allclose(trace.states[k][row].numpy(), h, rtol=3e-6, atol=3e-6)
            if k:
                expected = rms_norm(h, weights["readout_norm.weight"]) @ weights["head.weight"].T
                np.testing.assert_allclose(trace.logits(k)[row].numpy(), expected, rtol=1e-5, atol=1e-5)
            h = numpy_step(weights, h, layers=2, heads=3)


def test_the_readouts_differ_only_in_what_stands_before_the_head() -> None:
    state = torch.randn(2, 4, 12, dtype=torch.float64)
    mean, variance = state.mean(-1, keepdim=True), state.var(-1, correction=0, keepdim=True)
    normalized = state / (state.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    expected = {
        ("raw", 1): state,
        ("raw", 3): state,
        ("rmsnorm", 1): normalized,
        ("rmsnorm", 3): normalized,
        ("layernorm", 3): (state - mean) / (variance + 1e-6).sqrt(),
        ("final_only", 1): state,
        ("final_only", 3): normalized,
    }
    for (readout, loop), shown in expected.items():
        module = build(readout=readout)
        logits = module.readout(state, None, loop, 3)
        torch.testing.assert_close(logits, shown @ module.head.weight.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", ["own", "shared"])
def test_an_inter_loop_norm_fixes_the_scale_of_every_later_state(norm: str) -> None:
    module = build(inter_loop_norm=norm)
    assert (module.loop_norm is module.readout_norm) == (norm == "shared")
    trace = lv.unroll(module.looped(), TOKENS, loops=5)
    for state in trace.states[1:]:
        torch.testing.assert_close(state.square().mean(-1).sqrt(), torch.ones(2, 4).double(), rtol=1e-4, atol=0)
    assert lv.unroll(build().looped(), TOKENS, loops=5).states[5].square().mean() > 2  # and there is none by default


def test_the_branches_sum_to_the_step() -> None:
    module = build()
    model = module.looped()
    state, context = module.embed(TOKENS)
    added = model.branches(state, context, 1)
    assert [name for name, _ in added] == ["layers.0.attention", "layers.0.mlp", "layers.1.attention", "layers.1.mlp"]
    total = state + sum(out for _, out in added)
    torch.testing.assert_close(total, model.step(state, context, 1), rtol=1e-12, atol=1e-12)
    for _, out in added:
        state = state + out
    assert torch.equal(state, model.step(module.embed(TOKENS)[0], context, 1))  # in that order, to the last bit
    assert build(inter_loop_norm="own").looped().branches is None


def test_left_padding_changes_nothing_and_padding_is_never_attended_to() -> None:
    module = build()
    model = module.looped()
    plain = lv.unroll(model, TOKENS)
    pad = torch.cat([torch.full((2, 3), 4), TOKENS], 1)
    mask = torch.arange(7).expand(2, 7) >= 3
    state, context = module.embed_masked(pad, mask)
    for loop in (1, 2, 3):
        state = model.step(state, context, loop)
        torch.testing.assert_close(state[:, 3:], plain.states[loop], rtol=1e-10, atol=1e-10)


def test_a_later_token_has_no_influence_on_an_earlier_one() -> None:
    module = build()
    changed = TOKENS.clone()
    changed[:, 2] = 3
    a, b = (lv.unroll(module.looped(), tokens).logits(3) for tokens in (TOKENS, changed))
    assert torch.equal(a[:, :2], b[:, :2])
    assert (a[:, 2:] - b[:, 2:]).abs().amax() > 1e-3


def test_dropout_acts_in_training_only() -> None:
    module = build(dropout=0.5)
    model = module.looped()
    assert torch.equal(lv.unroll(model, TOKENS).states[3], lv.unroll(model, TOKENS).states[3])
    module.train()
    assert not torch.equal(lv.unroll(model, TOKENS).states[3], lv.unroll(model, TOKENS).states[3])


def test_the_papers_sizes_have_the_papers_parameter_counts() -> None:
    def count(d: int, layers: int, heads: int) -> int:
        with torch.device("meta"):
            config = TransformerConfig(
                vocab_size=20_000, d_model=d, layers=layers, heads=heads, d_ff=4 * d, tied_head=True
            )
            return sum(p.numel() for p in LoopedTransformer(config).parameters())

    assert round(count(512, 8, 8) / 1e6) == 44
    assert round(count(768, 12, 12) / 1e6) == 129


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"readout": "softmax"}, "unknown readout 'softmax'; expected one of: rmsnorm, raw, layernorm, final_only"),
        ({"inter_loop_norm": "both"}, "unknown inter-loop norm 'both'"),
        ({"norm_at": "middle"}, "unknown place of the inter-loop norm 'middle'; expected one of: end, start"),
        ({"heads": 5}, "d_model 12 over 5 heads; expected an even number of channels"),
        ({"heads": 12}, "d_model 12 over 12 heads; expected an even number of channels"),
        ({"layers": 0}, "layers is 0; expected an integer >= 1"),
        (
            {"readout": "raw", "inter_loop_norm": "shared"},
            "'shared' with readout 'raw'; expected a readout with a norm",
        ),
    ],
)
def test_a_wrong_shape_is_refused(overrides: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        TransformerConfig(**{**CONFIG, **overrides})
