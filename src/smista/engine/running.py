"""A running broker below its commands: what its parts share, and what every call begins and ends with.

call ─▶ enter: may it, and what time is it ─▶ one synchronous step of the core ─▶ after: plan what follows
             end of the turn: keep limits, serve queues in which something became ready, free purged memory
             at a deadline:   do what is due, see `deadlines`

The parts of a broker (publishing, receiving, settling ...) hold one of these, and know nothing of each other but what
they are given. Nothing here knows the parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from smista.core import dead_letters
from smista.core.at_once import PROPERTIES_AT_ONCE
from smista.core.limits import is_over
from smista.core.message import Fate, Message, Reason, Receipt, State
from smista.core.queue import Queue, error_text
from smista.core.settling import Outcome, release
from smista.core.trimming import keep_limits
from smista.engine.background import BackgroundTasks
from smista.engine.clock import Clock
from smista.engine.deadlines import Deadlines
from smista.engine.dispatcher import Dispatcher
from smista.engine.effects import Effects
from smista.engine.fair_turns import FairTurns
from smista.engine.ids import Ids, shard_of
from smista.engine.keeper import Keeper
from smista.engine.recovery import Recovery
from smista.engine.settings import BrokerSettings
from smista.engine.tickets import Tickets
from smista.errors import BrokerClosed, BrokerError, MessageNotFound, stopped
from smista.log import Log
from smista.log.errors import LogError

FREED_AT_ONCE = 2000
SERVED_AT_ONCE = 2000
"""So many messages are handed out in one turn of the loop, and looked for in so many queues."""


class Running:
    def __init__(self, log: Log, settings: BrokerSettings, clock: Clock, recovery: Recovery) -> None:
        self.settings = settings
        self.clock = clock
        state = self.state = recovery.state
        self.loop = asyncio.get_running_loop()
        self.is_closed = False
        self.ids = Ids(log.identity, shard_of(state.next_sequence))
        self.fair_turns = FairTurns()
        """For whoever looks at very much ..."""
        self.fan_out_turns = FairTurns()
        """... and for messages that go to very many queues."""
        self.background = BackgroundTasks()
        self.deadlines = Deadlines(state, clock, has_stopped=self._has_stopped, after=self.after)
        self._is_turn_planned = False
        self._is_keeping_limits = False
        self._put_off: dict[Queue, int] = {}
        """Queues over their limits that have made very many dead letters in this turn, and go on in the next one."""
        self.effects = Effects()
        """What the step that is under way leads to."""
        self.dispatcher = Dispatcher(state, clock, self.ids, after=self.after, give_back=self.give_back)
        self.consumers = self.dispatcher.consumers
        self.keeper = self.dispatcher.keeper = Keeper(
            log,
            settings,
            clock,
            recovery,
            self.effects,
            on_failed=self._failed,
            on_damaged=self._damaged,
        )
        self.tickets = Tickets(self.keeper, self.background)

    # -- every call ---------------------------------------------------------------------------------------------------

    def enter(self) -> int:
        """What every call begins with: what time it is, or why there is no use in it."""
        if self.is_closed:
            raise BrokerClosed("The broker has been closed; open another one on its data.")
        if self.keeper.failure is not None:
            raise stopped(self.keeper.failure)
        return self.clock.now_ms()

    def enter_within_limits(self) -> int:
        """As `enter`, where it matters how much a queue holds, or what is ready in it."""
        now_ms = self.enter()
        if self.state.over_limit:
            self.keep_limits(now_ms)
        return now_ms

    def check_pressure(self) -> None:
        """Raise why publishes are refused just now, if they are."""
        refusal = self.keeper.pressure.refusal
        if refusal is not None:
            raise refusal

    def after(self) -> None:
        """What each synchronous step ends with: carry out its effects, plan serving and the next deadline, and write
        blocks that are full."""
        state, effects = self.state, self.effects
        if effects.freed:
            self.dispatcher.free(effects.take_freed())
        if effects.dead_letters or effects.damage:
            self.keeper.report(effects)
        if effects.ended_jobs:
            for job in effects.take_ended_jobs():
                if job.on_end is not None:
                    job.on_end(None)
        if (state.woken or state.over_limit or state.purged or self._put_off) and not self._is_turn_planned:
            self._is_turn_planned = True
            self.loop.call_soon(self._turn)
        self.keeper.step_is_over(may_end_block=not self._is_keeping_limits)
        next_ms = state.calendar.next_ms()
        if next_ms is not None and next_ms < self.deadlines.planned_ms:
            self.deadlines.plan(next_ms)

    async def done_durably(self) -> None:
        """As `after`; returns when all that was done is on disk."""
        self.after()
        await self.keeper.durable()

    def keep_limits(self, now_ms: int) -> None:
        """Bring the queues within their limits in which something was published or came back since the last time.

        Between commands, never inside one: consumers are served by this, and react to it.
        """
        over_limit = self.state.over_limit
        for queue in self._put_off:
            # What came to it since goes with the rest, in the next turn.
            self._put_off[queue] += over_limit.pop(queue, 0)
        if over_limit and not self._is_keeping_limits:
            self._is_keeping_limits = True
            try:
                made_many = keep_limits(self.state, serve=self._serve_over_limit, now_ms=now_ms)
                if made_many is not None:
                    # Else each call that looks at a queue would have to do some more of it.
                    self._put_off[made_many] = over_limit.pop(made_many, 0)
            finally:
                self._is_keeping_limits = False
                self.after()

    def _serve_over_limit(self, queue: Queue, now_ms: int) -> None:
        """Whoever waits gets what would go otherwise, however large its properties; else the rest comes in its turn."""
        state = self.state
        is_lost = queue in state.fleeting or queue in state.beyond or is_over(queue)
        self.dispatcher.serve(queue, now_ms, is_cut=not is_lost)

    # -- turns --------------------------------------------------------------------------------------------------------

    def _has_stopped(self) -> bool:
        return self.is_closed or self.keeper.failure is not None

    def _turn(self) -> None:
        """Once per turn of the loop: what calls and deadlines left to be done."""
        self._is_turn_planned = False
        if self._has_stopped():
            return
        if self._put_off:
            # Before the others, and so after them: the last one is looked at first.
            others, put_off = dict(self.state.over_limit), self._put_off
            self._put_off = {}
            self.state.over_limit.clear()
            self.state.over_limit.update(put_off | others)
        self.keep_limits(self.clock.now_ms())
        self._serve_woken()
        self.state.free_purged(FREED_AT_ONCE)
        self.after()

    def _serve_woken(self) -> None:
        """Queues in which something became ready, in the order in which they reported; the rest in the next turn."""
        woken = self.state.woken
        count = 0
        self.dispatcher.properties_left = PROPERTIES_AT_ONCE
        for queue in list(woken):
            if count >= SERVED_AT_ONCE or self.dispatcher.properties_left <= 0:
                break
            del woken[queue]
            count += 1
            if not queue.is_deleted:
                count += self.dispatcher.serve(queue, is_cut=True)

    # -- going back ---------------------------------------------------------------------------------------------------

    def release(self, receipts: Iterable[Receipt], *, is_cut: bool = False) -> list[Outcome]:
        """Give messages back to their old places. With `is_cut` there are fewer outcomes than receipts where some had
        expired and became dead letters in very many queues: the others are not released yet."""
        now_ms, since = self.enter(), self.state.work
        outcomes: list[Outcome] = []
        for receipt in receipts:
            if is_cut and dead_letters.is_much(self.state, since):
                break
            try:
                release(self.state, receipt, now_ms=now_ms)
                outcomes.append(None)
            except BrokerError as refusal:
                outcomes.append(refusal)
            self.state.journal.between()
        self.after()
        return outcomes

    def give_back(self, receipts: list[Receipt]) -> None:
        """Nobody is there any more for what was about to be handed over."""
        if not self._has_stopped():
            self.release(receipts)

    # -- messages -----------------------------------------------------------------------------------------------------

    def find(self, queue: Queue, message_id: str) -> Message:
        """The message with this id: it stands in the queue under its number, unless it has moved.

        The time in the id tells it from a message that a crash made us forget and whose number was used again.
        """
        number, created_at_ms = self.ids.parse(message_id)
        message = self.keeper.journal.positions.find(queue, number)
        if message is None or message.created_at_ms != created_at_ms:
            raise message_not_found(queue, message_id)
        return message

    def is_in_its_queue(self, message: Message) -> bool:
        """Whether a message that was found before others had their turn is still there."""
        queue = self.state.queues.get(message.queue)
        return queue is not None and queue.find(message.sequence) is message

    # -- called back --------------------------------------------------------------------------------------------------

    def _damaged(self, messages: list[Message], damage: LogError) -> None:
        """Bodies that cannot be read: set aside, with the reason, so that the rest of the queue goes on."""
        fate = Fate(Reason.DAMAGED, None, error_text(str(damage)), self.clock.now_ms())
        for message in messages:
            if message.state is not State.DEAD and self.is_in_its_queue(message):
                dead_letters.park(self.state, self.state.queues[message.queue], message, fate)
        self.after()

    def _failed(self, error: BaseException) -> None:
        """The log failed: everybody who waits gets an error, and every later call is refused."""
        self.end_all(stopped(error))

    def end_all(self, error: BrokerError) -> None:
        """Whoever waits for messages or for the end of a job waits in vain, for this reason."""
        self.dispatcher.end_all(error)
        for of_queue in self.state.jobs.values():
            for job in of_queue.values():
                if job.on_end is not None:
                    job.on_end(error)


def message_not_found(queue: Queue, message_id: str) -> MessageNotFound:
    return MessageNotFound(f"Queue {queue.name!r} has no message {message_id}; it may have been settled or moved.")
