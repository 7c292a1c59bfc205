"""Where a queue's dead letters are.

Those that came from it into its dead-letter queue (or into the queues that its dead-letter exchange leads to), and
those parked in it. Whoever names a dead-letter queue itself means all that is in it.

They are searched for where they go now, and in `{queue}_dlq`. Not in queues that took them before another target was
named: a message that died in this queue and is in another one may just as well have been redriven there, and is alive
then. Callers that know such a queue name it, and the answer lists the queues that were searched.
"""

from __future__ import annotations

from typing import Any

from smista.core.dead_letter_target import MOVES, usual_source, usual_target
from smista.core.dead_letter_target import named_target as named_target
from smista.core.settings import QueueSettings
from smista.engine import DeadLetterMode, State, Wanted
from smista.engine.interface import Engine

PLACES_AT_ONCE = 1_000
Places = list[tuple[str, dict[str, Any]]]
"""Queues, and what distinguishes the dead letters wanted from others there."""


async def targets_of(broker: Engine, queue: str, settings: QueueSettings, namespace: str) -> list[str]:
    """The queues that take a queue's dead letters, those among them that are there."""
    target = named_target(queue, settings)
    if target is not None:
        return [target] if broker.catalog.has_queue(target, namespace=namespace) else []
    exchange, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
    if settings.dead_letter not in MOVES or exchange is None:
        return []
    if key is None:
        # For any key.
        return await broker.surveying.queues_behind(exchange, namespace=namespace)
    return list(broker.catalog.reached(exchange, key, namespace=namespace))


async def is_target(broker: Engine, queue: str, namespace: str) -> bool:
    """Whether some queue sends its dead letters here, or did until it was deleted or named another target."""
    source = usual_source(queue)
    if source is not None:
        if broker.catalog.queue_settings(queue, namespace=namespace).dead_letter is DeadLetterMode.PARK:
            # As the broker makes them.
            return True
        if broker.catalog.has_queue(source, namespace=namespace):
            settings = broker.catalog.queue_settings(source, namespace=namespace)
            if await targets_of(broker, source, settings, namespace) == [queue]:
                return True
    before = await broker.surveying.exchanges_before(queue, namespace=namespace)
    for settings in await broker.surveying.distinct_settings(namespace=namespace):
        if settings.dead_letter not in MOVES:
            continue
        exchange, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
        if exchange is None:
            if settings.dead_letter_queue == queue:
                return True
        elif key is None:
            if exchange in before:
                return True
        else:
            # To follow a key may take some milliseconds.
            await broker.fair_turns.turn()
            if queue in broker.catalog.reached(exchange, key, namespace=namespace):
                return True
    return False


async def places(broker: Engine, queue: str, namespace: str, kept_in: str | None = None) -> Places:
    """Where a queue's dead letters are, and what distinguishes them from others there. `kept_in` names the only queue
    to search."""
    if kept_in is not None and kept_in != queue:
        return [(kept_in, {"source": queue})]
    settings = broker.catalog.queue_settings(queue, namespace=namespace)
    if await is_target(broker, queue, namespace):
        return [(queue, {})]
    targets = [name for name in await targets_of(broker, queue, settings, namespace) if name != queue]
    usual = usual_target(queue)
    if usual not in targets and broker.catalog.has_queue(usual, namespace=namespace):
        # Another target was named since: what died before is still there.
        targets.append(usual)
    return [(queue, {"state": State.DEAD}), *((target, {"source": queue}) for target in targets)]


async def place_of(broker: Engine, queue: str, message_id: str, namespace: str) -> str:
    """The queue that a message is in: the one named, or where it is among that one's dead letters. The one named, too,
    where it is in none of them."""
    if await broker.asking.holds(queue, message_id, namespace=namespace):
        return queue
    found = await places(broker, queue, namespace)
    async for place, mark in broker.fair_turns.in_turns(found, PLACES_AT_ONCE):
        if broker.catalog.has_queue(place, namespace=namespace) and await broker.asking.holds(
            place, message_id, Wanted(**mark), namespace=namespace
        ):
            return place
    return queue
