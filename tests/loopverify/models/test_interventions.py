"""What lies between two loops: damping and its carry; and that no intervention moves the weights of a seed."""

from __future__ import annotations

import pytest
import torch

import loopverify as lv
from loopverify.errors import InputError
from loopverify.models import RECURRENCES, LoopedTransformer, TransformerConfig

TOKENS = torch.tensor([[1, 5, 9, 2], [12, 0, 0, 7]])
CONFIG = {"vocab_size": 13, "d_model": 12, "layers": 2, "heads": 3, "d_ff": 10, "init_std": 0.4}


def build(**overrides: object) -> LoopedTransformer:
    torch.manual_seed(3)
    return LoopedTransformer(TransformerConfig(**{**CONFIG, **overrides})).double().eval()


@pytest.mark.parametrize("factor", [0.1, 0.9, 0.999])
def test_a_damped_loop_is_the_plain_loop_of_the_damped_state(factor: float) -> None:
    damped, plain = build(damping=factor), build()
    assert damped.damping.factor.item() == pytest.approx(factor, rel=1e-5)
    rho = damped.damping.factor.detach()
    trace = lv.unroll(damped.looped(), TOKENS, loops=3)
    for k in range(3):
        expected = plain.step(rho * trace.states[k], trace.context, k + 1)
        torch.testing.assert_close(trace.states[k + 1], expected, rtol=1e-12, atol=1e-12)


def test_the_carry_of_a_damped_loop_is_its_factor() -> None:
    module = build(damping=0.7)
    state, context = module.embed(TOKENS)
    scale = [module.step(alpha * state, context, 1).square().mean(-1).sqrt() for alpha in (1e8, 2e8)]
    carry = (scale[1] - scale[0]) / (1e8 * state.square().mean(-1).sqrt())
    torch.testing.assert_close(carry, torch.full_like(carry, 0.7), rtol=1e-6, atol=0)


def test_without_branches_a_damped_state_decays_geometrically() -> None:
    module = build(damping=0.8)
    for name, parameter in module.named_parameters():
        if name.endswith(("out.weight", "down.weight")):
            torch.nn.init.zeros_(parameter)
    trace = lv.unroll(module.looped(), TOKENS, loops=6)
    rho = module.damping.factor.item()
    torch.testing.assert_close(trace.states[6], rho**6 * trace.states[0], rtol=1e-12, atol=0)


def test_the_damping_is_a_branch_among_the_others() -> None:
    module = build(damping=0.8)
    model = module.looped()
    state, context = module.embed(TOKENS)
    added = model.branches(state, context, 1)
    assert [name for name, _ in added][:2] == ["damping", "layers.0.attention"]
    torch.testing.assert_close(added[0][1], (module.damping.factor - 1) * state, rtol=1e-12, atol=0)
    total = state + sum(out for _, out in added)
    torch.testing.assert_close(total, model.step(state, context, 1), rtol=1e-12, atol=1e-12)


def test_the_factor_is_learned_and_stays_below_one() -> None:
    module = build(damping=0.9, readout="raw")
    optimizer = torch.optim.SGD([module.damping.logit], lr=1e6)
    lv.objectives.named("terminal")(lv.unroll(module.looped(), TOKENS, grad=True), TOKENS).total.backward()
    assert module.damping.logit.grad.abs() > 0
    optimizer.step()
    assert 0 <= module.damping.factor.item() <= 1


@pytest.mark.parametrize("factor", [0.0, 1.0, -0.5, float("nan")])
def test_a_factor_that_does_not_damp_is_refused(factor: float) -> None:
    with pytest.raises(InputError, match=rf"damping is {factor}; expected a factor in \(0, 1\), or None"):
        build(damping=factor)


def test_recurrences_are_named_and_build_what_they_say() -> None:
    assert set(RECURRENCES) == {
        *("residual", "damped", "inter_loop_norm", "shared_inter_loop_norm", "boundary_norm", "shared_boundary_norm")
    }
    modules = {name: build(**fields) for name, fields in RECURRENCES.items()}
    assert modules["residual"].config == build().config
    assert modules["damped"].damping.factor.item() == pytest.approx(0.9, rel=1e-6)
    assert modules["inter_loop_norm"].loop_norm is not modules["inter_loop_norm"].readout_norm
    assert modules["shared_inter_loop_norm"].loop_norm is modules["shared_inter_loop_norm"].readout_norm
    assert modules["shared_boundary_norm"].loop_norm is modules["shared_boundary_norm"].readout_norm
    assert [name for name, m in modules.items() if m.config.norm_at == "start"] == [
        *("boundary_norm", "shared_boundary_norm")
    ]
    assert [name for name, m in modules.items() if m.damping is not None] == ["damped"]
    assert [name for name, m in modules.items() if m.loop_norm is None] == ["residual", "damped"]


@pytest.mark.parametrize(
    "overrides",
    [
        {"exit_gate": True},
        {"damping": 0.9},
        {"readout": "raw"},
        {"readout": "dynamic_tanh"},
        {"readout": "tapered"},
        {"inter_loop_norm": "own"},
        {"inter_loop_norm": "own", "norm_at": "start", "sandwich_norm": True},
        {"readout": "tapered", "damping": 0.5, "exit_gate": True},
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_one_seed_gives_the_same_weights_and_random_numbers_with_any_intervention(
    overrides: dict[str, object], tied: bool
) -> None:
    plain = build(tied_head=tied)
    after = torch.rand(1)
    changed = build(tied_head=tied, **overrides)
    assert torch.equal(torch.rand(1), after)
    ours, theirs = plain.state_dict(), changed.state_dict()
    shared = [name for name in ours if not name.startswith("readout_norm")]
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)


@pytest.mark.parametrize("overrides", [{"damping": 0.6}, {"exit_gate": True}, {"readout": "dynamic_tanh"}])
def test_what_an_intervention_learned_is_saved(overrides: dict[str, object]) -> None:
    a, b = build(**overrides), build(**overrides)
    for parameter in a.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    b.load_state_dict(a.state_dict())
    traces = [lv.unroll(module.looped(), TOKENS) for module in (a, b)]
    assert torch.equal(traces[0].logits(4), traces[1].logits(4))
    if "exit_gate" in overrides:
        assert torch.equal(*(trace.model.exit_probabilities(trace) for trace in traces))
