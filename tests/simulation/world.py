"""One simulated world: a broker on a disk, its lives and deaths, and who holds what it delivers.

    Passing (turns and time) ◀── Calls ◀── World (opening, crashing; deliveries)

The steps of a life (`steps_*.py`) act on it; `checks.py` says what must hold between any two of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from smista.core.governing import Governing
from smista.core.message import Receipt
from smista.core.queue import Queue
from smista.core.staging import Row
from smista.core.state import BrokerState
from smista.engine import Broker, BrokerSettings, CreditPool, Delivery, PriorityPolicy
from smista.engine.clock import Clock
from smista.engine.recorder import FullBlock
from smista.engine.recovery import Recovery
from smista.log import Log
from smista.log.errors import LogDamaged
from tests.simulation.callers import Batch, Consumer, Hand, name_of
from tests.simulation.calls import Calls
from tests.simulation.ledger import Name
from tests.simulation.replaying import Replaying
from tests.simulation.stage import Chances, LogThread, simulated
from tests.simulation.watching import WatchedJournal

QUEUES = ("a", "b", "c", "d")
EXCHANGES = ("x", "y", "z")
KEYS = ("", "a", "b", "k.1", "k.2")


class World(Calls):
    def __init__(self, settings: BrokerSettings, theme: str = "", queue_count: int = 4) -> None:
        super().__init__()
        self.settings = settings
        self.theme = theme
        """What this life is about, see `drawing`."""
        self.names = QUEUES[:queue_count]
        self.chances = Chances()
        self.ledger.held = lambda name: name in self.hands
        self.active: dict[int, Consumer] = {}
        """By queue that serves a single active consumer: the one that was served last."""
        self.replaying = Replaying(self.blame, self.disk, lambda: self.now_ms, lambda: self.is_governing)
        self._governings: list[Governing] = []
        """The policies that are on their way through the queues, and those before them."""
        self.hands: dict[Name, Hand] = {}
        """What somebody holds, as far as those know who hold it."""
        self.handed_out: set[Name] = set()
        self.old_receipts: list[Receipt] = []
        self.consumers: list[Consumer] = []
        self.leaving: list[Consumer] = []
        """Cancelled, and keeping what they have."""
        self.gone: list[Consumer] = []
        self.pools: list[CreditPool] = []
        self.batches: list[Batch] = []
        self.staged: dict[tuple[str, str], list[Row]] = {}
        self.token = 0

    # -- opening and closing ------------------------------------------------------------------------------------------

    @contextmanager
    def playing(self) -> Iterator[None]:
        world = self

        class Journal(WatchedJournal):
            ledger = world.ledger
            blame = world.blame
            state = property(lambda self: world.state)

            def on_cut(self, full: FullBlock) -> None:
                world.replaying.block_sealed(full.position, full.seal(world.now_ms), world.state, world.now_ms)

        class Opening(Recovery):
            def replay(self, log: Log, on_damage: Callable[[LogDamaged], None] | None) -> None:
                super().replay(log, on_damage)
                world.state = self.state

        class Watched(Governing):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                world._governings.append(self)

        with simulated(self.loop, self.chances, self._thread_made, self._has_room, Journal, Opening, Watched):
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
        self._governings.clear()
        clock = Clock(wall_ms=lambda: self.now_ms, since_boot_ms=lambda: self.now_ms, boot_id=lambda: "boot")
        opening = Broker.open(self.disk.open(), self.settings, clock=clock)
        self.broker = self.finish(opening, "the broker does not open")

    def close(self) -> None:
        """Stop in order. Everybody who waits gets an error."""
        self.is_closing = True
        self.finish(self.broker.close(), "closing never ends")
        # Whoever paces itself finds that when it goes on.
        self.pass_time(100)
        for call in self.calls:
            self.blame.say("a call never returned", f"{call.what}, although the broker was closed")
        self._abandon()
        self.is_closing = False

    def begin_again(self) -> None:
        """Open what is on disk."""
        self.loop.thread_calls.clear()
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
        if self.thread is not None:
            self.thread.has_ended = True
        for task in asyncio.all_tasks(loop):
            task.cancel()
        broker = getattr(self, "broker", None)
        if broker is not None:
            broker._running.is_closed = broker._keeper._is_closed = True
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

    @property
    def is_governing(self) -> bool:
        """Whether some queues have yet to take up a policy that was set or deleted."""
        return any(not governing.is_done for governing in self._governings)

    def queue_names(self) -> list[str]:
        return list(self.state.namespaces["/"].queues) or list(self.names)

    def some_queue(self, draw: random.Random) -> str:
        """Nearly always one that is there."""
        return draw.choice(self.queue_names()) if draw.random() < 0.97 else draw.choice(self.names)

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
        settings = queue.settings
        # Elsewhere what is first is not the oldest.
        is_plain = settings.priority_policy is PriorityPolicy.STRICT and not (settings.fair or settings.group_turns)
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
