"""The broker: a log, the state folded from it, and everybody who waits for messages, on a running event loop.

    broker = await Broker.open(SqliteLog.open("data"))
    await broker.declaring.declare_queue("orders")
    [published] = await broker.publishing.publish("orders", [Publication(b"...")])
    [delivery] = await broker.receiving.receive("orders", wait_ms=20_000)
    await broker.settling.acknowledge([delivery.receipt])
    await broker.close()

It is made of parts, each a subject with a module of its own, over what they share (`running`):

    publishing  receiving  settling  subscribing     a message's way: in, out, done with
    catalog  declaring  surveying                    queues, exchanges, bindings, policies: asked, changed, listed
    browsing  messages  redriving  receipts          looking at messages, and changing them by hand
    jobs                                             what goes on by itself, also after a restart
    claiming  staging                                batches: taken out of a queue, and put in once
    statistics  log  intake                          how it stands
    asking                                           what is asked about one queue, as `interface` has it

What changes something returns when the change is durable. What is submitted returns a ticket at once, which is answered
when it is durable, see `tickets`. Both do the whole transition in one synchronous step of the loop, which is what makes
it atomic: nothing here awaits between deciding and doing.

What a caller may rely on: after `OutcomeUnknown` or `BrokerStopped` nothing is confirmed any more, and the process
should end; a new broker on the same log finds what was confirmed. A cancelled call may have taken effect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Self

from smista.core.claims import held_by_claims
from smista.core.settling import receipt_for
from smista.core.state import ReadRouting
from smista.engine.asking import Asking
from smista.engine.browsing import Browsing
from smista.engine.catalog import Catalog
from smista.engine.claiming import Claiming
from smista.engine.clock import Clock
from smista.engine.declaring import Declaring
from smista.engine.ids import first_sequence, shard_of
from smista.engine.intake import Intake
from smista.engine.jobs import Jobs
from smista.engine.log_state import LogState
from smista.engine.messages import Messages
from smista.engine.publishing import Publishing
from smista.engine.receipts import Receipts
from smista.engine.receiving import Receiving
from smista.engine.recovery import Recovery
from smista.engine.redriving import Redriving
from smista.engine.running import Running
from smista.engine.settings import BrokerSettings
from smista.engine.settling import Settling
from smista.engine.staging import Staging
from smista.engine.statistics import Statistics
from smista.engine.subscribing import Subscribing
from smista.engine.surveying import Surveying
from smista.errors import BrokerClosed
from smista.log import Log
from smista.log.errors import LogDamaged

BACKGROUND_S = 1.0
"""How long closing waits for what is going back. The rest is given back when the log is opened again."""


class Broker:
    """See the module. Make one with `open`; all methods belong to the loop it was opened on."""

    def __init__(self, log: Log, settings: BrokerSettings, clock: Clock, recovery: Recovery) -> None:
        recovered = recovery.summary()
        running = self._running = Running(log, settings, clock, recovery)
        self._state = recovery.state
        self._keeper = running.keeper
        self._closing: asyncio.Task[None] | None = None
        self.ids = running.ids
        self.fair_turns = running.fair_turns
        """For whoever looks at very much ..."""
        self.fan_out_turns = running.fan_out_turns
        """... and for messages that go to very many queues."""
        self.background = running.background

        self.publishing = Publishing(running)
        self.receiving = Receiving(running)
        self.settling = Settling(running)
        self.subscribing = Subscribing(running, self.settling)
        self.catalog = Catalog(running)
        self.declaring = Declaring(running)
        self.surveying = Surveying(running)
        self.browsing = Browsing(running)
        self.messages = Messages(running)
        self.redriving = Redriving(running)
        self.jobs = Jobs(running)
        self.receipts = Receipts(running)
        self.claiming = Claiming(running, self.receiving)
        self.staging = Staging(running)
        self.statistics = Statistics(running, recovered)
        self.asking = Asking(self.statistics, self.receipts, self.browsing, self.claiming)
        self.log = LogState(running)
        self.intake = Intake(running)
        running.after()

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
        shard: int = 0,
    ) -> Self:
        """Recover from `log` and start. The broker owns the log from here on and closes it.

        `read_routing` finds, in the properties that protocols keep with a message, the headers and further keys by
        which a dead letter is routed. Some are, while the broker starts.

        A damaged log is refused (`LogDamaged`) unless `on_damage` is given: it is then called for each damaged block,
        and the rest is served.

        `shard` says which part of a cluster's queues this log is, always the same for one log.
        """
        settings = settings or BrokerSettings()
        clock = clock or Clock()
        recovery = Recovery(resident_bytes_max=settings.resident_bytes_max, body_bytes_max=settings.body_bytes_max)
        try:
            await asyncio.to_thread(recovery.replay, log, on_damage)
            state = recovery.state
            if state.next_sequence == 1:  # nothing has entered yet
                state.next_sequence = first_sequence(shard)
            assert shard_of(state.next_sequence) == shard, "The log is that of another shard."
            clock.resume(recovery.anchor, recovery.last_ms)
            if read_routing is not None:
                state.read_routing = read_routing
            broker = cls(log, settings, clock, recovery)
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
            self._running.release([receipt_for(queue, message.sequence) for message in held])

    async def close(self) -> None:
        """Make everything durable, end everybody's waiting, and close the log. Leases stay as they are."""
        if self._closing is None:
            self._closing = self._running.loop.create_task(self._close())
        # Whoever waits for it may be cancelled; closing goes on.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        running = self._running
        # What is going back is back, if it is not too much; the rest is given back when the log is opened again.
        await running.background.wait(BACKGROUND_S)
        running.is_closed = True
        running.deadlines.stop()
        self.statistics.stop()
        running.end_all(BrokerClosed("The broker is closing; open another one on its data."))
        await running.dispatcher.close()
        # Whatever waits for a disk that is full waits in vain from here on, also what is done in the background.
        self.stop_waiting_for_room()
        await running.background.finish()
        await self._keeper.close()

    def stop_waiting_for_room(self) -> None:
        """About to be closed: what finds the disk full from now on fails at once, with `OutcomeUnknown`."""
        self._keeper.stop_waiting_for_room()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_closed(self) -> bool:
        return self._running.is_closed

    @property
    def failure(self) -> BaseException | None:
        """Why the broker stopped confirming; None while it is well."""
        return self._keeper.failure

    def now_ms(self) -> int:
        return self._running.clock.now_ms()

    def read_routing_with(self, read: ReadRouting) -> None:
        """As `read_routing` of `open`, for a protocol that comes later."""
        self._state.read_routing = read

    async def durable(self) -> None:
        """Return when everything done so far is on disk; raise `OutcomeUnknown` if that fails."""
        await self._keeper.durable()


@contextlib.contextmanager
def _noting_on(error: BaseException) -> Iterator[None]:
    """What goes wrong in here is a note on the error that came first, which tells more."""
    try:
        yield
    except Exception as another:
        error.add_note(f"Closing failed too: {another}")
