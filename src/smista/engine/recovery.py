"""Recovery: what a start makes of the log, and what it finds out on the way.

Only the blocks from the fold position on are read. Of those before it, which are kept for readers of the log, a start
wants to know no more than how large and how old they are.

A start that serves a damaged log leaves out the blocks that it cannot read. That is decided once: which they are is
stored in the log before anything is served, and every later start leaves them out too, also where it could read them.
So what was confirmed since rests on the same blocks at every start. Two things follow from blocks that are left out:

- What stood in one may still stand in an older block, from which it was written again. So the fold goes back to the
  first block that is kept, if one is left out that it would have taken in, and that is stored in the same moment.
  Only then are blocks read twice.
- Numbers that were given out in one must not be given out again. Where nothing after it says how far they had come,
  they go on far ahead.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator

from smista import records
from smista.core.message import FOREVER_MS
from smista.core.state import BODY_BYTES_MAX, BrokerState
from smista.engine.fold import Fold
from smista.engine.journal import EngineJournal
from smista.engine.measures import Recovered
from smista.log import Log
from smista.log.errors import LogDamaged, LogError, LogUnreadable
from smista.records.opened import Anchor

READ_AGAIN_S = (0.01, 0.1, 0.5)
"""After which pauses a block that could not be read is tried again."""


class Recovery:
    state: BrokerState
    last_ms: int
    blocks: list[tuple[int, int, int]]
    """Position, size and time of each block that is kept."""
    fold_position: int
    """The first block that was read: those before are kept for readers of the log alone."""
    left_out: frozenset[int]
    """The blocks that are left out, since this start or an earlier one could not read them."""
    _fold: Fold

    def __init__(self, *, resident_bytes_max: int, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._resident_bytes_max = resident_bytes_max
        self._body_bytes_max = body_bytes_max
        self._left_out_times = 0
        self._folded_blocks = 0
        self._took_ms = 0

    @property
    def anchor(self) -> Anchor | None:
        """How time stood when the broker was started last."""
        return self._fold.anchor

    @property
    def has_left_bodies(self) -> bool:
        """Whether some bodies were left in the log because memory is short."""
        return self._fold.has_left_bodies

    def replay(self, log: Log, on_damage: Callable[[LogDamaged], None] | None) -> None:
        began_s = time.perf_counter()
        self.left_out = log.left_out
        self._fold_from(log.fold_position, log, on_damage)
        if self.left_out != log.left_out and log.first_position < self.fold_position:
            # Queues refer to each other in circles: what was made of the log would be in memory twice.
            del self.state, self._fold
            gc.collect()
            self._fold_from(log.first_position, log, on_damage)
        if not self.left_out and self._fold.declared.nameless:
            numbers = ", ".join(map(str, self._fold.declared.nameless))
            raise LogError(f"The log names queues whose declaration is missing (numbers {numbers}).")
        # Their declarations are damaged, their messages are not.
        self._fold.declared.name_shells(self.last_ms)
        if self.left_out != log.left_out:
            log.leave_out(self.left_out, fold_position=self.fold_position)
        self._left_out_times = log.left_out_times
        self._took_ms = round((time.perf_counter() - began_s) * 1000)

    def _fold_from(self, start: int, log: Log, on_damage: Callable[[LogDamaged], None] | None) -> None:
        self.state = BrokerState(body_bytes_max=self._body_bytes_max)
        self._fold = Fold(self.state, resident_bytes_max=self._resident_bytes_max)
        self.fold_position = start
        self.blocks = _kept_for_readers(log, start)
        self.last_ms = self._folded_blocks = 0
        for position, block in self._sound_blocks(log, on_damage):
            at_ms = records.blocks.written_at_ms(block)
            self.last_ms = max(self.last_ms, at_ms)
            self.blocks.append((position, len(block), at_ms))
            self._folded_blocks += 1
            self._fold.add(position, block)

    def _sound_blocks(self, log: Log, on_damage: Callable[[LogDamaged], None] | None) -> Iterator[tuple[int, bytes]]:
        """The blocks that are folded. With `on_damage`, those that cannot be read are left out from here on."""

        def damaged(damage: LogDamaged) -> bytes | None:
            position = damage.position
            assert position is not None
            if position in self.left_out:
                return None
            try:
                return _read_again(log, position, damage)
            except LogDamaged as lasting:
                if on_damage is None:
                    raise
                on_damage(lasting)
            self.left_out |= {position}
            return None

        for position, block in log.scan(self.fold_position, on_damage=damaged):
            if position not in self.left_out:
                yield position, block

    def summary(self) -> Recovered:
        queues = self.state.queues.values()
        return Recovered(
            queues=len(queues),
            messages=sum(queue.depth + len(queue.dead) for queue in queues),
            blocks=self._folded_blocks,
            damaged_blocks=len(self.left_out),
            took_ms=self._took_ms,
        )

    def finish(self, journal: EngineJournal, now_ms: int) -> None:
        """Build what live traffic needs beside the tables, and open the accounts."""
        if self.left_out and self._fold.opened_position < max(self.left_out):
            self._fold.pass_lost_numbers(self._left_out_times, journal.position)
        self._fold.finish(journal, now_ms)
        accounts = journal.accounts
        for queue in self.state.queues.values():
            for message in queue.messages():
                accounts.count_in(message)
                accounts.count_kept(message)
                accounts.count_history(message)
                if type(message.body) is bytes:
                    accounts.resident_bytes += len(message.body)
            journal.positions.found(queue.messages())
        journal.positions.lasting |= self._fold.lasting


def _read_again(log: Log, position: int, damage: LogDamaged) -> bytes:
    """A block that could not be read, after some more tries if that may help: not every error lasts."""
    for wait_s in READ_AGAIN_S:
        if not isinstance(damage, LogUnreadable):
            break
        time.sleep(wait_s)
        try:
            return log.read(position)
        except LogDamaged as another:
            damage = another
    raise damage


def _kept_for_readers(log: Log, end: int) -> list[tuple[int, int, int]]:
    """Position, size and time of the blocks before `end`, of which nothing is made any more. They are not read, and so
    not checked: a time that is damaged, or later than that of the next block, is taken for that one's."""
    blocks: list[tuple[int, int, int]] = []
    next_at_ms = FOREVER_MS
    # With the one at the end, for its time.
    heads = list(log.heads(log.first_position, end + 1, records.blocks.HEAD.size))
    for position, size, head in reversed(heads):
        with contextlib.suppress(LogError):
            next_at_ms = min(next_at_ms, records.blocks.written_at_ms(head))
        if position < end:
            blocks.append((position, size, next_at_ms))
    blocks.reverse()
    return blocks
