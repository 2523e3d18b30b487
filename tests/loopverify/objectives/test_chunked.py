"""The chunked form of every loss compared with the plain form in float64: values, all gradients, and errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import loopverify as lv
from loopverify.errors import InputError, LoopverifyError
from loopverify.models import READOUTS, LoopedTransformer, TransformerConfig
from loopverify.objectives import named, weighted_exits

V, K = 29, 3
TOKENS = torch.arange(14).view(2, 7)
TARGETS = (TOKENS * 5 + 3) % V
TARGETS[0, 3] = -100

Loss = Callable[[lv.Trace, Tensor], Tensor]


class OtherEnd(nn.Module):
    """Readouts that do not end in `F.linear`: a softcap after the head, a product written out, a cast."""

    def __init__(self, inner: LoopedTransformer, end: str) -> None:
        super().__init__()
        self.inner, self.end = inner, end
        self.bias = nn.Parameter(torch.linspace(-1, 1, inner.config.vocab_size))

    def readout(self, state: Tensor, context: object, loop: int, loops: int) -> Tensor:
        if self.end == "product":
            return self.inner.readout_norm(state) @ self.inner.head.weight.mT + self.bias
        logits = self.inner.readout(state, context, loop, loops)
        return 3 * torch.tanh((logits + self.bias) / 3) if self.end == "soft cap" else logits.double()

    def looped(self) -> lv.Looped:
        return replace(self.inner.looped(), readout=self.readout, module=self)


class HiddenAndBias(OtherEnd):
    """A hidden layer, then a head with a bias."""

    def __init__(self, inner: LoopedTransformer, end: str) -> None:
        super().__init__(inner, end)
        self.hidden = nn.Linear(8, 8)

    def readout(self, state: Tensor, context: object, loop: int, loops: int) -> Tensor:
        return F.linear(torch.tanh(self.hidden(state)), self.inner.head.weight, bias=self.bias)


CONFIGS = {
    **{readout: {"readout": readout} for readout in READOUTS},
    "tied head": {"tied_head": True},
    "shared norm": {"inter_loop_norm": "shared"},
}
OTHERS = {"soft cap": OtherEnd, "product": OtherEnd, "cast": OtherEnd, "hidden and bias": HiddenAndBias}


def model_of(kind: str, **config: object) -> nn.Module:
    shape = {"vocab_size": V, "d_model": 8, "layers": 1, "d_ff": 12, "trained_loops": K, "init_std": 0.5}
    inner = LoopedTransformer(TransformerConfig(**shape | CONFIGS.get(kind, {}) | config))
    if inner.exit_gate is not None:
        nn.init.normal_(inner.exit_gate.weight)
    return OTHERS[kind](inner, kind) if kind in OTHERS else inner


@dataclass
class Result:
    value: Tensor
    gradients: dict[str, Tensor]


def result(module: nn.Module, loss: Loss, tokens: Tensor = TOKENS, targets: Tensor = TARGETS, loops: int = K) -> Result:
    """The loss of a run and its gradients at every parameter and every state."""
    trace = lv.unroll(module.looped(), tokens, loops, grad=True)
    for state in trace.states:
        state.retain_grad()
    value = loss(trace, targets)
    value.backward()
    tensors = dict(module.named_parameters()) | {f"H_{k}": state for k, state in enumerate(trace.states)}
    return Result(value.detach(), {name: x.grad for name, x in tensors.items() if x.grad is not None})


def check_equal(seen: Result, expected: Result, within: float, beyond: Result | None = None) -> None:
    """Relative to each tensor as a whole: a sum of many terms has no relative accuracy element by element.

    Four times the error of another result, `beyond`, is allowed on top.
    """
    assert seen.gradients.keys() == expected.gradients.keys()
    torch.testing.assert_close(seen.value.double(), expected.value.double(), rtol=within, atol=0)
    for name, gradient in expected.gradients.items():
        off = (seen.gradients[name].double() - gradient.double()).norm()
        allowed = 0.0 if beyond is None else 4 * (beyond.gradients[name].double() - gradient.double()).norm()
        assert off <= within * gradient.norm() + allowed + 1e-14, f"{name}: {off / gradient.norm():.2e}"


def total(name: str, chunk_tokens: int | None) -> Loss:
    return lambda trace, targets: named(name, penalty=0.3, chunk_tokens=chunk_tokens)(trace, targets).total


@given(data=st.data())
def test_it_is_the_plain_form_to_rounding(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from((*CONFIGS, *OTHERS)))
    loops, chunk_tokens = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 20))
    B, T = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    exits = data.draw(st.sets(st.integers(1, loops), min_size=1))
    by_token, some_ignored = data.draw(st.booleans()), data.draw(st.booleans())
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    tokens, targets = torch.randint(V, (2, B, T))
    if some_ignored:
        targets[torch.rand(B, T) < 0.5] = -100
        targets[0, 0] = 0
    weights = {k: torch.rand(B, T) if by_token else float(torch.rand(())) for k in exits}
    model = model_of(kind)

    def loss(chunk_tokens: int | None, dtype: torch.dtype) -> Loss:
        cast = {k: weight.to(dtype) if by_token else weight for k, weight in weights.items()}
        return lambda trace, targets: weighted_exits(trace, targets, cast, chunk_tokens=chunk_tokens)

    def made(chunk_tokens: int | None, dtype: torch.dtype) -> Result:
        return result(copy.deepcopy(model).to(dtype), loss(chunk_tokens, dtype), tokens, targets, loops)

    exact = made(None, torch.float64)
    check_equal(made(chunk_tokens, torch.float64), exact, within=1e-11)
    # Where terms cancel (the slope of a tanh is a sum over all channels), float32 does not reach 1e-5 of the rest.
    plain, chunked = made(None, torch.float32), made(chunk_tokens, torch.float32)
    check_equal(chunked, exact, within=1e-5, beyond=plain)


@pytest.mark.parametrize("kind", ["raw", "rmsnorm", "product"])
@pytest.mark.parametrize("name", ["per_loop+penalty", "terminal", "exit_weighted+penalty+latent"])
def test_every_named_loss_has_both_forms(name: str, kind: str) -> None:
    model = model_of(kind, exit_gate="exit_weighted" in name).double()
    plain, chunked = (result(copy.deepcopy(model), total(name, n)) for n in (None, 3))
    assert any("exit_gate" in parameter for parameter in plain.gradients) == ("exit_weighted" in name)
    check_equal(chunked, plain, within=1e-12)


def test_a_gradient_reaches_the_weights_of_the_exits_through_any_function_of_the_loss() -> None:
    model, weights = model_of("raw").double(), torch.rand(2, 7, dtype=torch.float64)
    seen = []
    for chunk_tokens in (None, 4):
        leaf = weights.clone().requires_grad_()
        trace = lv.unroll(model.looped(), TOKENS, grad=True)
        (3 * weighted_exits(trace, TARGETS, {1: leaf, 3: leaf.square()}, chunk_tokens=chunk_tokens) ** 2).backward()
        seen.append(leaf.grad)
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-12, atol=0)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("kind", ["raw", "rmsnorm", "soft cap"])
def test_there_is_never_more_than_one_chunk_of_logits(kind: str) -> None:
    model, tokens, vocab_size = model_of(kind, vocab_size=400), torch.randint(400, (8, 64)), 400
    for chunk_tokens, expected in ((None, tokens.numel()), (32, 32)):
        trace = lv.unroll(model.looped(), tokens, grad=True)
        with Largest() as largest:
            total("per_loop", chunk_tokens)(trace, tokens).backward()
        assert largest.elements == expected * vocab_size


def test_a_readout_that_keeps_statistics_of_its_calls_is_called_once_for_each_exit() -> None:
    plain = model_of("tapered")
    chunked = copy.deepcopy(plain)
    for model, chunk_tokens in ((plain, None), (chunked, 2)):
        result(model, total("per_loop", chunk_tokens))
    assert plain.readout_norm.energy > 0
    assert torch.equal(chunked.readout_norm.energy, plain.readout_norm.energy)


@pytest.mark.parametrize("kind", ["raw", "rmsnorm", "soft cap", "hidden and bias"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_it_is_as_near_to_float64_as_the_plain_form(kind: str, dtype: torch.dtype) -> None:
    model = model_of(kind)
    exact = result(copy.deepcopy(model).double(), total("per_loop", None))
    off = []
    for chunk_tokens in (None, 3):
        with torch.autocast("cpu", dtype=dtype):
            seen = result(copy.deepcopy(model), total("per_loop", chunk_tokens))
        assert {name: x.dtype for name, x in seen.gradients.items()}.keys() == exact.gradients.keys()
        assert all(x.dtype == torch.float32 for x in seen.gradients.values())
        off.append({name: (x - exact.gradients[name]).norm() / x.norm() for name, x in seen.gradients.items()})
    plain, chunked = off
    assert all(chunked[name] <= 1.5 * plain[name] + torch.finfo(dtype).eps for name in plain)


def test_a_model_in_half_precision_sums_its_head_s_gradient_in_float32() -> None:
    """Many equal small gradients: in bfloat16 their sum would stop growing at 256 of them."""
    model = model_of("raw").bfloat16()
    tokens, targets = torch.zeros(1, 2048, dtype=torch.int64), torch.ones(1, 2048, dtype=torch.int64)
    few, many = (
        result(copy.deepcopy(model), total("terminal", 1), tokens[:, :n], targets[:, :n], loops=1) for n in (1, 2048)
    )
    # All tokens of a row are equal, so the mean over many equals the value of one.
    many, few = (r.gradients["head.weight"] for r in (many, few))
    assert many.dtype == torch.bfloat16
    torch.testing.assert_close(many, few, rtol=2**-6, atol=1e-4)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # dynamo looks
def test_it_may_be_called_in_a_compiled_function() -> None:
    model = model_of("rmsnorm")
    plain = result(copy.deepcopy(model), total("per_loop+penalty", None))
    looped = model.looped()

    @torch.compile(backend="aot_eager")
    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        state, context = looped.embed(tokens)
        states = [state]
        for loop in range(1, K + 1):
            states.append(looped.step(states[-1], context, loop))
        value = total("per_loop+penalty", 3)(lv.Trace(looped, tokens, tuple(states), context), targets)
        return 2 * value

    (loss(TOKENS, TARGETS) / 2).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, plain.gradients[name], rtol=1e-4, atol=1e-6)


def test_parts_of_a_readout_may_be_compiled() -> None:
    model = model_of("rmsnorm")
    plain = result(copy.deepcopy(model), total("per_loop", None))
    model.readout_norm.compile(backend="aot_eager")
    check_equal(result(model, total("per_loop", 3)), plain, within=1e-5)


def test_under_ddp_the_gradients_formed_inside_are_reduced_like_all_others(tmp_path: Path) -> None:
    model = model_of("rmsnorm").double()
    expected = result(copy.deepcopy(model), total("per_loop", None))

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
            return total("per_loop", 3)(lv.unroll(self.model.looped(), tokens, grad=True), targets)

    def reduced(state, bucket):  # DDP reads annotations and rejects strings
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer() * 8)
        return done

    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        ddp = nn.parallel.DistributedDataParallel(Step())
        ddp.register_comm_hook(None, reduced)
        ddp(TOKENS, TARGETS).backward()
    finally:
        torch.distributed.destroy_process_group()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, 8 * expected.gradients[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["rmsnorm", "soft cap"])
def test_without_gradients_it_only_has_a_value(kind: str) -> None:
    model = model_of(kind)
    looped = model.looped()
    expected = total("per_loop", None)(lv.unroll(looped, TOKENS), TARGETS)
    for grad in (False, True):
        trace = lv.unroll(looped, TOKENS, grad=grad)
        with torch.set_grad_enabled(not grad):
            value = total("per_loop", 3)(trace, TARGETS)
        assert not value.requires_grad
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)


def test_what_is_frozen_gets_no_gradient() -> None:
    model = model_of("rmsnorm")
    model.head.requires_grad_(False)
    expected = result(copy.deepcopy(model), total("per_loop", None))
    assert "head.weight" not in expected.gradients
    check_equal(result(model, total("per_loop", 3)), expected, within=1e-5)


def test_a_readout_that_mixes_tokens_and_says_so_is_called_on_all_of_them() -> None:
    inner = model_of("rmsnorm").double()

    def readout(state: Tensor, context: object, loop: int, loops: int) -> Tensor:
        return inner.readout(state.cumsum(1), context, loop, loops).tanh()

    looped = replace(inner.looped(), readout=readout, declares=frozenset({"contextual_readout"}))
    inner.looped = lambda: looped
    plain, chunked = (result(inner.zero_grad() or inner, total("per_loop", n)) for n in (None, 3))
    check_equal(chunked, plain, within=1e-12)


def refused(readout: Callable[..., Tensor]) -> lv.Looped:
    return replace(model_of("raw").looped(), readout=readout)


def test_it_says_what_it_cannot_do() -> None:
    model = model_of("raw")
    trace = lv.unroll(model.looped(), TOKENS, grad=True)
    for wrong in (0, 2.5, True):
        expected = rf"chunk_tokens is {wrong}; expected an integer >= 1, or None for the plain form"
        with pytest.raises(InputError, match=expected):
            named("per_loop", chunk_tokens=wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=expected):
            weighted_exits(trace, TARGETS, {}, chunk_tokens=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"weights for the exits \[0, 4\] of 3 loops; expected 1..3"):
        weighted_exits(trace, TARGETS, {0: 1.0, 2: 1.0, 4: 1.0})
    loss = total("per_loop", 3)(trace, TARGETS)
    with pytest.raises(LoopverifyError, match="create_graph=True requires the second derivative of a chunked loss"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    loss.backward(retain_graph=True)
    with pytest.raises(LoopverifyError, match="a second backward pass through one chunked loss"):
        loss.backward()


def test_readouts_that_do_not_work_on_chunks_are_refused() -> None:
    inner = model_of("raw")

    def of_all_tokens(state: Tensor, context: object, loop: int, loops: int) -> Tensor:
        return inner.readout(state, context, loop, loops).mean(1)

    def of_another_state(state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
        return inner.readout(state * context, None, loop, loops)

    def embed(tokens: Tensor) -> tuple[Tensor, Any]:
        state, _ = inner.embed(tokens)
        return state, state.mean()

    base = replace(inner.looped(), step=lambda state, context, loop: state * 1.5)
    for readout, words in (
        (
            of_all_tokens,
            r"the readout returned logits \(1, 29\) for a chunk of states \(1, 3, 8\); expected \(1, n, V\)",
        ),
        (
            of_another_state,
            r"the readout depends on the state and on another tensor computed before \(MeanBackward0\)",
        ),
    ):
        trace = lv.unroll(replace(base, embed=embed, readout=readout), TOKENS, grad=True)
        with pytest.raises(InputError, match=words):
            total("per_loop", 3)(trace, TARGETS)
