"""`python -m bench.early_exit_tables [--runs DIR] [--steps N]`: the tables of docs/generation-and-halting.md, measured.

Models that are not in the store are trained (preset `tiny`, one to two minutes each). Half of the held-out sequences
calibrate, the other half is measured.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator

import torch

from bench.contest import clock_of
from loopverify.cli.folder import runs_folder
from loopverify.errors import LoopverifyError
from loopverify.generation import EarlyExit, exit_effect
from loopverify.halting.calibration import calibrate, halt
from loopverify.halting.confidence import HeadScore
from loopverify.halting.exit_table import exit_table
from loopverify.halting.frontier import frontier
from loopverify.halting.low_rank import CertifiedMargin, LowRankMargin
from loopverify.halting.token_statistics import linear_head
from loopverify.looped import unroll
from train.engine.open import open_examples
from train.launch.run import ensure
from train.specification import RunSpec, preset
from train.store import RunStore
from train.study.measurements import SEQUENCES
from train.study.subject import Pairs, Subject, load

CONDITIONS = (
    ("terminal", "rmsnorm"),
    ("terminal+penalty", "rmsnorm"),
    ("per_loop", "rmsnorm"),
    ("per_loop", "raw"),
    ("exit_weighted", "rmsnorm"),
)
BATCH = 8
BUDGETS = (1.01, 1.05)


def main() -> int:
    """Exit status 0: printed; 2: wrong use, or a store that cannot be read or written."""
    parser = argparse.ArgumentParser(prog="python -m bench.early_exit_tables", description=__doc__)
    parser.add_argument("--runs", default="runs", help="the run store (default: runs/)")
    parser.add_argument("--steps", type=int, help="train for so many steps instead of the preset's")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        _report(RunStore(runs_folder(arguments.runs)), arguments.steps)
    except LoopverifyError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _report(store: RunStore, steps: int | None) -> None:
    for subject in _subjects(store, steps):
        rows = [torch.cat(part) for part in zip(*subject.batches(2 * SEQUENCES), strict=True)]
        fit = [(rows[0][::2], rows[1][::2])]
        judged = [(rows[0][1::2], rows[1][1::2])]
        print(f"\n{subject.spec.condition}")  # noqa: T201
        for line in (*_sequences(subject, fit, judged), *_tokens(subject, fit, judged)):
            print(line)  # noqa: T201


def _subjects(store: RunStore, steps: int | None) -> Iterator[Subject]:
    for loss, readout in CONDITIONS:
        spec = RunSpec(preset=preset("tiny", steps=steps), loss=loss, readout=readout)
        stored = ensure(spec, store, lambda event: None)
        yield Subject(spec=spec, module=load(spec, stored), examples=open_examples(spec, store))


def _sequences(subject: Subject, fit: Pairs, judged: Pairs) -> Iterator[str]:
    head = linear_head(subject.model)
    assert head is not None
    trace = unroll(subject.model, fit[0][0])
    shown = torch.cat([head.shown(state, k, trace.loops) for k, state in enumerate(trace.states[1:], 1)])
    certified = [CertifiedMargin(head, rank, shown) for rank in (8, 16)]
    scores = ["margin", "state_change", HeadScore(every=8), LowRankMargin(head, 16), *certified]
    batches = list(zip(*(torch.split(part, BATCH) for part in judged[0]), strict=True))
    found = frontier(subject.model, fit, batches, repeats=3, scores=scores, pool=4, clock=clock_of("cpu"))
    full = found.fixed[-1].loss
    for point in found.halting:
        yield (
            f"  {point.score}: {point.selected_loops:.2f} loops, {point.head_products:.2f} head products, perplexity "
            f"× {math.exp(point.loss - full):.3f}, speed-up {point.speedup:.2f} of an ideal {point.ideal:.2f}"
        )


def _tokens(subject: Subject, fit: Pairs, judged: Pairs) -> Iterator[str]:
    for score in ("margin", "state_change"):
        table, other = (exit_table(subject.model, data, score=score, by="token") for data in (fit, judged))
        for budget in BUDGETS:
            threshold = calibrate(table, budget)
            known = halt(other, threshold)
            ratio = math.exp(known.loss - known.exit_losses[-1])
            yield f"  per token by {score}, budget {budget}: {known.average_loops:.2f} loops, perplexity × {ratio:.3f}"
            for effect in exit_effect(subject.module, judged, EarlyExit(threshold=threshold, score=score)):
                yield (
                    f"    {effect.missing}: selected {effect.selected_loops:.2f}, executed "
                    f"{effect.executed_loops:.2f}, agreement {effect.agreement:.3f}, "
                    f"perplexity × {effect.perplexity_ratio:.3f}"
                )


if __name__ == "__main__":
    sys.exit(main())
