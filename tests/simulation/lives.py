"""Lives of the whole broker, simulated: everything below `smista.engine.Broker`, without a clock, a thread or a disk.

What a life is. A number, its seed, draws a broker's settings, a theme, and a list of some fifty steps: publish in every
form, receive, subscribe, claim, settle, purge, alter, delete, redrive, stage, cancel a call, lose a connection, let
time pass, fill the disk, fail to read, restart, crash. A life is data: the list is drawn before anything happens, and
each step carries the number its own chances are drawn from. So a life can be lived again, and again without some of its
steps.

    seed ──▶ draw_life ──▶ Life: settings, steps ──▶ live ──▶ Lived: what happened, and the first rule that was broken

How it is lived. The broker is the real one, on a loop whose time and turns the simulator makes (`loop`); the log's
thread and every `to_thread` are moves that happen when chance says so (`stage`), so blocks are sealed and become
durable, and bodies come back, at any moment between other things. Bounds that are made for thousands of messages are
made small. After a step everything comes to rest, or some turns pass, or none.

What is checked.

- At each seal the live state is written down, and the log up to there is folded: both must say the same (`replaying`).
  Now and at the end the log is recovered as a start does it, from every front it had.
- The journal is listened to (`watching`), and a ledger (`ledger`) written from outside says what may be: nothing is
  acknowledged, removed, purged or deleted that nobody asked for and whose time is not up; nothing is lost, nothing
  comes back, nothing is confirmed that is not on disk; no lease ends early, nobody's message is taken from its holder.
- After each step: tables, lines, groups and deadlines agree, nothing reached the loop's exception handler, and no call
  failed but with an error for its caller (`checks`).
- At rest: accounts add up, whatever is in flight is in the hands of somebody who is there, nobody waits for what is
  there, the single active consumer is one and is served in order.

How to see one again: `python -m tests.simulation 12345 --trace`, and with `--shrink` the shortest life that still
breaks the same rule. How we know that it sees anything: `test_planted` plants faults.
"""

from __future__ import annotations

import random
from unittest import mock

import msgspec

from smista.engine import BrokerSettings, reclaim
from smista.errors import BrokerError
from tests.simulation import (  # noqa: F401 (each adds its steps to those that are known)
    checks,
    drawing,
    steps_administering,
    steps_claiming,
    steps_consuming,
    steps_fate,
    steps_publishing,
)
from tests.simulation.blame import Violation, where
from tests.simulation.steps import ACTIONS, WEIGHTS, Step
from tests.simulation.steps_fate import restart_after_failure
from tests.simulation.world import World

PART_BYTES = 50
"""So little is written again in one record, that what has to be taken apart in real life is so here."""
ALWAYS = ("publish", "rest", "pass_time", "go_on")


class Life(msgspec.Struct, frozen=True):
    seed: int
    theme: str
    queue_count: int
    calm: float
    """How often it is waited after a step until all that follows from it is done."""
    settings: BrokerSettings
    steps: list[Step]


class Lived(msgspec.Struct):
    """How a life went."""

    life: Life
    violation: Violation | None
    trace: list[str]
    steps: int
    blocks: int


def draw_life(seed: int) -> Life:
    """The life of this number. Each is fond of some kinds of steps and never does some others, so that lives differ in
    more than their chances."""
    draw = random.Random(seed)
    theme = draw.choice(list(drawing.THEMES)) if draw.random() < 0.5 else ""
    settings = drawing.with_readers(drawing.broker_settings(draw, theme), seed)
    fond_of = drawing.THEMES[theme]
    kinds = [kind for kind in ACTIONS if kind in ALWAYS or kind in fond_of or draw.random() < 0.6]
    weights = [WEIGHTS[kind] * (4 if kind in fond_of else draw.choice((1, 1, 1, 3))) for kind in kinds]
    beginning = [Step("declare_queue", draw.getrandbits(32)) for _ in range(draw.choice((2, 4, 6)))]
    if draw.random() < 0.5 or theme == "exchanges":
        bound = ("declare_exchange", "declare_exchange", "rest", "bind_all", "bind", "bind", "bind", "bind")
        beginning += [Step(kind, draw.getrandbits(32)) for kind in bound]
    count = draw.choice((15, 30, 30, 60)) if theme in ("", "alone", "limits") else draw.choice((30, 60))
    calm = draw.choice((0.1, 0.4, 0.4, 0.7)) if theme not in ("paging", "reclaiming") else draw.choice((0.05, 0.3))
    body = [Step(kind, draw.getrandbits(32)) for kind in draw.choices(kinds, weights, k=count)]
    return Life(seed, theme, draw.choice((1, 2, 3, 4)), calm, settings, [*beginning, *body])


def live(life: Life) -> Lived:
    """Live a life to its end, or to the first thing that is not as it must be."""
    world = World(life.settings, life.theme, life.queue_count)
    done = 0
    violation = None
    with world.playing(), mock.patch.object(reclaim, "PART_BYTES", PART_BYTES):
        try:
            world.chances.source = random.Random(0)
            world.open()
            for step in life.steps:
                done += 1
                _take(world, step, life.calm)
            _end(world)
        except Violation as found:
            violation = found
    return Lived(life, violation, world.trace, done, world.disk.last)


def _take(world: World, step: Step, calm: float) -> None:
    draw = random.Random(step.seed)
    world.chances.source = random.Random(step.seed + 1)
    if world.broker.failure is not None:
        restart_after_failure(world)
    if step.kind in ("pass_time", "stall", "go_on", "rest", "restart", "crash", "log_fails"):
        ACTIONS[step.kind](world, draw)
    else:
        with world.loop.running():
            try:
                ACTIONS[step.kind](world, draw)
            except BrokerError as refusal:
                world.refused(step.kind, refusal)
            except Exception as error:
                world.blame.say(f"{step.kind} fails with {type(error).__name__}", f"{error!r}{where(error)}")
    checks.between_steps(world)
    if draw.random() < calm:
        world.settle_down()
        checks.between_steps(world)
        checks.at_rest(world)
    elif draw.random() < 0.5:
        world.turns(draw, draw.choice((1, 1, 2, 4)))
        checks.between_steps(world)


def _end(world: World) -> None:
    """All comes to rest; whatever the log says is compared once more; then one more start."""
    world.note("the end")
    world.disk.is_full = False
    world.disk.read_errors = 0
    if world.broker.failure is not None:
        restart_after_failure(world)
    world.pass_time(300)
    world.settle_down()
    checks.between_steps(world)
    checks.at_rest(world)
    world.replaying.check_end()
    world.blame.raise_first()
    world.close()
    world.begin_again()
    world.settle_down()
    checks.between_steps(world)
    checks.at_rest(world)
