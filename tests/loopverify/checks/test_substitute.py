"""Other tensors in place of parameters: results equal those of a copy, and the model is unchanged."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import loopverify as lv
from loopverify.checks.preserving import same, tensors_of
from loopverify.checks.result import NotApplicableError
from loopverify.checks.substitute import floating_tensors, in_dtype, trainable, with_tensors
from tests.loopverify.checks.clean import CachedTransformer, OffsetGain, build

TOKENS = torch.tensor([[1, 5, 9, 2], [22, 0, 0, 7]])


@pytest.mark.parametrize(
    "options", [{}, {"tied_head": True}, {"inter_loop_norm": "shared"}], ids=["plain", "tied", "shared module"]
)
def test_a_model_in_another_dtype_computes_what_a_converted_copy_does(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = CachedTransformer(**options)
    converted = copy.deepcopy(module).double().looped()
    wide = in_dtype(module.looped(), torch.float64)
    expected, trace = lv.unroll(converted, TOKENS), lv.unroll(wide, TOKENS)
    for k in (1, 2, 3):
        assert torch.equal(trace.states[k], expected.states[k])
        assert torch.equal(trace.logits(k), expected.logits(k))
    assert torch.equal(wide.paths["forward"](TOKENS, 2), converted.paths["forward"](TOKENS, 2))
    assert torch.equal(wide.decode(TOKENS, None, 2)[0], converted.decode(TOKENS, None, 2)[0])


@pytest.mark.parametrize("options", [{}, {"tied_head": True}, {"inter_loop_norm": "shared"}])
def test_nothing_of_the_model_is_changed_not_even_by_a_crash(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = CachedTransformer(**options).looped()
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in tensors_of(model)}

    def crash(state: Tensor, context: object, loop: int) -> Tensor:
        raise RuntimeError("mid-step")

    lv.unroll(in_dtype(model, torch.float64), TOKENS)
    with pytest.raises(RuntimeError, match="mid-step"):
        lv.unroll(in_dtype(replace(model, step=crash), torch.float64), TOKENS)
    after = dict(tensors_of(model))
    assert after.keys() == before.keys()
    for name, (tensor, values) in before.items():
        assert after[name] is tensor
        assert same(tensor, values)


def test_modules_that_only_closures_hold_are_reached() -> None:
    torch.manual_seed(0)
    model = OffsetGain().looped()
    copies = {name: tensor.clone().requires_grad_() for name, tensor in trainable(model).items()}
    logits = lv.unroll(with_tensors(model, copies), TOKENS, grad=True).logits(2)
    gradients = torch.autograd.grad(logits.sum(), [copies["0.head.weight"], copies["0.mix.qkv.weight"]])
    assert all(bool(gradient.any()) for gradient in gradients)
    own = dict(model.module.named_parameters())["head.weight"]
    assert torch.autograd.grad(logits.sum(), own, allow_unused=True) == (None,)


def test_a_tied_tensor_has_one_name_and_a_frozen_one_is_not_trained() -> None:
    module = CachedTransformer(tied_head=True)
    module.layers[0].requires_grad_(False)
    names = floating_tensors(module.looped())
    assert "0.embedding.weight" in names
    assert "0.head.weight" not in names
    assert {name for name in names if name not in trainable(module.looped())} == {
        f"0.layers.0.{name}" for name, _ in module.layers[0].named_parameters()
    }


def test_a_model_without_parameters_says_how_to_name_them() -> None:
    model = build("offsetgain", 0)
    with pytest.raises(NotApplicableError, match=r"no parameters to convert to torch.float64; name .*module=\.\.\.\)"):
        in_dtype(replace(model, module=None), torch.float64)
