"""A trace as a few numbers that change whenever the computation does: small enough to be stored next to a test.

Shapes: B batch, T tokens, D channels, V vocabulary, K loops, N kept tokens, P projections.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from loopverify._version import __version__
from loopverify.auditing.norms import token_norms
from loopverify.errors import InputError
from loopverify.looped import Trace
from loopverify.theory import polar

__all__ = ["Fingerprint", "LoopPrint", "fingerprint"]

FORMAT = 1
KEPT = 4
"""N, the number of tokens whose states and logits are stored; all, if there are fewer."""
PROJECTIONS = 8
"""P. Their rms is that of the whole vector to within about 1/√(2P) = 25 %, and not 0 if a single channel changes."""
STATISTICS = ("mean", "median", "p99", "max")


@dataclass(frozen=True, kw_only=True)
class LoopPrint:
    """One loop; the tuples have one entry per kept token, except that those of logits are empty at loop 0."""

    loop: int
    statistics: Mapping[str, float]
    """Statistics of rms(H_k) over all tokens."""
    scales: tuple[float, ...]
    """rms(H_k)."""
    states: tuple[tuple[float, ...], ...]
    """P projections of H_k, each of which has the rms of H_k on average."""
    logit_scales: tuple[float, ...]
    """rms of the logits."""
    logits: tuple[tuple[float, ...], ...]
    """P projections of the logits."""
    argmax: tuple[int, ...]
    margins: tuple[float, ...]
    """Largest minus second largest logit, relative to the largest |logit|."""


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The numbers that are stored of a trace."""

    model: str
    dtype: str
    """dtype of the states."""
    device: str
    tokens: str
    """Shape and hash of the tokens."""
    channels: int
    """D."""
    vocabulary: int
    """V, the number of logits."""
    kept: tuple[tuple[int, int], ...]
    """(row, position) of the kept tokens."""
    seed: int
    versions: Mapping[str, str]
    per_loop: tuple[LoopPrint, ...]
    """Loops 0..K."""
    format: int = FORMAT

    def to_json(self) -> str:
        """The record as JSON, one line per loop."""
        head = {name: value for name, value in asdict(self).items() if name != "per_loop"}
        loops = ",\n  ".join(json.dumps(asdict(entry), allow_nan=False) for entry in self.per_loop)
        lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
        return "{\n " + ",\n ".join([*lines, f'"per_loop": [\n  {loops}\n ]']) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the record that `to_json` wrote.

        Raises:
            InputError: the text is not such a record.
        """
        try:
            record = json.loads(text)
            if record["format"] != FORMAT:
                raise InputError(f"it has format {record['format']!r}; expected {FORMAT}")
            loops = tuple(_loop_print(entry) for entry in record["per_loop"])
            found = cls(**{**record, "kept": tuple((int(r), int(p)) for r, p in record["kept"]), "per_loop": loops})
            _check_lengths(found)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"it is not a stored trace ({type(error).__name__}: {error})") from error
        except json.JSONDecodeError as error:
            raise InputError(f"it is not JSON ({error})") from error
        except ValueError as error:
            raise InputError(str(error)) from error
        return found


def fingerprint(trace: Trace, seed: int) -> Fingerprint:
    """The numbers to store of a trace.

    Raises:
        InputError: a state or exit is not finite, so that no later run could be compared with it.
    """
    B, T = trace.tokens.shape
    places = torch.linspace(0, B * T - 1, min(KEPT, B * T)).round().long()
    digest = hashlib.sha256(trace.tokens.cpu().contiguous().numpy().tobytes()).hexdigest()[:16]
    return Fingerprint(
        model=trace.model.name,
        dtype=str(trace.states[0].dtype).removeprefix("torch."),
        device=trace.states[0].device.type,
        tokens=f"{B} × {T}, sha256 {digest}",
        channels=trace.states[0].shape[-1],
        vocabulary=trace.logits(trace.loops).shape[-1],
        kept=tuple((int(place) // T, int(place) % T) for place in places),
        seed=seed,
        versions={"loopverify": __version__, "torch": torch.__version__, "python": platform.python_version()},
        per_loop=tuple(_print(trace, loop, places) for loop in range(trace.loops + 1)),
    )


def _print(trace: Trace, loop: int, places: Tensor) -> LoopPrint:
    state = trace.states[loop]
    norms = token_norms(state, "rms")
    kept = _kept(state, places, f"H_{loop}")
    shown = _kept(trace.logits(loop), places, f"the logits of exit {loop}") if loop else kept[:0, :0]
    # Nine digits distinguish all numbers of float32 and below, 17 those of float64.
    digits = 17 if state.dtype == torch.float64 else 9
    largest = shown.topk(min(2, shown.shape[-1])).values if loop else shown
    return LoopPrint(
        loop=loop,
        statistics={name: float(f"{getattr(norms, name):.{digits}g}") for name in STATISTICS},
        scales=_numbers(polar.scale(kept), digits),
        states=tuple(_numbers(row, digits) for row in _project(kept)),
        logit_scales=_numbers(polar.scale(shown), digits) if loop else (),
        logits=tuple(_numbers(row, digits) for row in _project(shown)),
        argmax=tuple(int(token) for token in shown.argmax(-1)) if loop else (),
        margins=_numbers((largest[:, 0] - largest[:, -1]) / shown.abs().amax(-1), digits) if loop else (),
    )


def _kept(values: Tensor, places: Tensor, what: str) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise InputError(f"{what} is not finite; expected finite values, with which a later run can be compared")
    return values.detach().flatten(0, 1)[places.to(values.device)].cpu().double()


def _project(values: Tensor) -> Tensor:
    """Projections (N, D) -> (N, P): sums with fixed random signs, over √D. On average they keep the rms."""
    width = values.shape[-1]
    if not width:
        return values
    # The signs come from a hash, because the streams of random number generators change from version to version.
    bits = hashlib.shake_256(f"loopverify {width}".encode()).digest((PROJECTIONS * width + 7) // 8)
    signs = 1.0 - 2.0 * np.unpackbits(np.frombuffer(bits, dtype=np.uint8))[: PROJECTIONS * width].astype(np.float64)
    return values @ torch.from_numpy(signs).view(PROJECTIONS, width).T / math.sqrt(width)


def _numbers(values: Tensor, digits: int) -> tuple[float, ...]:
    return tuple(float(f"{value:.{digits}g}") for value in values.tolist())


def _loop_print(entry: dict[str, Any]) -> LoopPrint:
    listed = {f.name for f in fields(LoopPrint)} - {"loop", "statistics"}
    lists = {name: tuple(tuple(e) if isinstance(e, list) else e for e in entry[name]) for name in listed}
    statistics = {name: float(entry["statistics"][name]) for name in STATISTICS}
    return LoopPrint(**{**entry, **lists, "statistics": statistics})


def _check_lengths(found: Fingerprint) -> None:
    for k, entry in enumerate(found.per_loop):
        shown = len(found.kept) if k else 0
        lengths = [len(values) for values in (entry.scales, entry.states)]
        exits = [len(values) for values in (entry.logit_scales, entry.logits, entry.argmax, entry.margins)]
        if entry.loop != k or set(lengths) != {len(found.kept)} or set(exits) != {shown}:
            raise InputError(f"loop {k} is incomplete")
