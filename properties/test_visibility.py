"""Lemma 1 on random readouts, heads and states: the visibility of scale to a loss, exact including epsilon."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from loopverify.theory import (
    ClampedL2,
    DynamicTanh,
    Head,
    LayerNorm,
    Raw,
    RMSNorm,
    Tapered,
    fisher_visibility,
    mean_fraction,
    penalty_radial_signal,
    predicted_radial_signal,
    radial_signal,
)
from properties.blocks import GENERATED, generator, normal
from properties.heads import Case, CaseRecipe, gradient, magnitude
from properties.strategies import cases, scales, seeds, small_tokens, widths

# Relative to Σ|terms| (see `magnitude`), of which the error of float64 is at worst 1e-12 here (measured: 6e-16); a
# wrong factor anywhere in an identity shows at order one.
TOLERANCE = 1e-12

HIDDEN = ("rmsnorm", "layernorm", "l2")
no_epsilon = st.just(0.0)


@st.composite
def small_cases(draw: st.DrawFn) -> Case:
    """A head of two or three words on one state, all of short floats: edges, and readable failures."""
    vocab = draw(st.integers(2, 3))
    H, *rows = draw(small_tokens(count=1 + vocab))
    eps = draw(st.sampled_from([0.0, 1e-6, 1.0]))
    gain = draw(st.sampled_from([None, torch.arange(1.0, len(H) + 1, dtype=torch.float64)]))
    norm = RMSNorm(gain=gain, eps=eps)
    kinds = [
        Raw(),
        norm,
        LayerNorm(gain=gain, bias=gain, eps=eps),
        ClampedL2(eps=2.0),
        DynamicTanh(alpha=0.5, gain=gain),
        Tapered(gate=0.25, norm=norm, linear=gain),
    ]
    chosen = draw(st.sampled_from(kinds))
    if isinstance(chosen, LayerNorm):
        # Where all channels agree, LayerNorm divides 0 by √ε: not differentiable for ε = 0 (and excluded by the lemma).
        assume(float(H.var(correction=0)) > 1e-6)
    head = Head(readout=chosen, weight=torch.stack(rows), softcap=draw(st.sampled_from([None, 2.0])))
    GENERATED["readouts"] += 1
    return Case(head=head, H=H[None], targets=torch.tensor([draw(st.integers(0, vocab - 1))]))


def difference(c: Case) -> Tensor:
    """Radial signal by automatic differentiation minus the predicted one, relative to Σ|terms|."""
    found, predicted = radial_signal(gradient(c), c.H), predicted_radial_signal(c.head, c.H, c.targets)
    # With all-zero weights there are no terms; 1e-300 avoids 0/0.
    return (found - predicted).abs() / magnitude(c).clamp_min(1e-300)


@given(cases())
def test_radial_gradient_is_the_predicted_signal(recipe: CaseRecipe) -> None:
    c = recipe.build()
    assert difference(c).max() <= TOLERANCE


@given(small_cases())
def test_radial_gradient_is_the_predicted_signal_at_edges(c: Case) -> None:
    assert difference(c).max() <= TOLERANCE


@given(cases(kinds=HIDDEN, eps=no_epsilon))
def test_without_epsilon_normalized_readouts_hide_scale(recipe: CaseRecipe) -> None:
    """The lemma itself. The cases include softcaps, which do not change it after a norm."""
    c = recipe.build()
    assert torch.equal(predicted_radial_signal(c.head, c.H, c.targets), torch.zeros(len(c.H), dtype=torch.float64))
    assert (radial_signal(gradient(c), c.H).abs() <= TOLERANCE * magnitude(c)).all()


@given(cases(kinds=HIDDEN, eps=no_epsilon), st.floats(-3, 3))
def test_without_epsilon_the_loss_itself_ignores_scale(recipe: CaseRecipe, exponent: float) -> None:
    """The premise of the lemma, without any derivative: L(αH) = L(H)."""
    c = recipe.build()
    alpha = 10.0**exponent
    if isinstance(c.head.readout, ClampedL2):
        alpha = max(alpha, 0.01)  # the clamp begins at 1e-3 of the state's norm
    # A loss moves by at most twice the largest change of a logit, and the error of a logit is 1e-12 of its terms.
    assert ((c.loss(alpha * c.H) - c.loss(c.H)).abs() <= TOLERANCE * magnitude(c)).all()


def plain_sigma(values: Tensor, logits: Tensor, targets: Tensor) -> np.ndarray:
    """E_p[values] − values_y in numpy, written out."""
    z, v = logits.numpy(), values.numpy()
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return (p * v).sum(-1) - np.take_along_axis(v, targets.numpy()[:, None], -1)[:, 0]


@given(cases(kinds=("raw", "rmsnorm", "layernorm", "l2", "l2_below"), softcap=st.none()))
def test_signal_is_visibility_times_sigma(recipe: CaseRecipe) -> None:
    """ν·σ, with ν and σ written out in numpy: ε/(s² + ε) of the scale, ε/(v + ε) of the variance, 1 or 0."""
    c = recipe.build()
    r, H = c.head.readout, c.H.numpy()
    logits = values = c.head(c.H)
    if isinstance(r, RMSNorm):
        nu = r.eps / ((H**2).mean(-1) + r.eps)
    elif isinstance(r, LayerNorm):
        nu = r.eps / (H.var(-1) + r.eps)
        assert r.bias is not None
        values = logits - c.head.weight @ r.bias
    elif isinstance(r, ClampedL2):
        nu = (np.linalg.norm(H, axis=-1) < r.eps).astype(float)
    else:
        nu = np.ones(len(H))
    expected = nu * plain_sigma(values, logits, c.targets)
    error = np.abs(radial_signal(gradient(c), c.H).numpy() - expected)
    # z' is found here as a difference, z − Wβ, which adds the terms of Wβ to those that are rounded.
    terms = magnitude(c) + (2 * (c.head.weight @ r.bias).abs().max() if isinstance(r, LayerNorm) else 0)
    assert (error <= TOLERANCE * terms.numpy()).all()
    assert c.head.readout.visibility(c.H).numpy() == pytest.approx(nu, rel=1e-12, abs=0)


@given(cases(kinds=("layernorm",)), st.floats(-10, 10))
def test_layernorm_hides_the_mean_at_any_epsilon(recipe: CaseRecipe, shift: float) -> None:
    """⟨∇_H L, 1⟩ = 0, a second blind direction: as a derivative, and as a loss that ignores a common shift."""
    c = recipe.build()
    r = c.head.readout
    assert isinstance(r, LayerNorm)
    assert r.gain is not None
    p = torch.softmax(c.head(c.H), -1)
    either = p + torch.nn.functional.one_hot(c.targets, p.shape[-1])
    spread = (c.H.var(-1, correction=0) + r.eps).sqrt()
    terms = (either * (c.head.weight * r.gain).abs().sum(-1)).sum(-1) / spread
    assert (gradient(c).sum(-1).abs() <= TOLERANCE * terms).all()
    # A shift of up to ten times the scale costs up to one digit of H − μ, or more where the spread is smaller.
    moved = c.H + shift * c.H.square().mean(-1, keepdim=True).sqrt()
    assert ((c.loss(moved) - c.loss(c.H)).abs() <= TOLERANCE * terms * moved.abs().amax(-1)).all()


@given(seeds, widths, scales)
def test_rmsnorm_shows_the_mean_that_layernorm_hides(seed: int, d: int, s: float) -> None:
    """The blindness to the mean is LayerNorm's own: an RMSNorm's gradient has a part along it, of about 1/√d."""
    fractions = mean_fraction(gradient(CaseRecipe(seed=seed, kind="rmsnorm", d=max(d, 4), s=s, tokens=16).build()))
    assert fractions.max() > 0.1 / d**0.5


@given(cases(kinds=("tanh",)))
def test_dynamic_tanh_fades_channel_by_channel(recipe: CaseRecipe) -> None:
    """Each channel's rate is 2x/sinh(2x) of its value, x = αH: all of it at small x, none at large x."""
    c = recipe.build()
    r = c.head.readout
    assert isinstance(r, DynamicTanh)
    x = 2 * r.alpha * c.H.numpy()
    shares = np.where(x == 0, 1.0, x / np.sinh(np.where(x == 0, 1.0, x)))
    nu = r.visibility(c.H).numpy()
    assert (nu >= shares.min(-1) * (1 - 1e-12)).all()
    assert (nu <= shares.max(-1) * (1 + 1e-12)).all()
    # 2x/sinh(2x) = 1 − 2x²/3 + ..., and below 1e-17 at x = 25: no channel is visible there.
    assert r.visibility(1e-6 * c.H).numpy() == pytest.approx(1, abs=1e-9)
    smallest = float(c.H.abs().min())
    if smallest > 0:
        assert (r.visibility(25 / (r.alpha * smallest) * c.H) < 1e-15).all()


