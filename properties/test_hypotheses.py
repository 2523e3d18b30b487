"""The hypotheses are needed: each test drops one assumption of a lemma and measures how far its conclusion fails.

A test for "not zero" would pass on rounding noise, so every failure here is compared with its exact size, or with the
size that the intact lemma predicts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from loopverify.theory import (
    Head,
    RMSNorm,
    carry,
    floor,
    log_slope,
    predicted_radial_signal,
    radial_fraction,
    radial_signal,
    radial_turning,
    scale_enclosure,
)
from loopverify.theory.visibility import sigma
from properties.blocks import Block, BlockRecipe, directions, generator, normal
from properties.strategies import scales, seeds

D, VOCAB, TOKENS, COUNT = 16, 11, 6, 4
READ = 64  # number of tokens read out, enough for a median that is robust to rounding noise
SCALES = tuple(np.logspace(2, 6, 9))

Map = Callable[[Tensor], Tensor]


def rms(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt()


def rms_normed(H: Tensor) -> Tensor:
    return H / rms(H)[..., None]


def signals(readout: Map, seed: int, s: float) -> tuple[Tensor, Tensor, Tensor]:
    """States (READ, D) of scale s, the gradients of the summed cross-entropy of W·readout(H), and each token's
    radial signal. Logits are of order one where the readout's output is."""
    rng = generator(seed)
    weight = normal(rng, VOCAB, D) / D**0.5
    targets = torch.randint(VOCAB, (READ,), generator=rng)
    H = (s * directions(rng, READ, D)).requires_grad_()
    loss = torch.nn.functional.cross_entropy(readout(H) @ weight.mT, targets, reduction="sum")
    (grad,) = torch.autograd.grad(loss, H)
    return H.detach(), grad, radial_signal(grad, H.detach())


def is_blind(grad: Tensor, H: Tensor) -> bool:
    """Whether the typical token's radial fraction is at the floor of float64 (a single one may exceed it tenfold)."""
    return float(radial_fraction(grad, H).median()) <= floor(torch.float64, D)


# Lemma 1 asks for a readout that ignores a common factor, token by token, and for its true gradient


@given(seeds, scales)
def test_intact_the_first_lemma_holds_in_this_setting(seed: int, s: float) -> None:
    H, grad, _ = signals(rms_normed, seed, s)
    assert is_blind(grad, H)


@given(seeds, scales)
def test_a_bias_before_the_norm_makes_scale_visible(seed: int, s: float) -> None:
    """r(H) = Norm(H + c) is blind along H + c instead, so that ⟨∇L, H⟩ = −⟨∇L, c⟩ exactly: of the size of a raw signal
    unless c is small relative to H."""
    bias = s * directions(generator(seed + 1), D)
    H, grad, signal = signals(lambda H: rms_normed(H + bias), seed, s)
    # Both inner products have errors of a few eps of the terms in their sums.
    assert (signal + grad @ bias).abs().max() <= 1e-12 * float((grad * H).abs().sum(-1).max())
    assert radial_fraction(grad, H).max() >= 1e-3


@given(seeds, scales)
def test_a_norm_over_the_sequence_shows_the_scale_of_each_token(seed: int, s: float) -> None:
    """One divisor for all tokens hides their common scale only: signals of single tokens cancel in the sum."""
    H, grad, signal = signals(lambda H: H / H.square().mean().sqrt(), seed, s)
    assert signal.sum().abs() <= 1e-12 * float((grad * H).abs().sum())
    assert radial_fraction(grad, H).max() >= 1e-3
    assert signal.abs().max() >= 1e-3


@given(seeds, scales)
def test_a_readout_that_bends_sees_scale_even_with_a_norm_behind_it(seed: int, s: float) -> None:
    """Norm(tanh(H/s)): normalized, yet not homogeneous, since tanh is not. (A softcap of the logits comes after the
    norm and changes nothing; one of the state comes before it.)"""
    H, grad, signal = signals(lambda H: rms_normed(torch.tanh(H / s)), seed, s)
    assert radial_fraction(grad, H).max() >= 1e-3
    assert signal.abs().max() >= 1e-3


