"""The resolution of a dtype: the radial fraction of a blind readout is at the floor of its dtype, that of a raw one far
above it, and an epsilon is visible once its signal exceeds the floor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from loopverify.theory import Head, Raw, RMSNorm, TokenReadout, floor, predicted_radial_signal, radial_fraction
from properties.blocks import GENERATED, generator, normal
from properties.strategies import seeds

TOKENS, VOCAB = 64, 50
WIDTHS = st.sampled_from([16, 64, 256])
DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16])
# A normed state is the same at every scale, up to the rounding of s; float16 would overflow in s² from s = 250 on.
SCALES = st.sampled_from([1.0, 30.0, 1e3, 1e4])


def fractions(readout: TokenReadout, seed: int, d: int, s: float, dtype: torch.dtype) -> Tensor:
    """Radial fractions (TOKENS,) of a cross-entropy whose readout and head run in `dtype`, forward and backward. As in
    mixed-precision training, the softmax of a half precision runs in float32."""
    rng = generator(seed)
    H = (s * normal(rng, TOKENS, d)).to(dtype).requires_grad_()
    weight = (1.5 * normal(rng, VOCAB, d) / d**0.5).to(dtype)
    targets = torch.randint(VOCAB, (TOKENS,), generator=rng)
    logits = Head(readout=readout, weight=weight)(H)
    wide = logits if dtype == torch.float64 else logits.float()
    (grad,) = torch.autograd.grad(torch.nn.functional.cross_entropy(wide, targets, reduction="sum"), H)
    GENERATED["readouts"] += 1
    return radial_fraction(grad, H.detach())


@given(seeds, WIDTHS, SCALES, DTYPES)
def test_a_blind_readout_stays_at_the_floor(seed: int, d: int, s: float, dtype: torch.dtype) -> None:
    """The floor is the root mean square of the rounding noise; the mean of 64 tokens is below it, up to the heavy
    tail of single tokens. A floor a hundred times too high would also fail."""
    found = fractions(RMSNorm(eps=0.0), seed, d, s, dtype)
    assert found.mean() <= 2 * floor(dtype, d)
    assert found.mean() >= 0.01 * floor(dtype, d)


@given(seeds, WIDTHS, SCALES, DTYPES)
def test_a_raw_readout_stands_clear_of_the_floor(seed: int, d: int, s: float, dtype: torch.dtype) -> None:
    """About 1/√d against 2·eps/√d: a hundred times in bfloat16, 1e6 in float32."""
    found = fractions(Raw(), seed, d, min(s, 30.0), dtype)
    # With logits of a hundred, a token predicted with certainty has no gradient and hence no fraction.
    assert found.nanmean() >= 10 * floor(dtype, d)
    assert found.nanmean() >= 0.1 / d**0.5


@pytest.mark.parametrize(("s", "above"), [(1.0, True), (1e3, False)])
def test_an_epsilon_is_seen_in_float32_only_above_the_floor(s: float, above: bool) -> None:
    """ε = 1e-4: the fraction is about ν/√d, which is 1e-4/√d at s = 1, but 1e-10/√d at s = 1e3, under a floor of
    2e-7/√d. The visible part is the predicted one, to the few digits by which it exceeds the noise."""
    d, rng = 64, generator(3)
    H = s * normal(rng, TOKENS, d)
    weight = 1.5 * normal(rng, VOCAB, d) / d**0.5
    targets = torch.randint(VOCAB, (TOKENS,), generator=rng)
    eps = 1e-4
    head = Head(readout=RMSNorm(eps=eps), weight=weight)
    wide = H.clone().requires_grad_()
    (grad,) = torch.autograd.grad(torch.nn.functional.cross_entropy(head(wide), targets, reduction="sum"), wide)
    expected = predicted_radial_signal(head, H, targets).abs() / (grad.norm(dim=-1) * H.norm(dim=-1))
    found = fractions(RMSNorm(eps=eps), 3, d, s, torch.float32)
    if above:
        assert found.median() >= 10 * floor(torch.float32, d)
        assert found.median().item() == pytest.approx(expected.median().item(), rel=0.05)
    else:
        assert expected.mean() <= 0.1 * floor(torch.float32, d)
        assert found.mean() <= 2 * floor(torch.float32, d)