@given(cases(kinds=("tapered",)), st.floats(0, 1))
def test_a_tapered_norm_is_visible_in_the_proportion_of_its_parts(recipe: CaseRecipe, gate: float) -> None:
    c = recipe.build()
    r = c.head.readout
    assert isinstance(r, Tapered)
    mixed = Tapered(gate=gate, norm=r.norm, linear=r.linear)
    assert r.linear is not None
    rate = gate * r.norm.visibility(c.H)[:, None] * r.norm(c.H) + (1 - gate) * r.linear * c.H
    assert mixed.radial_rate(c.H).numpy() == pytest.approx(rate.numpy(), rel=1e-12, abs=1e-300)
    norm_alone, linear_alone = (Tapered(gate=g, norm=r.norm, linear=r.linear) for g in (1.0, 0.0))
    nu = r.norm.visibility(c.H).numpy()
    assert norm_alone.visibility(c.H).numpy() == pytest.approx(nu, rel=1e-12, abs=0)
    assert linear_alone.visibility(c.H).numpy() == pytest.approx(1.0, rel=1e-12)


@given(seeds, widths, scales, st.floats(1e-6, 10), st.integers(1, 8), st.integers(1, 16))
def test_a_norm_penalty_pulls_on_every_scale(
    seed: int, d: int, s: float, weight: float, loops: int, tokens: int
) -> None:
    """2λs²/(K·tokens), against the derivative of the penalty as it is written; never zero for s > 0."""
    states = (s * normal(generator(seed), loops, tokens, d)).requires_grad_()
    (grad,) = torch.autograd.grad(weight * states.square().mean(-1).mean(), states)
    found = radial_signal(grad, states.detach())
    rms = states.detach().square().mean(-1).sqrt()
    predicted = penalty_radial_signal(rms, weight=weight, loops=loops, tokens=tokens)
    assert found.numpy() == pytest.approx(predicted.numpy(), rel=1e-12, abs=0)
    assert (found > 0).all()


