"""Keeping: everything between the broker's state and its log.

Notes fill a block; when a step is over, full blocks are sealed and handed to the log's thread; when one is durable,
those who waited for it are answered, bodies may be let go, and the front of the log may be reclaimed. A failed log ends
all of this for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine

from smista.core.message import Message, State
from smista.engine.clock import Clock
from smista.engine.commit import Committer
from smista.engine.effects import Effects
from smista.engine.journal import EngineJournal
from smista.engine.measures import LogMeasures
from smista.engine.memory import MemoryReturn
from smista.engine.notices import Notices
from smista.engine.paging import Paging
from smista.engine.pressure import Held, Pressure, half_of_memory
from smista.engine.reclaim import Reclaimer, note_opened
from smista.engine.recorder import FullBlock
from smista.engine.recovery import READ_AGAIN_S, Recovery
from smista.engine.settings import BrokerSettings
from smista.errors import stopped
from smista.log import Log
from smista.log.errors import LogDamaged, LogDropped, LogError, LogUnreadable

DROPPED_AT_ONCE = 16
RECLAIM_AGAIN_S = 5.0
"""A block that could not be read after all pauses of `READ_AGAIN_S` is tried once more after this one, for as long as
it takes, where its space is wanted."""
FOLD_SHARE = 0.03
"""So much of the loop's time may go into writing again what lives in blocks that stay for readers of the log, for the
sake of the next start alone. Without a bound, publishing and consuming beside 200,000 messages that wait took twice the
time."""
JUDGED_BYTES = 1 << 20
"""After how much more the disk is looked at again, however short the time: so little is taken in before publishes are
refused that the log's reserve remains for acknowledgements."""
LAZY_S = 0.002
"""How long notes that nobody waits for, deliveries and unconfirmed acknowledgements, may stay out of the log. They go
with the next block that somebody waits for, which would else wait for a sync of theirs: with one message in flight a
publish took two syncs instead of one."""


