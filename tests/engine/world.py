"""The broker's heart without its loop: state, recorder, log and reclaimer, driven step by step under a false clock.

`World.check` replays the log and compares the two brokers. A drop of the log's front may come undone by a crash, so the
replay can be given any earlier front too.
"""

from __future__ import annotations

from smista.core.due import run_due
from smista.core.message import Message, State
from smista.core.state import BrokerState
from smista.core.trimming import keep_limits
from smista.engine.clock import Clock
from smista.engine.reclaim import Reclaimer, note_opened
from smista.engine.recorder import Recorder
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
        self._open()

    # -- the log ----------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        if self.recorder.parts:
            position = self.recorder.position
            block = self.recorder.seal(self.now_ms)
            self.blocks[position] = block
            self.reclaimer.block_written(position, len(block), self.now_ms)

    def reclaim(self) -> bool:
        """Give up the oldest block as the broker does; False when there is none but the one being filled."""
        position = self.front
        if position >= self.recorder.position:
            return False
        if self.reclaimer.needs_reading(position):
            self.reclaimer.relocate(position, self.blocks[position])
            self.seal()
        self.reclaimer.dropped(position)
        self.front = position + 1
        return True

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
        state, recorder, _ = self._replay(self.front if front is None else front)
        for each in (self.state, state):
            _check_states(each)
        live, replayed = (snapshot.take(each, self.now_ms, with_bodies=True) for each in (self.state, state))
        found = snapshot.difference(live, replayed)
        assert not found, found
        if all(queue.settings.durable for queue in self.state.queues.values()):
            # Others take numbers that only the next start makes up for.
            assert state.next_sequence == self.state.next_sequence
            assert accounts(recorder) == accounts(self.recorder), "accounts differ: replayed first, live second"

    def _replay(self, front: int) -> tuple[BrokerState, Recorder, Recovery]:
        log = MemoryLog()
        for position in range(1, self.next_position):
            log.append(position, self.blocks[position])
        log.drop(front)
        state = BrokerState()
        recovery = Recovery(state, resident_bytes_max=EVERYTHING)
        recovery.replay(log, None)
        recorder = Recorder(
            log.next_position, on_first=lambda: None, on_settled=_nobody_holds, read_body=_nothing_is_paged_out
        )
        recovery.finish(recorder, self.now_ms)
        for position, size, _ in recovery.blocks:
            recorder.block_is(position, size)
        return state, recorder, recovery

    @property
    def next_position(self) -> int:
        return len(self.blocks) + 1

    def _open(self) -> None:
        clock = Clock(wall_ms=self._now, since_boot_ms=self._now, boot_id=lambda: "boot")
        self.state, self.recorder, recovery = self._replay(self.front)
        self.state.journal = self.recorder
        self.reclaimer = Reclaimer(self.state, self.recorder, clock, retention_ms=0, retention_bytes=0, slack_bytes=0)
        for block in recovery.blocks:
            self.reclaimer.block_written(*block)
        note_opened(self.recorder, self.state, clock)

    def _now(self) -> int:
        return self.now_ms


def _nobody_holds(messages: list[Message]) -> None:
    raise AssertionError(f"{len(messages)} messages are held by nobody here")


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


def accounts(recorder: Recorder) -> dict[str, object]:
    """What the recorder keeps beside the log."""
    return {
        "live": recorder.live,
        "live_total": recorder.live_total,
        "resident_bytes": recorder.resident_bytes,
        "moved": {number: message.sequence for number, message in recorder.moved_messages.items()},
    }