@given(cases(softcap=st.none()))
def test_fisher_visibility_of_the_scale_is_the_variance_of_the_radial_rate(recipe: CaseRecipe) -> None:
    """v'Gv along H itself, twice differentiated by autograd, against Var_p[ż] in numpy; zero where scale is hidden."""
    c = recipe.build()
    rate, z = c.head.radial_rate(c.H).numpy(), c.head(c.H).numpy()
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    variance = (p * (rate - (p * rate).sum(-1, keepdims=True)) ** 2).sum(-1)
    found = fisher_visibility(c.head, c.H, c.H).numpy()
    # Compared as roots, which are rates of logits, with an error of TOLERANCE of a row's largest sum of terms.
    rows = (c.head.readout(c.H).abs() @ c.head.weight.abs().mT).amax(-1)
    if isinstance(c.head.readout, LayerNorm):
        centered = LayerNorm(gain=c.head.readout.gain, eps=c.head.readout.eps)
        rows = rows + (centered(c.H).abs() @ c.head.weight.abs().mT).amax(-1)
    assert np.sqrt(found) == pytest.approx(np.sqrt(variance), rel=1e-9, abs=TOLERANCE * float(rows.max()))


@given(seeds, st.sampled_from([8, 16, 32]), scales)
def test_a_shift_of_all_logits_is_invisible_to_a_raw_readout(seed: int, d: int, s: float) -> None:
    """W⁺1, where 1 is in the range of W (V <= d): the softmax shift is the one blind direction of a raw readout."""
    rng = generator(seed)
    weight = normal(rng, d // 2, d)
    v = torch.linalg.pinv(weight).sum(-1)
    H = s * normal(rng, 3, d)
    head = Head(readout=Raw(), weight=weight / s)
    along = fisher_visibility(head, H, v.expand_as(H)).sqrt()
    across = fisher_visibility(head, H, torch.roll(v, 1).expand_as(H)).sqrt()
    rate = 1 / s  # W(v)/s = 1/s: the rate of every logit along v
    assert (along <= 1e-9 * rate).all()
    assert (across > 1e-9 * rate).all()
