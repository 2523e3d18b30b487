"""Norm placement: models whose placement is known by construction, and modules whose own forward counts the calls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import loopverify as lv
from loopverify.checks.placement.normalizers import normalizes
from loopverify.checks.placement.placement import norm_placement
from loopverify.errors import InputError
from loopverify.models import LoopedTransformer, TransformerConfig
from tests.loopverify.adapters.lookalikes import Norm, tiny_huginn, tiny_ouro

V, D = 19, 8


class Parts(nn.Module):
    """An embedding, a pre-norm branch, two further norms and a head, to be combined in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.head = nn.Embedding(V, D), nn.Linear(D, V, bias=False)
        self.inner, self.pre, self.first, self.last = nn.Linear(D, D), Norm(D), Norm(D), Norm(D)

    def block(self, h: Tensor) -> Tensor:
        return h + torch.tanh(self.inner(self.pre(h)))


Step = Callable[[Parts, Tensor], Tensor]


def looped(step: Step = Parts.block, readout: Step = lambda p, h: p.head(h)) -> lv.Looped:
    parts = Parts()
    return lv.Looped(
        embed=lambda tokens: (parts.tok(tokens), None),
        step=lambda state, context, loop: step(parts, state),
        readout=lambda state, context, loop, loops: readout(parts, state),
        trained_loops=2,
        module=parts,
    )


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (2, 5))


@pytest.mark.parametrize(
    ("readout", "boundary", "places", "carry", "visibility"),
    [
        ("rmsnorm", "none", {"readout_norm": "readout"}, "carried", "hidden"),
        ("rmsnorm", "own", {"loop_norm": "boundary", "readout_norm": "readout"}, "removed", "hidden"),
        ("rmsnorm", "shared", {"readout_norm": "both"}, "removed", "hidden"),
        ("layernorm", "shared", {"readout_norm": "both"}, "removed", "hidden"),
        ("raw", "none", {}, "carried", "visible"),
        ("raw", "own", {"loop_norm": "boundary"}, "removed", "visible"),
    ],
)
def test_the_reference_transformer(
    tokens: Tensor, readout: str, boundary: str, places: dict[str, str], carry: str, visibility: str
) -> None:
    config = TransformerConfig(vocab_size=V, d_model=D, readout=readout, inter_loop_norm=boundary)
    placement = norm_placement(LoopedTransformer(config).looped(), tokens)
    found = {norm.name: norm.by_function for norm in placement.norms}
    branches = {f"layers.{i}.{name}": "inside" for i in (0, 1) for name in ("attention_norm", "mlp_norm")}
    assert found == branches | places
    assert placement.disagreements == ()
    assert placement.notes == ()
    assert placement.carry == (carry,) * 3
    assert placement.visibility == (visibility,) * 3


def test_a_norm_at_the_final_exit_only_is_counted_there(tokens: Tensor) -> None:
    config = TransformerConfig(vocab_size=V, d_model=D, readout="final_only")
    placement = norm_placement(LoopedTransformer(config).looped(), tokens)
    (norm,) = [norm for norm in placement.norms if norm.name == "readout_norm"]
    assert norm.calls_per_exit == (0, 0, 1)
    assert (norm.by_calls, norm.by_function) == ("readout", "readout")
    assert placement.visibility == ("visible", "visible", "hidden")


@torch.no_grad()
def test_ouro_shares_one_norm_between_boundary_and_readout(tokens: Tensor) -> None:
    module = tiny_ouro()
    model = lv.adapt(module)
    placement = norm_placement(model, tokens)
    assert placement.at("both") == ["model.norm"]
    assert placement.at("boundary", "readout") == []
    assert placement.carry == ("carried", "removed", "removed")  # the embedding is not normalized
    (norm,) = [norm for norm in placement.norms if norm.name == "model.norm"]
    assert norm.calls_per_loop == (0, 1, 1)
    assert norm.totals == tuple(
        calls_in(module.model.norm, lambda k=k: model.paths["forward"](tokens, k)) for k in (2, 3)
    )
    assert norm.totals == (2, 3)


