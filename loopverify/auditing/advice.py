"""What follows from an audit, in the paper's terms (Sharma & Vu 2026: make scale visible to a loss, or remove it)."""

from __future__ import annotations

from loopverify.auditing.findings import Findings

__all__ = ["advise"]

_REMEDIES = (
    "Make scale visible to a loss: read the intermediate exits raw and normalize the last one only (final-only norm), "
    "or read all exits raw; or keep the normalized readouts and add the norm penalty "
    "λ·K⁻¹·Σ_k E rms(H_k)², λ = 0.01: objectives.named('per_loop+penalty').",
    "Or remove scale from the recurrence: normalize the state at the end of every loop. Further loss terms behind "
    "normalized readouts do not help: they train exits, but do not see the scale either.",
)


def advise(found: Findings) -> tuple[str, ...]:
    """One or two sentences for each finding, the gravest first."""
    return (*_on_scale(found), *_on_mean(found))


def _on_scale(found: Findings) -> tuple[str, ...]:
    scale = found.scale
    if scale.carry == "removed":
        return ("The loop removes scale, so that scale cannot drift. Keep the norm that removes it.",)
    if scale.carry == "damped":
        return (
            f"The loop keeps {scale.factor:.3g} of the scale, which therefore settles near a/(1 − c) = "
            f"{1 / (1 - scale.factor):.3g} times its radial update: bounded, whether or not the loss sees it.",
        )
    if scale.visibility == "hidden":
        return (*_amplified(found), *_REMEDIES)
    if scale.visibility == "saturating":
        return (
            *_amplified(found),
            f"{_list(scale.seen_by)} sees the scale now, but no longer once it has grown, because the readout "
            "saturates: a blind spot that opens with drift. Watch the norms, or add the norm penalty.",
        )
    return (
        *_amplified(found),
        f"Keep {_list(scale.seen_by)}: the loop carries scale, and nothing else controls it.",
    )


def _amplified(found: Findings) -> tuple[str, ...]:
    if found.scale.carry != "amplified":
        return ()
    return (
        f"Each loop multiplies the scale by {found.scale.factor:.3g}: look for a residual stream that is added twice.",
    )


def _on_mean(found: Findings) -> tuple[str, ...]:
    if not found.mean.blind:
        return ()
    return (
        "The mean channel is a second blind direction: a LayerNorm readout subtracts it, and the loop carries it. "
        "An RMSNorm readout, or a penalty on the state itself, sees it.",
    )


def _list(names: tuple[str, ...]) -> str:
    return " and ".join(repr(name) for name in names)
