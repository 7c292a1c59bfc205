"""Lives of the whole broker, simulated: see the package's own page for what is checked and how to see one again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.lives import Lived, draw_life, live
from tests.simulation.shrink import shrink

LIVES = int(os.environ.get("SMISTA_TEST_LIVES", "2000"))
"""How many lives `make test` lives (`make test LIVES=n`); `make check` lives the first hundred."""
FAST = 100
PARTS = 20


def check(seeds: range) -> None:
    for seed in seeds:
        lived = live(draw_life(seed))
        if lived.violation is not None:
            pytest.fail(story(shrink(lived, tries_max=200)), pytrace=False)


def story(lived: Lived) -> str:
    """What happened in a life that fails, and the command that lives it again."""
    return "\n".join(
        [
            f"life {lived.life.seed}: {lived.violation}",
            f"    again: .venv/bin/python -m tests.simulation {lived.life.seed} --shrink",
            f"the smallest life that fails so has {lived.steps} steps, drawn from",
            f"    {lived.life.steps}",
            *lived.trace[-80:],
        ]
    )


@pytest.mark.parametrize("part", range(4))
def test_all_holds_in_the_first_lives(part: int) -> None:
    check(range(part, FAST, 4))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_holds_in_every_life(part: int) -> None:
    check(range(FAST + part, LIVES, PARTS))


def test_a_life_goes_the_same_way_every_time() -> None:
    for seed in range(5):
        first, second = live(draw_life(seed)), live(draw_life(seed))
        assert first.trace == second.trace
        assert (first.steps, first.blocks) == (second.steps, second.blocks)


def test_a_life_does_not_depend_on_the_process() -> None:
    """Sets of names come in another order in every process, unless it is given one."""
    runs = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "12", "--trace"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        for hash_seed in ("1", "2")
    ]
    assert runs[0].stdout
    assert runs[0].stdout == runs[1].stdout, runs[0].stderr