class Keeper:
    def __init__(
        self,
        log: Log,
        settings: BrokerSettings,
        clock: Clock,
        recovery: Recovery,
        effects: Effects,
        *,
        on_failed: Callable[[BaseException], None],
        on_damaged: Callable[[list[Message], LogError], None],
    ) -> None:
        state = recovery.state
        self._log = log
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._on_failed = on_failed
        self._on_damaged = on_damaged
        self.failure: BaseException | None = None
        self._effects = effects
        self.notices = Notices(recovery.left_out)
        self.journal = EngineJournal(
            log.next_position,
            effects,
            block_bytes_max=settings.block_bytes_max,
            resident_bytes_max=settings.resident_bytes_max,
            read_body=self._read_body,
        )
        self.committer = Committer(log, on_durable=self._block_durable, on_full=self._full, on_failed=self._failed)
        memory_bytes_max = settings.memory_bytes_max or half_of_memory()
        slack_bytes = settings.log_slack_bytes
        if log.location() is None:
            # Dead weight of a log in memory counts there, and must not be what keeps messages out.
            slack_bytes = min(slack_bytes, memory_bytes_max // 8)
        self.reclaimer = Reclaimer(
            state,
            self.journal,
            clock,
            retention_ms=settings.log_retention_ms,
            retention_bytes=settings.log_retention_bytes,
            slack_bytes=slack_bytes,
            fold_position=recovery.fold_position,
        )
        self._paging = Paging(state, self.journal, resident_bytes_max=settings.resident_bytes_max)
        self._remembered = state.remembered
        self.pressure = Pressure(
            disk_free_bytes_min=settings.disk_free_bytes_min,
            memory_bytes_max=memory_bytes_max,
            held=self.held,
        )
        self.held_elsewhere: list[Callable[[], int]] = []
        """What protocols hold that has not become messages yet, in bytes ..."""
        self.going_out: list[Callable[[], int]] = []
        """... and what was delivered or answered and waits for its reader."""
        self._paging.has_let_go = recovery.has_left_bodies
        recovery.finish(self.journal, clock.now_ms())
        for block in recovery.blocks:
            self.reclaimer.block_written(*block)
        state.journal = self.journal
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._closing = asyncio.Event()
        self.unread: set[int] = set()
        """Damaged blocks of which all that could be saved has been."""
        self._reusable_bytes = log.reusable_bytes()
        self._unjudged_bytes = 0
        """How much was given to the log since the last look at the disk."""
        self._is_reclaiming = False
        self._is_write_planned = False
        self._is_awaited = False
        """Somebody waits for the block that is being filled."""
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._memory_return = MemoryReturn(state)
        self._watch_timer = self._loop.call_later(0, self._watch)
        note_opened(self.journal, state, clock)

    async def close(self) -> None:
        """Make everything durable and close the log."""
        self._is_closed = True
        self._watch_timer.cancel()
        self.notices.closing()
        self._closing.set()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.failure is None:
            self._write()
        await self.committer.close()
        # The thread's last words are on the loop's list by now.
        await asyncio.sleep(0)
        await asyncio.to_thread(self._log.close)

    def stop_waiting_for_room(self) -> None:
        self.committer.stop_waiting_for_room()

    def held(self) -> Held:
        """What the broker holds in memory: what `memory_bytes_max` is held against."""
        accounts = self.journal.accounts
        messages_bytes = accounts.resident_bytes + accounts.kept_bytes + accounts.history_bytes
        return Held(
            messages_bytes,
            self._remembered.bytes,
            sum(bytes_of() for bytes_of in self.held_elsewhere),
            sum(bytes_of() for bytes_of in self.going_out),
            self._log.memory_bytes,
        )

    @property
    def resident_bytes_left(self) -> int:
        """How many more bytes of bodies stay in memory; beyond that they are paged out."""
        return max(0, self._settings.resident_bytes_max - self.journal.accounts.resident_bytes)

    # -- durability ---------------------------------------------------------------------------------------------------

    def durable(self) -> asyncio.Future[None]:
        """Done when everything noted so far is on disk."""
        if self.journal.full:
            self._write_full()
        if not self.journal.parts:
            return self.committer.wait_for(self.committer.submitted_position)
        self._is_awaited = True
        self._write_soon()
        return self.committer.wait_for(self.journal.position)

    def step_is_over(self, *, may_end_block: bool) -> None:
        """Write what is full, and see to it that the rest is written in a while even if nobody ever waits for it."""
        journal = self.journal
        if may_end_block and journal.bytes >= self._settings.block_bytes_max:
            journal.cut()
        if journal.full:
            self._write_full()
        if journal.parts and self._lazy_timer is None:
            self._lazy_timer = self._loop.call_later(LAZY_S, self._write_unawaited)

    @property
    def is_behind(self) -> bool:
        """Whether there is too much to write to take more. A log that has failed does not catch up: nobody is to wait
        for it."""
        return self.failure is None and self._waiting_bytes > self._settings.waiting_bytes_max

    @property
    def _waiting_bytes(self) -> int:
        return self.committer.waiting_bytes + self.journal.unwritten_bytes

    async def room(self) -> None:
        """Wait until the log has caught up far enough to take more."""
        while self.is_behind:
            await self.committer.wait_for(self.committer.durable_position + 1)

    def measures(self) -> LogMeasures:
        committer = self.committer
        return LogMeasures(
            sync_ms=committer.sync_ms.read(),
            block_bytes=committer.block_bytes.read(),
            sealed_position=committer.submitted_position,
            durable_position=committer.durable_position,
            waiting_bytes=self._waiting_bytes,
            kept_bytes=self.reclaimer.total_bytes,
            disk_free_bytes=committer.free_bytes,
            reusable_bytes=self._reusable_bytes,
            is_behind=self.is_behind,
            is_full=committer.is_full,
            is_reserve_spent=self._log.is_reserve_spent,
            damaged_blocks=self.notices.damaged_blocks,
            unreadable_blocks=self.notices.unreadable_blocks,
            damaged_messages=self.notices.damaged_messages,
        )

    # -- bodies -------------------------------------------------------------------------------------------------------

    def are_at_hand(self, messages: list[Message]) -> bool:
        return not self._paging.missing(messages)

    async def fetch(self, messages: list[Message]) -> None:
        """Read paged-out bodies back into their messages. A damaged block costs its messages, no others.

        When this returns, a message that still has no body is dead or gone.
        """
        damaged: set[int] = set()
        while positions := [one for one in self._paging.missing(messages) if one not in damaged]:
            position = positions[0]
            if not self._paging.has_block(position):
                try:
                    self._paging.block_read(position, await self._read(position))
                except (LogDamaged, LogDropped) as damage:
                    # What was merely reclaimed meanwhile has its body back, and another position.
                    damaged.add(position)
                    lost = [one for one in messages if one.position == position and type(one.body) is not bytes]
                    self._set_aside(position, lost, damage)
                    continue
                except LogError as error:
                    raise stopped(error) from error
            self._paging.bring_back(position, messages)

    async def _read(self, position: int) -> bytes:
        """A block; where reading it failed, some more tries: not every error lasts."""
        for wait_s in READ_AGAIN_S:
            try:
                return await asyncio.to_thread(self._log.read, position)
            except LogDamaged:
                await self._wait(wait_s)
        return await asyncio.to_thread(self._log.read, position)

    def _read_at_once(self, position: int) -> bytes:
        """As `_read`, where nothing else may happen meanwhile: as many tries, with no pause between them."""
        for _ in READ_AGAIN_S:
            with contextlib.suppress(LogDamaged):
                return self._log.read(position)
        return self._log.read(position)

    def _set_aside(self, position: int, lost: list[Message], damage: LogError) -> None:
        count = sum(message.state not in (State.DEAD, State.GONE) for message in lost)
        if lost or isinstance(damage, LogDamaged):
            self.notices.damaged(position, damage, count)
        self._on_damaged(lost, damage)

    def handed_over(self, messages: list[Message]) -> None:
        """Bodies that have gone to a consumer need not stay in memory when that is short."""
        if self._paging.is_over:
            for message in messages:
                if message.position <= self.committer.durable_position:
                    self._paging.let_go(message)

    def _read_body(self, message: Message) -> bool:
        """For the rare note that needs a paged-out body at once: read on the spot. False where it cannot be read."""
        position = message.position
        if not self._paging.has_block(position):
            try:
                self._paging.block_read(position, self._read_at_once(position))
            except LogError as error:
                if isinstance(error, (LogDamaged, LogDropped)):
                    # Whoever asks sets the message aside, unless it is dead already.
                    self._effects.damage.append((position, error, int(message.state is not State.DEAD)))
                return False
        self._paging.bring_back(position, [message])
        return type(message.body) is bytes

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _write_unawaited(self) -> None:
        self._is_awaited = True
        self._write_if_idle()

    def _write_soon(self) -> None:
        if not self._is_write_planned:
            self._is_write_planned = True
            self._loop.call_soon(self._write_if_idle)

    def _write_if_idle(self) -> None:
        self._is_write_planned = False
        if self._is_awaited and self.journal.parts and self.committer.is_idle and self.failure is None:
            self._write()

    def _write(self) -> None:
        """Write all that was noted."""
        if self.journal.parts:
            self.journal.cut()
        self._write_full()

    def _write_full(self) -> None:
        for full in self.journal.take_full():
            if self.failure is None:
                self._write_block(full)
        if not self.journal.parts:
            self._is_awaited = False
            if self._lazy_timer is not None:
                self._lazy_timer.cancel()
                self._lazy_timer = None

    def _write_block(self, full: FullBlock) -> None:
        now_ms = self._clock.now_ms()
        try:
            block = full.seal(now_ms)
        except MemoryError as error:
            # What was done cannot be written: all who wait for it have to hear that, not only whoever called.
            self.committer.fail(error)
            return
        self.reclaimer.block_written(full.position, len(block), now_ms)
        self.committer.submit(full.position, block)
        self._unjudged_bytes += len(block)
        if self._unjudged_bytes >= JUDGED_BYTES:
            self._judge()

    def _block_durable(self, position: int) -> None:
        if self._log.is_reserve_spent and self.pressure.refusal is None:
            self._judge()
        self._paging.block_durable(position)
        self.notices.written(position)
        self._write_if_idle()
        if self.reclaimer.is_overdue():
            self._begin_to_reclaim()

    def _begin_to_reclaim(self) -> None:
        if not self._is_reclaiming and not self._is_closed:
            self._is_reclaiming = True
            self._spawn(self._reclaim())

    async def _reclaim(self) -> None:
        """Give up blocks from the front while that is worth it, writing again what still lives in them, and drop those
        that are not kept for readers."""
        reclaimer = self.reclaimer
        reclaimer.begin_pass()
        given_up = 0
        try:
            while not self._is_closed and self.failure is None:
                position = reclaimer.next_to_give_up()
                if position is None or position > self.committer.durable_position:
                    break
                if reclaimer.is_pass_over(position):
                    break
                if reclaimer.needs_reading(position):
                    if reclaimer.is_space_wanted:
                        # What is written again may need the space.
                        await self._drop_unkept()
                    if not await self._relocate(position):
                        await self._drop_unkept()
                        await self._wait(RECLAIM_AGAIN_S)
                        continue
                reclaimer.given_up(position)
                given_up += 1
                if given_up % DROPPED_AT_ONCE == 0:
                    await self._drop_unkept()
            await self._drop_unkept()
        finally:
            self._is_reclaiming = False

    async def _relocate(self, position: int) -> bool:
        """Write again what lives in a block, durably. False while that cannot be done."""
        try:
            block = await self._read(position)
        except LogDamaged as damage:
            if not await self._save_unread(position, damage):
                return False
            await self.durable()
            return True
        self.notices.readable(position)
        took_s, began_s = 0.0, time.perf_counter()
        for _ in self.reclaimer.relocate(position, block):
            took_s += time.perf_counter() - began_s
            await asyncio.sleep(0)
            began_s = time.perf_counter()
        took_s += time.perf_counter() - began_s
        await self.durable()
        if not self.reclaimer.frees_space(position):
            # Only the next start has something of it.
            await self._drop_unkept()
            await self._wait(took_s * (1 / FOLD_SHARE - 1))
        return True

    async def _drop_unkept(self) -> None:
        """Tell the log from where on it is folded, and drop what nobody keeps. What ended the messages that were there
        must be on disk first."""
        fold_position = self.reclaimer.fold_position
        await self.durable()
        self.committer.fold_from(fold_position)
        self.committer.drop(self.reclaimer.drop_unkept())

    async def _save_unread(self, position: int, damage: LogDamaged) -> bool:
        """Write again, from memory, what lives in a block that cannot be read. False while bodies are in it that are
        nowhere else: then it may not be dropped. It can once their messages, which are set aside, have been removed."""
        if isinstance(damage, LogUnreadable):
            self.notices.unreadable(position, damage, RECLAIM_AGAIN_S)
            return False
        if position not in self.unread:
            self.unread.add(position)
            self._set_aside(position, self.reclaimer.relocate_unread(position), damage)
            await self.durable()
        return position not in self.journal.accounts.live

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or until the broker is closed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    # -- trouble ------------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self._on_failed(error)

    def report(self, effects: Effects) -> None:
        """Log lines about what happened in a step that is over."""
        for queue, reason in effects.take_dead_letters():
            self.notices.dead_lettered(queue, reason)
        for position, error, messages in effects.take_damage():
            self.notices.damaged(position, error, messages)

    def _watch(self) -> None:
        """A few times a second: how disk and memory stand, and whether blocks have become old, or space scarce, though
        nothing is written."""
        if self._is_closed:
            return
        self._judge()
        if self.reclaimer.has_work():
            self._begin_to_reclaim()
        if self._memory_return.is_due(self.held().total):
            self._spawn(self._memory_return.give_back())
        self._watch_timer = self._loop.call_later(self._settings.watch_interval_s, self._watch)

    def _full(self) -> None:
        self._judge()
        self.notices.waits_for_room(self.committer.durable_position + 1, self.committer.free_bytes)

    def _judge(self) -> None:
        if self.failure is not None:
            return
        try:
            free_bytes, reusable_bytes = self._log.free_bytes(), self._log.reusable_bytes()
        except LogError:
            # Its thread has met a failure, and reports it in a moment.
            return
        self.committer.free_bytes, self._reusable_bytes = free_bytes, reusable_bytes
        self._unjudged_bytes = 0
        is_spent = self._log.is_reserve_spent
        if is_spent:
            self.committer.restore_reserve()
        self.pressure.update(
            free_bytes=free_bytes,
            reusable_bytes=reusable_bytes,
            waiting_bytes=self._waiting_bytes,
            is_full=self.committer.is_full,
            is_reserve_spent=is_spent,
        )
        self.reclaimer.is_space_wanted = self.pressure.is_space_wanted
        room = {"disk_free_bytes": free_bytes, "reusable_bytes": reusable_bytes, "held_bytes": self.held().total}
        self.notices.update(refusal=self.pressure.refusal, is_reserve_spent=is_spent, room=room)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._work_done)

    def _work_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # Who waits for what was noted waits in vain from here on.
            self.committer.fail(error)
