"""Keeping: everything between the broker's state and its log.

Notes fill a block; blocks are sealed and handed to the log's thread; when one is durable, those who waited for it are
answered, bodies may be let go, and the front of the log may be reclaimed. A failed log ends all of this for good.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

import msgspec

from smista.core.message import Message, State
from smista.core.state import BrokerState
from smista.engine.clock import Clock
from smista.engine.commit import Committer
from smista.engine.measures import KeptFor, LogMeasures, LogRange, LogSpace
from smista.engine.memory import MemoryReturn
from smista.engine.notices import Notices
from smista.engine.paging import Paging
from smista.engine.pressure import Held, Pressure, half_of_memory
from smista.engine.reclaim import Reclaimer, note_opened
from smista.engine.recorder import Recorder
from smista.engine.recovery import Recovery
from smista.engine.settings import BrokerSettings
from smista.errors import stopped
from smista.log import Log
from smista.log.errors import LogDamaged, LogDropped, LogError, LogUnreadable

DROPPED_AT_ONCE = 16
READ_AGAIN_S = (0.01, 0.1, 0.5)
"""After which pauses a block that could not be read is tried again ..."""
RECLAIM_AGAIN_S = 5.0
"""... and after which once more, for as long as it takes, where its space is wanted."""
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
        state: BrokerState,
        recovery: Recovery,
        *,
        on_settled: Callable[[list[Message]], None],
        on_failed: Callable[[BaseException], None],
        on_damaged: Callable[[list[Message], LogError], None],
    ) -> None:
        self._log = log
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._on_failed = on_failed
        self._on_damaged = on_damaged
        self.failure: BaseException | None = None
        self._notices = Notices(recovery.damaged_blocks)
        self.recorder = Recorder(
            log.next_position,
            on_first=self._seal_some_time,
            on_settled=on_settled,
            read_body=self._read_body,
            on_between=self.seal_if_large,
            on_dead_letter=self._notices.dead_lettered,
        )
        self._committer = Committer(log, on_durable=self._block_durable, on_full=self._full, on_failed=self._failed)
        self._reclaimer = Reclaimer(
            state,
            self.recorder,
            clock,
            retention_ms=settings.log_retention_ms,
            retention_bytes=settings.log_retention_bytes,
            slack_bytes=settings.log_slack_bytes,
        )
        self._paging = Paging(state, self.recorder, resident_bytes_max=settings.resident_bytes_max)
        self._remembered = state.remembered
        self.pressure = Pressure(
            disk_free_bytes_min=settings.disk_free_bytes_min,
            memory_bytes_max=settings.memory_bytes_max or half_of_memory(),
            held=self.held,
        )
        self.held_elsewhere: list[Callable[[], int]] = []
        """What protocols hold that has not become messages yet, in bytes ..."""
        self.going_out: list[Callable[[], int]] = []
        """... and what was delivered or answered and waits for its reader."""
        self._paging.has_let_go = recovery.has_left_bodies
        recovery.finish(self.recorder, clock.now_ms())
        for block in recovery.blocks:
            self._reclaimer.block_written(*block)
        state.journal = self.recorder
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._closing = asyncio.Event()
        self._unread: set[int] = set()
        """Damaged blocks of which all that could be saved has been."""
        self._reusable_bytes = log.reusable_bytes()
        self._unjudged_bytes = 0
        """How much was given to the log since the last look at the disk."""
        self._is_reclaiming = False
        self._is_seal_planned = False
        self._is_awaited = False
        """Somebody waits for the block that is being filled."""
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._memory_return = MemoryReturn(state)
        self._watch_timer = self._loop.call_later(0, self._look_around)
        note_opened(self.recorder, state, clock)

    async def close(self) -> None:
        """Make everything durable and close the log."""
        self._is_closed = True
        self._watch_timer.cancel()
        self._notices.closing()
        # Whatever waits for a disk that is full waits in vain from here on, also the tasks.
        self._committer.stop_waiting_for_room()
        self._closing.set()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.failure is None and self.recorder.parts:
            self._seal()
        await self._committer.close()
        # The thread's last words are on the loop's list by now.
        await asyncio.sleep(0)
        await asyncio.to_thread(self._log.close)

    def stop_waiting_for_room(self) -> None:
        self._committer.stop_waiting_for_room()

    def held(self) -> Held:
        """What the broker holds in memory: what `memory_bytes_max` is held against."""
        recorder = self.recorder
        messages_bytes = recorder.resident_bytes + recorder.kept_bytes + recorder.history_bytes
        return Held(
            messages_bytes,
            self._remembered.bytes,
            sum(bytes_of() for bytes_of in self.held_elsewhere),
            sum(bytes_of() for bytes_of in self.going_out),
        )

    @property
    def resident_bytes_left(self) -> int:
        """How many more bytes of bodies stay in memory; beyond that they are paged out."""
        return max(0, self._settings.resident_bytes_max - self.recorder.resident_bytes)

    # -- durability ---------------------------------------------------------------------------------------------------

    def durable(self) -> asyncio.Future[None]:
        """Done when everything noted so far is on disk."""
        if not self.recorder.parts:
            return self._committer.wait_for(self._committer.submitted_position)
        self._is_awaited = True
        self._seal_soon()
        return self._committer.wait_for(self.recorder.position)

    def seal_if_large(self) -> None:
        """To be called only between transitions: what is noted so far becomes durable without what follows."""
        if self.recorder.bytes >= self._settings.block_bytes_max and self.failure is None:
            self._seal()

    @property
    def is_behind(self) -> bool:
        return self._waiting_bytes > self._settings.waiting_bytes_max

    @property
    def _waiting_bytes(self) -> int:
        return self._committer.waiting_bytes + self.recorder.bytes

    async def room(self) -> None:
        """Wait until the log has caught up far enough to take more."""
        while self.is_behind and self.failure is None:
            await self._committer.wait_for(self._committer.durable_position + 1)

    @property
    def log_bytes(self) -> int:
        """The size of all blocks that are kept."""
        return self._reclaimer.total_bytes

    @property
    def is_full(self) -> bool:
        """Whether a block waits for room on a full disk, and with it everybody who waits for the log."""
        return self._committer.is_full

    def log_range(self) -> LogRange:
        """What of the log can be read. What is about to be dropped is not counted in."""
        end = self._committer.durable_position + 1
        kept = self._reclaimer.kept(end)
        if kept is None:
            return LogRange(end, end, None, None)
        return LogRange(kept[0].position, end, kept[0].at_ms, kept[1].at_ms)

    def log_space(self) -> LogSpace:
        """How much the log holds, and why it is not less."""
        space = self._reclaimer.space()
        oldest = self._reclaimer.next_block()
        if oldest is not None and (oldest in self._unread or self._notices.is_unreadable(oldest)):
            return msgspec.structs.replace(space, kept_for=KeptFor.DAMAGE)
        return space

    def log_position_at(self, at_ms: int) -> int:
        """The first durable block written at or after that time; the next one to come where all are older."""
        end = self._committer.durable_position + 1
        found = self._reclaimer.first_since(at_ms)
        return end if found is None else min(found, end)

    def measures(self) -> LogMeasures:
        committer = self._committer
        return LogMeasures(
            sync_ms=committer.sync_ms.read(),
            block_bytes=committer.block_bytes.read(),
            sealed_position=committer.submitted_position,
            durable_position=committer.durable_position,
            waiting_bytes=self._waiting_bytes,
            kept_bytes=self.log_bytes,
            disk_free_bytes=committer.free_bytes,
            reusable_bytes=self._reusable_bytes,
            is_behind=self.is_behind,
            is_full=self.is_full,
            is_reserve_spent=self._log.is_reserve_spent,
            damaged_blocks=self._notices.damaged_blocks,
            unreadable_blocks=self._notices.unreadable_blocks,
            damaged_messages=self._notices.damaged_messages,
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
            self._notices.damaged(position, damage, count)
        self._on_damaged(lost, damage)

    def handed_over(self, messages: list[Message]) -> None:
        """Bodies that have gone to a consumer need not stay in memory when that is short."""
        if self._paging.is_over:
            for message in messages:
                if message.position <= self._committer.durable_position:
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
                    self._notices.damaged(position, error, int(message.state is not State.DEAD))
                return False
        self._paging.bring_back(position, [message])
        return type(message.body) is bytes

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _seal_some_time(self) -> None:
        """A block has got its first note: it is written in a while even if nobody ever waits for it."""
        self._lazy_timer = self._loop.call_later(LAZY_S, self._seal_unawaited)

    def _seal_unawaited(self) -> None:
        self._is_awaited = True
        self._seal_if_idle()

    def _seal_soon(self) -> None:
        if not self._is_seal_planned:
            self._is_seal_planned = True
            self._loop.call_soon(self._seal_if_idle)

    def _seal_if_idle(self) -> None:
        self._is_seal_planned = False
        if self._is_awaited and self.recorder.parts and self._committer.is_idle and self.failure is None:
            self._seal()

    def _seal(self) -> None:
        self._is_awaited = False
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
            self._lazy_timer = None
        position = self.recorder.position
        now_ms = self._clock.now_ms()
        try:
            block = self.recorder.seal(now_ms)
        except MemoryError as error:
            # What was done cannot be written: all who wait for it have to hear that, not only whoever called.
            self._committer.fail(error)
            return
        self._paging.block_sealed(position)
        self._reclaimer.block_written(position, len(block), now_ms)
        self._committer.submit(position, block)
        self._unjudged_bytes += len(block)
        if self._unjudged_bytes >= JUDGED_BYTES:
            self._judge()

    def _block_durable(self, position: int) -> None:
        if self._log.is_reserve_spent and self.pressure.refusal is None:
            self._judge()
        self._paging.block_durable(position)
        self._notices.written(position)
        self._seal_if_idle()
        self._reclaim_if_worth()

    def _reclaim_if_worth(self) -> None:
        if not self._is_reclaiming and not self._is_closed and self._reclaimer.next_block() is not None:
            self._is_reclaiming = True
            self._spawn(self._reclaim())

    async def _reclaim(self) -> None:
        """Drop blocks from the front while that is worth it, writing again what still lives in them."""
        floor = None
        self._reclaimer.begin_pass()
        try:
            while not self._is_closed and self.failure is None:
                position = self._reclaimer.next_block()
                if position is None or position > self._committer.durable_position:
                    break
                if self._reclaimer.is_pass_over(position):
                    break
                if self._reclaimer.needs_reading(position):
                    if floor is not None and self._reclaimer.is_space_wanted:
                        # What is written again may need the space.
                        await self._drop(floor)
                    try:
                        block = await self._read(position)
                    except LogDamaged as damage:
                        if not await self._save_unread(position, damage):
                            await self._drop(position)
                            await self._wait(RECLAIM_AGAIN_S)
                            continue
                    else:
                        self._notices.readable(position)
                        self._reclaimer.relocate(position, block)
                    await self.durable()
                self._reclaimer.dropped(position)
                floor = position + 1
                if floor % DROPPED_AT_ONCE == 0:
                    await self._drop(floor)
            if floor is not None:
                await self._drop(floor)
        finally:
            self._is_reclaiming = False

    async def _drop(self, floor: int) -> None:
        """Drop the log's blocks below `floor`. What ended the messages that were in them must be on disk first."""
        await self.durable()
        self._committer.drop(floor)

    async def _save_unread(self, position: int, damage: LogDamaged) -> bool:
        """Write again, from memory, what lives in a block that cannot be read. False while bodies are in it that are
        nowhere else: then it may not be dropped. It can once their messages, which are set aside, have been removed."""
        if isinstance(damage, LogUnreadable):
            self._notices.unreadable(position, damage, RECLAIM_AGAIN_S)
            return False
        if position not in self._unread:
            self._unread.add(position)
            self._set_aside(position, self._reclaimer.relocate_unread(position), damage)
            await self.durable()
        return position not in self.recorder.live

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or until the broker is closed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    # -- trouble ------------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self._on_failed(error)

    def _look_around(self) -> None:
        """A few times a second: how disk and memory stand, and whether blocks have become old, or space scarce, though
        nothing is written."""
        if self._is_closed:
            return
        self._judge()
        self._reclaim_if_worth()
        if self._memory_return.is_due(self.held().total):
            self._spawn(self._memory_return.give_back())
        self._watch_timer = self._loop.call_later(self._settings.watch_interval_s, self._look_around)

    def _full(self) -> None:
        self._judge()
        self._notices.waits_for_room(self._committer.durable_position + 1, self._committer.free_bytes)

    def _judge(self) -> None:
        if self.failure is not None:
            return
        try:
            free_bytes, reusable_bytes = self._log.free_bytes(), self._log.reusable_bytes()
        except LogError:
            # Its thread has met a failure, and reports it in a moment.
            return
        self._committer.free_bytes, self._reusable_bytes = free_bytes, reusable_bytes
        self._unjudged_bytes = 0
        is_spent = self._log.is_reserve_spent
        if is_spent:
            self._committer.restore_reserve()
        self.pressure.look(
            free_bytes=free_bytes,
            reusable_bytes=reusable_bytes,
            waiting_bytes=self._waiting_bytes,
            is_full=self._committer.is_full,
            is_reserve_spent=is_spent,
        )
        self._reclaimer.is_space_wanted = self.pressure.is_space_wanted
        room = {"disk_free_bytes": free_bytes, "reusable_bytes": reusable_bytes, "held_bytes": self.held().total}
        self._notices.looked(refusal=self.pressure.refusal, is_reserve_spent=is_spent, room=room)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._work_done)

    def _work_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)
