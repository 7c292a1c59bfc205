"""Steps: time, threads that lag, callers that give up, disks that fill up, restarts and crashes."""

from __future__ import annotations

import random

from tests.simulation.drawing import TIMES_MS
from tests.simulation.steps import step
from tests.simulation.world import World


@step(12)
def pass_time(world: World, draw: random.Random) -> None:
    ms = draw.choice((1, 5, *TIMES_MS, 1_000))
    world.note(f"{ms} ms pass")
    world.pass_time(ms, threads=draw.random() < 0.8)


@step(2)
def stall(world: World, draw: random.Random) -> None:
    """The process was held up: time went on, and nobody looked at what was due."""
    ms = draw.choice((48, 160, 1_600))
    world.note(f"held up for {ms} ms")
    world.loop.advance_to(world.loop.now_us + ms * 1000)


@step(6)
def go_on(world: World, draw: random.Random) -> None:
    count = draw.choice((1, 2, 3, 8))
    world.note(f"{count} turns")
    world.turns(draw, count)


@step(6)
def rest(world: World, draw: random.Random) -> None:
    world.note("rest")
    world.settle_down()


@step(6)
def cancel_call(world: World, draw: random.Random) -> None:
    """Whoever called does not wait any longer."""
    begun = [call for call in world.calls if call.has_begun]
    if begun:
        call = draw.choice(begun)
        world.note(f"cancel {call.what}")
        call.task.cancel()


@step(2)
def disk_full(world: World, draw: random.Random) -> None:
    world.disk.is_full = not world.disk.is_full
    world.note(f"disk full: {world.disk.is_full}")


@step(2)
def read_errors(world: World, draw: random.Random) -> None:
    world.disk.read_errors = draw.choice((1, 1, 3))
    world.note(f"the next {world.disk.read_errors} reads fail")


@step(2)
def damage(world: World, draw: random.Random) -> None:
    if world.disk.last >= world.disk.front:
        position = draw.randint(world.disk.front, world.disk.last)
        world.disk.damaged.add(position)
        world.note(f"block {position} is damaged")


@step(1)
def log_fails(world: World, draw: random.Random) -> None:
    """A write fails. Nothing is confirmed from then on, everybody gets an error, and the broker is started anew."""
    world.note("the next write fails")
    world.disk.is_full = False
    world.disk.is_failing = True
    world.pass_time(300)
    world.disk.is_failing = False
    if world.broker.failure is not None:
        restart_after_failure(world)


def restart_after_failure(world: World) -> None:
    """The broker has stopped: whoever called must have an error by now."""
    world.note(f"the broker has stopped: {world.broker.failure!r}")
    world.rest()
    for call in world.calls:
        world.blame.say("a call never returned", f"{call.what}, although the broker has stopped")
    if world.consumers:
        world.blame.say("a consumer never got an error", world.consumers[0].label)
    world.close()
    world.begin_again()
    world.disk.has_failed = False
    world.disk.errors_met = 0


@step(3)
def restart(world: World, draw: random.Random) -> None:
    if draw.random() < 0.9:
        world.disk.is_full = False
    world.note(f"restart, disk full {world.disk.is_full}")
    is_full, last_sealed = world.disk.is_full, world.broker._keeper.committer.submitted_position
    world.close()
    if not is_full and world.disk.last < last_sealed:
        world.blame.say("closing left something behind", f"{world.disk.last} blocks on disk of {last_sealed}")
    world.begin_again()


@step(3)
def crash(world: World, draw: random.Random) -> None:
    fronts = sorted({front for front in world.disk.fronts.values() if front <= world.disk.front})
    front = draw.choice(fronts) if draw.random() < 0.3 else world.disk.front
    world.note(f"crash; the log ends with block {world.disk.last} and is folded from {front}")
    # A crash may undo a move of the fold, and a drop before it.
    world.disk.front = front
    world.disk.first = min(world.disk.first, front)
    world.crash()
    world.begin_again()
