"""The broker's heart without its loop: state, recorder, log and reclaimer, driven step by step under a false clock.

`dump` says all that a broker knows in values that compare; `World.check` replays the log and holds the two against each
other. A drop of the log's front may come undone by a crash, so the replay can be given any earlier front too.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from smista.core.claims import Claimant
from smista.core.counters import Counters
from smista.core.due import run_due
from smista.core.exchanges import Exchange
from smista.core.message import Message, State
from smista.core.queue import Queue
from smista.core.state import BrokerState, Namespace
from smista.core.trimming import keep_limits
from smista.engine.claim_records import claimant_record, commit_record
from smista.engine.clock import Clock
from smista.engine.reclaim import Reclaimer, note_opened
from smista.engine.recorder import Recorder
from smista.engine.recovery import Recovery
from smista.log import MemoryLog

START_MS = 1_700_000_000_000
EVERYTHING = 1 << 40

Dump = dict[str, object]


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
        live, replayed = dump(self.state, self.now_ms), dump(state, self.now_ms)
        if any(not queue.settings.durable for queue in self.state.queues.values()):
            # They take numbers that only the next start makes up for.
            del live["next sequence"], replayed["next sequence"]
        for part in live.keys() | replayed.keys():
            assert replayed.get(part) == live.get(part), f"{part} differs: replayed first, live second"
        if not any(not queue.settings.durable for queue in self.state.queues.values()):
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


# -- what a broker knows ----------------------------------------------------------------------------------------------


def dump(state: BrokerState, now_ms: int) -> Dump:
    """Everything a restart must keep. Queues and exchanges that are not durable are left out, with their bindings."""
    known: Dump = {"next sequence": state.next_sequence}
    for namespace in state.namespaces.values():
        for queue in namespace.queues.values():
            if queue.settings.durable:
                known.update(_queue(queue, now_ms))
        for exchange in namespace.topology.exchanges():
            if exchange.settings.durable and exchange.number:
                known[f"exchange {exchange.name}"] = (exchange.number, exchange.settings)
        known[f"bindings in {namespace.name}"] = set(_bindings(namespace))
    for number, by_name in state.claimants.items():
        if state.queues[number].settings.durable:
            known.update({f"claims of {name} in queue {number}": _claimant(one) for name, one in by_name.items()})
    for commit in state.commits.values():
        known[f"commit {commit.job} {commit.batch}"] = commit_record(commit)
    return known


def _claimant(claimant: Claimant) -> object:
    """All of it but when it was last seen, which a restart forgets."""
    return (
        claimant_record(claimant),
        {
            number: [
                (rows.first, rows.run, list(rows.sequences), list(rows.deliveries), rows.body_bytes)
                for rows in claim.rows
            ]
            for number, claim in claimant.claims.items()
        },
    )


def _queue(queue: Queue, now_ms: int) -> Iterator[tuple[str, object]]:
    name = f"queue {queue.namespace}:{queue.name}"
    yield name, (queue.number, queue.settings, queue.created_at_ms, queue.is_paused, queue.body_bytes)
    # What was refused leaves no record, so these two may go back a little.
    lost = {"duplicates", "rejected"}
    for counter in Counters.__struct_fields__:
        if counter not in lost:
            yield f"{name} {counter}", getattr(queue.counters, counter)
    for state, table in (
        (State.READY, queue.ready),
        (State.SCHEDULED, queue.scheduled),
        (State.IN_FLIGHT, queue.in_flight),
        (State.DEAD, queue.dead),
    ):
        assert all(message.state is state for message in table.values()), f"{name} has others among the {state.name}"
        yield f"{name} {state.name}", {sequence: _message(message) for sequence, message in table.items()}
    remembered = [] if queue.dedup is None else queue.dedup.items()
    yield (
        f"{name} deduplication",
        {
            key: (seen.number, seen.created_at_ms, seen.expires_at_ms)
            for key, seen in remembered
            if seen.expires_at_ms > now_ms
        },
    )


def _message(message: Message) -> dict[str, object]:
    left_out = {"position", "deadline_ms", "deliveries"}
    known = {field: getattr(message, field) for field in Message.__struct_fields__ if field not in left_out}
    known["deliveries"] = None if message.deliveries is None else msgspec.structs.astuple(message.deliveries)
    if message.state is State.IN_FLIGHT:
        known["lease until"] = message.deadline_ms
    return known


def _bindings(namespace: Namespace) -> Iterator[object]:
    def is_durable(exchange: Exchange | None) -> bool:
        return exchange is not None and exchange.settings.durable

    for binding in namespace.topology.bindings():
        if binding.destination_kind == "queue":
            queue = namespace.queues.get(binding.destination)
            has_durable_end = queue is not None and queue.settings.durable
        else:
            has_durable_end = is_durable(namespace.topology.find(binding.destination))
        if has_durable_end and is_durable(namespace.topology.find(binding.source)):
            yield binding


def accounts(recorder: Recorder) -> Dump:
    """What the recorder keeps beside the log."""
    return {
        "live": recorder.live,
        "live_total": recorder.live_total,
        "resident_bytes": recorder.resident_bytes,
        "moved": {number: message.sequence for number, message in recorder.moved_messages.items()},
    }
