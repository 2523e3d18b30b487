"""The function adapt: what it returns unchanged, what it recognizes, and the error for an unknown structure."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import loopverify as lv
from loopverify.adapters import ARCHITECTURES
from loopverify.adapters.architecture import Architecture, Options, overridden
from loopverify.adapters.native import attention_masks
from loopverify.errors import InputError, MissingDependencyError
from loopverify.models import LoopedTransformer, TransformerConfig
from tests.loopverify.adapters.lookalikes import tiny_huginn, tiny_ouro


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4)])
        self.final_norm = nn.LayerNorm(4)
        self.unembed = nn.Linear(4, 7)


def test_a_looped_is_returned_as_it_is() -> None:
    model = LoopedTransformer(TransformerConfig(vocab_size=5, d_model=8)).looped()
    assert lv.adapt(model) is model


def test_options_for_a_looped_are_refused_since_they_would_do_nothing() -> None:
    model = LoopedTransformer(TransformerConfig(vocab_size=5, d_model=8)).looped()
    with pytest.raises(InputError, match="a Looped together with head, trained_loops, which would have no effect"):
        lv.adapt(model, head="head", trained_loops=3)


def test_a_module_with_a_method_looped_gives_its_own_view() -> None:
    module = LoopedTransformer(TransformerConfig(vocab_size=5, d_model=8, trained_loops=3))
    model = lv.adapt(module, name="own")
    assert (model.name, model.trained_loops) == ("own", 3)
    tokens = torch.randint(5, (1, 4))
    assert torch.equal(lv.unroll(model, tokens).states[3], lv.unroll(module.looped(), tokens).states[3])


def test_a_method_looped_that_returns_something_else_is_refused() -> None:
    class Odd(nn.Module):
        def looped(self) -> int:
            return 4

    with pytest.raises(InputError, match=r"Odd\.looped\(\) returned a int; expected a Looped"):
        lv.adapt(Odd())


def test_something_that_is_no_module_is_refused() -> None:
    with pytest.raises(InputError, match=r"adapt got a str; expected an nn\.Module or a Looped"):
        lv.adapt("gpt2")


def test_half_a_description_names_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"got embed, head without block, trained_loops; .*by its parts"):
        lv.adapt(Unknown(), embed="tok", head="unembed")


def test_an_unknown_structure_is_told_what_was_found_and_the_form_to_use() -> None:
    with pytest.raises(InputError) as caught:
        lv.adapt(Unknown())
    message = str(caught.value)
    assert message.startswith("cannot adapt Unknown: its structure matches no known architecture")
    assert "known: a module with a method looped(), dory, hrm_text, inkling2_loop" in message
    assert "could be its embed: tok" in message
    form = 'lv.adapt(module, embed="tok", block="blocks", readout_norm="final_norm", head="unembed", trained_loops=...)'
    assert form in message
    options = {"embed": "tok", "block": "blocks", "readout_norm": "final_norm", "head": "unembed"}
    lv.unroll(lv.adapt(Unknown(), trained_loops=2, **options), torch.randint(7, (1, 3)))  # and the form works


def test_a_structure_that_is_almost_known_is_told_what_it_lacks() -> None:
    module = tiny_ouro()
    del module.model.early_exit_gate
    with pytest.raises(InputError, match=r"like ouro, it has model\.embed_tokens.*; it lacks model\.early_exit_gate\n"):
        lv.adapt(module)


@pytest.mark.parametrize(("make", "name"), [(tiny_ouro, "ouro"), (tiny_huginn, "huginn")])
def test_structure_decides_and_the_class_name_does_not(make, name: str) -> None:
    module = make()
    module.__class__ = type("Renamed", (type(module),), {})
    assert lv.adapt(module).name == name
    matches = [a.name for a in ARCHITECTURES if not a.missing(module)]
    assert matches == [name]


def test_trained_loops_come_from_the_module_unless_given() -> None:
    module = tiny_ouro(loops=3)
    assert lv.adapt(module).trained_loops == 3
    assert lv.adapt(module, trained_loops=2).trained_loops == 2
    with pytest.raises(InputError, match=r"trained_loops is 0; expected an integer >= 1"):
        lv.adapt(module, trained_loops=0)


def test_parts_are_attribute_paths_and_what_they_hold_does_not_matter() -> None:
    module = nn.Module()
    module.body = SimpleNamespace(width=None)
    of = Architecture(name="x", parts=("body.width", "body.depth", "head"), build=lambda m, o: NotImplemented)
    assert of.missing(module) == ["body.depth", "head"]
    assert Options(trained_loops=None).loops(4) == 4


def test_overridden_values_come_back_also_after_an_error() -> None:
    one, other = SimpleNamespace(steps=4, size=1), SimpleNamespace(size=2)
    seen = []

    def fail() -> None:
        with overridden(one, other, steps=9, size=7):
            seen.append((one.steps, one.size, other.size))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert seen == [(9, 7, 7)]
    assert (one.steps, one.size, other.size) == (4, 1, 2)
    assert not hasattr(other, "steps")  # an owner without the attribute is not given one


def test_adapting_an_ordinary_module_does_not_import_transformers() -> None:
    program = (
        "import sys, loopverify as lv\n"
        "from loopverify.models import LoopedTransformer, TransformerConfig\n"
        "lv.adapt(LoopedTransformer(TransformerConfig(vocab_size=5, d_model=8)))\n"
        "print('transformers' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"


def test_a_model_of_transformers_without_transformers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # what an import of a missing library finds
    monkeypatch.delitem(sys.modules, "transformers.masking_utils", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install 'loopverify\[hf\]'"):
        attention_masks(SimpleNamespace(), torch.zeros(1, 2, 4), None, torch.arange(2)[None])
