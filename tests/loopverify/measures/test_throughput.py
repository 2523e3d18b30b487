"""Speed on a clock that only the model advances, so that every number is known; and the order of measurements."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import loopverify as lv
from loopverify.errors import InputError
from loopverify.measures.throughput import throughput
from tests.loopverify.closed_form import TARGETS, TOKENS, looped, radial_step, raw

BATCHES = [(TOKENS, TARGETS)]


class Workshop:
    """Models whose parts take a known time on one clock, which may run slower and slower."""

    def __init__(self, slower: float = 1.0) -> None:
        self.now, self.slower, self.log = 0.0, slower, list[tuple[str, int]]()

    def clock(self) -> float:
        return self.now

    def _takes(self, seconds: float) -> None:
        assert not torch.is_grad_enabled()
        self.now += seconds * self.slower ** (self.now / 100)

    def model(self, name: str, embed: float, step: float, readout: float, loops: int = 4) -> lv.Looped:
        base = looped(radial_step(1.0, 0.5), raw, trained_loops=loops)

        def embedded(tokens: Tensor) -> tuple[Tensor, Any]:
            self._takes(embed)
            return base.embed(tokens)

        def stepped(state: Tensor, context: Any, loop: int) -> Tensor:
            self._takes(step)
            return base.step(state, context, loop)

        def read(state: Tensor, context: Any, loop: int, loops: int) -> Tensor:
            assert loop == loops, "what is timed is a run of its own, read at its last exit"
            self._takes(readout)
            self.log.append((name, loops))
            return base.readout(state, context, loop, loops)

        return lv.Looped(embed=embedded, step=stepped, readout=read, trained_loops=loops, name=name, vocab_size=5)


def test_tokens_a_second_and_their_ratios() -> None:
    shop = Workshop()
    models = [shop.model("plain", 1, 2, 3), shop.model("slow head", 1, 2, 9)]
    plain, slow = throughput(models, BATCHES, clock=shop.clock)
    for depth in plain.depths:
        assert depth.tokens_per_second == pytest.approx(8 / (4 + 2 * depth.loops))
        assert depth.speedup == pytest.approx(12 / (4 + 2 * depth.loops))
        assert depth.against_first == 1
    assert [depth.against_first for depth in slow.depths] == pytest.approx(
        [(4 + 2 * k) / (10 + 2 * k) for k in (1, 2, 3, 4)]
    )
    assert slow.depths[0].speedup == pytest.approx(18 / 12)
    assert (plain.repeats, plain.sample.model, slow.sample.model) == (5, "plain", "slow head")


def test_work_is_counted() -> None:
    (found,) = throughput(looped(lambda H: 2 * H), BATCHES, 6, repeats=1)
    assert [depth.loops for depth in found.depths] == [1, 2, 3, 4, 5, 6]
    assert [depth.head_products for depth in found.depths] == [8] * 6


def test_quality_is_that_of_the_last_exit_of_a_run_of_its_own() -> None:
    model = looped(radial_step(1.0, 0.5), raw)
    (found,) = throughput(model, [*BATCHES, (TOKENS[:1], TARGETS[:1])], repeats=1)
    u = model.embed(TOKENS)[0]
    rows, targets = torch.cat([u, u[:1]]).flatten(0, 1), torch.cat([TARGETS, TARGETS[:1]]).flatten()
    for depth in found.depths:
        expected = F.cross_entropy(raw((1 + depth.loops / 2) * rows), targets)
        assert depth.loss == pytest.approx(float(expected))
        assert depth.perplexity == pytest.approx(float(expected.exp()))


def test_measurements_are_interleaved() -> None:
    shop = Workshop()
    models = [shop.model("a", 1, 1, 1, loops=2), shop.model("b", 1, 1, 1, loops=3)]
    throughput(models, BATCHES, repeats=2, warmup=1, clock=shop.clock)
    there = [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert shop.log[-12:] == [*there, *reversed(there), *there]  # the first is warm-up
    assert {loops for _, loops in shop.log} == {1, 2}  # as deep as the shallower was trained


def test_a_machine_that_slows_down_leaves_the_ratios() -> None:
    # The machine loses half its speed every hundred seconds, over and over. Tokens per second mean nothing any more.
    steady, tired = Workshop(), Workshop(slower=2.0)
    ratios = []
    for shop in (steady, tired):
        (found,) = throughput(shop.model("plain", 0.01, 0.02, 0.03), BATCHES, repeats=9, clock=shop.clock)
        ratios.append([depth.speedup for depth in found.depths])
    assert ratios[1] == pytest.approx(ratios[0], rel=0.02)


def test_the_median_ignores_a_hiccup() -> None:
    shop = Workshop()
    looks = iter(range(10**6))

    def clock() -> float:
        # The 30th reading of the clock falls into the fourth of six rounds of eight readings each.
        if next(looks) == 29:
            shop.now += 1000
        return shop.now

    (found,) = throughput(shop.model("plain", 1, 2, 3), BATCHES, repeats=5, clock=clock)
    assert [depth.tokens_per_second for depth in found.depths] == pytest.approx([8 / 6, 1, 8 / 10, 8 / 12])


def test_warm_up_is_not_timed() -> None:
    shop = Workshop()
    cold = shop.model("cold", 1, 2, 3, loops=1)
    rounds = iter(range(10**6))

    def clock() -> float:
        shop.now += 1000 if next(rounds) in (1, 3) else 0  # the second reading in two of the rounds
        return shop.now

    (found,) = throughput(cold, BATCHES, repeats=1, warmup=2, clock=clock)
    assert found.depths[0].tokens_per_second == pytest.approx(8 / 6)


def test_on_a_real_clock_fewer_loops_are_faster() -> None:
    model = looped(lambda H: (time.sleep(0.005), 2 * H)[1])
    (found,) = throughput(model, BATCHES, repeats=3)
    assert found.depths[0].speedup > 1 == found.depths[-1].speedup
    assert found.depths[0].tokens_per_second > 0


def test_refusals() -> None:
    model = looped(lambda H: 2 * H)
    with pytest.raises(InputError, match="no models; expected at least one"):
        throughput([], BATCHES)
    with pytest.raises(InputError, match="repeats is 0; expected an integer >= 1"):
        throughput(model, BATCHES, repeats=0)
    with pytest.raises(InputError, match="warmup is -1; expected an integer >= 0"):
        throughput(model, BATCHES, warmup=-1)
    with pytest.raises(InputError, match="loops is 0; expected an integer >= 1"):
        throughput(model, BATCHES, 0)
    with pytest.raises(InputError, match="got a Linear to measure"):
        throughput([model, torch.nn.Linear(1, 1)], BATCHES)  # type: ignore[list-item]