@given(seeds, scales)
def test_a_detached_divisor_leaves_the_value_blind_and_the_gradient_raw(seed: int, s: float) -> None:
    """The loss ignores scale, but what reaches H is not the loss's gradient: its radial part is that of a raw readout,
    σ, since ∂(H/const)/∂log s = H/const."""
    rng = generator(seed)
    weight = normal(rng, VOCAB, D) / D**0.5
    targets = torch.randint(VOCAB, (READ,), generator=rng)
    H, _, signal = signals(lambda H: H / rms(H).detach()[..., None], seed, s)
    logits = rms_normed(H) @ weight.mT
    assert signal.numpy() == pytest.approx(sigma(logits, logits, targets).numpy(), rel=1e-10, abs=1e-12)
    assert signal.abs().max() >= 1e-3


@pytest.mark.parametrize("share", [0.5, 0.1, 1e-3])
def test_an_epsilon_is_seen_to_the_share_that_it_has_of_the_square(share: float) -> None:
    """ε/(s² + ε) = share: at share 0.5, the epsilon is half of the denominator's square, and scale is half visible."""
    eps = share / (1 - share)
    rng = generator(0)
    H = directions(rng, 64, D).requires_grad_()
    head = Head(readout=RMSNorm(eps=eps), weight=normal(rng, VOCAB, D))
    targets = torch.randint(VOCAB, (64,), generator=rng)
    (grad,) = torch.autograd.grad(torch.nn.functional.cross_entropy(head(H), targets, reduction="sum"), H)
    logits = head(H).detach()
    signal, raw = radial_signal(grad, H.detach()), sigma(logits, logits, targets)
    assert (signal / raw).numpy() == pytest.approx(share, rel=1e-9, abs=0)
    assert (predicted_radial_signal(head, H.detach(), targets) / raw).numpy() == pytest.approx(share, rel=1e-12, abs=0)
    assert radial_fraction(grad, H.detach()).median() >= 1e6 * floor(torch.float64, D)


# Lemma 2 asks for a residual step whose branch sees the direction only


def updates(step: Map, u: Tensor) -> tuple[Tensor, Tensor]:
    """rms(F(su) − su), and what Lemma 2 calls the remainder, rms(F(su)) − (s + a) with a taken at s = 1, both as roots
    of mean squares over all tokens, at each of SCALES."""
    a, _ = radial_turning(u, step(u) - u)
    moved = [step(s * u) - s * u for s in SCALES]
    remainder = [rms(step(s * u)) - s - a for s in SCALES]
    overall = [torch.stack([x.square().mean().sqrt() for x in column]) for column in (moved, remainder)]
    return overall[0], overall[1]


def a_block(seed: int, eps: float = 0.0) -> tuple[Block, Tensor]:
    return BlockRecipe(seed=seed, d=D, eps=eps, count=COUNT).build(), directions(generator(seed + 1), COUNT, TOKENS, D)


@given(seeds)
def test_intact_the_second_lemma_holds_in_this_setting(seed: int) -> None:
    block, u = a_block(seed)
    moved, remainder = updates(block.step, u)
    assert float(log_slope(SCALES, moved)) == pytest.approx(0, abs=1e-6)
    assert float(log_slope(SCALES, remainder)) == pytest.approx(-1, abs=0.05)


@given(seeds)
def test_without_a_pre_norm_the_update_grows_with_the_state(seed: int) -> None:
    """F(H) = H + W H: b(su) = s·b(u), so the "remainder" grows as s and the factor is not 1."""
    _, u = a_block(seed)
    W = normal(generator(seed), COUNT, D, D) / D**0.5

    def step(H: Tensor) -> Tensor:
        return H + H @ W.mT

    moved, remainder = updates(step, u)
    assert float(log_slope(SCALES, moved)) == pytest.approx(1, abs=1e-6)
    assert float(log_slope(SCALES, remainder)) == pytest.approx(1, abs=0.1)
    found = carry(step, u)
    assert found.factors.numpy() == pytest.approx(rms(step(u)).numpy(), rel=1e-9, abs=0)
    assert found.kind == "amplified"


