"""Settings shared by every test root: Hypothesis profiles, one thread a process, fixed seeds."""

from __future__ import annotations

import os
import random

import pytest

# One OpenMP thread a process: two busy processes with two threads each stall each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:  # `pytest train` needs no Hypothesis
        return
    # No deadline: a first call pays for torch's warm-up, which says nothing about the code under test.
    settings.register_profile("default", deadline=None, max_examples=100)
    settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
    settings.register_profile(
        "thorough", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
    )
    if not config.getoption("--hypothesis-profile", default=None):
        settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test starts from the same random state, so that a failure repeats."""
    random.seed(0)
    import numpy
    import torch

    numpy.random.seed(0)  # noqa: NPY002 - libraries under test may draw from the global generator
    torch.manual_seed(0)
