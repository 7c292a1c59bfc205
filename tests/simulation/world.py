"""One simulated world: a broker on a disk, everybody who talks to it, and time, which passes only by steps.

The steps of a life (`steps_*.py`) act on it; `checks.py` says what must hold between any two of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from smista.core.message import Receipt
from smista.core.queue import Queue
from smista.core.staging import Row
from smista.core.state import BrokerState
from smista.engine import Broker, BrokerSettings, CreditPool, Delivery, PriorityPolicy
from smista.engine.clock import Clock
from smista.errors import BrokerClosed, BrokerError, BrokerStopped, OutcomeUnknown
from tests.simulation.blame import Blame, where
from tests.simulation.callers import Batch, Call, Consumer, Hand, name_of
from tests.simulation.disk import Disk
from tests.simulation.ledger import Ledger, Name
from tests.simulation.loop import SimulatedLoop
from tests.simulation.replaying import Replaying
from tests.simulation.stage import Chances, LogThread, simulated
from tests.simulation.watching import WatchedRecorder

QUEUES = ("a", "b", "c", "d")
EXCHANGES = ("x", "y", "z")
KEYS = ("", "a", "b", "k.1", "k.2")
REST_TURNS_MAX = 4_000
"""Whatever a life did before: after so many turns of the loop everything that goes on by itself is done."""
READ_AGAIN_US = 650_000
"""A block that could not be read is tried again for so long."""

T = TypeVar("T")


class World:
    def __init__(self, settings: BrokerSettings, theme: str = "", queue_count: int = 4) -> None:
        self.settings = settings
        self.theme = theme
        """What this life is about, see `drawing`."""
        self.names = QUEUES[:queue_count]
        self.loop = SimulatedLoop()
        self.chances = Chances()
        self.blame = Blame()
        self.disk = Disk()
        self.ledger = Ledger(self.blame)
        self.ledger.held = lambda name: name in self.hands
        self.active: dict[int, Consumer] = {}
        """By queue that serves a single active consumer: the one that was served last."""
        self.replaying = Replaying(self.blame, self.disk)
        self.trace: list[str] = []
        self.hands: dict[Name, Hand] = {}
        """What somebody holds, as far as those know who hold it."""
        self.handed_out: set[Name] = set()
        self.old_receipts: list[Receipt] = []
        self.consumers: list[Consumer] = []
        self.leaving: list[Consumer] = []
        """Cancelled, and keeping what they have."""
        self.gone: list[Consumer] = []
        self.pools: list[CreditPool] = []
        self.calls: list[Call] = []
        self.batches: list[Batch] = []
        self.staged: dict[tuple[str, str], list[Row]] = {}
        self.token = 0
        self._errors_known = 0
        self._read_again_us = 0
        self.is_closing = False
        self.state = BrokerState()
        self.broker: Broker
        self.thread: LogThread

    # -- opening and closing ------------------------------------------------------------------------------------------

    @contextmanager
    def playing(self) -> Iterator[None]:
        world = self

        class Recorder(WatchedRecorder):
            ledger = world.ledger
            blame = world.blame
            state = property(lambda self: world.state)

            def on_sealed(self, position: int, block: bytes) -> None:
                world.replaying.block_sealed(position, block, world.state, world.now_ms)

        class State(BrokerState):
            def __init__(self, **options: Any) -> None:
                super().__init__(**options)
                world.state = self

        with simulated(self.loop, self.chances, self._thread_made, self._has_room, Recorder, State):
            try:
                yield
            finally:
                self._abandon()
                self.loop.close()

    def _thread_made(self, thread: LogThread) -> None:
        self.thread = thread

    def _has_room(self) -> bool:
        return not self.disk.is_full

    def open(self) -> None:
        self.state = BrokerState()
        clock = Clock(wall_ms=self._now, since_boot_ms=self._now, boot_id=lambda: "boot")
        opening = Broker.open(self.disk.open(), self.settings, clock=clock)
        self.broker = self.finish(opening, "the broker does not open")

    def close(self) -> None:
        """Stop in order. Everybody who waits hears of it."""
        self.is_closing = True
        self.finish(self.broker.close(), "closing never ends")
        # Whoever paces itself hears of it when it goes on.
        self.pass_time(100)
        for call in self.calls:
            self.blame.say("a call never returned", f"{call.what}, although the broker was closed")
        self._abandon()
        self.is_closing = False

    def begin_again(self) -> None:
        """Open what is on disk."""
        self.loop.errands.clear()
        self.loop.posts.clear()
        self.replaying.check(self.disk.last, self.disk.front)
        self.replaying.restart()
        self.ledger.restart(self.disk.last)
        self.blame.raise_first()
        # Leases without end have ended with the run; those that a crash forgot may have been shorter.
        hands, self.hands = self.hands, {}
        self.ledger.leases = self.replaying.leases()
        self.open()
        leases = self.ledger.leases_in(self.state)
        for name, hand in hands.items():
            if name in leases:
                self.hands[name] = hand
            else:
                self.old_receipts.append(hand.delivery.receipt)

    def crash(self) -> None:
        """Everything goes that is not on disk."""
        self._abandon()

    def _abandon(self) -> None:
        """Nobody is there any more. What the broker still says goes nowhere."""
        for consumer in [*self.consumers, *self.leaving]:
            consumer.is_alive = False
        self.consumers, self.leaving, self.gone, self.pools = [], [], [], []
        self.active.clear()
        self.batches.clear()
        calls, self.calls = self.calls, []
        loop = self.loop
        if hasattr(self, "thread"):
            self.thread.has_ended = True
        for task in asyncio.all_tasks(loop):
            task.cancel()
        broker = getattr(self, "broker", None)
        if broker is not None:
            broker._is_closed = broker._keeper._is_closed = True
        troubles, blamed = len(loop.troubles), len(self.blame.found)
        for _ in range(50):
            if not loop.is_ready:
                break
            loop.turn()
        del loop.troubles[troubles:], self.blame.found[blamed:]
        for call in calls:
            if call.task.done() and not call.task.cancelled():
                call.task.exception()
        loop.forget()

    # -- looking ------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return self.loop.now_us // 1000

    @property
    def now_ms(self) -> int:
        return self.loop.now_us // 1000

    def find(self, name: str) -> Queue | None:
        return self.state.namespaces["/"].queues.get(name)

    def queue_names(self) -> list[str]:
        return list(self.state.namespaces["/"].queues) or list(self.names)

    def some_queue(self, draw: random.Random) -> str:
        """Nearly always one that is there."""
        return draw.choice(self.queue_names()) if draw.random() < 0.97 else draw.choice(self.names)

    def used(self, queue: Queue | str, at_ms: int | None = None) -> None:
        """Somebody uses a queue, in the sense of `expires_ms`."""
        found = self.find(queue) if isinstance(queue, str) else queue
        if found is not None:
            used_at_ms = self.ledger.used_at_ms
            used_at_ms[found.number] = max(used_at_ms.get(found.number, 0), self.now_ms if at_ms is None else at_ms)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_ms % 10_000_000:>8} {text}")

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(
        self,
        what: str,
        work: Coroutine[Any, Any, T],
        then: Callable[[T], None] | None = None,
        *,
        queue: str | None = None,
        uses: bool = False,
        is_polling: bool = False,
        finally_: Callable[[], None] | None = None,
    ) -> Call:
        """Begin a call; `then` gets what it returns. Where it `uses` its queue, that counts from now, unless it is
        refused."""
        task = self.loop.create_task(work)
        call = Call(what, task, None if queue is None else self.find(queue), is_polling=is_polling)
        self.calls.append(call)
        if call.is_user:
            self._count_user(call.queue, 1)
        at_ms = self.now_ms
        task.add_done_callback(lambda task: self._returned(call, then, finally_, at_ms if uses else None))
        return call

    def _returned(
        self,
        call: Call,
        then: Callable[[Any], None] | None,
        finally_: Callable[[], None] | None,
        used_at_ms: int | None,
    ) -> None:
        if call not in self.calls:
            return
        self.calls.remove(call)
        if call.is_user:
            self._count_user(call.queue, -1, _served_at_ms(call.task))
        if finally_ is not None:
            finally_()
        if call.task.cancelled():
            self.note(f"    {call.what}: cancelled")
            return
        error = call.task.exception()
        if error is not None:
            self.refused(call.what, error)
        else:
            if used_at_ms is not None and call.queue is not None:
                self.used(call.queue, used_at_ms)
            if then is not None:
                then(call.task.result())
            self.note(f"    {call.what}: done")

    def _count_user(self, queue: Queue | None, change: int, at_ms: int | None = None) -> None:
        if queue is not None:
            self.ledger.users[queue.number] = self.ledger.users.get(queue.number, 0) + change
            self.used(queue, at_ms)

    def refused(self, what: str, error: BaseException) -> None:
        """A call failed. Most errors are answers; some may only come when something was planted."""
        self.note(f"    {what}: {type(error).__name__} {str(error)[:90]}")
        if isinstance(error, BrokerStopped | OutcomeUnknown):
            if not (self.disk.has_failed or self.disk.errors_met or self.is_closing):
                self.blame.say("the broker stopped by itself", f"{what}: {error}")
        elif isinstance(error, BrokerClosed):
            if not self.is_closing:
                self.blame.say("the broker closed by itself", f"{what}: {error}")
        elif not isinstance(error, BrokerError):
            self.blame.say(f"a call fails with {type(error).__name__}", f"{what}: {error!r}{where(error)}")

    def finish(self, work: Coroutine[Any, Any, T], trouble: str) -> T:
        """Let a call run to its end, with all that it waits for."""
        task = self.loop.create_task(work)
        for _ in range(REST_TURNS_MAX):
            if task.done():
                break
            if not self._go_on():
                self.loop.advance_to(min(self.loop.next_timer_us(), self.loop.now_us + 300_000))
        else:
            self.blame.say(trouble, f"after {REST_TURNS_MAX} turns")
            self.blame.raise_first()
        try:
            return task.result()
        except BaseException as error:
            self.blame.say(f"{trouble}: {type(error).__name__}", f"{error!r}{where(error)}")
            self.blame.raise_first()
            raise

    # -- deliveries ---------------------------------------------------------------------------------------------------

    def handed(self, deliveries: list[Delivery], holder: Consumer | None) -> None:
        for delivery in deliveries:
            name = name_of(delivery.receipt)
            who = "a caller" if holder is None else holder.label
            if name in self.handed_out:
                self.blame.say("a delivery was handed out twice", f"{name}, the second time to {who}")
            self.handed_out.add(name)
            if holder is not None and not holder.is_alive:
                self.blame.say("handed to one who has left", f"{name} to {who}")
            expected = self.ledger.bodies.get(delivery.number)
            if expected is not None and expected != delivery.body:
                self.blame.say("a wrong body", f"message {delivery.number}: {delivery.body!r}, not {expected!r}")
            self.hands[name] = Hand(delivery, holder)
            self.note(f"    {who} gets {delivery.number} as {name}")
        queue = self.state.queues.get(deliveries[0].receipt.queue) if deliveries else None
        if queue is not None:
            self.used(queue, deliveries[0].delivered_at_ms)
            self._check_order(queue, deliveries, holder)

    def _check_order(self, queue: Queue, deliveries: list[Delivery], holder: Consumer | None) -> None:
        """Where one consumer is served alone, it is the same one while it is there, and it gets the first first."""
        if holder is None:
            return
        if not queue.settings.single_active_consumer:
            self.active.pop(queue.number, None)
            return
        before = self.active.get(queue.number)
        if before is not None and before.is_alive and before is not holder:
            self.blame.say("two consumers are active", f"{before.label} and {holder.label} of {queue.name!r}")
        self.active[queue.number] = holder
        is_plain = queue.settings.priority_policy is PriorityPolicy.STRICT and not queue.settings.fair
        first = queue.line.first() if queue.line is not None and is_plain else None
        last = deliveries[-1]
        if first is not None and (-first.priority, first.sequence) < (-last.priority, last.receipt.sequence):
            self.blame.say(
                "served out of order", f"{holder.label} of {queue.name!r} gets {last.number} before {first.number}"
            )

    def some_hands(self, draw: random.Random, count: int) -> list[Hand]:
        """Deliveries that somebody holds, of one holder more often than not."""
        hands = list(self.hands.values())
        if not hands:
            return []
        first = draw.choice(hands)
        if draw.random() < 0.7:
            hands = [hand for hand in hands if hand.holder is first.holder]
        start = draw.randrange(len(hands))
        return hands[start : start + count]

    def settled(self, receipt: Receipt) -> None:
        self.hands.pop(name_of(receipt), None)
        self.old_receipts.append(receipt)

    def left(self, consumer: Consumer) -> None:
        """A consumer is gone for good: it holds nothing any more."""
        consumer.is_alive = False
        self.gone.append(consumer)
        for name in [name for name, hand in self.hands.items() if hand.holder is consumer]:
            self.old_receipts.append(self.hands.pop(name).delivery.receipt)

    # -- the world goes on --------------------------------------------------------------------------------------------

    def _background(self) -> list[Callable[[], None]]:
        moves: list[Callable[[], None]] = []
        if self.thread.can_step:
            moves.append(self.thread.step)
        if self.loop.posts:
            moves.append(self.loop.hear_post)
        moves += [lambda errand=errand: self.loop.do_errand(errand) for errand in self.loop.errands]  # type: ignore[misc]
        return moves

    def _go_on(self) -> bool:
        """One turn and one move of everything beside it; False when there is nothing left to do."""
        if self.loop.is_ready:
            self.loop.turn()
            return True
        moves = self._background() if hasattr(self, "thread") else []
        if not moves and self.loop.errands:
            moves = [lambda: self.loop.do_errand(self.loop.errands[0])]
        if not moves:
            return False
        moves[0]()
        return True

    def turns(self, draw: random.Random, count: int) -> None:
        """Some turns of the loop; threads do or do not get on meanwhile."""
        for _ in range(count):
            moves = self._background()
            if moves and draw.random() < 0.5:
                draw.choice(moves)()
            self.loop.turn()

    def rest(self) -> None:
        """Go on until there is nothing to do before time passes."""
        for _ in range(REST_TURNS_MAX):
            if not self._go_on():
                return
        self.blame.say("never comes to rest", f"after {REST_TURNS_MAX} turns")
        self.blame.raise_first()

    def pass_time(self, ms: int, *, threads: bool = True) -> None:
        """Time passes; what is due happens when it is due."""
        end_us = self.loop.now_us + ms * 1000
        for _ in range(REST_TURNS_MAX):
            if threads:
                self.rest()
            else:
                while self.loop.is_ready:
                    self.loop.turn()
            next_us = self.loop.next_timer_us()
            if next_us > end_us:
                break
            self.loop.advance_to(next_us)
        else:
            self.blame.say("never comes to rest", f"{REST_TURNS_MAX} timers within {ms} ms")
        self.loop.advance_to(end_us)

    def settle_down(self) -> None:
        """Rest, and let so much time pass that what is put off by some milliseconds has happened too."""
        self.rest()
        for ms in (*[2] * 30, *[50] * 30):
            if not self.is_busy:
                return
            self.pass_time(ms)

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that only needs a little time."""
        if self.broker.failure is not None or self.disk.is_full:
            return False
        broker = self.broker
        if self.state.calendar.is_behind(self.now_ms) or broker._keeper.recorder.parts or broker._errands:
            return True
        if self.disk.errors_met != self._errors_known:
            self._errors_known = self.disk.errors_met
            self._read_again_us = self.loop.now_us + READ_AGAIN_US
        return self.loop.now_us < self._read_again_us


def _served_at_ms(task: asyncio.Task[Any]) -> int | None:
    """When a call that waited got something: it hears of that a turn later, or later where the loop was held up."""
    result = None if task.cancelled() or task.exception() is not None else task.result()
    if isinstance(result, list) and result and isinstance(result[0], Delivery):
        return result[0].delivered_at_ms
    return None
