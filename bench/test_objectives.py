"""Dense supervision of a wide vocabulary: time, memory and accuracy of the per-loop loss, against its peers.

What K exits cost is logits: tokens times exits times vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from bench.contest import Contest
from bench.memory import peak_mib
from bench.peers import losses as peers
from bench.shapes import Shape, Wide
from bench.wide import CHUNK_TOKENS, exits_of, forward_and_backward
from loopverify.looped import Trace
from loopverify.objectives import norm_penalty

CHUNKED = "F.linear_cross_entropy, chunked"


@pytest.mark.parametrize("readout", ["raw", "rmsnorm"])
def test_per_loop(contest: Contest, wide: Wide, device: str, readout: str) -> None:
    """At full size, the two peers that the goals name."""
    exits = exits_of(wide, readout, device)
    names = [name for name in ("eager", CHUNKED) if peers.missing(name, device) is None]
    contest(
        forward_and_backward("chunked", exits),
        {name: forward_and_backward(name, exits) for name in names},
        label=f"per-loop loss in chunks of {CHUNK_TOKENS} tokens, {readout}",
        shape=wide.label,
        rounds=wide.rounds,
        goals={"eager": 0.9, CHUNKED: 1.0},
    )


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # torch.compile's own
def test_per_loop_against_all_peers(contest: Contest, wide: Wide, device: str, quick: bool) -> None:
    """At a quarter of the tokens, everyone."""
    wide = replace(wide, tokens=wide.tokens // 4)
    exits = exits_of(wide, "rmsnorm", device)
    skipped = {name: why for name in peers.PEERS if (why := peers.missing(name, device)) is not None}
    if quick:
        skipped["torch.compile"] = "takes longer to compile than a quick run may take"
    contest(
        forward_and_backward("chunked", exits),
        {name: forward_and_backward(name, exits) for name in ("plain", *peers.PEERS) if name not in skipped},
        label=f"per-loop loss in chunks of {CHUNK_TOKENS} tokens, rmsnorm",
        shape=wide.label,
        rounds=wide.rounds,
        skipped=skipped,
    )


@pytest.mark.parametrize("readout", ["raw", "rmsnorm"])
def test_peak_memory(benchmark: BenchmarkFixture, wide: Wide, device: str, readout: str, quick: bool) -> None:
    if quick and readout == "raw":
        pytest.skip("a quick run measures the memory of one readout")
    names = ["chunked", "eager", *([] if peers.missing(CHUNKED, device) else [CHUNKED])]
    mib = {name: peak_mib(name, readout, wide, device) for name in names}
    one = peak_mib("chunked", readout, replace(wide, exits=1), device)
    states = wide.exits * wide.tokens * wide.channels * 4 / 2**20
    benchmark.pedantic(forward_and_backward("chunked", exits_of(replace(wide, tokens=64), readout, device)), rounds=1)
    benchmark.extra_info.update(
        label=f"peak memory of the per-loop loss in chunks of {CHUNK_TOKENS} tokens, {readout}",
        shape=wide.label,
        mib=mib | {"chunked, K = 1": one, "the gradients of the K states": states},
        ratios=[
            _share("eager", mib["chunked"] / mib["eager"], 0.08),
            _share("its own at K = 1, with the gradients of the K states", mib["chunked"] / (one + states), 1.0),
        ],
    )
    if not quick:
        assert mib["chunked"] <= 0.08 * mib["eager"]
        assert mib["chunked"] <= one + states


def _share(peer: str, ratio: float, at_most: float) -> dict[str, object]:
    return {"peer": peer, "median": ratio, "low": ratio, "high": ratio, "at_most": at_most}


@pytest.mark.parametrize("readout", ["raw", "rmsnorm", "layernorm"])
def test_gradients_against_float64(benchmark: BenchmarkFixture, wide: Wide, readout: str, quick: bool) -> None:
    """Relative to each tensor as a whole, at full channels and vocabulary."""
    small = replace(wide, tokens=256 if not quick else wide.tokens)
    seen, exact = exits_of(small, readout, "cpu"), exits_of(small, readout, "cpu", torch.float64)
    benchmark.pedantic(forward_and_backward("chunked", seen), rounds=1)
    forward_and_backward("plain", exact)()
    off = max(
        float((mine.grad - right.grad).norm() / right.grad.norm())
        for mine, right in zip(seen.leaves(), exact.leaves(), strict=True)
        if mine.grad is not None and right.grad is not None
    )
    benchmark.extra_info.update(
        label=f"relative error of the gradients of the chunked loss in float32, {readout}",
        shape=small.label,
        ratios=[_share("float64", off, 1e-5)],
    )
    assert off <= 1e-5


def test_the_penalty_in_a_training_step(contest: Contest, large: Shape, device: str) -> None:
    looped = large.looped("rmsnorm", device)
    p = large.preset
    states = [torch.randn(p.batch, p.seq_len, p.d_model, device=device, requires_grad=True) for _ in range(p.loops + 1)]
    trace = Trace(looped, large.batch(device)[0], tuple(states), None)

    def penalty() -> None:
        for state in states:
            state.grad = None
        norm_penalty(trace).backward()

    contest(
        penalty,
        {"a training step": large.step("per_loop", "rmsnorm", device)},
        label="norm penalty, forward and backward",
        shape=large.label,
        rounds=large.rounds,
        goals={"a training step": 0.01},
    )
