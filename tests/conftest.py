"""What every test may rely on."""

from __future__ import annotations

import importlib

import pytest


@pytest.fixture(autouse=True, scope="session")
def _torch_is_whole() -> None:
    """Import what torch imports at first use: pytester forgets the modules that came in during its test, and a module
    of torch that is imported a second time registers its operators a second time."""
    for name in ("torch._dynamo", "torch._inductor.test_operators", "torch.distributed._functional_collectives"):
        importlib.import_module(name)
