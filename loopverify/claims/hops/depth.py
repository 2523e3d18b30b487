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
from types import MappingProxyType

from loopverify.claims.claim import Bound, Claim, Comparison, sentence
from loopverify.claims.hops import limits

__all__ = ["CLAIMS", "HOPS"]

_ARMS: Mapping[str, str] = MappingProxyType(
    {
        "rmsnorm": "hops:per_loop/rmsnorm",
        "raw": "hops:per_loop/raw",
        "penalty": "hops:per_loop+penalty/rmsnorm",
        "final_only": "hops:per_loop/final_only",
        "inter_loop_norm": "hops:per_loop/rmsnorm/inter_loop_norm",
        "rmsnorm_faster": "hops:per_loop/rmsnorm@lr=0.005",
        "raw_slower": "hops:per_loop/raw@lr=0.0007",
    }
)
"""From an arm's name in claim ids to its condition: the task, then loss, readout, recurrence and learning rate."""

HOPS: Mapping[str, str] = MappingProxyType(
    {
        _ARMS["rmsnorm"]: "RMSNorm",
        _ARMS["raw"]: "a raw readout",
        _ARMS["penalty"]: "RMSNorm plus a norm penalty",
        _ARMS["final_only"]: "a norm at the final exit only",
        _ARMS["inter_loop_norm"]: "RMSNorm with a norm between loops",
        _ARMS["rmsnorm_faster"]: "RMSNorm at 2.5 times the learning rate",
        _ARMS["raw_slower"]: "a raw readout at 0.35 times the learning rate",
    }
)
"""What each condition is called in a sentence."""

_RMSNORM, _RAW = _ARMS["rmsnorm"], _ARMS["raw"]
_CONTROLLED = ("raw", "penalty", "final_only", "inter_loop_norm")
_GAIN, _AT_EQUAL_EXIT = "ce@1-ce@4", "ce_matched@1-ce_matched@4"


def _claim(name: str, effect: str, metric: str, form: Bound | Comparison) -> Claim:
    return Claim(
        id=f"hops.depth.{name}",
        sentence=sentence(f"following pointers, {effect}"),
        source="P1, section 6, Table 5; on another task",
        metric=metric,
        form=form,
    )


def _invariant(name: str, condition: str) -> Claim:
    return _claim(
        name,
        f"{HOPS[condition]} gains at most {limits.MOST_GAIN:g} nats per answer from all loops after the first",
        _GAIN,
        Bound(condition=condition, side="at most", value=limits.MOST_GAIN),
    )


def _uses(arm: str) -> Claim:
    condition = _ARMS[arm]
    return _claim(
        f"uses.{arm}",
        f"{HOPS[condition]} gains at least {limits.LEAST_GAIN:g} nats per answer from its loops",
        _GAIN,
        Bound(condition=condition, side="at least", value=limits.LEAST_GAIN),
    )


def _gains_more(name: str, left: str, right: str) -> Claim:
    return _claim(
        name,
        f"{HOPS[left]} gains at least {limits.LEAST_GAIN:g} nats per answer more from its loops than {HOPS[right]}",
        _GAIN,
        Comparison(left=left, right=right, by="difference", least=limits.LEAST_GAIN),
    )


def _at_equal_exit(arm: str) -> Claim:
    left = _ARMS[arm]
    return _claim(
        f"equal_exit.{arm}.vs_rmsnorm",
        f"once its first exit is at {limits.FIRST_EXIT:g} nats, {HOPS[left]} gains at least "
        f"{limits.LEAST_AT_EQUAL_EXIT:g} nats per answer more from its loops than {HOPS[_RMSNORM]} once its own is",
        _AT_EQUAL_EXIT,
        Comparison(left=left, right=_RMSNORM, by="difference", least=limits.LEAST_AT_EQUAL_EXIT),
    )


def _drift(arm: str) -> Claim:
    right = _ARMS[arm]
    return _claim(
        f"scale.rmsnorm.vs_{arm}",
        f"{HOPS[_RMSNORM]} ends in states at least {limits.LEAST_DRIFT:g} times as large as {HOPS[right]}",
        "norm@4",
        Comparison(left=_RMSNORM, right=right, by="ratio", least=limits.LEAST_DRIFT),
    )


CLAIMS: tuple[Claim, ...] = (
    _invariant("invariant.rmsnorm", _RMSNORM),
    *(_uses(arm) for arm in _CONTROLLED),
    *(_gains_more(f"more.{arm}.vs_rmsnorm", _ARMS[arm], _RMSNORM) for arm in _CONTROLLED),
    _gains_more("geometry.raw.vs_penalty", _RAW, _ARMS["penalty"]),
    _gains_more("geometry.raw.vs_inter_loop_norm", _RAW, _ARMS["inter_loop_norm"]),
    _at_equal_exit("raw"),
    _at_equal_exit("penalty"),
    _invariant("speed.rmsnorm_faster", _ARMS["rmsnorm_faster"]),
    _gains_more("speed.raw_slower.vs_rmsnorm", _ARMS["raw_slower"], _RMSNORM),
    _drift("raw"),
    _drift("penalty"),
)
