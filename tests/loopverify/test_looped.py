"""The driver: order and ownership of states, gradients, and every error with its message."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import loopverify as lv
from loopverify.errors import GradientCutError, InPlaceStepError, InputError

D, V = 6, 11
TOKENS = torch.tensor([[0, 1, 2], [3, 4, 5]])


def embed(tokens: Tensor) -> tuple[Tensor, None]:
    table = torch.linspace(-1, 1, V * D, dtype=torch.float64).view(V, D)
    return table[tokens], None


def readout(state: Tensor, context: object, loop: int, loops: int) -> Tensor:
    return state @ torch.ones(D, V, dtype=state.dtype)


def model(step: object, **overrides: object) -> lv.Looped:
    return lv.Looped(**{"embed": embed, "step": step, "readout": readout, "trained_loops": 4, **overrides})


def add_loop(state: Tensor, context: object, loop: int) -> Tensor:
    return state + loop


def test_states_come_in_order_and_the_driver_counts_the_loops() -> None:
    trace = lv.unroll(model(add_loop), TOKENS, loops=3)
    h0, _ = embed(TOKENS)
    assert trace.loops == 3
    for k, added in enumerate((0, 1, 3, 6)):  # 1 + 2 + ... + k
        torch.testing.assert_close(trace.states[k], h0 + added, rtol=0, atol=1e-15)


def test_loops_default_to_the_trained_loops() -> None:
    assert lv.unroll(model(add_loop), TOKENS).loops == 4


def test_the_readout_gets_its_exit_and_the_length_of_the_run() -> None:
    asked = []

    def watched(state: Tensor, context: object, loop: int, loops: int) -> Tensor:
        asked.append((loop, loops))
        return readout(state, context, loop, loops)

    trace = lv.unroll(model(add_loop, readout=watched), TOKENS, loops=3)
    assert asked == []  # exits are computed on demand
    logits = trace.logits(2)
    assert asked == [(2, 3)]
    torch.testing.assert_close(logits, trace.states[2].sum(-1, keepdim=True).expand(2, 3, V))


def test_the_context_reaches_every_step_and_readout() -> None:
    marker = object()
    seen = []

    def step(state: Tensor, context: object, loop: int) -> Tensor:
        seen.append(context)
        return state + 1

    def watched(state: Tensor, context: object, loop: int, loops: int) -> Tensor:
        seen.append(context)
        return readout(state, None, loop, loops)

    lv.unroll(model(step, embed=lambda t: (embed(t)[0], marker), readout=watched), TOKENS, loops=2).logits(1)
    assert seen == [marker] * 3


@pytest.mark.parametrize("identity", [lambda h, c, k: h, lambda h, c, k: h.view(h.shape), lambda h, c, k: h[...]])
def test_a_step_that_hands_back_its_input_gets_memory_of_its_own(identity: object) -> None:
    trace = lv.unroll(model(identity), TOKENS)
    assert len({state.data_ptr() for state in trace.states}) == 5
    for state in trace.states:
        assert torch.equal(state, trace.states[0])


def test_a_change_of_the_input_in_place_is_refused_by_loop_and_state() -> None:
    def step(state: Tensor, context: object, loop: int) -> Tensor:
        return state.add_(1) if loop == 3 else state + 1

    with pytest.raises(InPlaceStepError, match=r"loop 3 changed H_2 in place.*h = h \+ b"):
        lv.unroll(model(step), TOKENS)


def test_a_reused_output_buffer_is_refused() -> None:
    buffers = [torch.empty(2, 3, D, dtype=torch.float64) for _ in range(2)]

    def ping_pong(state: Tensor, context: object, loop: int) -> Tensor:
        return torch.add(state, 1, out=buffers[loop % 2])

    with pytest.raises(InPlaceStepError, match=r"loop 3 changed H_1 in place"):
        lv.unroll(model(ping_pong), TOKENS)


def test_a_change_in_place_is_seen_inside_inference_mode_too() -> None:
    with torch.inference_mode(), pytest.raises(InPlaceStepError, match=r"loop 1 changed H_0"):
        lv.unroll(model(lambda h, c, k: h.mul_(2)), TOKENS.clone())


class Tanh(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.block = nn.Linear(D, D)
        self.head = nn.Linear(D, V)

    def embed(self, tokens: Tensor) -> tuple[Tensor, None]:
        return self.embedding(tokens), None

    def step(self, state: Tensor, context: object, loop: int) -> Tensor:
        return state + self.block(state).tanh()

    def readout(self, state: Tensor, context: object, loop: int, loops: int) -> Tensor:
        return self.head(state)


def test_gradients_are_recorded_only_when_asked_for() -> None:
    module = Tanh()
    looped = model(module.step, embed=module.embed, readout=module.readout)
    without = lv.unroll(looped, TOKENS)
    assert not without.states[-1].requires_grad
    assert not without.logits(4).requires_grad
    with torch.no_grad():  # the argument takes precedence over the mode of the caller
        trace = lv.unroll(looped, TOKENS, grad=True)
    assert trace.logits(4).requires_grad
    (gradient,) = torch.autograd.grad(trace.states[-1].sum(), trace.states[0])
    assert gradient.abs().min() > 0


def test_frozen_embeddings_still_give_a_gradient_at_the_first_state() -> None:
    trace = lv.unroll(model(lambda h, c, k: 2 * h), TOKENS, grad=True)
    (gradient,) = torch.autograd.grad(trace.states[4].sum(), trace.states[0])
    assert torch.equal(gradient, torch.full_like(gradient, 16.0))


@pytest.mark.parametrize(
    ("cut", "cause"),
    [
        (lambda h: (2 * h).detach(), "does not require a gradient"),
        (lambda h: (2 * h).detach().requires_grad_(), "does not depend on the state"),
    ],
)
def test_a_cut_gradient_fails_loudly_and_names_the_loop(cut: object, cause: str) -> None:
    def step(state: Tensor, context: object, loop: int) -> Tensor:
        return cut(state) if loop == 3 else 2 * state

    with pytest.raises(GradientCutError, match=rf"no gradient flows from H_3 back to H_2: .*{cause}"):
        lv.unroll(model(step), TOKENS, grad=True)
    assert lv.unroll(model(step), TOKENS, grad=False).loops == 4


@pytest.mark.parametrize("loops", [0, -1, 1.5, True, "4"])
def test_loops_that_are_no_count_are_refused(loops: object) -> None:
    with pytest.raises(InputError, match=r"loops is .*; expected an integer >= 1"):
        lv.unroll(model(add_loop), TOKENS, loops=loops)


@pytest.mark.parametrize("exit_", [0, 5, True])
def test_an_exit_outside_the_run_is_refused(exit_: object) -> None:
    with pytest.raises(InputError, match=r"exit .* of a trace of 4 loops; expected an integer 1\.\.4"):
        lv.unroll(model(add_loop), TOKENS).logits(exit_)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (torch.tensor([0, 1]), r"torch.int64 \(2,\)"),
        (torch.tensor([[0, 1]], dtype=torch.int32), r"torch.int32"),
        (torch.empty(0, 3, dtype=torch.int64), r"\(0, 3\)"),
        ([[0, 1]], "list"),
    ],
)
def test_tokens_of_another_form_are_refused(tokens: object, words: str) -> None:
    with pytest.raises(InputError, match=rf"tokens are .*{words}.*expected a non-empty int64 tensor"):
        lv.unroll(model(add_loop), tokens)


@pytest.mark.parametrize("token", [-1, V])
def test_tokens_out_of_range_are_refused_by_the_declared_vocabulary(token: int) -> None:
    with pytest.raises(InputError, match=r"expected 0\.\.10 for a vocabulary of 11"):
        lv.unroll(model(add_loop, vocab_size=V), torch.tensor([[0, token]]))


def test_tokens_that_only_the_embedding_refuses_are_explained() -> None:
    module = Tanh()
    with pytest.raises(
        InputError, match=r"embed refused tokens in 0\.\.99 .*expected tokens of the model's vocabulary"
    ):
        lv.unroll(model(module.step, embed=module.embed), torch.tensor([[0, 99]]))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"embed": lambda t: embed(t)[0]}, r"embed returned a Tensor; expected a pair \(state, context\)"),
        ({"embed": lambda t: (t, None)}, r"embed returned torch.int64; expected a floating tensor"),
        ({"embed": lambda t: (embed(t)[0][0], None)}, r"embed returned shape \(3, 6\); expected \(B, T, D\)"),
        ({"step": lambda h, c, k: h[..., :2]}, r"step at loop 1 returned shape \(2, 3, 2\).*H_0, \(2, 3, 6\)"),
        ({"step": lambda h, c, k: None}, r"step at loop 1 returned NoneType"),
    ],
)
def test_parts_that_return_another_form_are_refused(overrides: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        lv.unroll(model(**{"step": add_loop, **overrides}), TOKENS)


def test_a_looped_of_wrong_parts_is_refused_where_it_is_made() -> None:
    with pytest.raises(InputError, match=r"Looped\.step is 3; expected a callable"):
        model(3)
    with pytest.raises(InputError, match=r"Looped\.trained_loops is 0; expected an integer >= 1"):
        model(add_loop, trained_loops=0)
    with pytest.raises(InputError, match=r"Looped\.vocab_size is '31'; expected an integer >= 1, or None"):
        model(add_loop, vocab_size="31")
    with pytest.raises(InputError, match=r"unroll got a Tanh; expected a loopverify\.Looped"):
        lv.unroll(Tanh(), TOKENS)


def test_parameters_are_found_once_behind_methods_and_modules() -> None:
    module = Tanh()
    looped = model(module.step, embed=module.embed, readout=module.readout)
    assert looped.modules() == [module]
    assert [name for name, _ in looped.named_parameters()] == [name for name, _ in module.named_parameters()]
    head = nn.Linear(D, V)
    apart = lv.Looped(embed=module.embed, step=module.step, readout=head, trained_loops=1, module=module)
    assert apart.modules() == [module, head]
    assert len(list(apart.parameters())) == 5 + 2


def test_importing_the_package_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, loopverify; assert 'torch' not in sys.modules; loopverify.Looped; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_resolves_and_an_unknown_one_says_what_there_is() -> None:
    for name in lv.__all__:
        assert getattr(lv, name) is not None
    assert set(lv.__all__) <= set(dir(lv))
    with pytest.raises(AttributeError, match=r"no attribute 'nope'; it has: .*Looped"):
        _ = lv.nope
