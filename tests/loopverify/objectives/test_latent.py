"""The latent loss compared with its definition, and its pull on the scale."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.models import LoopedTransformer, TransformerConfig
from loopverify.objectives import latent_distance, named, norm_penalty

D, V, K = 5, 7, 3
TOKENS = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 0]])
TARGETS = torch.tensor([[1, 2, -100, 4], [5, 6, 0, -100]])
COUNTED = 6


@pytest.fixture
def table() -> Tensor:
    return torch.randn(V, D).double().requires_grad_()


@pytest.fixture
def model(table: Tensor) -> lv.Looped:
    head = torch.randn(D, V).double()
    return lv.Looped(
        embed=lambda t: (table[t], None),
        step=lambda h, c, k: h + (h @ h.mT).tanh() @ h / 9,
        readout=lambda h, c, k, n: torch.nn.functional.rms_norm(h, (D,)) @ head,
        trained_loops=K,
    )


def test_it_is_the_mean_squared_distance_to_the_embedded_target(model: lv.Looped, table: Tensor) -> None:
    trace = lv.unroll(model, TOKENS)
    distances = []
    for state in trace.states[1:]:
        for b in range(2):
            for t in range(4):
                if (target := int(TARGETS[b, t])) != -100:
                    pairs = zip(state[b, t].tolist(), table[target].tolist(), strict=True)
                    distances.append(sum((h - e) ** 2 for h, e in pairs) / D)
    assert len(distances) == K * COUNTED
    assert latent_distance(trace, TARGETS).item() == pytest.approx(sum(distances) / (K * COUNTED), rel=1e-12)
    terms = named("per_loop+latent", latent=0.25)(trace, TARGETS)
    assert list(terms.parts) == ["per_loop", "latent"]
    assert terms.parts["latent"].item() == pytest.approx(0.25 * sum(distances) / (K * COUNTED), rel=1e-12)


@pytest.mark.parametrize("k", [1, K])
def test_its_radial_gradient_has_the_predicted_size_at_every_state(model: lv.Looped, table: Tensor, k: int) -> None:
    trace = lv.unroll(model, TOKENS)
    states = [state.clone() for state in trace.states]
    states[k].requires_grad_()
    cut = lv.Trace(model, TOKENS, tuple(states), trace.context)
    (gradient,) = torch.autograd.grad(latent_distance(cut, TARGETS), states[k])
    state, e = states[k].detach(), table.detach()[TARGETS.clamp_min(0)]
    expected = 2 * (state.square().mean(-1) - (e * state).mean(-1)) / (K * COUNTED)
    torch.testing.assert_close((gradient * state).sum(-1), expected * (TARGETS >= 0), rtol=1e-12, atol=1e-17)
    # ... while the cross-entropies of the same trace, after their norm, see only its epsilon
    (blind,) = torch.autograd.grad(named("per_loop")(cut, TARGETS).total, states[k])
    assert (blind * state).sum(-1).abs().max() < 1e-14


def test_the_target_gets_no_gradient(model: lv.Looped, table: Tensor) -> None:
    trace = lv.unroll(model, TOKENS)
    states = (trace.states[0], *(state.clone().requires_grad_() for state in trace.states[1:]))
    latent_distance(lv.Trace(model, TOKENS, states, trace.context), TARGETS).backward()
    assert table.grad is None
    assert all(state.grad is not None for state in states[1:])


def test_towards_a_zero_target_it_is_the_norm_penalty(model: lv.Looped) -> None:
    trace = lv.unroll(model, TOKENS)
    nothing = replace(model, embed=lambda t: (torch.zeros(*t.shape, D).double(), None))
    against = lv.Trace(nothing, TOKENS, trace.states, trace.context)
    full = TARGETS.where(TARGETS >= 0, 0)
    assert latent_distance(against, full).item() == pytest.approx(norm_penalty(trace).item(), rel=1e-12)
    assert norm_penalty(trace, full).item() == norm_penalty(trace).item()  # a term like the others


def test_descending_it_brings_a_scale_back_that_cross_entropy_lets_go() -> None:
    """Gradient steps on one large state: the per-loop loss leaves its scale, the latent term reduces it."""
    config = TransformerConfig(vocab_size=V, d_model=12, heads=3, trained_loops=1, init_std=1.0)
    module = LoopedTransformer(config).double().requires_grad_(False)
    model = module.looped()
    trace = lv.unroll(model, TOKENS)

    def scale_after(loss: str) -> float:
        state = (100 * trace.states[1]).requires_grad_()
        start = state.detach().square().mean().sqrt()
        for _ in range(50):
            seen = lv.Trace(model, TOKENS, (trace.states[0], state), trace.context)
            total = named(loss, latent=1.0)(seen, TARGETS.clamp_min(0)).total
            (gradient,) = torch.autograd.grad(total, state)
            state = (state - 20 * gradient).detach().requires_grad_()
        return float(state.detach().square().mean().sqrt() / start)

    assert scale_after("per_loop") > 0.999
    assert scale_after("per_loop+latent") < 0.1


def test_half_precision_states_are_measured_in_float32(model: lv.Looped) -> None:
    half = replace(model, embed=lambda t: ((model.embed(t)[0] * 1e3).bfloat16(), None))
    trace = lv.unroll(replace(half, step=lambda h, c, k: h * 1.5), TOKENS)
    assert latent_distance(trace, TARGETS).dtype == torch.float32


def test_targets_of_another_form_are_refused(model: lv.Looped) -> None:
    with pytest.raises(InputError, match=r"targets are torch.int64 \(2, 3\); expected int64 \(2, 4\)"):
        latent_distance(lv.unroll(model, TOKENS), TARGETS[:, :3])


@pytest.mark.parametrize(
    ("name", "latent", "words"),
    [
        ("dense", 0.01, "unknown loss 'dense'; expected one of: per_loop, terminal, exit_weighted"),
        ("latent", 0.01, "unknown loss 'latent'; expected one of"),
        ("per_loop+magic", 0.01, "unknown addition to the loss 'magic'; expected one of: penalty, latent"),
        ("per_loop+latent", 0.0, r"latent is 0.0; expected a finite weight > 0 \(or omit '\+latent'\)"),
        ("per_loop+penalty+latent", math.nan, "latent is nan; expected a finite weight > 0"),
    ],
)
def test_unknown_names_and_weights_are_refused(name: str, latent: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        named(name, latent=latent)
