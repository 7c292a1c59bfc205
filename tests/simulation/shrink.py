"""Shrinking: leave out steps of a life that fails, as long as it still breaks the same rule."""

from __future__ import annotations

import msgspec

from tests.simulation.lives import Life, Lived, live
from tests.simulation.steps import Step

TRIES_MAX = 600


def shrink(failed: Lived, tries_max: int = TRIES_MAX) -> Lived:
    """The same failure with as few steps as can be found: whole runs of them first, then one by one."""
    assert failed.violation is not None
    best = failed
    steps = failed.life.steps[: failed.steps]
    tries = 0
    size = max(1, len(steps) // 2)
    while size:
        start = 0
        has_shrunk = False
        while start < len(steps) and tries < tries_max:
            shorter = [*steps[:start], *steps[start + size :]]
            tries += 1
            lived = _live(failed.life, shorter)
            if lived.violation is not None and lived.violation.rule == failed.violation.rule:
                best, steps, has_shrunk = lived, shorter[: lived.steps], True
            else:
                start += size
        if tries >= tries_max:
            break
        if size == 1 and not has_shrunk:
            break
        size = max(1, size // 2)
    return best


def _live(life: Life, steps: list[Step]) -> Lived:
    return live(msgspec.structs.replace(life, steps=steps))
