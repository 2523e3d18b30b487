"""Presets: everything that the conditions and seeds of a study share. Each derives from the one before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from loopverify.claims import FIRST_EXIT
from loopverify.errors import InputError, unknown
from loopverify.tasks import Hops
from train.data import DataSpec, TaskSpec
from train.specification.preset_fields import Preset

__all__ = ["PRESETS", "preset"]


# A minute on one CPU thread. The drift of the scale grows with lr * steps, hence the large rate; see docs/training.md.
_TINY = Preset(
    name="tiny",
    d_model=64,
    layers=2,
    heads=2,
    d_ff=160,
    tied_head=False,
    loops=4,
    dropout=0.0,
    data=DataSpec(source="auto", vocab_max=1024, min_freq=2),
    seq_len=32,
    stride=16,
    batch=16,
    steps=1500,
    lr=1e-2,
    warmup_steps=50,
    eval_windows=512,
    history_windows=64,
    history_every=100,
    threads=1,
)

# Minutes on a GPU or a night on a CPU: the paper's sequence length and dropout, on a narrow model.
_SMALL = replace(
    _TINY,
    name="small",
    d_model=256,
    layers=4,
    heads=4,
    d_ff=1024,
    tied_head=True,
    dropout=0.1,
    data=DataSpec(source="auto", vocab_max=8192, min_freq=2),
    seq_len=256,
    stride=128,
    batch=32,
    steps=6000,
    lr=1e-3,
    warmup_steps=200,
    eval_windows=256,
    history_windows=32,
    history_every=250,
    threads=None,
)

# The paper's studies (Sharma & Vu 2026, section 3 and table 9). It states neither the warm-up nor d_ff nor whether
# the head is tied; a tied head and d_ff = 4 d_model give 43.8M and 128.6M parameters.
_44M = replace(
    _SMALL,
    name="44m",
    d_model=512,
    layers=8,
    heads=8,
    d_ff=2048,
    data=DataSpec(source="wikitext103", vocab_max=20_000, min_freq=2),
    batch=64,
    steps=None,
    epochs=4,
    lr=3e-4,
    history_every=1000,
)
_129M = replace(_44M, name="129m", d_model=768, layers=12, heads=12, d_ff=3072, batch=32)

# The check at scale (appendix 11, table 9): the architecture of Ouro-1.4B (arXiv:2510.25741) from scratch on FineWeb.
# Its conditions are exit_weighted/rmsnorm/shared_boundary_norm, as published, and its twin without a readout norm,
# exit_weighted/raw/boundary_norm. The paper states 1.32e9 tokens in 50,000 steps, which is 12.9 windows per step, and
# no schedule between its largest and its smallest learning rate. The tokenizer is ours, at the size of Ouro's
# vocabulary; of the 15 files of the text, 3 have more tokens than the run reads.
_1_4B = replace(
    _129M,
    name="1.4b",
    d_model=2048,
    layers=24,
    heads=16,
    d_ff=5632,
    sandwich_norm=True,
    rope_theta=1_000_000.0,
    tied_head=False,
    dropout=0.0,
    data=DataSpec(source="fineweb", vocab_max=49_152, min_freq=2, parts=3),
    seq_len=2048,
    stride=2048,
    batch=13,
    steps=50_000,
    epochs=None,
    min_lr=3e-5,
    warmup_steps=1000,
    eval_windows=128,
    history_windows=16,
)

# The protocol of the depth-use experiment, fixed before its first run.
#
# Task: `Hops` over 5 symbols, answers of 1 to 4 steps in equal shares, fresh instances at every step, loss at the
# answer only. By construction no answer equals its start, and none can be reached in fewer steps. (In a random
# permutation the start itself answers 1/5, 2/5, 2/5 and 3/5 of the questions of 1, 2, 3 and 4 steps, and a model can
# exploit that alone.)
#
# Model: the reference transformer, d = 64, one layer of 4 heads per loop, K = 4: each loop attends once.
#
# Training: every exit (per-loop loss), AdamW, batch 64, lr 2e-3 after 50 steps of warm-up, weight decay 0.1, clip 1.0,
# 3,000 steps. All conditions are alike except for what names them. Steps and shape were chosen on one run of the raw
# readout with a seed that is not used here (900): what two cores can train in about half an hour for three seeds.
#
# Measured: CE and accuracy at every exit and the norms of all tokens, on 4,096 fresh instances after the last step.
# Every 100 steps, 1,024 instances: the first of these evaluations at which CE(1) is at most `FIRST_EXIT` gives
# ce_matched@k.
#
# Seeds 0, 1, 2, with which exact rank tests reach p = 0.05. Conditions, claims, least effects and tests:
# `loopverify.claims.HOPS` and the claims on it.
_HOPS = replace(
    _TINY,
    name="hops",
    layers=1,
    heads=4,
    data=TaskSpec(task=Hops(symbols=5, depth=4)),
    seq_len=6,
    stride=6,
    batch=64,
    steps=3000,
    lr=2e-3,
    weight_decay=0.1,
    eval_windows=4096,
    history_windows=1024,
    first_exit=FIRST_EXIT,
)

PRESETS: Mapping[str, Preset] = MappingProxyType({p.name: p for p in (_TINY, _SMALL, _44M, _129M, _1_4B, _HOPS)})


def preset(name: str, *, source: str | None = None, steps: int | None = None) -> Preset:
    """The preset called `name`, with another text or another number of steps if they are given.

    Raises:
        InputError: no such preset, or an invalid source or number of steps.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    chosen = PRESETS[name]
    if source is not None:
        if isinstance(chosen.data, TaskSpec):
            raise InputError(
                f"data is {source!r}, but preset {name!r} has no text: its examples are instances of the task "
                f"{chosen.data.name}, drawn in training; omit the data, or choose another preset"
            )
        chosen = replace(chosen, data=replace(chosen.data, source=source))
    return chosen if steps is None else replace(chosen, steps=steps, epochs=None)
