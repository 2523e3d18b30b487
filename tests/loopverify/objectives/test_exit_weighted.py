"""The exit-weighted objective compared with sums written out token by token, and its visibility of scale."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.models import LoopedTransformer, TransformerConfig
from loopverify.objectives import exit_entropy, exit_weighted, named

D, V, K = 5, 7, 3
TOKENS = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 0]])
TARGETS = torch.tensor([[1, 2, -100, 4], [5, 6, 0, -100]])


def looped(probabilities: Tensor) -> lv.Looped:
    table, head = torch.randn(V, D).double(), torch.randn(D, V).double()
    return lv.Looped(
        embed=lambda t: (table[t], None),
        step=lambda h, c, k: h + (h @ h.mT).tanh() @ h / 9,
        readout=lambda h, c, k, n: h @ head,
        trained_loops=K,
        exit_probabilities=lambda trace: probabilities,
    )


@pytest.fixture
def probabilities() -> Tensor:
    return torch.rand(2, 4, K).double().softmax(-1)


def nll(row: list[float], target: int) -> float:
    return math.log(sum(math.exp(z) for z in row)) - row[target]


def test_every_token_weighs_the_losses_of_its_exits_by_its_own_probabilities(probabilities: Tensor) -> None:
    trace = lv.unroll(looped(probabilities), TOKENS)
    exits = [trace.logits(k).tolist() for k in (1, 2, 3)]
    expected, entropies = [], []
    for b in range(2):
        for t in range(4):
            if (target := int(TARGETS[b, t])) != -100:
                p = probabilities[b, t].tolist()
                expected.append(sum(p[k] * nll(exits[k][b][t], target) for k in range(K)))
                entropies.append(-sum(x * math.log(x) for x in p))
    cross_entropy, entropy = sum(expected) / 6, sum(entropies) / 6
    assert exit_weighted(trace, TARGETS).item() == pytest.approx(cross_entropy, rel=1e-12)
    assert exit_entropy(trace, TARGETS).item() == pytest.approx(entropy, rel=1e-12)

    terms = named("exit_weighted", exit_entropy=0.3)(trace, TARGETS)
    assert list(terms.parts) == ["exit_weighted", "exit_entropy"]
    assert terms.parts["exit_entropy"].item() == pytest.approx(-0.3 * entropy, rel=1e-12)
    assert terms.total.item() == pytest.approx(cross_entropy - 0.3 * entropy, rel=1e-12)


@pytest.mark.parametrize(("exit_", "as_placement"), [(K, "terminal"), (None, "per_loop")])
def test_certain_and_uniform_exits_are_the_other_placements(exit_: int | None, as_placement: str) -> None:
    p = torch.full((2, 4, K), 1 / K, dtype=torch.float64)
    if exit_ is not None:
        p = torch.zeros(2, 4, K).double()
        p[..., exit_ - 1] = 1
    trace = lv.unroll(looped(p), TOKENS)
    assert exit_weighted(trace, TARGETS).item() == pytest.approx(
        named(as_placement)(trace, TARGETS).total.item(), rel=1e-12
    )
    assert exit_entropy(trace, TARGETS).item() == pytest.approx(0.0 if exit_ else math.log(K), abs=1e-12)


def test_an_exit_that_is_never_taken_leaves_the_gradient_finite() -> None:
    p = torch.tensor([1.0, 0.0, 0.0]).expand(2, 4, K).double().clone().requires_grad_()
    named("exit_weighted")(lv.unroll(looped(p), TOKENS), TARGETS).total.backward()
    assert p.grad.isfinite().all()


def test_the_entropys_weight_defaults_to_ouros_and_may_be_nothing() -> None:
    p = torch.full((2, 4, K), 1 / K, dtype=torch.float64)
    trace = lv.unroll(looped(p), TOKENS)
    default = named("exit_weighted")(trace, TARGETS)
    assert default.parts["exit_entropy"].item() == pytest.approx(-0.1 * math.log(K), rel=1e-12)
    assert list(named("exit_weighted", exit_entropy=0.0)(trace, TARGETS).parts) == ["exit_weighted"]


def test_it_composes_with_the_additions(probabilities: Tensor) -> None:
    trace = lv.unroll(looped(probabilities), TOKENS)
    objective = named("exit_weighted+penalty+latent", exit_entropy=0.2, penalty=0.3, latent=0.4)
    assert objective.name == "exit_weighted+penalty+latent"
    assert list(objective(trace, TARGETS).parts) == ["exit_weighted", "exit_entropy", "penalty", "latent"]
    assert objective.gated
    assert not named("per_loop+latent").gated


@pytest.mark.parametrize("weight", [-0.1, math.nan])
def test_a_reward_below_nothing_is_refused(weight: float) -> None:
    with pytest.raises(InputError, match=rf"exit_entropy is {weight}; expected a finite weight >= 0"):
        named("exit_weighted", exit_entropy=weight)
    named("per_loop", exit_entropy=weight)  # not used, hence not checked


def test_the_error_for_a_model_without_exit_probabilities_says_how_to_get_them(probabilities: Tensor) -> None:
    model = replace(looped(probabilities), exit_probabilities=None, name="mine")
    words = r"mine declares no exit probabilities.*TransformerConfig\(exit_gate=True\).*Looped\(exit_probabilities="
    for term in (exit_weighted, exit_entropy):
        with pytest.raises(InputError, match=words):
            term(lv.unroll(model, TOKENS), TARGETS)


@pytest.mark.parametrize("term", [exit_weighted, exit_entropy])
def test_targets_of_another_form_are_refused(term: object, probabilities: Tensor) -> None:
    with pytest.raises(InputError, match=r"targets are torch.int32 \(2, 4\); expected int64 \(2, 4\)"):
        term(lv.unroll(looped(probabilities), TOKENS), TARGETS.int())


def gated_transformer(readout: str, eps: float) -> LoopedTransformer:
    config = TransformerConfig(
        vocab_size=V, d_model=12, heads=3, readout=readout, norm_eps=eps, init_std=0.4, exit_gate=True
    )
    module = LoopedTransformer(config).double()
    torch.nn.init.normal_(module.exit_gate.weight)
    return module


def direct_radial(module: LoopedTransformer, k: int) -> tuple[Tensor, Tensor]:
    """<dL/dH_k, H_k> and ||dL/dH_k|| ||H_k|| of each token of the exit-weighted loss, the recurrence cut."""
    model = module.looped()
    trace = lv.unroll(model, TOKENS)
    states = [state.clone() for state in trace.states]
    states[k].requires_grad_()
    cut = lv.Trace(model, TOKENS, tuple(states), trace.context)
    loss = named("exit_weighted")(cut, TARGETS.where(TARGETS >= 0, 0)).total
    (gradient,) = torch.autograd.grad(loss, states[k])
    return (gradient * states[k]).sum(-1), gradient.norm(dim=-1) * states[k].norm(dim=-1)


@pytest.mark.parametrize("k", [1, 4])
def test_through_a_norm_it_sees_nothing_of_the_scale_not_even_by_its_gate(k: int) -> None:
    radial, size = direct_radial(gated_transformer("rmsnorm", eps=0.0), k)
    assert (radial.abs() / size).max() < 1e-14
    radial, size = direct_radial(gated_transformer("raw", eps=0.0), k)
    assert (radial.abs() / size).max() > 1e-2


def test_with_an_epsilon_it_sees_that_share_of_what_lies_behind_the_norm() -> None:
    eps, k = 0.5, 2
    module = gated_transformer("rmsnorm", eps)
    radial, _ = direct_radial(module, k)
    # The same loss as a function of the normalized state r, which is not normalized again: its radial derivative
    # at r, times eps / (s^2 + eps).
    trace = lv.unroll(module.looped(), TOKENS)
    shown = [module.readout_norm(state).detach() for state in trace.states]
    shown[k].requires_grad_()
    targets = TARGETS.where(TARGETS >= 0, 0)
    left, loss = torch.ones(2, 4).double(), torch.zeros(2, 4).double()
    for j in range(1, 5):
        share = torch.sigmoid(module.exit_gate(shown[j])) if j < 4 else torch.ones(2, 4).double()
        p = share * left
        left = left - p
        losses = -module.head(shown[j]).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        loss = loss + p * losses + 0.1 * p * p.log()
    (gradient,) = torch.autograd.grad(loss.mean(), shown[k])
    behind = (gradient * shown[k]).sum(-1)
    share_seen = eps / (trace.states[k].square().mean(-1) + eps)
    torch.testing.assert_close(radial, share_seen * behind, rtol=1e-10, atol=1e-15)


def test_training_on_it_moves_the_gate_towards_the_better_exit() -> None:
    """One exit that knows the answer, one that does not: the gate must learn to exit at the first."""
    module = LoopedTransformer(TransformerConfig(vocab_size=V, d_model=12, heads=3, exit_gate=True, trained_loops=2))
    model = module.looped()
    target = torch.full_like(TOKENS, 3)

    def readout(state: Tensor, context: object, loop: int, loops: int) -> Tensor:
        sure = torch.nn.functional.one_hot(target, V) * (6.0 if loop == 1 else -6.0)
        return module.readout(state, context, loop, loops) + sure

    informed = replace(model, readout=readout)
    optimizer = torch.optim.SGD(module.exit_gate.parameters(), lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        named("exit_weighted")(lv.unroll(informed, TOKENS, grad=True), target).total.backward()
        optimizer.step()
    assert model.exit_probabilities(lv.unroll(model, TOKENS))[..., 0].min() > 0.9
