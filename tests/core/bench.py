"""One broker, one queue, and a clock that moves only when a test moves it.

`pass_time` does on the way whatever falls due, each thing at its time, as a running broker does; `leap` moves the clock
at once and only then looks at what is due, as a broker does that was stopped. The calendar works in ticks of 16 ms, so
what must happen exactly *on* time is given times that are whole ticks: 2 s, 30 s and START_MS are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from smista.core import browsing, dead_letters, declaring, fan_out, publishing, receiving, settling, trimming
from smista.core.browsing import ANY, Page, Wanted
from smista.core.counters import QueueStats
from smista.core.due import run_due
from smista.core.entering import Placed, Result
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.limits import is_one_by_one
from smista.core.message import Envelope, Message, Publication, Receipt
from smista.core.publishing import Batch
from smista.core.queue import Queue
from smista.core.settings import QueueSettings
from smista.core.settling import receipt_for
from smista.core.state import BrokerState
from smista.core.trimming import Serve
from smista.errors import BrokerError

START_MS = 1_700_000_000_000
LEASE_MS = 30_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a consumer sees of one handing-over."""

    id: int
    body: bytes
    priority: int
    delivery_count: int
    group: str | None
    receipt: Receipt
    message: Message


class Bench:
    """Commands go to the queue it was made with, or to the one named by `queue`."""

    def __init__(self, settings: QueueSettings | None = None, *, name: str = "orders", now_ms: int = START_MS) -> None:
        self.state = BrokerState()
        self.now_ms = now_ms
        self.chance = 0.0
        self.serve: Serve = lambda queue, now_ms: None
        """What whoever waits does when there is something for them, as the engine would."""
        self.queue = self.declare(name, settings or QueueSettings())

    # -- time -----------------------------------------------------------------------------------------------------

    def pass_time(self, *, ms: int) -> None:
        until_ms = self.now_ms + ms
        while (next_ms := self.state.calendar.next_ms()) is not None and next_ms <= until_ms:
            self.now_ms = max(self.now_ms, next_ms)
            run_due(self.state, now_ms=self.now_ms, chance=self.chance)
            self.keep_limits()
        self.now_ms = until_ms

    def leap(self, *, ms: int, limit: int = 500) -> None:
        self.now_ms += ms
        while self.state.calendar.is_behind(self.now_ms):
            run_due(self.state, now_ms=self.now_ms, limit=limit, chance=self.chance)
            self.keep_limits()

    def keep_limits(self) -> None:
        """What a running broker does when a command is over."""
        while self.state.over_limit:
            trimming.keep_limits(self.state, serve=self.serve, now_ms=self.now_ms)

    # -- queues and exchanges -------------------------------------------------------------------------------------

    def declare(self, name: str, settings: QueueSettings | None = None, *, namespace: str = "/") -> Queue:
        return declaring.declare_queue(
            self.state, name, settings or QueueSettings(), namespace=namespace, now_ms=self.now_ms
        )

    def find(self, name: str) -> Queue:
        return self.state.queue(name)

    def has_queue(self, name: str, namespace: str = "/") -> bool:
        return name in self.state.namespaces[namespace].queues

    def alter(self, settings: QueueSettings) -> None:
        declaring.alter_queue(self.state, self.queue, settings, now_ms=self.now_ms)

    def delete(self, queue: Queue | None = None, **conditions: bool) -> int:
        return declaring.delete_queue(self.state, queue or self.queue, **conditions, now_ms=self.now_ms)

    def purge(self, queue: Queue | None = None, *, ready_only: bool = False) -> int:
        return declaring.purge(self.state, queue or self.queue, ready_only=ready_only, now_ms=self.now_ms)

    def free_purged(self, limit: int = 1 << 30) -> bool:
        return self.state.free_purged(limit)

    def pause(self) -> None:
        declaring.pause(self.state, self.queue, is_paused=True)

    def resume(self) -> None:
        declaring.pause(self.state, self.queue, is_paused=False)

    def fanout(self, name: str, *queues: Queue, key: str = "") -> None:
        """An exchange that leads to all these queues."""
        declaring.declare_exchange(self.state, name, ExchangeSettings(ExchangeKind.FANOUT))
        for queue in queues:
            declaring.bind(self.state, self.state.namespace("/"), Binding.to_queue(name, queue.name, key))

    # -- messages -------------------------------------------------------------------------------------------------

    def publish(
        self,
        body: bytes = b"x",
        *,
        priority: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
        ttl_ms: int | None = None,
        max_retries: int | None = None,
        properties: bytes = b"",
        queue: Queue | None = None,
    ) -> Placed:
        envelope = Envelope(
            properties, group=group, deduplication_id=deduplication_id, ttl_ms=ttl_ms, max_retries=max_retries
        )
        publication = Publication(body, envelope, priority, delay_ms, deliver_at_ms)
        [result] = self.publish_all([publication], queue=queue)
        if isinstance(result, BrokerError):
            raise result
        return result

    def publish_all(
        self, publications: list[Publication], *, batch_id: str | None = None, queue: Queue | None = None
    ) -> list[Result]:
        queue = queue or self.queue
        step = 1 if is_one_by_one(queue) else max(1, len(publications))
        results: list[Result] = []
        for start in range(0, max(1, len(publications)), step):
            part = publications[start : start + step]
            batch = None if batch_id is None else Batch(batch_id, start, len(part) == len(publications))
            results += publishing.publish(self.state, queue, part, batch=batch, now_ms=self.now_ms)
            self.keep_limits()
        return results

    def publish_many(self, count: int) -> list[int]:
        """Bodies b"0", b"1" and so on; returns the ids."""
        return [self.publish(b"%d" % number).number for number in range(count)]

    def publish_to(
        self, exchange: str, body: bytes = b"x", *, envelope: Envelope | None = None, batch_id: str | None = None
    ) -> list[Placed]:
        publication = Publication(body, envelope or Envelope(exchange=exchange))
        placed = fan_out.publish_to_exchange(
            self.state, self.state.namespace("/"), exchange, publication, batch_id=batch_id, now_ms=self.now_ms
        )
        self.keep_limits()
        return placed

    def receive(
        self,
        limit: int = 1,
        *,
        lease_ms: int | None = None,
        several_per_group: bool = False,
        bytes_max: int = receiving.UNBOUNDED,
        properties_max: int = receiving.UNBOUNDED,
        queue: Queue | None = None,
    ) -> list[Delivery]:
        queue = queue or self.queue
        messages = receiving.receive(
            self.state,
            queue,
            limit,
            lease_ms=lease_ms,
            several_per_group=several_per_group,
            bytes_max=bytes_max,
            properties_max=properties_max,
            now_ms=self.now_ms,
        )
        return [_delivery(queue, message) for message in messages]

    def receive_one(self, *, lease_ms: int | None = None, queue: Queue | None = None) -> Delivery:
        [delivery] = self.receive(lease_ms=lease_ms, queue=queue)
        return delivery

    def receive_bodies(self, limit: int = 1 << 30, *, queue: Queue | None = None) -> list[bytes]:
        return [delivery.body for delivery in self.receive(limit, queue=queue)]

    def peek(self, limit: int = 1 << 30, *, bytes_max: int = receiving.UNBOUNDED) -> list[bytes]:
        return [bytes_of(message) for message in receiving.peek(self.queue, limit, bytes_max=bytes_max)]

    # -- settling: one delivery at a time, and what was refused is raised ------------------------------------------

    def acknowledge(self, delivery: Delivery) -> None:
        _raise(settling.acknowledge(self.state, [delivery.receipt], now_ms=self.now_ms))

    def nack(self, delivery: Delivery, *, requeue: bool = True, delay_ms: int | None = None, error: str = "") -> bool:
        is_retried = settling.nack(
            self.state,
            delivery.receipt,
            requeue=requeue,
            delay_ms=delay_ms,
            error=error,
            chance=self.chance,
            now_ms=self.now_ms,
        )
        self.keep_limits()
        return is_retried

    def reject(self, delivery: Delivery, *, error: str = "") -> bool:
        return self.nack(delivery, requeue=False, error=error)

    def release(self, delivery: Delivery) -> None:
        settling.release(self.state, delivery.receipt, now_ms=self.now_ms)
        self.keep_limits()

    def extend(self, delivery: Delivery, *, lease_ms: int) -> None:
        _raise(settling.extend(self.state, [delivery.receipt], lease_ms, now_ms=self.now_ms))

    def reschedule(self, sequence: int, *, due_at_ms: int) -> None:
        settling.reschedule(self.state, self.queue, sequence, due_at_ms, now_ms=self.now_ms)

    def cancel(self, sequence: int) -> None:
        settling.cancel(self.state, self.queue, sequence, now_ms=self.now_ms)

    # -- dead letters ---------------------------------------------------------------------------------------------

    def dead_letters(self, name: str = "orders_dlq") -> list[Message]:
        """What lies in a dead-letter queue, oldest first; nothing if it has not been made."""
        return self.browse(queue=self.find(name)).messages if self.has_queue(name) else []

    def redrive(
        self, messages: Iterable[Message], *, out_of: Queue | None = None, to: Queue | None = None
    ) -> list[Message]:
        out_of = out_of or self.find(self.queue.name + "_dlq")
        redriven = [dead_letters.redrive(self.state, out_of, one, to=to, now_ms=self.now_ms) for one in messages]
        moved = [one for one in redriven if one is not None]
        self.keep_limits()
        return moved

    def matching(self, wanted: Wanted = ANY, *, queue: Queue | None = None) -> list[Message]:
        return self.browse(wanted, limit=10_000, queue=queue).messages

    # -- looking --------------------------------------------------------------------------------------------------

    def browse(self, wanted: Wanted = ANY, *, after: int = 0, limit: int = 100, queue: Queue | None = None) -> Page:
        return browsing.browse(queue or self.queue, wanted, self.state.read_routing, after=after, limit=limit)

    def stats(self, queue: Queue | None = None) -> QueueStats:
        return browsing.stats(queue or self.queue, now_ms=self.now_ms)

    def all_stats(self) -> dict[tuple[str, str], QueueStats]:
        """The statistics of every queue: what "nothing changed" is held against."""
        return {(queue.namespace, queue.name): self.stats(queue) for queue in self.state.queues.values()}

    def counts(self, queue: Queue | None = None) -> tuple[int, int, int, int]:
        """Ready, scheduled, in flight, dead."""
        stats = self.stats(queue)
        return stats.ready, stats.scheduled, stats.in_flight, stats.dead

    @property
    def depth(self) -> int:
        return self.queue.depth


def bytes_of(message: Message) -> bytes:
    assert isinstance(message.body, bytes)
    return message.body


def bodies(messages: Iterable[Message]) -> list[bytes]:
    return [bytes_of(message) for message in messages]


def _delivery(queue: Queue, message: Message) -> Delivery:
    return Delivery(
        id=message.number,
        body=bytes_of(message),
        priority=message.priority,
        delivery_count=message.delivery_count,
        group=message.envelope.group,
        receipt=receipt_for(queue, message.sequence),
        message=message,
    )


def _raise(outcomes: list[BrokerError | None]) -> None:
    [outcome] = outcomes
    if outcome is not None:
        raise outcome
