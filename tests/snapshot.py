"""A broker's state in values that compare: what a restart must keep, and nothing else.

Queues and exchanges that are not durable are left out, with their bindings. Of bodies there is only the length unless
they are asked for: they may be paged out on one side; whoever gets a message compares its body.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter

import msgspec

from smista.core.claims import Claimant
from smista.core.counters import Counters
from smista.core.exchanges import Exchange
from smista.core.message import Message, State
from smista.core.queue import Messages, Queue
from smista.core.settings import QueueSettings
from smista.core.state import BrokerState, Namespace
from smista.engine.claim_records import claimant_record, commit_record, job_record

Snapshot = dict[str, object]

_COUNTERS = [name for name in Counters.__struct_fields__ if name not in ("duplicates", "rejected")]
"""What was refused leaves no record, so those two may go back a little."""


def take(
    state: BrokerState,
    now_ms: int,
    *,
    with_claims: bool = True,
    with_bodies: bool = False,
    as_governed: bool = False,
) -> Snapshot:
    """With `as_governed` queues have what policies say, also those that have not taken it up yet."""
    known: Snapshot = {}
    for space in state.namespaces.values():
        for queue in space.queues.values():
            if queue.settings.durable:
                has = space.policies.govern(queue.name, queue.declared) if as_governed else None
                known.update(_queue(queue, now_ms, has or (queue.settings, queue.policy), with_bodies=with_bodies))
        for exchange in space.topology.exchanges():
            if exchange.settings.durable and exchange.number:
                known[f"exchange {exchange.name}"] = (exchange.number, exchange.settings)
        known[f"bindings in {space.name}"] = set(_bindings(space))
        for policy in space.policies:
            known[f"policy {policy.name} in {space.name}"] = (policy.pattern, policy.priority, policy.settings)
    if with_claims:
        for number, by_name in state.claimants.items():
            claimed = state.queues.get(number)
            if claimed is None or claimed.settings.durable:
                known.update({f"claims of {name} in queue {number}": _claimant(one) for name, one in by_name.items()})
    for commit in state.commits.values():
        known[f"commit {commit.job} {commit.batch}"] = commit_record(commit)
    for number, of_queue in state.jobs.items():
        if number not in state.queues or state.queues[number].settings.durable:
            known.update({f"job {job.sequence} of queue {number}": job_record(job) for job in of_queue.values()})
    return known


def difference(live: Snapshot, replayed: Snapshot) -> str:
    """The first thing that is not the same on both sides; empty where there is none."""
    for part in chain(live, replayed):
        one, other = live.get(part, "missing"), replayed.get(part, "missing")
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            for key in chain(one, other):
                if one.get(key) != other.get(key):
                    return f"{part}, {key}: live {one.get(key, 'missing')}, replayed {other.get(key, 'missing')}"
        return f"{part}: live {one}, replayed {other}"
    return ""


def without_forgotten(snapshot: Snapshot, now_ms: int) -> Snapshot:
    """Without deduplication ids whose time is over by then."""
    return {
        part: {key: seen for key, seen in value.items() if seen[2] > now_ms}
        if part.endswith(" deduplication") and isinstance(value, dict)
        else value
        for part, value in snapshot.items()
    }


def without_claims(snapshot: Snapshot) -> Snapshot:
    return {part: value for part, value in snapshot.items() if not part.startswith("claims of ")}


def _queue(
    queue: Queue, now_ms: int, has: tuple[QueueSettings, str | None], *, with_bodies: bool
) -> Iterator[tuple[str, object]]:
    name = f"queue {queue.namespace}:{queue.name}"
    yield name, (queue.number, queue.declared, *has, queue.created_at_ms, queue.is_paused)
    yield f"{name} bytes", queue.body_bytes
    yield f"{name} counters", {counter: getattr(queue.counters, counter) for counter in _COUNTERS}
    yield f"{name} ready", _table(queue.ready, with_bodies=with_bodies)
    yield f"{name} scheduled", _table(queue.scheduled, with_bodies=with_bodies)
    yield f"{name} in flight", _table(queue.in_flight, with_bodies=with_bodies)
    yield f"{name} dead", _table(queue.dead, with_bodies=with_bodies)
    remembered = [] if queue.dedup is None else queue.dedup.items()
    kept = [(key, seen) for key, seen in remembered if seen.expires_at_ms > now_ms]
    yield f"{name} deduplication", {key: (seen.number, seen.created_at_ms, seen.expires_at_ms) for key, seen in kept}


def _table(table: Messages, *, with_bodies: bool) -> dict[int, object]:
    return {sequence: _message(message, with_bodies=with_bodies) for sequence, message in table.items()}


_OTHERS = ("body", "position", "deadline_ms", "deliveries")
_fields = attrgetter(*(field for field in Message.__struct_fields__ if field not in _OTHERS))


def _message(message: Message, *, with_bodies: bool) -> object:
    """All of it but where its body is in the log."""
    deliveries = message.deliveries
    return (
        _fields(message),
        message.body if with_bodies else message.body_bytes,
        message.deadline_ms if message.state is State.IN_FLIGHT else None,
        None if deliveries is None else msgspec.structs.astuple(deliveries),
    )


def _claimant(claimant: Claimant) -> object:
    """All of it but when it was last seen, which a restart forgets."""
    return (
        claimant_record(claimant),
        {
            number: [
                (rows.first, rows.run, list(rows.sequences), list(rows.deliveries), rows.body_bytes)
                for rows in claim.rows
            ]
            for number, claim in claimant.claims.items()
        },
    )


def _bindings(namespace: Namespace) -> Iterator[object]:
    def is_durable(exchange: Exchange | None) -> bool:
        return exchange is not None and exchange.settings.durable

    for binding in namespace.topology.bindings():
        if binding.destination_kind == "queue":
            queue = namespace.queues.get(binding.destination)
            has_durable_end = queue is not None and queue.settings.durable
        else:
            has_durable_end = is_durable(namespace.topology.find(binding.destination))
        if has_durable_end and is_durable(namespace.topology.find(binding.source)):
            yield binding
