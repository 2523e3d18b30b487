"""The traits that a model may declare in `Looped.declares`.

A declared trait explains a failure: the check that fails is skipped, with the trait as the reason. It is also checked:
the check fails if the model does not show the trait. The growth traits explain nothing; `growth_law` tests them. An
unknown trait is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from loopverify.errors import unknown

__all__ = ["GROWTH", "TRAITS", "known_traits"]

GROWTH: Mapping[str, str] = MappingProxyType(
    {
        "growth_constant": "constant",
        "growth_sqrt": "sqrt",
        "growth_linear": "linear",
        "growth_exponential": "exponential",
    }
)
"""Trait -> the growth law of the norm over loops that it claims."""

TRAITS: Mapping[str, str] = MappingProxyType(
    {
        "random_state": "every forward draws a random initial state, as in Huginn",
        "sampled_depth": "a loop is random even in eval mode: its depth is sampled, or noise is added",
        "uneven_loops": "some loops run other modules than the rest (a prelude at loop 1, a cap on the depth)",
        "context_memory": "the steps write to the context, so a run cannot be resumed from a state alone",
        "loop_readout": "the readout is not the same function at every exit (final-only norm, a head for each loop)",
        "contextual_readout": "the readout reads other tokens (a coda with attention); chunks of tokens will not work",
        "labels_mix_exits": "a path (that with labels) mixes or selects exits and differs from the readout of H_K",
        "non_causal": "a token sees later tokens",
        "batch_dependent": "rows of a batch influence one another (expert capacity, batch statistics)",
        "truncated_gradient": "the gradient is cut or altered on purpose (truncated backpropagation, straight-through)",
        "unused_parameters": "some parameters get no gradient from any exit (rare experts, heads of other tasks)",
        "last_loop_cache": "the cache keeps the keys of one loop only, so results depend on how a prompt is chunked",
        "amplified_scale": "the norm grows by a constant factor at every loop while the readout hides it, on purpose",
        **{trait: f"the norm follows {law} growth over loops" for trait, law in GROWTH.items()},
    }
)
"""Trait -> its meaning."""


def known_traits(declared: Iterable[str]) -> frozenset[str]:
    """`declared` as a set.

    Raises:
        InputError: one of them is not in `TRAITS`.
    """
    for trait in declared:
        if trait not in TRAITS:
            raise unknown("trait", trait, TRAITS)
    return frozenset(declared)
