"""Models by name: which are found and called, and the message of every error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import loopverify as lv
from loopverify.checks.loading import load_model
from loopverify.errors import InputError

SOURCE = """
from torch import nn
import loopverify as lv
from loopverify.models import LoopedTransformer, TransformerConfig

CONFIG = TransformerConfig(vocab_size=11, d_model=8, layers=1, heads=1, d_ff=8, trained_loops=3)
ready = LoopedTransformer(CONFIG)
view = ready.looped("view")
half = 0.5

def module():
    return LoopedTransformer(CONFIG)

class Zoo:
    @staticmethod
    def looped():
        return ready.looped("from the zoo")

def seven():
    return 7

def wants(width):
    return width
"""


@pytest.fixture(autouse=True)
def zoo(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "zoo_of_models.py").write_text(SOURCE)
    path, known = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("module", "looped_transformer/rmsnorm"),
        ("ready", "looped_transformer/rmsnorm"),
        ("view", "view"),
        ("Zoo.looped", "from the zoo"),
    ],
)
def test_a_factory_or_a_model_is_found_and_adapted(zoo: Path, path: str, name: str) -> None:
    model = load_model(f"zoo_of_models:{path}", zoo)
    assert isinstance(model, lv.Looped)
    assert (model.name, model.trained_loops) == (name, 3)


@pytest.mark.parametrize("reference", ["zoo_of_models", "zoo_of_models:", ":module", ""])
def test_another_form_is_refused(zoo: Path, reference: str) -> None:
    with pytest.raises(InputError, match=rf"model '{reference}'; expected 'package\.module:factory', such as"):
        load_model(reference, zoo)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("nowhere.at_all:module", r"cannot import 'nowhere\.at_all' \(No module named 'nowhere'\)"),
        ("zoo_of_models:nothing", r"zoo_of_models has no 'nothing'; expected a factory with this name"),
        ("zoo_of_models:wants", r"called without arguments, raised TypeError: wants\(\) missing 1 required"),
        ("zoo_of_models:seven", r"gave a int; expected a Looped or an nn\.Module"),
        ("zoo_of_models:half", r"is a float; expected a function that returns a model"),
    ],
)
def test_what_cannot_be_loaded_is_explained(zoo: Path, reference: str, words: str) -> None:
    with pytest.raises(InputError, match=rf"model '{reference}'.*{words}"):
        load_model(reference, zoo)


def test_without_a_folder_only_what_python_finds_is_loaded() -> None:
    with pytest.raises(InputError, match="cannot import 'zoo_of_models'"):
        load_model("zoo_of_models:module")


def test_a_factory_that_ends_the_process_does_not_pass_for_a_verdict(zoo: Path) -> None:
    (zoo / "leaver.py").write_text("def model():\n    raise SystemExit(0)\n")
    with pytest.raises(InputError, match="the factory, called without arguments, raised"):
        load_model(f"{zoo / 'leaver.py'}:model")
