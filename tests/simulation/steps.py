"""The steps that lives are made of. Each is a function of the world and of its own chances, under a name.

Whatever a step draws, it draws from the number it carries, so a life from which steps were taken out does in each of
the others what it did before, as far as the world still allows it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from tests.simulation.world import World


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One step of a life: what is done, and the number all its chances are drawn from."""

    kind: str
    seed: int


Action = Callable[[World, random.Random], None]

ACTIONS: dict[str, Action] = {}
WEIGHTS: dict[str, int] = {}


def step(weight: int) -> Callable[[Action], Action]:
    """Make a function a step; `weight`: how often it is taken, beside the others."""

    def register(action: Action) -> Action:
        ACTIONS[action.__name__] = action
        WEIGHTS[action.__name__] = weight
        return action

    return register
