"""Settings of torch on which results depend: the same in every run, and the process's own again after it."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from loopverify.errors import InputError
from tests.train.micro import micro_hops
from train.engine.loop import train
from train.engine.open import open_examples
from train.machine.hardware import pinned
from train.specification import RunSpec
from train.store import RunStore

TINY = torch.finfo(torch.float32).tiny


def settings() -> dict[str, object]:
    return {
        "threads": torch.get_num_threads(),
        "products": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "denormals": float(torch.tensor(TINY) / 4) != 0.0,
    }


@pytest.fixture
def odd_process() -> object:
    """A process whose settings are none of the usual ones."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_default_dtype()
    torch.set_num_threads(3)
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.float64)
    yield settings()
    torch.set_num_threads(before[0])
    torch.set_float32_matmul_precision(before[1])
    torch.set_default_dtype(before[2])


def test_they_are_independent_of_the_process_and_restored_afterwards(odd_process: dict[str, object]) -> None:
    own = {"products": "highest", "dtype": torch.float32, "denormals": False}
    with pinned(2):
        assert settings() == {"threads": 2, **own}
    assert settings() == odd_process
    with pinned(None):
        assert settings() == {"threads": 3, **own}
    with pytest.raises(KeyError), pinned(1):
        raise KeyError
    assert settings() == odd_process


def test_a_run_in_an_odd_process_is_the_same_run(odd_process: dict[str, object]) -> None:
    spec = RunSpec(preset=micro_hops(), loss="per_loop", readout="rmsnorm")
    examples = open_examples(spec, RunStore("nowhere"))
    with torch.autocast("cpu", dtype=torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        weights, metrics = train(spec, examples, lambda event: None)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    torch.set_default_dtype(torch.float32)
    usual, expected = train(spec, examples, lambda event: None)
    assert {name: value for name, value in metrics.items() if value == value} == {
        name: value for name, value in expected.items() if value == value
    }
    assert all(torch.equal(weights[name], usual[name]) for name in usual)


def test_another_default_device_is_rejected() -> None:
    with torch.device("meta"), pytest.raises(InputError, match="default device is meta; expected cpu"), pinned(1):
        pytest.fail("entered")
