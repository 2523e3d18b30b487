"""Whether the first paper's account of depth use holds on a task that needs depth: following pointers (`tasks.Hops`).

The account (Sharma & Vu 2026, section 6, Table 5): trained at every loop through an RMSNorm readout, a model is
K-invariant, since nothing controls the scale of its state; once scale is controlled, in any way, it uses its loops. On
the task an answer takes d = 1..4 steps, a loop is one layer, and exit 1 cannot do what exit 4 can.

All conditions are trained at every loop, with one budget of steps. Their differences separate the possible causes:

- *scale*: if scale control is what matters, all four of raw, penalty, final_only and inter_loop_norm use depth.
- *geometry*: if it is the raw readout, raw (and in part final_only, whose exits 1 to 3 are raw) gains more than penalty
  and inter_loop_norm, whose scale is controlled behind RMSNorm.
- *speed*: if it is how fast a model learns, RMSNorm at a higher rate uses depth, raw at a lower one does not, and at an
  equal first exit they gain the same.

Least effects and bounds (`limits`), seeds and tests were fixed before the first run; none is edited to fit a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from loopverify.claims.claim import Claim
from loopverify.claims.hops import limits
from loopverify.claims.template import Condition, claims

__all__ = ["CLAIMS", "HOPS"]

_RMSNORM = Condition("hops:per_loop/rmsnorm", "rmsnorm", "RMSNorm")
_RAW = Condition("hops:per_loop/raw", "raw", "a raw readout")
_PENALTY = Condition("hops:per_loop+penalty/rmsnorm", "penalty", "RMSNorm plus a norm penalty")
_FINAL_ONLY = Condition("hops:per_loop/final_only", "final_only", "a norm at the final exit only")
_INTER_LOOP_NORM = Condition(
    "hops:per_loop/rmsnorm/inter_loop_norm", "inter_loop_norm", "RMSNorm with a norm between loops"
)
_RMSNORM_FASTER = Condition(
    "hops:per_loop/rmsnorm@lr=0.005", "rmsnorm_faster", "RMSNorm at 2.5 times the learning rate"
)
_RAW_SLOWER = Condition("hops:per_loop/raw@lr=0.0007", "raw_slower", "a raw readout at 0.35 times the learning rate")
_CONTROLLED = (_RAW, _PENALTY, _FINAL_ONLY, _INTER_LOOP_NORM)

HOPS: Mapping[str, str] = MappingProxyType(
    {one.name: one.words for one in (_RMSNORM, *_CONTROLLED, _RMSNORM_FASTER, _RAW_SLOWER)}
)
"""The words for each condition (the task, then loss, readout, recurrence and learning rate) in a sentence."""

_claims = partial(claims, source="P1, section 6, Table 5; on another task")
_GAIN = "ce@1-ce@4"


def _invariant(name: str, condition: Condition) -> tuple[Claim, ...]:
    return _claims(
        f"hops.depth.{name}",
        "following pointers, {0} gains at most {limit:g} nats per answer from all loops after the first",
        condition,
        form=("at most", limits.MOST_GAIN),
        metric=_GAIN,
    )


def _gains_more(name: str, *pairs: tuple[Condition, Condition]) -> tuple[Claim, ...]:
    return _claims(
        f"hops.depth.{name}",
        "following pointers, {0} gains at least {limit:g} nats per answer more from its loops than {1}",
        *pairs,
        form=("difference", limits.LEAST_GAIN),
        metric=_GAIN,
    )


CLAIMS: tuple[Claim, ...] = (
    *_invariant("invariant.rmsnorm", _RMSNORM),
    *_claims(
        "hops.depth.uses.{0.short}",
        "following pointers, {0} gains at least {limit:g} nats per answer from its loops",
        *_CONTROLLED,
        form=("at least", limits.LEAST_GAIN),
        metric=_GAIN,
    ),
    *_gains_more("more.{0.short}.vs_rmsnorm", *((controlled, _RMSNORM) for controlled in _CONTROLLED)),
    *_gains_more("geometry.raw.vs_{1.short}", (_RAW, _PENALTY), (_RAW, _INTER_LOOP_NORM)),
    *_claims(
        "hops.depth.equal_exit.{0.short}.vs_rmsnorm",
        f"following pointers, once its first exit is at {limits.FIRST_EXIT:g} nats, {{0}} gains at least {{limit:g}} "
        "nats per answer more from its loops than {1} once its own is",
        *((controlled, _RMSNORM) for controlled in (_RAW, _PENALTY)),
        form=("difference", limits.LEAST_AT_EQUAL_EXIT),
        metric="ce_matched@1-ce_matched@4",
    ),
    *_invariant("speed.rmsnorm_faster", _RMSNORM_FASTER),
    *_gains_more("speed.{0.short}.vs_rmsnorm", (_RAW_SLOWER, _RMSNORM)),
    *_claims(
        "hops.depth.scale.rmsnorm.vs_{1.short}",
        "following pointers, {0} ends in states at least {limit:g} times as large as {1}",
        *((_RMSNORM, controlled) for controlled in (_RAW, _PENALTY)),
        form=("ratio", limits.LEAST_DRIFT),
        metric="norm@4",
    ),
)