@given(seeds)
def test_a_branch_that_grows_with_the_state_leaves_a_remainder(seed: int) -> None:
    """b = √s·B(Norm(H)): unbounded, though slower than the state. ρ then tends to rms(B_perp)²/2 instead of 0, and the
    first-order growth is √s·a, which no constant a describes."""
    block, u = a_block(seed)
    _, B_perp = radial_turning(u, block.limit(u))
    a, _ = radial_turning(u, block.limit(u))
    s = 1e6
    F = s * u + s**0.5 * block.limit(u)
    rho = rms(F) - s - s**0.5 * a
    # Next order: a·rms(B_perp)²/√s, a few thousandths here.
    assert rho.numpy() == pytest.approx(rms(B_perp).square().numpy() / 2, rel=0.02, abs=0)
    moved, _ = updates(lambda H: H + rms(H).sqrt()[..., None] * block.limit(rms_normed(H)), u)
    assert float(log_slope(SCALES, moved)) == pytest.approx(0.5, abs=1e-6)


@given(seeds)
def test_without_the_residual_path_scale_is_forgotten_in_one_loop(seed: int) -> None:
    """F(H) = B(Norm(H)): rms(F) is the same at every s, and the update is as large as the state."""
    block, u = a_block(seed)
    sizes = torch.stack([rms(block.limit(s * u)) for s in SCALES])
    assert (sizes / sizes[0] - 1).abs().max() <= 1e-12
    moved, _ = updates(block.limit, u)
    assert float(log_slope(SCALES, moved)) == pytest.approx(1, abs=0.01)
    assert carry(block.limit, u).kind == "removed"


@given(seeds)
def test_a_post_norm_removes_scale_with_no_norm_at_the_loop_boundary(seed: int) -> None:
    """Norm(H + B(H)), the residual inside the norm: rms 1 after every step, whatever went in."""
    block, u = a_block(seed)

    def step(H: Tensor) -> Tensor:
        return block.norm(block.step(H))

    assert all((rms(step(s * u)) - 1).abs().max() <= 1e-12 for s in SCALES)
    assert carry(step, u).factor <= 1e-9


@given(seeds)
def test_without_a_norm_on_its_inputs_attention_carries_other_tokens_scales(seed: int) -> None:
    """With the pre-norm, a token's update does not change when another token grows tenfold; with values taken from raw
    states, it grows with them."""
    rng = generator(seed)
    V = normal(rng, D, D) / D**0.5
    u = directions(rng, TOKENS, D)
    grown = u.clone()
    grown[0] *= 10.0

    def update(H: Tensor, normed: bool) -> Tensor:
        x = rms_normed(H)
        mixed = (x @ x.mT / D**0.5).softmax(-1)  # the weights come from directions in both
        return mixed @ (x if normed else H) @ V.mT

    intact = rms(update(grown, normed=True) - update(u, normed=True))[1:]
    dropped = rms(update(grown, normed=False) - update(u, normed=False))[1:]
    assert intact.max() <= 1e-14
    weights = (u @ u.mT / D**0.5).softmax(-1)[1:, 0]
    assert dropped.numpy() == pytest.approx((9 * weights * rms(u[:1] @ V.mT)).numpy(), rel=1e-9, abs=0)


@given(seeds, scales)
def test_an_update_that_turns_the_state_around_leaves_the_first_order(seed: int, s: float) -> None:
    """s > −a is needed: at a = −3s the state comes out at 2s, where first order says −2s. The enclosure includes it."""
    u = directions(generator(seed), TOKENS, D)
    F = s * u - 3 * s * u
    assert (rms(F) - (s - 3 * s)).numpy() == pytest.approx(4 * s, rel=1e-12, abs=0)
    low, high = scale_enclosure(*(torch.tensor(x, dtype=torch.float64) for x in (s, -3 * s, 0.0)))
    assert float(low) == pytest.approx(2 * s, rel=1e-12, abs=0)
    assert float(high) == pytest.approx(2 * s, rel=1e-12, abs=0)


@given(seeds)
def test_an_epsilon_stops_the_branch_from_seeing_a_small_state(seed: int) -> None:
    """Norm_ε(su) -> 0 for s << √ε: the update is then proportional to s (order +1) instead of constant."""
    block, u = a_block(seed, eps=1e-6)
    small = (1e-8, 1e-7, 1e-6)
    moved = torch.stack([(block.step(s * u) - s * u).square().mean().sqrt() for s in small])
    assert float(log_slope(small, moved)) == pytest.approx(1, abs=1e-3)
