"""Replaying the log: at every block boundary it must say what the broker knew when it sealed that block.

The *follower* folds each block as it is sealed, from the first block ever written. Beside it whole recoveries are made
the way a start makes them, from any front the log may have had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from smista import records
from smista.core.state import BrokerState
from smista.engine.effects import Effects
from smista.engine.fold import Fold
from smista.engine.journal import EngineJournal
from smista.engine.recovery import Recovery
from smista.log import Log
from smista.records import Kind
from smista.records.job_advanced import JobAdvanced
from tests import snapshot
from tests.simulation.blame import Blame
from tests.simulation.disk import Disk
from tests.simulation.ledger import Ledger, Name
from tests.snapshot import Snapshot

EVERYTHING = 1 << 40
STAGED = b"staged/"


class Replaying:
    def __init__(self, blame: Blame, disk: Disk, now: Callable[[], int], is_governing: Callable[[], bool]) -> None:
        self._blame = blame
        self._disk = disk
        self._now = now
        self._is_governing = is_governing
        """Whether queues have yet to take up a policy. Whoever starts again has it everywhere."""
        self._snapshots: dict[int, tuple[Snapshot, int]] = {}
        """By position: the live state when that block was sealed, and the time."""
        self._follower = Fold(BrokerState(), resident_bytes_max=EVERYTHING)
        self._has_stumbled = False
        self.sealed: dict[int, bytes] = {}
        """Blocks of this timeline, on disk or not yet."""
        self.staged_rows: dict[bytes, int] = {}
        """How often each staged row has entered, by its body and queue."""
        self._moved: dict[int, int] = {}
        """By job: how many messages it counts as moved."""

    # -- block by block -----------------------------------------------------------------------------------------------

    def block_sealed(self, position: int, block: bytes, state: BrokerState, now_ms: int) -> None:
        live = snapshot.take(state, now_ms, as_governed=self._is_governing())
        self._snapshots[position] = (live, now_ms)
        self.sealed[position] = block
        if self._has_stumbled:
            return
        if not self._follow(position, block):
            return
        self._follower.declared.govern()
        followed = snapshot.take(self._follower.state, now_ms, with_claims=False)
        found = snapshot.difference(snapshot.without_claims(live), followed)
        if found:
            self._has_stumbled = True
            self._blame.say("the log says something else than the broker", f"at block {position}, {found}")
        self._check_commits(position)

    def _follow(self, position: int, block: bytes) -> bool:
        try:
            self._follower.add(position, block)
            before: Kind | None = None
            for record in records.blocks.records(block):
                if record.kind is Kind.JOB_ADVANCED:
                    self._check_count(position, records.job_advanced.decode(record.data), before)
                before = record.kind
                if record.kind is Kind.ENQUEUED:
                    for entry in records.enqueued.decode(record.data):
                        if entry.body.startswith(STAGED):
                            name = entry.body + b" in %d" % entry.queue
                            self.staged_rows[name] = self.staged_rows.get(name, 0) + 1
                            if self.staged_rows[name] > 1:
                                self._blame.say("a staged row was published twice", f"{name!r} in block {position}")
        except Exception as error:
            self._has_stumbled = True
            self._blame.say("the log cannot be replayed", f"block {position}: {type(error).__name__} {error}")
            return False
        return True

    def _check_count(self, position: int, advanced: JobAdvanced, before: Kind | None) -> None:
        """A job counts one message at a time, in the block of its move."""
        added = advanced.moved - self._moved.get(advanced.sequence, 0)
        self._moved[advanced.sequence] = advanced.moved
        job = self._follower.state.jobs.get(advanced.queue, {}).get(advanced.sequence)
        # What goes out of a queue that is not durable leaves no MOVED, nor does that queue have a declaration.
        is_seen = job is not None and all(one.queue in self._follower.state.queues for one in job.plan.places)
        if added not in (0, 1) or (added and is_seen and before is not Kind.MOVED):
            what = None if before is None else before.name
            self._blame.say("a job counts wrongly", f"block {position}: {added} more, behind {what}: {advanced}")

    def _check_commits(self, position: int) -> None:
        """A staged row and the note that it is done stand in one block."""
        for commit in self._follower.state.commits.values():
            prefix = STAGED + f"{commit.job}/{commit.batch}/".encode()
            for name in self.staged_rows:
                if name.startswith(prefix) and int(name[len(prefix) :].split(b"/")[0]) >= commit.done:
                    self._blame.say(
                        "a slice is torn", f"block {position} holds row {name!r}, but {commit.done} rows count as done"
                    )
                    return

    # -- as a start does ----------------------------------------------------------------------------------------------

    def check(self, position: int, front: int) -> None:
        """A start from `front` with the block at `position` as the last one finds what was known then."""
        if position not in self._snapshots:
            return
        live, now_ms = self._snapshots[position]
        try:
            state = self._recover(position, front, now_ms)
        except Exception as error:
            self._blame.say(
                "the broker does not start again",
                f"from block {front} to {position}: {type(error).__name__} {error}",
            )
            return
        # The front may have moved since, past what was to be forgotten by then.
        known, read = (snapshot.without_forgotten(one, self._now()) for one in (live, snapshot.take(state, now_ms)))
        found = snapshot.difference(known, read)
        if found:
            self._blame.say(
                "a start finds something else than the broker knew", f"from block {front} to {position}, {found}"
            )

    def check_end(self) -> None:
        """Whole recoveries at the last block, and wherever the log had just lost its front."""
        last = self._disk.last
        self.check(last, self._disk.front)
        self.check(last, 1)
        fronts = self._disk.fronts
        for position in range(1, last):
            if fronts[position] != fronts[position - 1]:
                self.check(position, fronts[position])

    def _recover(self, position: int, front: int, now_ms: int) -> BrokerState:
        recovery = Recovery(resident_bytes_max=EVERYTHING)
        recovery.replay(cast(Log, _Part(self.sealed, front, position)), None)
        journal = EngineJournal(
            position + 1, Effects(), block_bytes_max=EVERYTHING, resident_bytes_max=EVERYTHING, read_body=_none
        )
        recovery.finish(journal, now_ms)
        return recovery.state

    # -- over a restart -----------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Only what is on disk is left."""
        last = self._disk.last
        self.sealed = {at: block for at, block in self.sealed.items() if at <= last}
        self._snapshots = {at: taken for at, taken in self._snapshots.items() if at <= last}
        self._follower = Fold(BrokerState(), resident_bytes_max=EVERYTHING)
        self.staged_rows = {}
        self._moved = {}
        if not self._has_stumbled:
            for at in range(1, last + 1):
                self._follow(at, self.sealed[at])

    def leases(self) -> dict[Name, int | None]:
        """Who holds what, and until when, at the end of the log."""
        return Ledger.leases_in(self._follower.state)


class _Part:
    """A part of the log, as far as a recovery looks at it."""

    def __init__(self, blocks: dict[int, bytes], front: int, position: int) -> None:
        self.first_position = self.fold_position = front
        self.left_out: frozenset[int] = frozenset()
        self.left_out_times = 0
        self._blocks = blocks
        self._position = position

    def heads(self, position: int, end: int, head_bytes: int) -> Iterator[tuple[int, int, bytes]]:
        return iter(())

    def scan(self, front: int, *, on_damage: object = None) -> Iterator[tuple[int, bytes]]:
        for at in range(front, self._position + 1):
            yield at, self._blocks[at]


def _none(message: object) -> bool:
    raise AssertionError("nothing is paged out here")
