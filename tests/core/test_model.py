"""A broker driven at random, beside a model in plain lists that knows the rules and nothing of the structures.

Five queues: `plain` (weighted priorities, back-off), `fifo` (ordered groups, deduplication), `fair` (shared out between
groups), `small` (a depth limit, one of the three overflow policies), and `dead`, to which all of them dead-letter. The
model says what each command must
answer and where each message must be afterwards; nothing may be anywhere else, and `invariants.check` looks inside.

What the model does not foresee it takes over and checks: which of several messages that die in one stretch of time
get the last places in `dead`, how weighted priorities take turns, and which of the groups that have equally few in
flight does. (The last is held against a model of its own in `test_fair`.)
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from smista.core.message import Reason, State
from smista.core.queue import Queue
from smista.core.settings import Backoff, DeadLetterMode, Overflow, PriorityPolicy, QueueSettings
from smista.errors import LeaseExpired, QueueFull, StaleReceipt
from tests.core import invariants
from tests.core.bench import Bench, Delivery, bytes_of

TICK_MS = 16
WINDOW_MS = 480
NAMES = ("plain", "fifo", "fair", "small", "dead")
PUBLISHED_TO = ("plain", "fifo", "fair", "small")

READY, SCHEDULED, IN_FLIGHT, DEAD = State.READY, State.SCHEDULED, State.IN_FLIGHT, State.DEAD


def queue_settings(overflow: Overflow) -> dict[str, QueueSettings]:
    return {
        "plain": QueueSettings(
            lease_ms=320,
            max_retries=2,
            retry_backoff=Backoff.LINEAR,
            retry_base_ms=160,
            dead_letter_queue="dead",
            priority_policy=PriorityPolicy.WEIGHTED,
            message_ttl_ms=4000,
        ),
        "fifo": QueueSettings(
            lease_ms=320,
            max_retries=1,
            retry_backoff=Backoff.NONE,
            dead_letter_queue="dead",
            ordered=True,
            dedup_window_ms=WINDOW_MS,
        ),
        "fair": QueueSettings(
            lease_ms=320,
            max_retries=1,
            retry_backoff=Backoff.LINEAR,
            retry_base_ms=160,
            dead_letter_queue="dead",
            fair=True,
        ),
        "small": QueueSettings(
            lease_ms=320,
            max_retries=1,
            retry_backoff=Backoff.EXPONENTIAL,
            retry_base_ms=100,
            retry_cap_ms=250,
            backoff_on_timeout=True,
            dead_letter_queue="dead",
            max_depth=4,
            overflow=overflow,
            dedup_window_ms=WINDOW_MS,
        ),
        "dead": QueueSettings(
            lease_ms=320,
            max_retries=1,
            retry_backoff=Backoff.NONE,
            dead_letter=DeadLetterMode.PARK,
            max_depth=6,
        ),
    }


@dataclass
class Known:
    """What the model knows of one message."""

    number: int
    sequence: int
    queue: str
    body: bytes
    priority: int
    group: str | None
    state: State
    ready_at_ms: int
    expires_at_ms: int | None
    lease_ends_at_ms: int | None = None
    delivery_count: int = 0
    failure_count: int = 0
    is_open: bool = False
    deaths: list[tuple[str, Reason]] = field(default_factory=list)

    def deadline_ms(self) -> int | None:
        match self.state:
            case State.SCHEDULED:
                return self.ready_at_ms
            case State.READY:
                return self.expires_at_ms
            case State.IN_FLIGHT:
                return self.lease_ends_at_ms
        return None


class BrokerBesideModel(RuleBasedStateMachine):
    @initialize(overflow=st.sampled_from([each for each in Overflow if each is not Overflow.DEAD_LETTER_NEWEST]))
    def start(self, overflow: Overflow) -> None:
        self.settings = queue_settings(overflow)
        self.bench = Bench(self.settings["dead"], name="dead")
        self.queues: dict[str, Queue] = {"dead": self.bench.queue}
        for name in PUBLISHED_TO:
            self.queues[name] = self.bench.declare(name, self.settings[name])
        self.known: dict[int, Known] = {}
        self.gone: dict[int, str] = {}
        self.published: set[int] = set()
        self.seen: dict[tuple[str, str], tuple[int, int]] = {}
        self.handed_out: list[tuple[Delivery, str]] = []
        self.paused: set[str] = set()
        self.totals: dict[str, Counter[str]] = {name: Counter() for name in NAMES}

    # -- the model's own rules ----------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.bench.now_ms

    def of(self, queue: str, *states: State) -> list[Known]:
        """In the order of their sequences."""
        found = [m for m in self.known.values() if m.queue == queue and (not states or m.state in states)]
        return sorted(found, key=lambda m: m.sequence)

    def finish(self, message: Known, how: str) -> None:
        assert self.known.pop(message.number) is message
        assert message.number not in self.gone, f"{message.number} ended twice"
        self.gone[message.number] = how

    def has_room(self, queue: str) -> bool:
        limit = self.settings[queue].max_depth
        return limit is None or len(self.of(queue, READY, SCHEDULED, IN_FLIGHT)) < limit

    def can_move(self, message: Known, reason: Reason) -> bool:
        return (
            self.settings[message.queue].dead_letter is DeadLetterMode.MOVE
            and not self.goes_in_a_circle(message, reason)
            and self.has_room("dead")
        )

    def goes_in_a_circle(self, message: Known, reason: Reason) -> bool:
        """It died in the target before, and nobody rejected it since."""
        for queue, why in [*reversed(message.deaths)] if reason is not Reason.REJECTED else ():
            if why is Reason.REJECTED:
                return False
            if queue == "dead":
                return True
        return False

    def die(self, message: Known, reason: Reason) -> None:
        """To the dead-letter queue as the newest message there, or parked."""
        can_move = self.can_move(message, reason)
        death = (message.queue, reason)
        message.deaths = [*(d for d in message.deaths if d != death), death]
        self.totals[message.queue]["dead_lettered"] += 1
        message.state = DEAD
        if can_move:
            self.move(message, "dead")

    def move(self, message: Known, target: str) -> None:
        message.queue = target
        message.state = READY
        message.sequence = self.next_sequence
        self.next_sequence += 1
        message.ready_at_ms = self.now_ms
        ttl_ms = self.settings[target].message_ttl_ms
        message.expires_at_ms = None if ttl_ms is None else self.now_ms + ttl_ms
        message.lease_ends_at_ms = None
        message.delivery_count = message.failure_count = 0
        message.is_open = False

    def fail(self, message: Known, *, is_nack: bool, delay_ms: int | None, at_ms: int) -> bool:
        """Returns True if it is retried."""
        rules = self.settings[message.queue]
        failures = message.failure_count + 1
        assert rules.max_retries is not None
        if failures > rules.max_retries:
            message.failure_count = failures
            self.die(message, Reason.MAX_RETRIES)
            return False
        if message.expires_at_ms is not None and message.expires_at_ms <= at_ms:
            message.failure_count = failures
            self.die(message, Reason.EXPIRED)
            return False
        message.failure_count = failures
        message.is_open = not is_nack
        if delay_ms is None:
            delay_ms = self.backoff_ms(rules, failures) if is_nack or rules.backoff_on_timeout else 0
        self.give_back(message, delay_ms, at_ms)
        return True

    def backoff_ms(self, rules: QueueSettings, failures: int) -> int:
        return {
            Backoff.NONE: 0,
            Backoff.LINEAR: min(rules.retry_base_ms * failures, rules.retry_cap_ms),
            Backoff.EXPONENTIAL: min(rules.retry_base_ms << failures, rules.retry_cap_ms),
        }[rules.retry_backoff]

    def give_back(self, message: Known, delay_ms: int, at_ms: int) -> None:
        message.lease_ends_at_ms = None
        message.state = SCHEDULED if delay_ms else READY
        if delay_ms:
            message.ready_at_ms = at_ms + delay_ms
            if message.expires_at_ms is not None:
                message.expires_at_ms += delay_ms

    def receivable(self, queue: str) -> list[Known]:
        """What may go out next, of each priority the oldest first; of a group only its first unfinished."""
        waiting = self.of(queue, READY)
        if queue == "fifo":
            first: dict[str | None, Known] = {}
            for message in self.of(queue, READY, SCHEDULED, IN_FLIGHT):
                first.setdefault(message.group, message)
            waiting = [m for m in waiting if m.group is None or first[m.group] is m]
        return sorted(waiting, key=lambda m: (-m.priority, m.sequence))

    def fairly_next(self) -> list[Known]:
        """Of the highest priority, the oldest of each group that has the fewest in flight."""
        waiting = self.receivable("fair")
        held = Counter(message.group for message in self.of("fair", IN_FLIGHT))
        oldest: dict[str | None, Known] = {}
        for message in waiting:
            if message.priority == waiting[0].priority:
                oldest.setdefault(message.group, message)
        fewest = min(held[group] for group in oldest)
        return [message for group, message in oldest.items() if held[group] == fewest]

    # -- commands -----------------------------------------------------------------------------------------------------

    @rule(
        queue=st.sampled_from(PUBLISHED_TO),
        priority=st.integers(0, 2),
        delay_ms=st.sampled_from((None, None, 0, 100, 700)),
        ttl_ms=st.sampled_from((None, None, 0, 90, 500)),
        group=st.sampled_from((None, "a", "a", "b")),
        deduplication_id=st.sampled_from((None, None, None, "1", "2")),
        body=st.sampled_from((b"", b"x", b"four")),
    )
    def publish(
        self,
        queue: str,
        priority: int,
        delay_ms: int | None,
        ttl_ms: int | None,
        group: str | None,
        deduplication_id: str | None,
        body: bytes,
    ) -> None:
        if queue == "fair":
            # In which order the groups would come upon what has run out is not foreseen.
            ttl_ms = None
        self.next_sequence = self.bench.state.next_sequence
        seen, until_ms = self.seen.get((queue, deduplication_id or ""), (0, 0))
        if until_ms > self.now_ms:
            placed = self._publish(queue, body, priority, delay_ms, ttl_ms, group, deduplication_id)
            assert (placed, self.bench.state.next_sequence) == (seen, self.next_sequence)
            self.totals[queue]["duplicates"] += 1
            return
        if not self.has_room(queue) and not self._make_room(queue):
            before = self.bench.all_stats()
            with pytest.raises(QueueFull):
                self._publish(queue, body, priority, delay_ms, ttl_ms, group, deduplication_id)
            self.totals[queue]["rejected"] += 1
            after = self.bench.all_stats()
            assert {name: stats.depth for name, stats in before.items()} == {n: s.depth for n, s in after.items()}
            return
        number = self._publish(queue, body, priority, delay_ms, ttl_ms, group, deduplication_id)
        assert number == self.next_sequence
        ready_at_ms = self.now_ms + (delay_ms or 0)
        lifetimes = [ttl for ttl in (ttl_ms, self.settings[queue].message_ttl_ms) if ttl is not None]
        self.known[number] = Known(
            number,
            number,
            queue,
            body,
            priority,
            group,
            SCHEDULED if delay_ms else READY,
            ready_at_ms,
            ready_at_ms + min(lifetimes) if lifetimes else None,
        )
        self.published.add(number)
        self.totals[queue]["published"] += 1
        if deduplication_id is not None:
            window_ms = self.settings[queue].dedup_window_ms
            self.seen[queue, deduplication_id] = (number, self.now_ms + window_ms)
        if lifetimes and not min(lifetimes) and not delay_ms:
            self.next_sequence = number + 1
            self.die(self.known[number], Reason.EXPIRED)

    def _publish(
        self,
        queue: str,
        body: bytes,
        priority: int,
        delay_ms: int | None,
        ttl_ms: int | None,
        group: str | None,
        deduplication_id: str | None,
    ) -> int:
        return self.bench.publish(
            body,
            priority=priority,
            delay_ms=delay_ms,
            ttl_ms=ttl_ms,
            group=group,
            deduplication_id=deduplication_id,
            queue=self.queues[queue],
        ).number

    @rule(
        queue=st.sampled_from(("fifo", "fair")),
        group=st.sampled_from(("a", "b")),
        count=st.integers(2, 3),
        priority=st.integers(0, 1),
    )
    def publish_a_row(self, queue: str, group: str, count: int, priority: int) -> None:
        for number in range(count):
            self.publish(queue, priority ^ (number & 1), None, None, group, None, b"row")

    @rule(queue=st.sampled_from(NAMES), limit=st.integers(1, 3))
    def receive_and_acknowledge(self, queue: str, limit: int) -> None:
        already = len(self.handed_out)
        self.receive(queue, limit, None, False)
        for _ in range(len(self.handed_out) - already):
            self.acknowledge(0)

    @rule(queue=st.sampled_from(NAMES), limit=st.integers(1, 3), which=st.integers(0, 2))
    def receive_and_be_late(self, queue: str, limit: int, which: int) -> None:
        self.receive(queue, limit, None, False)
        self.pass_time(336)
        if self.handed_out:
            self.acknowledge(which)

    def _make_room(self, queue: str) -> bool:
        overflow = self.settings[queue].overflow
        ready = self.of(queue, READY)
        if overflow is Overflow.REJECT or not ready:
            return False
        if overflow is Overflow.DROP_OLDEST:
            self.finish(ready[0], "dropped")
            self.totals[queue]["dropped"] += 1
            return True
        if not self.can_move(ready[0], Reason.OVERFLOW):
            return False
        self.die(ready[0], Reason.OVERFLOW)
        return True

    @rule(
        queue=st.sampled_from(NAMES),
        limit=st.integers(1, 4),
        lease_ms=st.sampled_from((None, None, 0, 50, 1000)),
        several_per_group=st.booleans(),
    )
    def receive(self, queue: str, limit: int, lease_ms: int | None, several_per_group: bool) -> None:
        self.next_sequence = self.bench.state.next_sequence
        deliveries = self.bench.receive(
            limit, lease_ms=lease_ms, several_per_group=several_per_group, queue=self.queues[queue]
        )
        if queue in self.paused:
            assert deliveries == []
            return
        waiting = [delivery.id for delivery in deliveries]
        while waiting or len(deliveries) < limit:
            candidates = self.receivable(queue)
            over = [m for m in candidates if m.expires_at_ms is not None and m.expires_at_ms < self.now_ms]
            if not waiting:
                # The queue was searched to its end, and what had run out was found on the way.
                assert candidates == over
                if not over:
                    break
                self.die(over[0], Reason.EXPIRED)
                continue
            message = self.known[waiting[0]]
            if queue == "plain":
                level = [m for m in candidates if m.priority == message.priority]
                for m in over:
                    if m not in level and self._has_expired(m):
                        self.die(m, Reason.EXPIRED)
                candidates = level
            if candidates[0] in over:
                self.die(candidates[0], Reason.EXPIRED)
                continue
            if queue == "fair":
                candidates = [m for m in self.fairly_next() if m is message] or self.fairly_next()
            assert candidates[0] is message, f"{message} went out before {candidates[0]}"
            self._hand_out(message, waiting, lease_ms)
            if queue == "fifo" and several_per_group and message.group is not None:
                row = [m for m in self.of(queue, READY, SCHEDULED, IN_FLIGHT) if m.group == message.group]
                for follower in row[1:]:
                    if follower.state is not READY or not waiting:
                        break
                    self._hand_out(follower, waiting, lease_ms)
        for delivery in deliveries:
            message = self.known[delivery.id]
            assert (delivery.body, delivery.delivery_count) == (message.body, message.delivery_count)
            assert self.now_ms >= message.ready_at_ms, "early"
            self.handed_out.append((delivery, queue))

    def _has_expired(self, message: Known) -> bool:
        return self.queues["plain"].find(message.sequence) is None

    def _hand_out(self, message: Known, waiting: list[int], lease_ms: int | None) -> None:
        assert waiting.pop(0) == message.number
        message.state = IN_FLIGHT
        message.delivery_count += 1
        message.is_open = True
        if lease_ms is None:
            lease_ms = self.settings[message.queue].lease_ms
        message.lease_ends_at_ms = self.now_ms + lease_ms
        self.totals[message.queue]["delivered"] += 1

    def _held(self, which: int) -> tuple[Delivery, str, Known | None]:
        """Some receipt that was once given out, and its message if it names that message's last delivery, unsettled."""
        # Mostly a recent one.
        delivery, queue = self.handed_out[-1 - which % len(self.handed_out)]
        message = self.known.get(delivery.id)
        if (
            message is None
            or (message.queue, message.sequence) != (queue, delivery.receipt.sequence)
            or message.delivery_count != delivery.delivery_count
            or not message.is_open
            or message.state is DEAD
        ):
            return delivery, queue, None
        return delivery, queue, message

    @precondition(lambda self: self.handed_out)
    @rule(which=st.integers(0, 40))
    def acknowledge(self, which: int) -> None:
        delivery, queue, message = self._held(which)
        if message is None:
            with pytest.raises(StaleReceipt) as stale:
                self.bench.acknowledge(delivery)
            assert not isinstance(stale.value, LeaseExpired)
        elif message.state is not IN_FLIGHT and queue == "fifo":
            with pytest.raises(LeaseExpired):
                self.bench.acknowledge(delivery)
        else:
            self.bench.acknowledge(delivery)
            self.finish(message, "acknowledged")
            self.totals[queue]["acknowledged"] += 1

    @precondition(lambda self: self.handed_out)
    @rule(which=st.integers(0, 40), requeue=st.booleans(), delay_ms=st.sampled_from((None, None, 0, 200)))
    def nack(self, which: int, requeue: bool, delay_ms: int | None) -> None:
        self.next_sequence = self.bench.state.next_sequence
        delivery, _, message = self._held(which)
        if message is None or message.state is not IN_FLIGHT:
            with pytest.raises(StaleReceipt if message is None else LeaseExpired):
                self.bench.nack(delivery, requeue=requeue, delay_ms=delay_ms)
            return
        is_retried = self.bench.nack(delivery, requeue=requeue, delay_ms=delay_ms, error="no luck")
        if requeue:
            assert is_retried == self.fail(message, is_nack=True, delay_ms=delay_ms, at_ms=self.now_ms)
        else:
            assert not is_retried
            message.failure_count += 1
            self.die(message, Reason.REJECTED)

    @precondition(lambda self: self.handed_out)
    @rule(which=st.integers(0, 40))
    def release(self, which: int) -> None:
        self.next_sequence = self.bench.state.next_sequence
        delivery, _, message = self._held(which)
        if message is None or message.state is not IN_FLIGHT:
            with pytest.raises(StaleReceipt if message is None else LeaseExpired):
                self.bench.release(delivery)
            return
        self.bench.release(delivery)
        if message.expires_at_ms is not None and message.expires_at_ms <= self.now_ms:
            self.die(message, Reason.EXPIRED)
        else:
            message.is_open = False
            self.give_back(message, 0, self.now_ms)

    @precondition(lambda self: self.handed_out)
    @rule(which=st.integers(0, 40), lease_ms=st.sampled_from((0, 50, 640, 200_000)))
    def extend(self, which: int, lease_ms: int) -> None:
        delivery, _, message = self._held(which)
        if message is None or message.state is not IN_FLIGHT:
            with pytest.raises(StaleReceipt if message is None else LeaseExpired):
                self.bench.extend(delivery, lease_ms=lease_ms)
            return
        self.bench.extend(delivery, lease_ms=lease_ms)
        message.lease_ends_at_ms = self.now_ms + lease_ms

    @rule(queue=st.sampled_from(NAMES), ready_only=st.booleans(), freed=st.sampled_from((0, 1, 1000)))
    def purge(self, queue: str, ready_only: bool, freed: int) -> None:
        going = self.of(queue, READY) if ready_only else self.of(queue)
        assert self.bench.purge(self.queues[queue], ready_only=ready_only) == len(going)
        for message in going:
            self.finish(message, "purged")
        self.totals[queue]["purged"] += len(going)
        if not ready_only:
            self.seen = {key: value for key, value in self.seen.items() if key[0] != queue}
        self.bench.free_purged(freed)

    @rule(ms=st.one_of(st.integers(1, 40), st.integers(41, 900), st.just(150_000)))
    def pass_time(self, ms: int) -> None:
        started_at_ms = self.now_ms
        until_ms = started_at_ms + ms
        room = self.settings["dead"].max_depth
        assert room is not None
        room -= len(self.of("dead", READY, SCHEDULED, IN_FLIGHT))
        self.bench.pass_time(ms=ms)
        dying: list[tuple[Known, Reason, bool]] = []
        for message in list(self.known.values()):
            self._live_on(message, started_at_ms, until_ms, dying)
        may_move = [message for message, _, is_barred in dying if not is_barred]
        moved = [message for message, _, _ in dying if message.queue != "dead" and self._lies_in_dead(message)]
        # What dies in the dead-letter queue itself is parked there, and makes room for those that come after it.
        freed = sum(message.queue == "dead" for message, _, _ in dying)
        assert min(room, len(may_move)) <= len(moved) <= min(room + freed, len(may_move))
        assert all(message in may_move for message in moved)
        for message, reason, _ in dying:
            death = (message.queue, reason)
            message.deaths = [*(d for d in message.deaths if d != death), death]
            self.totals[message.queue]["dead_lettered"] += 1
            message.state = DEAD
        # Whichever came first stands first; their order among themselves is taken over.
        self.next_sequence = 0
        for message in moved:
            self.move(message, "dead")
            message.sequence = self._sequence_in_dead(message)

    def _live_on(self, message: Known, at_ms: int, until_ms: int, dying: list[tuple[Known, Reason, bool]]) -> None:
        """All that the clock alone does to a message, each thing at its time, in whole ticks and never early."""
        while (deadline_ms := message.deadline_ms()) is not None:
            at_ms = max(at_ms, -(-deadline_ms // TICK_MS) * TICK_MS)
            if at_ms > until_ms:
                return
            reason = Reason.EXPIRED
            if message.state is SCHEDULED:
                message.state = READY
                if message.expires_at_ms is not None:
                    message.expires_at_ms += at_ms - message.ready_at_ms
                continue
            if message.state is IN_FLIGHT:
                rules = self.settings[message.queue]
                assert rules.max_retries is not None
                if message.failure_count < rules.max_retries:
                    if message.expires_at_ms is None or message.expires_at_ms > at_ms:
                        assert self.fail(message, is_nack=False, delay_ms=None, at_ms=at_ms)
                        continue
                else:
                    reason = Reason.MAX_RETRIES
                message.failure_count += 1
            is_barred = message.queue == "dead" or self.goes_in_a_circle(message, reason)
            dying.append((message, reason, is_barred))
            return

    def _lies_in_dead(self, message: Known) -> bool:
        return any(found.number == message.number for found in self.queues["dead"].messages())

    def _sequence_in_dead(self, message: Known) -> int:
        [sequence] = [m.sequence for m in self.queues["dead"].messages() if m.number == message.number]
        return sequence

    @precondition(lambda self: self.of("dead"))
    @rule(which=st.integers(0, 5), elsewhere=st.sampled_from((None, None, "plain", "fifo", "fair")))
    def redrive(self, which: int, elsewhere: str | None) -> None:
        self.next_sequence = self.bench.state.next_sequence
        dead = self.of("dead", READY, DEAD)
        if not dead:
            return
        message = dead[which % len(dead)]
        target = elsewhere or message.deaths[-1][0]
        found = self.queues["dead"].find(message.sequence)
        assert found is not None
        to = None if elsewhere is None else self.queues[elsewhere]
        if (target != "dead" or message.state == DEAD) and not self.has_room(target):
            with pytest.raises(QueueFull):
                self.bench.redrive([found], out_of=self.queues["dead"], to=to)
            return
        [moved] = self.bench.redrive([found], out_of=self.queues["dead"], to=to)
        assert moved.number == message.number
        self.move(message, target)

    @rule(queue=st.sampled_from(NAMES), which=st.integers(0, 5))
    def redrive_parked(self, queue: str, which: int) -> None:
        self.next_sequence = self.bench.state.next_sequence
        parked = self.of(queue, DEAD)
        if not parked:
            return
        message = parked[which % len(parked)]
        found = self.queues[queue].dead[message.sequence]
        if not self.has_room(queue):
            with pytest.raises(QueueFull):
                self.bench.redrive([found], out_of=self.queues[queue])
            return
        [moved] = self.bench.redrive([found], out_of=self.queues[queue])
        assert moved.number == message.number
        self.move(message, queue)

    @rule(queue=st.sampled_from(PUBLISHED_TO), which=st.integers(0, 5), in_ms=st.integers(-50, 900))
    def reschedule(self, queue: str, which: int, in_ms: int) -> None:
        scheduled = self.of(queue, SCHEDULED)
        if not scheduled:
            return
        message = scheduled[which % len(scheduled)]
        self.bench.queue = self.queues[queue]
        self.bench.reschedule(message.sequence, due_at_ms=self.now_ms + in_ms)
        due_at_ms = self.now_ms + max(0, in_ms)
        if message.expires_at_ms is not None:
            message.expires_at_ms += due_at_ms - message.ready_at_ms
        message.ready_at_ms = due_at_ms

    @rule(queue=st.sampled_from(PUBLISHED_TO), which=st.integers(0, 5))
    def cancel(self, queue: str, which: int) -> None:
        scheduled = self.of(queue, SCHEDULED)
        if not scheduled:
            return
        message = scheduled[which % len(scheduled)]
        self.bench.queue = self.queues[queue]
        self.bench.cancel(message.sequence)
        self.finish(message, "cancelled")
        self.totals[queue]["purged"] += 1

    @rule(queue=st.sampled_from(NAMES), in_between=st.booleans())
    def pause_or_resume(self, queue: str, in_between: bool) -> None:
        self.bench.queue = self.queues[queue]
        if queue in self.paused:
            self.bench.resume()
        else:
            self.bench.pause()
        self.paused ^= {queue}
        if in_between and queue in self.paused:
            # Most pauses are short, or nothing else would happen.
            self.receive(queue, 3, None, False)
            self.bench.resume()
            self.paused.remove(queue)

    @rule(queue=st.sampled_from(NAMES))
    def build_the_indexes_anew(self, queue: str) -> None:
        """Altering to the same settings: all that can be rebuilt from the tables is rebuilt, and nothing shows."""
        self.bench.queue = self.queues[queue]
        self.bench.alter(self.settings[queue])

    # -- after every command ------------------------------------------------------------------------------------------

    @invariant()
    def every_message_is_where_the_model_says(self) -> None:
        for name, queue in self.queues.items():
            actual = {
                m.number: (
                    m.sequence,
                    m.state,
                    bytes_of(m),
                    m.priority,
                    m.delivery_count,
                    m.failure_count,
                    m.expires_at_ms,
                )
                for m in queue.messages()
            }
            expected = {
                m.number: (m.sequence, m.state, m.body, m.priority, m.delivery_count, m.failure_count, m.expires_at_ms)
                for m in self.of(name)
            }
            assert actual == expected, name

    @invariant()
    def nothing_is_lost_and_nothing_doubled(self) -> None:
        found = [m.number for queue in self.queues.values() for m in queue.messages()]
        assert sorted([*found, *self.gone]) == sorted(self.published)

    @invariant()
    def structures_are_sound(self) -> None:
        invariants.check(self.bench.state)

    @invariant()
    def counters_are_right(self) -> None:
        for name, queue in self.queues.items():
            counters = queue.counters
            actual = {key: getattr(counters, key) for key in self.totals[name]}
            assert actual == dict(self.totals[name]), name


is_long = bool(os.environ.get("SMISTA_LONG"))
TestBrokerBesideModel = BrokerBesideModel.TestCase
TestBrokerBesideModel.settings = settings(
    max_examples=5000 if is_long else 150,
    stateful_step_count=100 if is_long else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
