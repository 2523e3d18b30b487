"""Any module by the paths of its parts: each form of block, norm and head against a loop written out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import loopverify as lv
from loopverify.adapters.paths import suggest
from loopverify.errors import InputError

V, D, LOOPS = 11, 6, 3


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(D, D)

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.tanh(self.inner(h))


class Gated(Branch):
    """Takes more arguments than the state, and returns (hidden, extra) like many decoder layers."""

    def forward(self, h: Tensor, gate: Tensor) -> tuple[Tensor, None]:
        return h + gate * torch.tanh(self.inner(h)), None


class Net(nn.Module):
    def __init__(self, block: type[nn.Module] = Branch) -> None:
        super().__init__()
        self.trunk = nn.Module()
        self.trunk.tok_emb = nn.Embedding(V, D)
        self.trunk.blocks = nn.ModuleList([block(), block()])
        self.trunk.scale = 3.0
        self.norm_f, self.norm_loop = nn.LayerNorm(D), nn.RMSNorm(D)
        self.lm_head = nn.Linear(D, V)


PATHS = {"embed": "trunk.tok_emb", "block": "trunk.blocks", "head": "lm_head", "trained_loops": LOOPS}


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (2, 5))


def test_a_list_of_blocks_is_applied_in_order_once_a_loop(tokens: Tensor) -> None:
    net = Net()
    trace = lv.unroll(lv.adapt(net, readout_norm="norm_f", **PATHS), tokens)
    h = net.trunk.tok_emb(tokens)
    for k in range(1, LOOPS + 1):
        h = net.trunk.blocks[1](net.trunk.blocks[0](h))
        assert torch.equal(trace.states[k], h)
        assert torch.equal(trace.logits(k), net.lm_head(net.norm_f(h)))


def test_a_single_module_can_be_the_block(tokens: Tensor) -> None:
    net = Net()
    trace = lv.unroll(lv.adapt(net, **PATHS | {"block": "trunk.blocks.1"}), tokens, loops=2)
    first, second = net.trunk.blocks[1], net.trunk.blocks[1]
    assert torch.equal(trace.states[2], second(first(net.trunk.tok_emb(tokens))))
    assert torch.equal(trace.logits(2), net.lm_head(trace.states[2]))  # no readout norm: a raw readout


def test_the_loops_asked_are_the_loops_executed(tokens: Tensor) -> None:
    net, calls = Net(), []
    net.trunk.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    for loops in (1, 2, 5):
        calls.clear()
        lv.unroll(lv.adapt(net, **PATHS), tokens, loops=loops)
        assert len(calls) == loops


def test_a_norm_of_its_own_ends_every_loop(tokens: Tensor) -> None:
    net = Net()
    trace = lv.unroll(lv.adapt(net, loop_norm="norm_loop", readout_norm="norm_f", **PATHS), tokens, loops=2)
    h = net.trunk.tok_emb(tokens)
    for _ in range(2):
        h = net.norm_loop(net.trunk.blocks[1](net.trunk.blocks[0](h)))
    assert torch.equal(trace.states[2], h)
    assert torch.equal(trace.logits(2), net.lm_head(net.norm_f(h)))


def test_one_norm_as_loop_boundary_and_readout_is_applied_once_and_after_the_state(tokens: Tensor) -> None:
    net = Net()
    trace = lv.unroll(lv.adapt(net, loop_norm="norm_f", readout_norm="norm_f", **PATHS), tokens, loops=3)
    normed = net.trunk.tok_emb(tokens)
    for k in (1, 2, 3):
        h = net.trunk.blocks[1](net.trunk.blocks[0](normed))
        assert torch.equal(trace.states[k], h)
        normed = net.norm_f(h)
        assert torch.equal(trace.logits(k), net.lm_head(normed))


def test_call_and_context_meet_other_signatures(tokens: Tensor) -> None:
    net = Net(Gated)
    model = lv.adapt(
        net,
        context=lambda tokens, state: tokens.float()[..., None] * torch.ones_like(state),
        call=lambda block, state, context: block(state, gate=context),
        **PATHS,
    )
    h, gate = net.trunk.tok_emb(tokens), tokens.float()[..., None]
    expected, _ = net.trunk.blocks[1](net.trunk.blocks[0](h, gate)[0], gate)
    assert torch.equal(lv.unroll(model, tokens, loops=1).states[1], expected)


def test_an_embedding_as_head_is_a_tied_head(tokens: Tensor) -> None:
    net = Net()
    trace = lv.unroll(lv.adapt(net, **PATHS | {"head": "trunk.tok_emb"}), tokens, loops=1)
    assert torch.allclose(trace.logits(1), trace.states[1] @ net.trunk.tok_emb.weight.T)


def test_the_view_knows_its_parameters_and_its_vocabulary(tokens: Tensor) -> None:
    net = Net()
    model = lv.adapt(net, name="mine", **PATHS)
    assert (model.name, model.trained_loops, model.vocab_size) == ("mine", LOOPS, V)
    assert {id(p) for p in model.parameters()} == {id(p) for p in net.parameters()}
    with pytest.raises(InputError, match=r"tokens span .*11; expected 0\.\.10"):
        lv.unroll(model, tokens.fill_(V))


@pytest.mark.parametrize(
    ("part", "path", "message"),
    [
        (
            "embed",
            "trunk.tok_embed",
            r"embed='trunk\.tok_embed': no such part of Net; its 'trunk' \(a Module\) has no module 'tok_embed'\. "
            r"Did you mean 'trunk\.tok_emb'\? It has: tok_emb, blocks",
        ),
        ("block", "trunk.blocks.7", r"its 'trunk\.blocks' \(a ModuleList\) has no module '7'.*It has: 0, 1"),
        ("head", "head", r"head='head': no such part of Net; it has no module 'head'\. Did you mean 'lm_head'\?"),
        ("embed", "trunk.scale", r"'scale' is a float there, not a module"),
        ("head", "lm_head.weight", r"'lm_head' \(a Linear\) has no module 'weight'.*It has: no modules"),
        ("block", "", r"block='': no such part of Net; it has no module ''"),
    ],
)
def test_an_error_for_a_missing_path_names_where_it_ends(part: str, path: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lv.adapt(Net(), **PATHS | {part: path})


def test_a_norm_path_is_also_checked() -> None:
    with pytest.raises(InputError, match=r"readout_norm='norm_g': .*Did you mean 'norm_f'"):
        lv.adapt(Net(), readout_norm="norm_g", **PATHS)
    with pytest.raises(InputError, match=r"loop_norm='ln': no such part of Net"):
        lv.adapt(Net(), loop_norm="ln", **PATHS)


def test_candidates_for_the_parts_are_found_by_type_and_shape() -> None:
    found = suggest(Net())
    assert found == {
        "embed": ["trunk.tok_emb"],
        "block": ["trunk.blocks"],
        "readout_norm": ["norm_f", "norm_loop"],
        "head": ["lm_head"],
    }
