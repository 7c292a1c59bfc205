"""Steps: declaring, altering, deleting, purging, looking; dead letters; what is scheduled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from smista.core.browsing import Wanted
from smista.core.message import Message, State
from smista.core.policies import NOT_BY_POLICY
from smista.core.settings import differences
from smista.engine import Binding, QueueSettings
from tests.simulation.drawing import TIMES_MS, altered, exchange_settings, queue_settings
from tests.simulation.steps import step
from tests.simulation.world import EXCHANGES, KEYS, World

POLICIES = ("first", "second")


def _unlike_default(settings: QueueSettings) -> str:
    return " ".join(one.split(":")[0] + "=" + one.rsplit(" ", 1)[-1] for one in differences(QueueSettings(), settings))


@step(6)
def declare_queue(world: World, draw: random.Random) -> None:
    name, settings = draw.choice(world.names), queue_settings(world, draw)
    present = world.find(name)
    if present is not None and draw.random() < 0.3:
        settings = present.declared
        world.used(present)
    world.note(f"declare {name}: {_unlike_default(settings)}")
    world.call(f"declare {name}", world.broker.declaring.declare_queue(name, settings), lambda _: None)


@step(5)
def alter_queue(world: World, draw: random.Random) -> None:
    name = world.some_queue(draw)
    present = world.find(name)
    if present is not None:
        settings = altered(world, draw, present.declared)
        # Drawn last, so that what is altered in other lives stays what it was.
        if draw.random() < 0.3:
            _change_policies(world, draw, name, settings)
            return
        world.note(f"alter {name}: {_unlike_default(settings)}")
        world.active.pop(present.number, None)
        world.call(f"alter {name}", world.broker.declaring.alter_queue(name, settings))


def _change_policies(world: World, draw: random.Random, queue: str, settings: QueueSettings) -> None:
    """Set a policy with some of these settings, or delete one."""
    name = draw.choice(POLICIES)
    world.active.clear()
    if draw.random() < 0.3:
        world.note(f"delete policy {name}")
        world.call(f"delete policy {name}", world.broker.declaring.delete_policy(name))
        return
    fields = draw.sample(sorted(set(QueueSettings.__struct_fields__) - NOT_BY_POLICY), draw.choice((1, 3, 12)))
    named = {field: getattr(settings, field) for field in fields}
    pattern, priority = draw.choice((queue, "*", f"{queue[:1]}*")), draw.choice((0, 0, 1))
    world.note(f"set policy {name} for {pattern}, priority {priority}: {named}")
    world.call(f"set policy {name}", world.broker.declaring.set_policy(name, pattern, named, priority=priority))


def _intent(name: str, asked: Counter[str]) -> Callable[[], None]:
    """What is asked of a queue may happen to it until the call returns."""
    asked[name] += 1
    return lambda: asked.subtract((name,))


@step(3)
def delete_queue(world: World, draw: random.Random) -> None:
    name = world.some_queue(draw)
    if_empty, if_unused = draw.random() < 0.2, draw.random() < 0.2
    world.note(f"delete {name}, if empty {if_empty}, if unused {if_unused}")
    world.call(
        f"delete {name}",
        world.broker.declaring.delete_queue(name, if_empty=if_empty, if_unused=if_unused),
        finally_=_intent(name, world.ledger.deleting),
    )


@step(4)
def purge(world: World, draw: random.Random) -> None:
    name, ready_only = world.some_queue(draw), draw.random() < 0.4
    world.note(f"purge {name}, ready only {ready_only}")
    world.call(
        f"purge {name}",
        world.broker.declaring.purge(name, ready_only=ready_only),
        finally_=_intent(name, world.ledger.purging),
    )


@step(3)
def pause_or_resume(world: World, draw: random.Random) -> None:
    name = world.some_queue(draw)
    queue = world.find(name)
    if queue is not None and queue.is_paused:
        world.note(f"resume {name}")
        world.call(f"resume {name}", world.broker.declaring.resume(name))
    else:
        world.note(f"pause {name}")
        world.call(f"pause {name}", world.broker.declaring.pause(name))


@step(4)
def declare_exchange(world: World, draw: random.Random) -> None:
    name, settings = draw.choice(EXCHANGES), exchange_settings(world, draw)
    world.note(f"declare exchange {name}: {settings}")
    world.call(f"declare exchange {name}", world.broker.declaring.declare_exchange(name, settings))


@step(1)
def delete_exchange(world: World, draw: random.Random) -> None:
    name = draw.choice(EXCHANGES)
    world.note(f"delete exchange {name}")
    world.call(f"delete exchange {name}", world.broker.declaring.delete_exchange(name, if_unused=draw.random() < 0.5))


def _binding(world: World, draw: random.Random) -> Binding:
    source = draw.choice((*EXCHANGES, "amq.fanout"))
    key = draw.choice((*KEYS, "k.*", "#"))
    arguments = {"h": draw.choice((1, 2))} if draw.random() < 0.3 else None
    if draw.random() < 0.8:
        return Binding.to_queue(source, world.some_queue(draw), key, arguments)
    return Binding.to_exchange(source, draw.choice(EXCHANGES), key, arguments)


@step(5)
def bind(world: World, draw: random.Random) -> None:
    binding = _binding(world, draw)
    world.note(f"bind {binding.source} to {binding.destination} by {binding.key!r} {binding.arguments}")
    world.call("bind", world.broker.declaring.bind(binding))


@step(2)
def bind_all(world: World, draw: random.Random) -> None:
    """So that one message goes to many queues, of every kind and leading to each other."""
    world.note("bind amq.fanout to every queue")
    for queue in world.queue_names():
        world.call("bind", world.broker.declaring.bind(Binding.to_queue("amq.fanout", queue, "")))


@step(2)
def unbind(world: World, draw: random.Random) -> None:
    present = world.broker.catalog.bindings()
    binding = draw.choice(present) if present else _binding(world, draw)
    world.note(f"unbind {binding.source} from {binding.destination} by {binding.key!r}")
    world.call("unbind", world.broker.declaring.unbind(binding))


# -- looking ----------------------------------------------------------------------------------------------------------


def _looked_at(world: World, messages: list[Message]) -> None:
    for message in messages:
        expected = world.ledger.bodies.get(message.number)
        if type(message.body) is bytes and expected is not None and message.body != expected:
            world.blame.say("a wrong body", f"message {message.number} looks like {message.body!r}")
        if type(message.body) is not bytes and message.state not in (State.DEAD, State.GONE):
            world.blame.say("looked at without a body", f"message {message.number}, {message.state.name}")


@step(3)
def browse(world: World, draw: random.Random) -> None:
    queue, limit = world.some_queue(draw), draw.choice((1, 3, 100))
    what = draw.choice(("browse", "peek", "get"))
    world.note(f"{what} {queue}")
    if what == "browse":
        wanted = Wanted(state=draw.choice((None, State.READY, State.DEAD)))
        world.call(
            "browse",
            world.broker.browsing.browse(queue, wanted, limit=limit),
            lambda page: _looked_at(world, page.messages),
        )
    elif what == "peek":
        world.call("peek", world.broker.browsing.peek(queue, limit), lambda messages: _looked_at(world, messages))
    else:
        message = _some_message(world, draw, queue)
        if message is not None:
            name = world.broker.ids.message_id(message.number, message.created_at_ms)
            world.call("get", world.broker.browsing.get(queue, name), lambda found: _looked_at(world, [found]))
    if world.find(queue) is not None:
        world.broker.statistics.stats(queue)


def _some_message(world: World, draw: random.Random, queue: str, *states: State) -> Message | None:
    found = world.find(queue)
    messages = [one for one in found.messages() if not states or one.state in states] if found is not None else []
    return draw.choice(messages) if messages else None


# -- scheduled, dead --------------------------------------------------------------------------------------------------


@step(3)
def reschedule(world: World, draw: random.Random) -> None:
    queue = world.some_queue(draw)
    message = _some_message(world, draw, queue, State.SCHEDULED) or _some_message(world, draw, queue)
    if message is None:
        return
    name = world.broker.ids.message_id(message.number, message.created_at_ms)
    if draw.random() < 0.6:
        due_at_ms = world.now_ms + draw.choice((-16, *TIMES_MS))
        world.note(f"reschedule {message.number} of {queue} to {due_at_ms}")
        world.call("reschedule", world.broker.messages.reschedule(queue, name, due_at_ms))
    elif draw.random() < 0.5:
        world.note(f"delete {message.number} of {queue}")
        world.call(
            "delete a message",
            world.broker.messages.delete(queue, name),
            finally_=_intent(queue, world.ledger.discarding),
        )
    else:
        world.note(f"cancel scheduled {message.number} of {queue}")
        world.call(
            "cancel scheduled",
            world.broker.messages.cancel(queue, name),
            finally_=_intent(queue, world.ledger.discarding),
        )


@step(4)
def redrive(world: World, draw: random.Random) -> None:
    queues = [queue.name for queue in world.state.queues.values() if any(m.deaths for m in queue.messages())]
    queue = draw.choice(queues) if queues and draw.random() < 0.8 else world.some_queue(draw)
    to = world.some_queue(draw) if draw.random() < 0.5 else None
    limit = draw.choice((None, None, 1, 2))
    per_second = draw.choice((None, None, 20.0, 60.0))
    dry_run = draw.random() < 0.1
    # Drawn last, so that what is redriven in other lives stays what it was.
    if not dry_run and (per_second is not None or draw.random() < 0.3):
        _redrive_by_a_job(world, draw, queue, to, limit, per_second)
        return
    world.note(f"redrive {queue} to {to}, limit {limit}, dry {dry_run}")
    world.call(f"redrive {queue} to {to}", world.broker.redriving.redrive(queue, to=to, limit=limit, dry_run=dry_run))


def _redrive_by_a_job(
    world: World, draw: random.Random, queue: str, to: str | None, limit: int | None, per_second: float | None
) -> None:
    """Start one, or wait for its end; or cancel one of before."""
    jobs = world.broker.jobs
    known = [(name, job) for name in world.queue_names() for job in jobs.of_queue(name)]
    if known and draw.random() < 0.3:
        name, job = draw.choice(known)
        world.note(f"cancel redrive {job.id} of {name}")
        world.call(f"cancel redrive of {name}", jobs.cancel(name, job.id))
        return
    places = [(queue, Wanted())]
    if draw.random() < 0.3:
        places.append((draw.choice(world.names), Wanted(source=queue)))
    does = jobs.run if draw.random() < 0.5 else jobs.start
    world.note(
        f"{does.__name__} redrive of {[name for name, _ in places]} to {to}, limit {limit}, {per_second} a second"
    )
    world.call(f"redrive {queue} to {to}", does(places, to=to, limit=limit, per_second=per_second))


@step(2)
def discard(world: World, draw: random.Random) -> None:
    queue = world.some_queue(draw)
    wanted = Wanted(state=draw.choice((None, State.READY, State.DEAD, State.SCHEDULED)))
    world.note(f"discard {queue}, {wanted.state}")
    world.call(
        f"discard {queue}",
        world.broker.redriving.discard(queue, wanted),
        finally_=_intent(queue, world.ledger.discarding),
    )
