"""A broker's running life, below its commands: opening and closing, what every call begins and ends with, deadlines.

call ─▶ _enter: may it, and what time is it ─▶ one synchronous step of the core ─▶ _after: plan what follows
             end of the turn: keep limits, serve queues in which something became ready, free purged memory
             at a deadline:   do what is due, in slices, the rest of the loop in between
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from smista.core import browsing, dead_letters
from smista.core.at_once import PROPERTIES_AT_ONCE
from smista.core.claims import claimants, held_by_claims
from smista.core.due import run_due
from smista.core.limits import is_over
from smista.core.message import Message, Reason, Receipt, State
from smista.core.queue import Queue
from smista.core.settling import Outcome, receipt_for, release
from smista.core.state import DEFAULT_NAMESPACE, BrokerState, ReadRouting
from smista.core.trimming import keep_limits
from smista.engine.clock import Clock
from smista.engine.consumers import Poll, Watch
from smista.engine.dispatcher import Dispatcher
from smista.engine.ids import Ids
from smista.engine.keeper import Keeper
from smista.engine.lane import Lane
from smista.engine.measures import BrokerMeasures, LagTimer, LogRange, LogSpace, QueueMeasures, Recovered
from smista.engine.pressure import resident_set_bytes
from smista.engine.recovery import Recovery
from smista.engine.settings import BrokerSettings
from smista.errors import BrokerClosed, BrokerError, stopped
from smista.log import Log
from smista.log.errors import LogDamaged, LogError

SLICE = 100
STEP_BYTES_MAX = 32 << 20
"""How many bytes of bodies enter in one step, and so in one block, unless one body alone is larger. The log takes
blocks of up to 512 MiB."""
SLICE_S = 0.003
FREED_AT_ONCE = 2000
SERVED_AT_ONCE = 2000
"""So many messages are handed out in one turn of the loop, and looked for in so many queues."""
BREATH_S = 0.001
STALL_MS = 1_000
ERRANDS_S = 1.0
"""How long closing waits for what is going back. The rest is given back when the log is opened again."""


class RunningBroker:
    def __init__(
        self, log: Log, settings: BrokerSettings, clock: Clock, state: BrokerState, recovery: Recovery
    ) -> None:
        self._clock = clock
        self._state = state
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._closing: asyncio.Task[None] | None = None
        self._is_turn_planned = False
        self._errands: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._opened_s = time.monotonic()
        self._recovered = recovery.summary()
        self._lag_timer = LagTimer()
        self.ids = Ids(log.identity)
        self._dispatcher = Dispatcher(state, clock, self.ids, after=self._after, give_back=self._give_back)
        self._consumers = self._dispatcher.consumers
        self._is_keeping_limits = False
        self._put_off: dict[Queue, int] = {}
        """Crowded queues that have made very many dead letters in this turn, and go on in the next one."""
        self.lane = Lane()
        """For whoever looks at very much ..."""
        self.fan_out_lane = Lane()
        """... and for messages that go to very many queues."""
        self._keeper = self._dispatcher.keeper = Keeper(
            log,
            settings,
            clock,
            state,
            recovery,
            on_settled=self._dispatcher.settled,
            on_failed=self._failed,
            on_damaged=self._damaged,
        )
        self._after()

    # -- life ---------------------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        log: Log,
        settings: BrokerSettings | None = None,
        *,
        clock: Clock | None = None,
        on_damage: Callable[[LogDamaged], None] | None = None,
        read_routing: ReadRouting | None = None,
    ) -> Self:
        """Recover from `log` and start. The broker owns the log from here on and closes it.

        `read_routing` finds, in the properties that protocols keep with a message, the headers and further keys by
        which a dead letter is routed. Some are, while the broker starts.

        A damaged log is refused (`LogDamaged`) unless `on_damage` is given: it is then called for each damaged block,
        and the rest is served.
        """
        settings = settings or BrokerSettings()
        clock = clock or Clock()
        state = BrokerState(body_bytes_max=settings.body_bytes_max)
        recovery = Recovery(state, resident_bytes_max=settings.resident_bytes_max)
        try:
            await asyncio.to_thread(recovery.replay, log, on_damage)
            clock.resume(recovery.anchor, recovery.last_ms)
            if read_routing is not None:
                state.read_routing = read_routing
            broker = cls(log, settings, clock, state, recovery)
        except BaseException as error:
            with _noting_on(error):
                log.close()
            raise
        try:
            broker._release_unending()
            # That this run began must be on disk before anything is handed out under its number.
            await broker.durable()
        except BaseException as error:
            with _noting_on(error):
                await broker.close()
            raise
        return broker

    def _release_unending(self) -> None:
        """Give back what was held without a deadline: such a lease ends with its consumer, and those of an earlier run
        are gone. Claims have deadlines of their own."""
        # What is released may have expired, and making its dead-letter queue adds one.
        for queue in list(self._state.queues.values()):
            claimed = held_by_claims(self._state, queue)
            unending = [message for message in queue.in_flight.values() if message.deadline_ms is None]
            held = [message for message in unending if message.sequence not in claimed]
            self.release_now([receipt_for(queue, message.sequence) for message in held])

    async def close(self) -> None:
        """Make everything durable, end everybody's waiting, and close the log. Leases stay as they are."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        # Whoever waits for it may be cancelled; closing goes on.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._errands:
            # What is going back is back, if it is not too much; the rest is given back when the log is opened again.
            await asyncio.wait(self._errands, timeout=ERRANDS_S)
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._lag_timer.stop()
        self._dispatcher.end_all(BrokerClosed("The broker is closing; open another one on its data."))
        await self._dispatcher.close()
        if self._errands:
            await asyncio.gather(*self._errands, return_exceptions=True)
        await self._keeper.close()

    def stop_waiting_for_room(self) -> None:
        """About to be closed: what finds the disk full from now on fails at once, with `OutcomeUnknown`."""
        self._keeper.stop_waiting_for_room()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def body_bytes_max(self) -> int:
        """The largest body a queue takes unless it says otherwise."""
        return self._state.body_bytes_max

    def body_limit(self, queue: str, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """The largest body that this queue takes."""
        return self._state.queue(queue, namespace).settings.body_bytes_max or self._state.body_bytes_max

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def failure(self) -> BaseException | None:
        """Why the broker stopped confirming; None while it is well."""
        return self._keeper.failure

    @property
    def refusal(self) -> BrokerError | None:
        """Why publishes are refused just now; None while they are taken."""
        return self._keeper.pressure.refusal

    @property
    def recovered(self) -> Recovered:
        """What the log held when this broker was opened."""
        return self._recovered

    @property
    def is_log_full(self) -> bool:
        """Whether a block waits for room on a full disk: acknowledgements and declarations wait with it."""
        return self._keeper.is_full

    @property
    def log_bytes(self) -> int:
        """The size of the log: what is alive, what is kept for readers, and what is not reclaimed yet."""
        return self._keeper.log_bytes

    def log_space(self) -> LogSpace:
        """How much the log holds, and why it is not less."""
        return self._keeper.log_space()

    def log_range(self) -> LogRange:
        """Which blocks of the log can be read."""
        return self._keeper.log_range()

    def log_position_at(self, at_ms: int) -> int:
        """The position of the first block written at or after that time."""
        return self._keeper.log_position_at(at_ms)

    def logged_queues(self, after: int) -> list[tuple[int, str, str]]:
        """Number, namespace and name of the queues that the log knows by a number above `after`."""
        if self._state.next_queue <= after + 1:
            return []
        return [
            (queue.number, queue.namespace, queue.name)
            for queue in self._state.queues.values()
            if queue.number > after and queue.settings.durable
        ]

    def measures(self) -> BrokerMeasures:
        """All that monitoring asks for, nothing changed; also of a broker that has stopped or is closed."""
        watches = [
            watch
            for queue in self._state.queues.values()
            if queue.is_watched and (watch := self._consumers.watch(queue)) is not None
        ]
        refusal = self.refusal
        return BrokerMeasures(
            uptime_ms=int((time.monotonic() - self._opened_s) * 1000),
            log=self._keeper.measures(),
            lag_ms=self._lag_timer.lag_ms.read(),
            memory_bytes=resident_set_bytes(),
            held_bytes=self._keeper.held().total,
            resident_body_bytes=self._keeper.recorder.resident_bytes,
            refusal=None if refusal is None else refusal.code,
            is_stopped=self.failure is not None,
            queue_count=len(self._state.queues),
            subscription_count=sum(len(watch.subscriptions) for watch in watches),
            long_poll_count=sum(map(_poll_count, watches)),
            queues=self._queue_measures(),
        )

    def _queue_measures(self) -> Iterator[QueueMeasures]:
        for queue in list(self._state.queues.values()):
            if not queue.is_deleted:
                now_ms = self._clock.now_ms()
                stats = browsing.stats(
                    queue,
                    consumers=self._consumers.count(queue),
                    claimants=claimants(self._state, queue),
                    now_ms=now_ms,
                )
                wait_ms, processing_ms = self._keeper.recorder.times.read(queue) or (None, None)
                yield QueueMeasures(stats, wait_ms, processing_ms)

    def read_routing_with(self, read: ReadRouting) -> None:
        """As `read_routing` of `open`, for a protocol that comes later."""
        self._state.read_routing = read

    def count_in_memory(self, held_bytes: Callable[[], int], *, is_going_out: bool = False) -> None:
        """What a protocol holds that has not become messages, or that its clients have not read yet, counts in
        `memory_bytes_max` too."""
        (self._keeper.going_out if is_going_out else self._keeper.held_elsewhere).append(held_bytes)

    @property
    def memory_bytes_max(self) -> int:
        return self._keeper.pressure.memory_bytes_max

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def durable(self) -> None:
        """Return when everything done so far is on disk; raise `OutcomeUnknown` if that fails."""
        await self._keeper.durable()

    def when_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call back, on the loop, when everything done so far is on disk: with None, or with what went wrong."""
        self._keeper.durable().add_done_callback(lambda future: callback(future.exception()))

    # -- every call ---------------------------------------------------------------------------------------------------

    def _enter(self) -> int:
        if self._is_closed:
            raise BrokerClosed("The broker has been closed; open another one on its data.")
        if self._keeper.failure is not None:
            raise stopped(self._keeper.failure)
        return self._clock.now_ms()

    def _after(self) -> None:
        """What each synchronous step ends with: plan serving, sealing and the next deadline."""
        state = self._state
        if (state.woken or state.crowded or state.purged or self._put_off) and not self._is_turn_planned:
            self._is_turn_planned = True
            self._loop.call_soon(self._turn)
        if not self._is_keeping_limits:
            self._keeper.seal_if_large()
        next_ms = self._state.calendar.next_ms()
        if next_ms is not None and (self._timer is None or next_ms < self._timer_at_ms):
            self._arm(next_ms)

    def _enter_within_limits(self) -> int:
        """As `_enter`, where it matters how much a queue holds, or what is ready in it."""
        now_ms = self._enter()
        if self._state.crowded:
            self._keep_limits(now_ms)
        return now_ms

    async def _done_durably(self) -> None:
        self._after()
        await self._keeper.durable()

    def _check_pressure(self) -> None:
        refusal = self._keeper.pressure.refusal
        if refusal is not None:
            raise refusal

    def release_now(self, receipts: Iterable[Receipt], *, is_cut: bool = False) -> list[Outcome]:
        """With `is_cut` there are fewer outcomes than receipts where some had expired and became dead letters in very
        many queues: the others are not released yet."""
        now_ms, since = self._enter(), self._state.work
        outcomes: list[Outcome] = []
        for receipt in receipts:
            if is_cut and dead_letters.is_much(self._state, since):
                break
            try:
                release(self._state, receipt, now_ms=now_ms)
                outcomes.append(None)
            except BrokerError as refusal:
                outcomes.append(refusal)
            self._keeper.seal_if_large()
        self._after()
        return outcomes

    def _keep_limits(self, now_ms: int) -> None:
        """Bring the queues within their limits in which something was published or came back since the last time.

        Between commands, never inside one: consumers are served by this, and hear of it.
        """
        crowded = self._state.crowded
        for queue in self._put_off:
            # What came to it since goes with the rest, in the next turn.
            self._put_off[queue] += crowded.pop(queue, 0)
        if crowded and not self._is_keeping_limits:
            self._is_keeping_limits = True
            try:
                made_many = keep_limits(self._state, serve=self._serve_crowded, now_ms=now_ms)
                if made_many is not None:
                    # Else each call that looks at a queue would have to do some more of it.
                    self._put_off[made_many] = self._state.crowded.pop(made_many, 0)
            finally:
                self._is_keeping_limits = False
                self._after()

    def _serve_crowded(self, queue: Queue, now_ms: int) -> None:
        """Whoever waits gets what would go otherwise, however much is said of it; else the rest comes in its turn."""
        state = self._state
        is_lost = queue in state.fleeting or queue in state.beyond or is_over(queue)
        self._dispatcher.serve(queue, now_ms, is_cut=not is_lost)

    # -- turns and deadlines ------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Once per turn of the loop: what calls and deadlines left to be done."""
        self._is_turn_planned = False
        if self._is_closed or self._keeper.failure is not None:
            return
        if self._put_off:
            # Before the others, and so after them: the last one is looked at first.
            others, put_off = dict(self._state.crowded), self._put_off
            self._put_off = {}
            self._state.crowded.clear()
            self._state.crowded.update(put_off | others)
        self._keep_limits(self._clock.now_ms())
        self._serve_woken()
        self._state.free_purged(FREED_AT_ONCE)
        self._after()

    def _serve_woken(self) -> None:
        """Queues in which something became ready, in the order in which they reported; the rest in the next turn."""
        woken = self._state.woken
        count = 0
        self._dispatcher.properties_left = PROPERTIES_AT_ONCE
        for queue in list(woken):
            if count >= SERVED_AT_ONCE or self._dispatcher.properties_left <= 0:
                break
            del woken[queue]
            count += 1
            if not queue.is_deleted:
                count += self._dispatcher.serve(queue, is_cut=True)

    def _arm(self, next_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = next_ms
        wait_ms = max(0, next_ms - self._clock.now_ms())
        self._timer = self._loop.call_later(wait_ms / 1000, self._deadline)

    def _deadline(self) -> None:
        self._timer = None
        if self._is_closed or self._keeper.failure is not None:
            return
        now_ms = self._clock.now_ms()
        if 0 < self._timer_at_ms < now_ms - STALL_MS:
            # We were held up ourselves: what consumers sent meanwhile is read before their leases are judged.
            self._timer_at_ms = 0
            self._timer = self._loop.call_later(0.05, self._deadline)
            return
        try:
            self._do_due(now_ms)
        finally:
            # Also where something failed: what is left has no other timer.
            self._after()

    def _do_due(self, now_ms: int) -> None:
        end_s = time.perf_counter() + SLICE_S
        while self._state.calendar.is_behind(now_ms):
            for entry in run_due(self._state, now_ms=now_ms, limit=SLICE, chance=random.random()):
                assert isinstance(entry, Poll)
                if not entry.answer.done():
                    entry.answer.set_result([])
            if time.perf_counter() > end_s:
                # The log's thread needs the interpreter to itself now and then, or nothing becomes durable meanwhile:
                # with no breath between slices a publish beside a million expiries waited 1.2 s, now some 20 ms.
                self._timer_at_ms = 0
                self._timer = self._loop.call_later(BREATH_S, self._deadline)
                break

    # -- called back --------------------------------------------------------------------------------------------------

    def _give_back(self, receipts: list[Receipt]) -> None:
        """Nobody is there any more for what was about to be handed over."""
        if self._keeper.failure is None and not self._is_closed:
            self.release_now(receipts)

    def _is_in_its_queue(self, message: Message) -> bool:
        """Whether a message that was found before others had their turn is still there."""
        queue = self._state.queues.get(message.queue)
        return queue is not None and queue.find(message.sequence) is message

    def _damaged(self, messages: list[Message], damage: LogError) -> None:
        """Bodies that cannot be read: set aside, with the reason, so that the rest of the queue goes on."""
        now_ms = self._clock.now_ms()
        for message in messages:
            if message.state is not State.DEAD and self._is_in_its_queue(message):
                queue = self._state.queues[message.queue]
                dead_letters.park(self._state, queue, message, Reason.DAMAGED, error=str(damage), now_ms=now_ms)
        self._after()

    def _failed(self, error: BaseException) -> None:
        """The log failed: everybody who waits is told, and every later call is refused."""
        self._dispatcher.end_all(stopped(error))


@contextlib.contextmanager
def _noting_on(error: BaseException) -> Iterator[None]:
    """What goes wrong in here is a note on the error that came first, which tells more."""
    try:
        yield
    except Exception as another:
        error.add_note(f"Closing failed too: {another}")


def _poll_count(watch: Watch) -> int:
    return sum(isinstance(waiting, Poll) for waiting in watch.line)
