"""What must hold between any two steps, and what must hold when everything that goes on by itself is done.

Between steps: every message in exactly one place, the ready line equals the ready table, deadlines are in the calendar,
nothing reached the loop's exception handler. At rest: the accounts add up, nobody waits for what is there, and nothing
is held by anybody who is not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from smista.core import jobs
from smista.core.jobs import JobState
from smista.core.message import FOREVER_MS, Message
from smista.core.queue import Queue
from smista.engine.accounts import KEPT_BYTES, LARGE_BYTES, Accounts, live_bytes
from smista.engine.subscription import Subscription
from tests.core import invariants
from tests.simulation.blame import where
from tests.simulation.ledger import Name
from tests.simulation.world import World

RATE_LOOK_MS = 1_050
"""The slowest rate that lives ask for is one a second."""


def between_steps(world: World) -> None:
    for context in world.loop.troubles:
        error = context.get("exception")
        world.blame.say(
            f"{type(error).__name__} reached the loop", f"{context.get('message')}: {error!r}{where(error)}"
        )
    world.blame.raise_first()
    failure = world.broker.failure
    if failure is not None:
        if not (world.disk.has_failed or world.disk.errors_met):
            world.blame.say("the broker stopped by itself", f"{failure!r}{where(failure)}")
        world.blame.raise_first()
        return
    try:
        invariants.check(world.state)
    except AssertionError as error:
        world.blame.say("the broker's tables are wrong", str(error))
    for number in world.state.claimants:
        if number not in world.state.queues:
            world.blame.say("a claim without a queue", f"queue number {number}")
    _check_jobs(world)
    _check_bodies(world)
    world.ledger.compare(world.state)
    world.blame.raise_first()


def at_rest(world: World) -> None:
    if world.broker.failure is not None or world.is_busy or world.disk.is_full:
        return
    _check_governed(world)
    _check_accounts(world)
    _check_holders(world)
    _check_owners(world)
    _check_nobody_waits_in_vain(world)
    world.blame.raise_first()


def _check_jobs(world: World) -> None:
    """Each that runs will go on, each that has ended is at rest, and all belong to queues that are there."""
    for number, of_queue in world.state.jobs.items():
        if number not in world.state.queues:
            world.blame.say("a job without a queue", f"queue number {number}")
        ended = [job for job in of_queue.values() if job.state is not JobState.RUNNING]
        if len(ended) > jobs.ENDED_KEPT:
            world.blame.say("too many jobs are remembered", f"{len(ended)} of queue number {number}")
        for job in of_queue.values():
            if (job.deadline_ms is not None) is not (job.state is JobState.RUNNING):
                world.blame.say("a job stands still, or goes on after its end", f"{job.sequence}: {job.state.name}")
            if job.plan.limit is not None and job.moved > job.plan.limit:
                world.blame.say("a job moves more than it may", f"{job.sequence}: {job.moved}")


def _check_bodies(world: World) -> None:
    """A body that is not in memory can be read."""
    durable_position = world.broker._keeper.committer.durable_position
    for queue in world.state.queues.values():
        for message in queue.messages():
            if type(message.body) is not bytes and message.position > durable_position:
                world.blame.say(
                    "a body is nowhere", f"{_name(queue, message)}: block {message.position} is not written"
                )


# -- policies ---------------------------------------------------------------------------------------------------------


def _check_governed(world: World) -> None:
    """What a queue has follows from its declaration and the policies alone, whatever came in between."""
    if world.is_governing:
        world.blame.say("a policy never reaches all queues", "it is left to be done, and nobody does it")
    for queue in world.state.queues.values():
        expected = world.state.namespaces[queue.namespace].policies.govern(queue.name, queue.declared)
        if expected != (queue.settings, queue.policy):
            world.blame.say("a policy does not hold", f"{queue.name!r} has {queue.policy}, not {expected[1]}")


# -- accounts ---------------------------------------------------------------------------------------------------------


def _check_accounts(world: World) -> None:
    journal = world.broker._keeper.journal
    accounts = journal.accounts
    live: Counter[int] = Counter()
    resident = kept = 0
    shared: set[int] = set()
    histories = Accounts()
    moved: dict[int, int] = {}
    if world.state.purged:
        world.blame.say("purged memory is never freed", f"{len(world.state.purged)} tables")
    if world.state.over_limit:
        world.blame.say("left to be done, and nobody does it", " ".join(queue.name for queue in world.state.over_limit))
    for queue in world.state.queues.values():
        for message in queue.messages():
            histories.count_history(message)
            properties = message.envelope.properties
            kept += KEPT_BYTES + (0 if id(properties) in shared else len(properties))
            if len(properties) >= LARGE_BYTES:
                shared.add(id(properties))
            if queue.settings.durable:
                if not message.position:
                    world.blame.say("a message lies in no block", _name(queue, message))
                live[message.position] += live_bytes(message)
            if type(message.body) is bytes:
                resident += len(message.body)
            elif not queue.settings.durable:
                world.blame.say("a body is nowhere", _name(queue, message))
            if message.number != message.sequence:
                moved[message.number] = message.sequence
    if accounts.live != live:
        world.blame.say("live bytes do not add up", f"counted {accounts.live}, there are {dict(live)}")
    blocks = world.broker._keeper.reclaimer._blocks
    sizes = dict(zip(blocks._positions, blocks._sizes, strict=True))
    live_total = sum(min(alive, sizes.get(position, alive)) for position, alive in live.items())
    if accounts.live_total != live_total:
        world.blame.say("live bytes do not add up", f"counted {accounts.live_total}, there are {live_total}")
    if accounts.resident_bytes != resident:
        world.blame.say("resident bytes do not add up", f"counted {accounts.resident_bytes}, there are {resident}")
    if accounts.kept_bytes != kept:
        world.blame.say("bytes in memory do not add up", f"counted {accounts.kept_bytes}, there are {kept}")
    if accounts.history_bytes != histories.history_bytes:
        counted, there = accounts.history_bytes, histories.history_bytes
        world.blame.say("bytes of histories do not add up", f"counted {counted}, there are {there}")
    remembered = sum(queue.dedup.bytes for queue in world.state.queues.values() if queue.dedup is not None)
    if world.state.remembered.bytes != remembered:
        world.blame.say("remembered ids do not add up", f"{world.state.remembered.bytes}, there are {remembered}")
    known = {number: message.sequence for number, message in journal.positions.moved.items()}
    if known != moved:
        world.blame.say("moved messages do not add up", f"known {known}, there are {moved}")
    committer = world.broker._keeper.committer
    if committer.waiting_bytes:
        world.blame.say("bytes wait for the log and nothing is written", str(committer.waiting_bytes))


# -- who holds what ---------------------------------------------------------------------------------------------------


def _check_holders(world: World) -> None:
    """Subscriptions, pools and the journal agree on who holds what, and all of it is in flight."""
    held = world.broker._keeper.journal.holders.by_sequence
    expected: dict[int, object] = {}
    subscriptions = [one.subscription for one in (*world.consumers, *world.leaving, *world.gone)]
    in_flight = {sequence: queue for queue in world.state.queues.values() for sequence in queue.in_flight}
    for subscription in subscriptions:
        for sequence in subscription.held:
            expected[sequence] = subscription
            if in_flight.get(sequence) is not subscription.queue:
                world.blame.say(
                    "a subscription holds what is not in flight", f"{subscription.consumer} holds {sequence}"
                )
    if held != expected:
        world.blame.say("holders do not add up", f"known {_shown(held)}, there are {_shown(expected)}")
    for pool in world.pools:
        there = {(one.queue.number, sequence) for one in subscriptions if one.pool is pool for sequence in one.held}
        # What came from queues that were deleted counts until somebody lets go of it.
        counted = {key for key in pool.held if key[0] in world.state.queues}
        if counted != there:
            world.blame.say("a pool's credit does not add up", f"counted {counted}, there are {there}")
    alive = {id(one.subscription) for one in world.consumers}
    for queue in world.state.queues.values():
        watch = world.broker._running.consumers.watch(queue)
        if watch is None:
            continue
        if watch.is_fetching:
            world.blame.say("a queue fetches for ever", queue.name)
        waiting = [one for row in watch.line._rows.values() for one in row]
        here = [*watch.subscriptions, *waiting, *([watch.active] if watch.active is not None else [])]
        for one in here:
            if isinstance(one, Subscription) and id(one) not in alive:
                world.blame.say("one who has left stands in line", f"{one.consumer} of queue {queue.name!r}")


def _check_owners(world: World) -> None:
    """Everything that is in flight is in the hands of somebody who is there."""
    claimed: set[Name] = set()
    for number, by_name in world.state.claimants.items():
        for claimant in by_name.values():
            for claim in claimant.claims.values():
                for rows in claim.rows:
                    for sequence, delivery in zip(rows.sequences, rows.deliveries, strict=True):
                        claimed.add((number, sequence, delivery, rows.run))
    for queue in world.state.queues.values():
        for message in queue.in_flight.values():
            deliveries = message.deliveries
            assert deliveries is not None
            name = (queue.number, message.sequence, deliveries.count, deliveries.run)
            if name in world.hands or name in claimed:
                continue
            if deliveries.run == world.state.run:
                world.blame.say("in flight and held by nobody", f"{_name(queue, message)}, delivery {name}")
            elif message.deadline_ms is None:
                world.blame.say("in flight for ever and held by nobody", f"{_name(queue, message)}, delivery {name}")


# -- who waits --------------------------------------------------------------------------------------------------------


def _check_nobody_waits_in_vain(world: World) -> None:
    """Somebody with credit, and a message for it, are not both there."""
    for queue in world.state.queues.values():
        if not _has_something(world, queue):
            continue
        users = [one for one in world.consumers if one.queue is queue and one.subscription.credit > 0]
        if queue.settings.single_active_consumer:
            # The others wait for their turn, also while the active one has no credit.
            subscribed = [one for one in world.consumers if one.queue is queue]
            users = users if len(users) == len(subscribed) else []
        polls = [call for call in world.calls if call.is_polling and call.queue is queue]
        if users:
            world.blame.say("a consumer waits in vain", f"{users[0].label} of queue {queue.name!r}")
        elif polls and not (queue.settings.single_active_consumer and any(c.queue is queue for c in world.consumers)):
            world.blame.say("a call waits in vain", f"{polls[0].what}")


def _has_something(world: World, queue: Queue) -> bool:
    if queue.is_paused or queue.line is None:
        return False
    if queue.rate is not None and queue.deadline_ms is not None and queue.deadline_ms < world.now_ms + RATE_LOOK_MS:
        # It will be looked at when the next one is allowed.
        return False
    retention_ms = queue.settings.retention_ms or FOREVER_MS
    return any(
        (message.expires_at_ms is None or message.expires_at_ms >= world.now_ms)
        and message.ready_at_ms + retention_ms > world.now_ms
        for message in queue.line.in_order()
    )


def _shown(held: Mapping[int, object]) -> dict[int, str]:
    return {sequence: getattr(one, "consumer", "?") for sequence, one in held.items()}


def _name(queue: Queue, message: Message) -> str:
    return f"message {message.number} ({message.sequence} in queue {queue.name!r})"
