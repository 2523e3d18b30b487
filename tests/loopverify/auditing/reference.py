"""The paper's model as an audit meets it: at initialization, and with the norms of a trained run."""

from __future__ import annotations

import torch

import loopverify as lv

V = 32
GENERATOR = torch.Generator().manual_seed(11)
TOKENS = torch.randint(V, (4, 12), generator=GENERATOR)
TARGETS = torch.randint(V, (4, 12), generator=GENERATOR)


def reference(readout: str, drift: float = 1.0, **settings: object) -> lv.Looped:
    """The paper's model with residual branches scaled so that its norms are `drift` times those of a training run."""
    torch.manual_seed(0)
    config = lv.models.TransformerConfig(vocab_size=V, d_model=32, d_ff=64, readout=readout, **settings)
    module = lv.models.LoopedTransformer(config)
    with torch.no_grad():
        for layer in module.layers:
            layer.attention_mix.out.weight *= drift
            layer.mlp_mix.down.weight *= drift
    return module.looped()
