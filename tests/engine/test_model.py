"""Replaying the log gives an equal broker, whatever happened, however the log was cut into blocks and reclaimed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from smista.core import (
    browsing,
    claims,
    dead_letters,
    declaring,
    fan_out,
    jobs,
    publishing,
    receiving,
    settling,
    staging,
)
from smista.core.browsing import ANY, Wanted
from smista.core.claims import Claim, Claimant
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import FOREVER_MS, Envelope, Message, Publication, Receipt, State
from smista.core.queue import Queue
from smista.core.settings import Backoff, DeadLetterMode, Overflow, QueueSettings
from smista.core.staging import Commit, Part, Row
from smista.errors import BrokerError, ConsumerInUse, RedriveEnded, RedriveRunning
from tests.core import invariants
from tests.engine.world import World

IS_LONG = bool(os.environ.get("SMISTA_LONG"))

SETTINGS = {
    "plain": [
        QueueSettings(lease_ms=1000, max_retries=1, retry_backoff=Backoff.NONE),
        QueueSettings(lease_ms=500, max_retries=2, retry_base_ms=100, message_ttl_ms=2000, delay_ms=50),
        QueueSettings(lease_ms=1000, max_retries=0, dead_letter_exchange="fan"),
        QueueSettings(lease_ms=1000, max_retries=0, dead_letter_queue="spare"),
    ],
    "ordered": [
        QueueSettings(ordered=True, lease_ms=800, max_retries=1, retry_base_ms=50, retry_jitter=0.5),
        QueueSettings(ordered=True, lease_ms=800, max_retries=0, dead_letter=DeadLetterMode.PARK),
        QueueSettings(ordered=False, lease_ms=800, max_retries=0, dead_letter=DeadLetterMode.PARK, retention_ms=5000),
        QueueSettings(fair=True, lease_ms=800, max_retries=1, retry_base_ms=50),
    ],
    "limited": [
        QueueSettings(max_depth=3, overflow=Overflow.DROP_OLDEST, dedup_window_ms=1000, dedup_by_body=True),
        QueueSettings(max_depth=2, overflow=Overflow.DEAD_LETTER_OLDEST, dedup_window_ms=1000, max_priority=9),
        QueueSettings(max_bytes=40, dedup_window_ms=3000, dead_letter=DeadLetterMode.DROP, max_retries=0),
        QueueSettings(max_depth=2, limit_ready_only=True, overflow=Overflow.DROP_OLDEST, max_retries=None),
        QueueSettings(max_depth=3, fair=True, overflow=Overflow.DROP_OLDEST, message_ttl_ms=2000),
        QueueSettings(
            max_bytes=30,
            limit_ready_only=True,
            overflow=Overflow.DEAD_LETTER_OLDEST,
            dead_letter=DeadLetterMode.MOVE_OR_DROP,
            dead_letter_exchange="fan",
        ),
        QueueSettings(
            max_depth=1,
            overflow=Overflow.DEAD_LETTER_NEWEST,
            dead_letter=DeadLetterMode.MOVE_OR_DROP,
            dead_letter_exchange="fan",
            dead_letter_routing_key="dead",
        ),
    ],
    "spare": [
        QueueSettings(durable=False, max_retries=0),
        QueueSettings(dead_letter=DeadLetterMode.PARK, expires_ms=3000),
    ],
}
NAMES = st.sampled_from(sorted(SETTINGS))
EXCHANGES = {
    "fan": ExchangeSettings(ExchangeKind.FANOUT),
    "passing": ExchangeSettings(ExchangeKind.FANOUT, auto_delete=True),
    "fleeting": ExchangeSettings(ExchangeKind.FANOUT, durable=False),
}
BINDINGS = st.one_of(
    st.builds(
        Binding.to_queue,
        st.sampled_from(["fan", "passing", "fleeting", "amq.fanout"]),
        NAMES,
        st.sampled_from(["", "k"]),
    ),
    st.sampled_from([Binding.to_exchange("fan", "passing"), Binding.to_exchange("amq.fanout", "fan")]),
)
DELAYS_MS = st.one_of(st.none(), st.integers(0, 3000))
PUBLICATIONS = st.builds(
    Publication,
    st.binary(max_size=20),
    st.builds(
        Envelope,
        properties=st.sampled_from([b"", b"properties"]),
        routing_key=st.sampled_from(["", "k"]),
        group=st.sampled_from([None, "a", "b"]),
        deduplication_id=st.sampled_from([None, None, "1", "2"]),
        ttl_ms=st.one_of(st.none(), st.integers(0, 3000)),
        max_retries=st.sampled_from([None, None, 0, 2]),
    ),
    priority=st.sampled_from([None, 0, 5, 200]),
    delay_ms=DELAYS_MS,
)
INDEX = st.integers(0, 1 << 16)
CONSUMERS = st.sampled_from(["spark", "flink"])
SESSIONS = st.sampled_from(["one", "one", "one", "two"])
LEASES_MS = st.sampled_from([100, 2000, 100_000])


class ReplayMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.receipts: list[Receipt] = []
        self.step = 0
        self.steps_per_block = 1

    @initialize(steps_per_block=st.integers(1, 4))
    def declare_everything(self, steps_per_block: int) -> None:
        self.steps_per_block = steps_per_block
        for name in ("plain", "ordered", "limited"):
            declaring.declare_queue(self.world.state, name, SETTINGS[name][0], now_ms=self.world.now_ms)
        self.declare_exchange("fan")

    def teardown(self) -> None:
        invariants.check(self.world.state)
        self.world.check()

    # -- messages -----------------------------------------------------------------------------------------------------

    @rule(name=NAMES, publications=st.lists(PUBLICATIONS, min_size=1, max_size=4))
    def publish(self, name: str, publications: list[Publication]) -> None:
        if (queue := self.find(name)) is not None:
            publishing.publish(self.world.state, queue, publications, now_ms=self.world.now_ms)

    @rule(names=st.lists(NAMES, min_size=1, unique=True), publication=PUBLICATIONS)
    def publish_to_queues(self, names: list[str], publication: Publication) -> None:
        queues = [queue for name in names if (queue := self.find(name)) is not None]
        fan_out.publish_to_queues(self.world.state, queues, publication, now_ms=self.world.now_ms)

    @rule(exchange=st.sampled_from([*EXCHANGES, "amq.fanout"]), publication=PUBLICATIONS)
    def publish_to_exchange(self, exchange: str, publication: Publication) -> None:
        state = self.world.state
        with contextlib.suppress(BrokerError):
            fan_out.publish_to_exchange(state, state.namespace("/"), exchange, publication, now_ms=self.world.now_ms)

    @rule(
        name=st.one_of(NAMES, st.just("plain_dlq")),
        limit=st.integers(1, 4),
        lease_ms=st.sampled_from([None, None, 0, 100, FOREVER_MS]),
        several=st.booleans(),
    )
    def receive(self, name: str, limit: int, lease_ms: int | None, several: bool) -> None:
        if (queue := self.find(name)) is not None:
            taken = receiving.receive(
                self.world.state,
                queue,
                limit,
                lease_ms=lease_ms,
                consumer="c",
                several_per_group=several,
                now_ms=self.world.now_ms,
            )
            self.receipts += [settling.receipt_for(queue, message.sequence) for message in taken]

    @rule(indexes=st.lists(INDEX, min_size=1, max_size=4))
    def acknowledge(self, indexes: list[int]) -> None:
        if self.receipts:
            chosen = [self.receipts[-1 - index % len(self.receipts)] for index in indexes]
            settling.acknowledge(self.world.state, chosen, now_ms=self.world.now_ms)

    @rule(index=INDEX, requeue=st.booleans(), delay_ms=DELAYS_MS, error=st.sampled_from(["", "broken", "ü" * 2000]))
    def nack(self, index: int, requeue: bool, delay_ms: int | None, error: str) -> None:
        with self.receipt(index) as receipt:
            settling.nack(
                self.world.state,
                receipt,
                requeue=requeue,
                delay_ms=delay_ms,
                error=error,
                chance=0.3,
                now_ms=self.world.now_ms,
            )

    @rule(index=INDEX)
    def release(self, index: int) -> None:
        with self.receipt(index) as receipt:
            settling.release(self.world.state, receipt, now_ms=self.world.now_ms)

    @rule(index=INDEX, lease_ms=st.sampled_from([0, 200, 5000, FOREVER_MS]))
    def extend(self, index: int, lease_ms: int) -> None:
        with self.receipt(index) as receipt:
            settling.extend(self.world.state, [receipt], lease_ms, now_ms=self.world.now_ms)

    @rule(name=NAMES, index=INDEX, due_in_ms=st.integers(0, 3000))
    def reschedule(self, name: str, index: int, due_in_ms: int) -> None:
        if (found := self.scheduled(name, index)) is not None:
            now_ms = self.world.now_ms
            settling.reschedule(self.world.state, found[0], found[1].sequence, now_ms + due_in_ms, now_ms=now_ms)

    @rule(name=NAMES, index=INDEX)
    def cancel(self, name: str, index: int) -> None:
        if (found := self.scheduled(name, index)) is not None:
            settling.cancel(self.world.state, found[0], found[1].sequence, now_ms=self.world.now_ms)

    @rule(name=st.sampled_from(["plain_dlq", "spare", "ordered", "limited_dlq"]), to=st.one_of(st.none(), NAMES))
    def redrive(self, name: str, to: str | None) -> None:
        queue = self.find(name)
        target = None if to is None else self.find(to)
        if queue is not None and (to is None or target is not None):
            found = [
                message
                for message in browsing.browse(queue, ANY, self.world.state.read_routing).messages
                if message.deaths and message.state in (State.READY, State.DEAD)
            ]
            with contextlib.suppress(BrokerError):
                for message in found[:2]:
                    dead_letters.redrive(self.world.state, queue, message, to=target, now_ms=self.world.now_ms)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(["plain_dlq", "spare", "ordered", "limited_dlq"]),
        other=NAMES,
        to=st.one_of(st.none(), NAMES),
        limit=st.one_of(st.none(), st.integers(0, 3)),
        per_second=st.sampled_from([None, 1, 20]),
    )
    def start_job(self, name: str, other: str, to: str | None, limit: int | None, per_second: float | None) -> None:
        places = [(queue, Wanted()) for each in (name, other) if (queue := self.find(each)) is not None]
        target = None if to is None else self.find(to)
        is_free = jobs.in_the_way(self.world.state, places) is None
        if places and is_free and (to is None or target is not None):
            with contextlib.suppress(RedriveRunning):
                jobs.start(
                    self.world.state,
                    places,
                    to=target,
                    limit=limit,
                    per_second=per_second,
                    now_ms=self.world.now_ms,
                )

    @rule(index=INDEX)
    def cancel_job(self, index: int) -> None:
        known = [job for of_queue in self.world.state.jobs.values() for job in of_queue.values()]
        if known:
            with contextlib.suppress(RedriveEnded):
                jobs.cancel(self.world.state, known[index % len(known)], now_ms=self.world.now_ms)

    # -- claims and commits -------------------------------------------------------------------------------------------

    @rule(name=NAMES, consumer=CONSUMERS, session=SESSIONS, limit=st.integers(1, 4), lease_ms=LEASES_MS)
    def claim(self, name: str, consumer: str, session: str, limit: int, lease_ms: int) -> None:
        """Make a claim, or give the open one more rows."""
        if (found := self.claimant(name, consumer, session)) is not None:
            queue, claimant = found
            state, now_ms = self.world.state, self.world.now_ms
            messages = claims.take(state, queue, consumer, limit, now_ms=now_ms)
            if messages:
                claim = claims.claim_after(claimant, claimant.acknowledged) or claims.open_claim(
                    state, queue, claimant, claimant.last, lease_ms=lease_ms, now_ms=now_ms
                )
                claims.add_rows(state, queue, claim, messages)
                self.receipts += list(claim.receipts(0, 2))

    @rule(name=NAMES, consumer=CONSUMERS, session=SESSIONS, lease_ms=LEASES_MS)
    def renew_claims(self, name: str, consumer: str, session: str, lease_ms: int) -> None:
        if (found := self.claimant(name, consumer, session)) is not None:
            queue, claimant = found
            claims.renew(self.world.state, queue, claimant, lease_ms, now_ms=self.world.now_ms)

    @rule(name=NAMES, consumer=CONSUMERS, session=SESSIONS, up_to=st.integers(0, 5), limit=st.integers(0, 4))
    def acknowledge_claims(self, name: str, consumer: str, session: str, up_to: int, limit: int) -> None:
        if (found := self.claimant(name, consumer, session)) is not None:
            queue, claimant = found
            closed, _ = claims.acknowledge_up_to(self.world.state, queue, claimant, min(up_to, claimant.last))
            self.work_off(queue, closed, limit)

    @rule(name=NAMES, consumer=CONSUMERS, session=SESSIONS, after=st.integers(0, 5), limit=st.integers(0, 4))
    def release_claims(self, name: str, consumer: str, session: str, after: int, limit: int) -> None:
        if (found := self.claimant(name, consumer, session)) is not None:
            queue, claimant = found
            self.work_off(queue, claims.release_after(self.world.state, queue, claimant, after), limit)

    def work_off(self, queue: Queue, closed: list[Claim], limit: int) -> None:
        """Some of the rows now, the rest when the calendar comes to it."""
        state, now_ms = self.world.state, self.world.now_ms
        for claim in closed:
            if not limit or claims.work_off(state, queue, claim, limit, now_ms=now_ms):
                state.calendar.add(claim, now_ms, now_ms)

    def claimant(self, name: str, consumer: str, session: str) -> tuple[Queue, Claimant] | None:
        state, queue = self.world.state, self.find(name)
        if queue is None:
            return None
        with contextlib.suppress(ConsumerInUse):
            now_ms = self.world.now_ms
            return queue, claims.seize(state, queue, consumer, session, session_ms=500, is_new=True, now_ms=now_ms)
        return None

    @rule(name=NAMES, batch=st.sampled_from("12"), publications=st.lists(PUBLICATIONS, min_size=1, max_size=4))
    def commit(self, name: str, batch: str, publications: list[Publication]) -> None:
        """Put down an intent, or publish the next rows."""
        state, now_ms = self.world.state, self.world.now_ms
        commit = state.commits.get(("job", batch))
        if commit is None or commit.is_done:
            staging.begin(
                state,
                Commit(
                    job="job",
                    batch=batch,
                    namespace="/",
                    queue=name,
                    exchange=None,
                    parts=(Part(0, 0, 5, 7),),
                    rows=5,
                    at_ms=now_ms,
                ),
            )
        else:
            rows = [Row(publication) for publication in publications[: commit.rows - commit.done]]
            staging.publish_slice(state, commit, rows, now_ms=now_ms)

    # -- queues and exchanges -----------------------------------------------------------------------------------------

    @rule(name=NAMES, ready_only=st.booleans())
    def purge(self, name: str, ready_only: bool) -> None:
        if (queue := self.find(name)) is not None:
            declaring.purge(self.world.state, queue, ready_only=ready_only, now_ms=self.world.now_ms)

    @rule()
    def keep_limits(self) -> None:
        self.world.keep_limits()

    @rule(limit=st.integers(1, 5))
    def free_purged(self, limit: int) -> None:
        self.world.state.free_purged(limit)

    @rule(name=NAMES, is_paused=st.booleans())
    def pause(self, name: str, is_paused: bool) -> None:
        if (queue := self.find(name)) is not None:
            declaring.pause(self.world.state, queue, is_paused=is_paused)

    @rule(name=NAMES, index=INDEX)
    def declare_or_alter(self, name: str, index: int) -> None:
        wanted = SETTINGS[name][index % len(SETTINGS[name])]
        with contextlib.suppress(BrokerError):
            if (queue := self.find(name)) is None:
                declaring.declare_queue(self.world.state, name, wanted, now_ms=self.world.now_ms)
            else:
                declaring.alter_queue(self.world.state, queue, wanted, now_ms=self.world.now_ms)

    @rule(name=st.one_of(NAMES, st.just("plain_dlq")))
    def delete(self, name: str) -> None:
        if (queue := self.find(name)) is not None:
            declaring.delete_queue(self.world.state, queue, now_ms=self.world.now_ms)

    @rule(name=st.sampled_from(sorted(EXCHANGES)))
    def declare_exchange(self, name: str) -> None:
        declaring.declare_exchange(self.world.state, name, EXCHANGES[name])

    @rule(name=st.sampled_from(sorted(EXCHANGES)))
    def delete_exchange(self, name: str) -> None:
        with contextlib.suppress(BrokerError):
            declaring.delete_exchange(self.world.state, self.world.state.namespace("/"), name)

    @rule(binding=BINDINGS)
    def bind(self, binding: Binding) -> None:
        with contextlib.suppress(BrokerError):
            declaring.bind(self.world.state, self.world.state.namespace("/"), binding)

    @rule(binding=BINDINGS)
    def unbind(self, binding: Binding) -> None:
        declaring.unbind(self.world.state, self.world.state.namespace("/"), binding)

    # -- time and the log ---------------------------------------------------------------------------------------------

    @rule(ms=st.one_of(st.integers(0, 100), st.integers(0, 4000)))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @invariant()
    def seal_now_and_then(self) -> None:
        self.step += 1
        if self.step % self.steps_per_block == 0:
            self.world.seal()

    @rule(count=st.integers(1, 12))
    def reclaim(self, count: int) -> None:
        self.world.seal()
        for _ in range(count):
            self.world.reclaim()

    @rule()
    def restart(self) -> None:
        self.world.check()
        self.world.restart()
        invariants.check(self.world.state)

    @rule(index=INDEX)
    def check_with_a_drop_undone(self, index: int) -> None:
        self.world.check(front=self.world.front - index % self.world.front)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Queue | None:
        return self.world.state.namespace("/").queues.get(name)

    def scheduled(self, name: str, index: int) -> tuple[Queue, Message] | None:
        queue = self.find(name)
        if queue is None or not queue.scheduled:
            return None
        return queue, list(queue.scheduled.values())[index % len(queue.scheduled)]

    @contextlib.contextmanager
    def receipt(self, index: int) -> Iterator[Receipt]:
        receipt = self.receipts[-1 - index % len(self.receipts)] if self.receipts else Receipt(99, 99, 99)
        with contextlib.suppress(BrokerError):
            yield receipt


TestReplay = pytest.mark.slow(ReplayMachine.TestCase)
TestReplay.settings = settings(
    max_examples=5000 if IS_LONG else 200,
    stateful_step_count=60 if IS_LONG else 40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
