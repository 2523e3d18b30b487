"""Traits that a model may admit to in `Looped.declares`. This is the one list of them.

A trait explains a failure: the check it explains is skipped, with the trait as the reason. It is itself checked: a
model that declares a trait which it does not show is told so. The growth traits are claims instead: `growth_law` tests
them. A trait that is not in the list is an error.
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
"""Trait -> the growth law of the norm over loops that a model with this trait claims."""

TRAITS: Mapping[str, str] = MappingProxyType(
    {
        "random_state": "the initial state is drawn at random at every forward, as in Huginn",
        "sampled_depth": "a loop is random even in eval mode: its depth is sampled, or noise is added",
        "uneven_loops": "some loops run other modules than the rest (a prelude at loop 1, a cap on the depth)",
        "context_memory": "the steps write to the context, so a run cannot be resumed from a state alone",
        "loop_readout": "the readout is not the same function at every exit (final-only norm, a head for each loop)",
        "contextual_readout": "the readout looks at other tokens (a coda with attention), so that chunks do not do",
        "labels_mix_exits": "a path (that with labels) mixes or selects exits, and so differs from the readout of H_K",
        "non_causal": "a token sees later tokens",
        "batch_dependent": "rows of a batch influence one another (expert capacity, batch statistics)",
        "truncated_gradient": "the gradient is cut or altered on purpose (truncated backpropagation, straight-through)",
        "unused_parameters": "some parameters get no gradient from any exit (rare experts, heads of other tasks)",
        "last_loop_cache": "the cache keeps the keys of one loop only, so results depend on how a prompt is chunked",
        "amplified_scale": "the norm grows by a constant factor at every loop while the readout hides it, on purpose",
        **{trait: f"claims {law} growth of the norm over loops" for trait, law in GROWTH.items()},
    }
)
"""Trait -> what a model that declares it says about itself."""


def known_traits(declared: Iterable[str]) -> frozenset[str]:
    """`declared` as a set.

    Raises:
        InputError: one of them is not in `TRAITS`.
    """
    for trait in declared:
        if trait not in TRAITS:
            raise unknown("trait", trait, TRAITS)
    return frozenset(declared)
