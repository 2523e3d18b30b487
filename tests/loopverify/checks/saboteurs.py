"""All saboteurs: for every check at least one model with a planted fault."""

from __future__ import annotations

from tests.loopverify.checks import saboteurs_learning, saboteurs_loop, saboteurs_shown
from tests.loopverify.checks.planting import Saboteur

SABOTEURS: tuple[Saboteur, ...] = tuple(
    plant.__dict__["saboteur"]  # not inherited: a subclass of a saboteur is another saboteur
    for theme in (saboteurs_loop, saboteurs_learning, saboteurs_shown)
    for plant in vars(theme).values()
    if isinstance(plant, type) and "saboteur" in plant.__dict__
)