@torch.no_grad()
def test_huginn_has_no_boundary_norm_and_removes_scale_in_its_blocks(tokens: Tensor) -> None:
    module = tiny_huginn()
    model = lv.adapt(module)
    placement = norm_placement(model, tokens)
    core = "transformer.core_block"
    assert placement.at("boundary") == [f"{core}.{i}.{norm}" for i in (0, 1) for norm in ("norm_2", "norm_4")]
    assert placement.at("readout") == ["transformer.ln_f", "transformer.coda.0.norm_2", "transformer.coda.0.norm_4"]
    assert placement.carry == ("removed",) * 3
    (ln_f,) = [norm for norm in placement.norms if norm.name == "transformer.ln_f"]
    assert ln_f.calls_per_exit == (2, 2, 2)
    own = tuple(calls_in(module.transformer.ln_f, lambda k=k: model.paths["forward"](tokens, k)) for k in (2, 3))
    assert ln_f.totals == own == (2, 2)  # twice per forward for any loop count
    # By calls, only the last operation of the loop is recognized: its result is the state.
    by_calls = {norm.name: norm.by_calls for norm in placement.norms}
    assert by_calls[f"{core}.1.norm_4"] == "boundary"
    assert by_calls[f"{core}.0.norm_2"] == "inside"
    assert placement.at("outside") == [f"transformer.prelude.0.norm_{i}" for i in (1, 2, 3, 4)]


def calls_in(module: nn.Module, run: Callable[[], object]) -> int:
    calls = Counter()
    handle = module.register_forward_hook(lambda *_: calls.update(["call"]))
    run()
    handle.remove()
    return calls["call"]


def test_a_norm_at_the_entry_of_a_loop_is_distinguished_from_a_pre_norm_by_function_alone(tokens: Tensor) -> None:
    placement = norm_placement(looped(step=lambda p, h: p.block(p.first(h))), tokens)
    (entry,) = [norm for norm in placement.norms if norm.name == "first"]
    assert (entry.by_calls, entry.by_function) == ("inside", "boundary")
    assert entry.why == "trust the function: in a loop, the whole state passes through it; a count cannot show that"
    assert placement.at("inside") == ["pre"]
    assert placement.carry == ("removed",) * 3


def test_a_block_that_normalizes_without_a_module_is_seen_by_function(tokens: Tensor) -> None:
    placement = norm_placement(looped(step=lambda p, h: F.rms_norm(p.block(h), (D,), eps=1e-6)), tokens)
    assert placement.at("boundary", "both") == []
    assert placement.carry == ("removed",) * 3
    assert any("the loop removes the scale although the stream passes through no norm" in n for n in placement.notes)


def test_a_readout_that_normalizes_without_a_module_is_seen_by_function(tokens: Tensor) -> None:
    placement = norm_placement(looped(readout=lambda p, h: p.head(F.rms_norm(h, (D,), eps=1e-6))), tokens)
    assert placement.visibility == ("hidden",) * 3
    assert any("the exits hide the scale although the state passes through no norm" in n for n in placement.notes)


def test_a_norm_on_a_branch_of_the_readout_is_not_the_readout_norm(tokens: Tensor) -> None:
    placement = norm_placement(looped(readout=lambda p, h: p.head(0.5 * p.last(h) + 0.5 * h)), tokens)
    (mixed,) = [norm for norm in placement.norms if norm.name == "last"]
    assert (mixed.by_calls, mixed.by_function) == ("readout", "inside")
    assert mixed.why == "trust the function: in an exit, part of the state bypasses it; a count cannot show that"
    assert placement.visibility == ("visible",) * 3


def test_a_readout_norm_reused_on_a_branch_does_not_stand_at_the_boundary(tokens: Tensor) -> None:
    model = looped(step=lambda p, h: h + torch.tanh(p.inner(p.last(h))), readout=lambda p, h: p.head(p.last(h)))
    placement = norm_placement(model, tokens)
    (shared,) = placement.norms
    assert (shared.by_calls, shared.by_function) == ("both", "readout")
    assert "in a loop, part of the state bypasses it; in an exit, the whole state passes through it" in shared.why
    assert placement.carry == ("carried",) * 3


