"""An audit leaves the model, its gradients, its modes and all random states bit for bit as they were."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

import loopverify as lv
from loopverify.objectives import named
from loopverify.readonly import untouched

CONFIG = lv.models.TransformerConfig(vocab_size=11, d_model=8, d_ff=16, dropout=0.5)
TOKENS = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
TARGETS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


def bits(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()}


def everything(module: nn.Module) -> dict[str, object]:
    """All that an audit might disturb."""
    return {
        "parameters": bits(dict(module.named_parameters())),
        "buffers": bits(dict(module.named_buffers())),
        "buffer objects": [id(buffer) for buffer in module.buffers()],
        "versions": [parameter._version for parameter in module.parameters()],
        "gradients": {name: p.grad if p.grad is None else bits({"": p.grad}) for name, p in module.named_parameters()},
        "gradient objects": [id(p.grad) for p in module.parameters()],
        "training": [m.training for m in module.modules()],
        "requires_grad": [p.requires_grad for p in module.parameters()],
        "hooks": [(len(m._forward_hooks), len(m._backward_hooks)) for m in module.modules()],
        "torch": torch.get_rng_state().numpy().tobytes(),
        "python": random.getstate(),
        "cuda": [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()],
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


def trained_a_little(readout: str = "rmsnorm") -> lv.models.LoopedTransformer:
    module = lv.models.LoopedTransformer(CONFIG)
    named("per_loop")(lv.unroll(module.looped(), TOKENS, grad=True), TARGETS).total.backward()
    module.layers[0].eval()  # a mixture of modes
    module.layers[1].mlp_mix.down.weight.requires_grad_(False)
    return module


def test_nothing_changes() -> None:
    module = trained_a_little()
    before = everything(module)
    tokens, targets = TOKENS.clone(), TARGETS.clone()
    lv.audit(module.looped(), tokens, targets, objective=named("per_loop+penalty"))
    assert everything(module) == before
    assert torch.equal(tokens, TOKENS)
    assert torch.equal(targets, TARGETS)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_same_audit_in_every_gradient_mode(mode: type) -> None:
    module = trained_a_little()
    expected = lv.audit(module.looped(), TOKENS, TARGETS)
    before = everything(module)
    with mode():
        tokens, targets = TOKENS.clone(), TARGETS.clone()  # inference tensors in inference mode
        assert lv.audit(module.looped(), tokens, targets) == expected
    assert everything(module) == before


def test_a_frozen_model_is_audited_alike() -> None:
    module = trained_a_little()
    expected = lv.audit(module.looped(), TOKENS, TARGETS)
    module.requires_grad_(False)
    assert lv.audit(module.looped(), TOKENS, TARGETS) == expected
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_training_mode_and_dropout_make_no_difference() -> None:
    module = trained_a_little()
    module.train()
    first = lv.audit(module.looped(), TOKENS, TARGETS)
    module.eval()
    assert lv.audit(module.looped(), TOKENS, TARGETS) == first


class Restless(nn.Module):
    """Writes to a buffer, replaces another one, and draws random numbers at every call, in evaluation mode, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(3))
        self.head = nn.Linear(8, 11)

    def embed(self, tokens: Tensor) -> tuple[Tensor, None]:
        return torch.randn(*tokens.shape, 8), None

    def step(self, state: Tensor, context: object, loop: int) -> Tensor:
        self.calls += 1
        self.cache = torch.ones(5)
        return state + 0.1 * torch.tanh(state)

    def looped(self) -> lv.Looped:
        return lv.Looped(
            embed=self.embed,
            step=self.step,
            readout=lambda H, context, loop, loops: self.head(nn.functional.layer_norm(H, (8,))),
            trained_loops=2,
            module=self,
        )


def test_buffers_and_random_states_are_put_back() -> None:
    module = Restless()
    before = everything(module)
    audits = [lv.audit(module.looped(), TOKENS, TARGETS, seed=seed) for seed in (0, 0, 1)]
    assert everything(module) == before
    assert audits[0] == audits[1]  # a random initial state is pinned by the seed
    assert audits[0] != audits[2]


def test_all_is_put_back_after_an_error() -> None:
    module = Restless()
    before = everything(module)

    def fail() -> None:
        with untouched(module.looped()):
            module.calls += 1
            torch.rand(3)
            assert not module.training
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert everything(module) == before


def test_an_audit_inside_autocast_does_not_cut_the_training_step_that_follows() -> None:
    # autocast keeps the casts of weights that it makes; one made without a graph would silence the backward pass.
    module = lv.models.LoopedTransformer(CONFIG)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lv.audit(module.looped(), TOKENS, TARGETS)
        loss = named("per_loop")(lv.unroll(module.looped(), TOKENS, grad=True), TARGETS).total
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in module.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nothing_changes_on_cuda() -> None:
    module = lv.models.LoopedTransformer(CONFIG).cuda()
    torch.cuda.manual_seed_all(5)
    before = [state.tolist() for state in torch.cuda.get_rng_state_all()]
    audit = lv.audit(module.looped(), TOKENS.cuda(), TARGETS.cuda())
    assert [state.tolist() for state in torch.cuda.get_rng_state_all()] == before
    assert audit.facts.device == "cuda:0"
    assert audit.verdict == "blind_spot"
