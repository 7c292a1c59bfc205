"""The broker's heart without its loop: state, recorder, log and reclaimer, driven step by step under a false clock.

`World.check` replays the log and compares the two brokers. What a crash undoes may have the next start fold from an
earlier block, so the replay can be given any earlier front too.
"""

from __future__ import annotations

from smista.core import jobs
from smista.core.due import run_due
from smista.core.message import Message, State
from smista.core.state import BrokerState
from smista.core.trimming import keep_limits
from smista.engine.clock import Clock
from smista.engine.effects import Effects
from smista.engine.journal import EngineJournal
from smista.engine.reclaim import Reclaimer, note_opened
from smista.engine.recovery import Recovery
from smista.log import MemoryLog
from tests import snapshot

START_MS = 1_700_000_000_000
EVERYTHING = 1 << 40


class World:
    def __init__(self) -> None:
        self.now_ms = START_MS
        self.blocks: dict[int, bytes] = {}
        """Every block ever written, also those that were dropped."""
        self.front = 1
        """From where on the log is folded."""
        self._open()

    # -- the log ----------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        if self.journal.parts:
            self.journal.cut()
        for full in self.journal.take_full():
            block = self.blocks[full.position] = full.seal(self.now_ms)
            self.reclaimer.block_written(full.position, len(block), self.now_ms)

    def reclaim(self) -> bool:
        """Give up the oldest block that is folded, as the broker does; False when there is none but the one being
        filled."""
        position = self.front
        if position >= self.journal.position:
            return False
        if self.reclaimer.needs_reading(position):
            for _ in self.reclaimer.relocate(position, self.blocks[position]):
                self.between_turns()
            self.seal()
        self.reclaimer.given_up(position)
        self.front = position + 1
        return True

    def between_turns(self) -> None:
        """What others do while a block is relocated: nothing, unless a test says so."""

    def restart(self) -> None:
        """Stop in order and start again from the log."""
        self.seal()
        self._open()

    # -- time ---------------------------------------------------------------------------------------------------------

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for _ in range(1000):
            if not self.state.calendar.is_behind(self.now_ms):
                return
            run_due(self.state, now_ms=self.now_ms, limit=5, chance=0.5)
            self.keep_limits()
        raise AssertionError("what is due never comes to an end")

    def keep_limits(self) -> None:
        keep_limits(self.state, serve=lambda queue, now_ms: None, now_ms=self.now_ms)

    # -- replaying ----------------------------------------------------------------------------------------------------

    def check(self, front: int | None = None) -> None:
        """Replaying the log gives an equal broker."""
        self.seal()
        while self.state.free_purged(EVERYTHING):
            pass
        state, journal, _ = self._replay(self.front if front is None else front)
        for each in (self.state, state):
            _check_states(each)
        live, replayed = (snapshot.take(each, self.now_ms, with_bodies=True) for each in (self.state, state))
        found = snapshot.difference(live, replayed)
        assert not found, found
        if all(queue.settings.durable for queue in self.state.queues.values()):
            # Others take numbers that only the next start makes up for.
            assert state.next_sequence == self.state.next_sequence
            assert accounts(journal) == accounts(self.journal), "accounts differ: replayed first, live second"

    def _replay(self, front: int) -> tuple[BrokerState, EngineJournal, Recovery]:
        log = MemoryLog()
        for position in range(1, self.next_position):
            log.append(position, self.blocks[position])
        log.fold_from(front)
        recovery = Recovery(resident_bytes_max=EVERYTHING)
        recovery.replay(log, None)
        journal = EngineJournal(
            log.next_position,
            Effects(),
            block_bytes_max=EVERYTHING,
            resident_bytes_max=EVERYTHING,
            read_body=_nothing_is_paged_out,
        )
        recovery.finish(journal, self.now_ms)
        for position, size, _ in recovery.blocks:
            journal.accounts.block_is(position, size)
        return recovery.state, journal, recovery

    @property
    def next_position(self) -> int:
        return len(self.blocks) + 1

    def _open(self) -> None:
        clock = Clock(wall_ms=self._now, since_boot_ms=self._now, boot_id=lambda: "boot")
        self.state, self.journal, recovery = self._replay(self.front)
        self.state.journal = self.journal
        self.reclaimer = Reclaimer(
            self.state,
            self.journal,
            clock,
            retention_ms=0,
            retention_bytes=0,
            slack_bytes=0,
            fold_position=recovery.fold_position,
        )
        for block in recovery.blocks:
            self.reclaimer.block_written(*block)
        note_opened(self.journal, self.state, clock)
        jobs.resume(self.state, self.now_ms)

    def _now(self) -> int:
        return self.now_ms


def _nothing_is_paged_out(message: Message) -> bool:
    raise AssertionError(f"the body of message {message.sequence} is not in memory")


def _check_states(state: BrokerState) -> None:
    for queue in state.queues.values():
        tables = {
            State.READY: queue.ready,
            State.SCHEDULED: queue.scheduled,
            State.IN_FLIGHT: queue.in_flight,
            State.DEAD: queue.dead,
        }
        for expected, table in tables.items():
            others = [message.sequence for message in table.values() if message.state is not expected]
            assert not others, f"{queue.name} has others among the {expected.name}: {others}"


def accounts(journal: EngineJournal) -> dict[str, object]:
    """What is counted beside the log."""
    return {
        "live": journal.accounts.live,
        "live_total": journal.accounts.live_total,
        "resident_bytes": journal.accounts.resident_bytes,
        "moved": {number: message.sequence for number, message in journal.positions.moved.items()},
    }