def test_parts_of_a_state_that_enter_by_norms_of_their_own_are_found_together(tokens: Tensor) -> None:
    def two_streams(parts: Parts, h: Tensor) -> Tensor:
        low, high = h.chunk(2, dim=-1)
        low, high = low_norm(low), high_norm(high)
        return torch.cat([torch.tanh(low + high) + low, high - 0.5 * low], dim=-1)

    low_norm, high_norm = Norm(D // 2), Norm(D // 2)
    model = looped(step=two_streams)
    model.module.low_norm, model.module.high_norm = low_norm, high_norm
    placement = norm_placement(model, tokens)
    assert placement.at("boundary") == ["low_norm", "high_norm"]
    assert placement.carry == ("removed",) * 3


def test_a_norm_whose_epsilon_lets_the_scale_through_is_named(tokens: Tensor) -> None:
    weak = nn.RMSNorm(D, eps=1e4)
    placement = norm_placement(looped(readout=lambda p, h: p.head(weak(h))), tokens)
    assert placement.at("readout") == ["RMSNorm"]  # no module of the model holds it, so its class is its name
    assert placement.visibility == ("saturating",) * 3
    assert any("passes through RMSNorm, yet the scale is saturating: trust" in n for n in placement.notes)


def test_calls_that_do_not_follow_the_loops_are_noted(tokens: Tensor) -> None:
    calls = []

    def moody(parts: Parts, h: Tensor) -> Tensor:
        calls.append(1)
        return parts.block(parts.first(h) if len(calls) > 6 else h)

    placement = norm_placement(looped(step=moody), tokens)
    assert "the number of module calls in a loop depends on the number of loops" in placement.notes


class Clip(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (5.0 / x.norm(dim=-1, keepdim=True)).clamp(max=1.0)


class Sphere(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.LayerNorm(D), True),
        (nn.RMSNorm(D), True),
        (Norm(D), True),
        (Sphere(), True),
        (nn.Identity(), False),
        (nn.SiLU(), False),
        (nn.Tanh(), False),
        (nn.Dropout(0.5).eval(), False),
        (nn.Softmax(dim=-1), False),
        (Clip(), False),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_norm_is_known_by_what_it_does(module: nn.Module, expected: bool, dtype: torch.dtype) -> None:
    states = torch.randn(2, 3, D).to(dtype)
    assert normalizes(module.to(dtype), states) is expected
    assert normalizes(module.to(dtype), 0.1 * states) is expected
    module.float()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_norm_is_known_on_states_with_a_channel_that_stands_out(dtype: torch.dtype) -> None:
    states = torch.randn(2, 3, 1024)
    states[..., 7] = 300.0  # 32 times the rms of its token: 1e4 times that overflows in float16
    for shown in (states.to(dtype), (0.01 * states).to(dtype)):
        assert normalizes(Norm(1024).to(dtype), shown)
        assert not normalizes(nn.Identity(), shown)


def test_a_module_that_cannot_be_called_on_other_states_is_no_norm() -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("once only")

    assert not normalizes(Picky(), torch.ones(1, 2, D))
    assert not normalizes(Sphere(), torch.zeros(1, 2, D))  # zeros show no scale


def hooks(model: lv.Looped) -> list[object]:
    own = [hook for root in model.modules() for m in root.modules() for hook in m._forward_hooks]
    return own + list(torch_module._global_forward_hooks) + list(torch_module._global_forward_pre_hooks)


def test_the_model_is_left_as_it_was(tokens: Tensor) -> None:
    module = LoopedTransformer(TransformerConfig(vocab_size=V, d_model=D, dropout=0.2)).train()
    model = module.looped()
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    random_state = torch.random.get_rng_state()
    first, second = norm_placement(model, tokens), norm_placement(model, tokens)
    assert first == second
    assert hooks(model) == []
    assert all(m.training for m in module.modules())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(torch.equal(weights[name], value) for name, value in module.state_dict().items())
    assert torch.equal(random_state, torch.random.get_rng_state())


@pytest.mark.parametrize("when", range(1, 20, 3))
def test_no_hook_outlives_an_error(tokens: Tensor, when: int) -> None:
    calls = []

    def failing(parts: Parts, h: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == when:
            raise RuntimeError("out of order")
        return parts.block(h)

    model = looped(step=failing)
    with pytest.raises(RuntimeError, match="out of order"):
        norm_placement(model, tokens)
    assert hooks(model) == []


@pytest.mark.parametrize("loops", [(3, 2), (2, 2), (0, 1), (1.0, 2)])
def test_loop_counts_must_increase(tokens: Tensor, loops: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=r"expected two integers, 1 <= shorter < longer"):
        norm_placement(looped(), tokens, loops=loops)


def test_the_text_and_the_dictionary_tell_the_same(tokens: Tensor) -> None:
    placement = norm_placement(lv.adapt(tiny_ouro()), tokens)
    assert str(placement).splitlines() == [
        "norm placement of ouro, counted at 2 and 3 loops",
        "  scale is carried by loop 1, removed by loop 2-3; hidden at exit 1-3",
        "  norm        calls: embed, per loop, per exit  by calls  by function",
        "  model.norm  0, 0/1/1, 1                       both      both",
        "  inside, on branches: model.layers.0.input_layernorm and 7 more; outside: none",
    ]
    facts = json.loads(json.dumps(placement.to_dict()))
    assert [norm["name"] for norm in facts["norms"] if norm["by_function"] == "both"] == ["model.norm"]
    entry = str(norm_placement(looped(step=lambda p, h: p.block(p.first(h))), tokens))
    assert "  → first: inside by calls; trust the function: in a loop, the whole state passes through it" in entry
