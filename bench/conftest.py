"""`pytest bench`: options, and the fixture that times one thing against others."""

from __future__ import annotations

import os

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from bench.contest import Contest, clock_of
from bench.shapes import QUICK, SHAPES, WIDE, WIDE_QUICK, Shape, Wide


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("loopverify benchmarks")
    group.addoption("--device", default="cpu", choices=["cpu", "cuda"], help="what to measure on (default: cpu)")
    group.addoption("--quick", action="store_true", help="minimal shapes, one round: only whether everything runs")


@pytest.hookimpl(tryfirst=True)  # before pytest-benchmark reads its options
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--device") == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("--device cuda, but torch sees no CUDA device")
    config.option.benchmark_timer = f"time.{clock_of(config.getoption('--device')).__name__}"
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def quick(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--quick"))


@pytest.fixture
def contest(benchmark: BenchmarkFixture, device: str, quick: bool) -> Contest:
    """contest(subject, {"peer": job}, label=..., shape=..., rounds=...) times them, interleaved."""
    return Contest(benchmark, device, quick)


@pytest.fixture(params=list(SHAPES))
def shape(request: pytest.FixtureRequest, quick: bool) -> Shape:
    """Every measured preset."""
    return QUICK if quick else SHAPES[request.param]


@pytest.fixture
def large(quick: bool) -> Shape:
    """The shape to which the goals apply."""
    return QUICK if quick else SHAPES["44m"]


@pytest.fixture
def wide(quick: bool) -> Wide:
    return WIDE_QUICK if quick else WIDE


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, object]) -> None:
    machine_info["torch"] = torch.__version__
    on_cuda = config.getoption("--device") == "cuda"
    machine_info["device"] = torch.cuda.get_device_name() if on_cuda else "cpu"
    machine_info["load"] = f"{os.getloadavg()[0]:.1f} (runnable processes, mean of a minute)"
