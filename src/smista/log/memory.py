"""A log without a disk: for tests, and for brokers that may forget."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from smista.log.checksum import block_crc
from smista.log.errors import LogClosed, LogDamaged, LogDropped
from smista.log.interface import LogLocation

NAME = "memory"


class MemoryLog:
    """Blocks in a dict. It keeps and checks CRCs like every log, so that tests can damage a block here."""

    def __init__(self, *, identity: bytes | None = None) -> None:
        self._identity = os.urandom(32) if identity is None else identity
        assert len(self._identity) == 32, "an identity is 32 bytes"
        self._blocks: dict[int, tuple[int, bytes]] = {}
        self._size_bytes = 0
        self._first_position = 1
        self._fold_position = 1
        self._left_out: frozenset[int] = frozenset()
        self._left_out_times = 0
        self._next_position = 1
        self._is_closed = False

    @property
    def identity(self) -> bytes:
        return self._identity

    @property
    def first_position(self) -> int:
        return self._first_position

    @property
    def fold_position(self) -> int:
        return max(self._fold_position, self._first_position)

    @property
    def left_out(self) -> frozenset[int]:
        return frozenset(position for position in self._left_out if position >= self._first_position)

    @property
    def left_out_times(self) -> int:
        return self._left_out_times

    @property
    def next_position(self) -> int:
        return self._next_position

    def location(self) -> LogLocation | None:
        return None

    def append(self, position: int, data: bytes) -> None:
        self._check_open()
        assert position == self._next_position, f"block {position} appended where {self._next_position} is next"
        self._blocks[position] = (block_crc(position, data), data)
        self._size_bytes += len(data)
        self._next_position = position + 1

    def read(self, position: int) -> bytes:
        self._check_open()
        assert position < self._next_position, f"block {position} is read before it was written"
        # The floor is looked at after the block: the writer moves it before it removes anything.
        block = self._blocks.get(position)
        if position < self._first_position:
            raise LogDropped(NAME, position=position, first_position=self._first_position)
        if block is None:
            raise LogDamaged(NAME, position=position, what="it is missing")
        crc, data = block
        if crc != block_crc(position, data):
            raise LogDamaged(NAME, position=position, what="its CRC does not match")
        return data

    def scan(
        self, position: int, *, on_damage: Callable[[LogDamaged], bytes | None] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        self._check_open()
        assert position <= self._next_position, f"a scan from {position} starts behind the end"
        if position < self._first_position:
            raise LogDropped(NAME, position=position, first_position=self._first_position)
        return self._scan(position, self._next_position, on_damage)

    def _scan(
        self, position: int, end: int, on_damage: Callable[[LogDamaged], bytes | None] | None
    ) -> Iterator[tuple[int, bytes]]:
        for wanted in range(position, end):
            try:
                data: bytes | None = self.read(wanted)
            except LogDamaged as damage:
                if on_damage is None:
                    raise
                data = on_damage(damage)
            if data is not None:
                yield wanted, data

    def heads(self, position: int, end: int, head_bytes: int) -> Iterator[tuple[int, int, bytes]]:
        self._check_open()
        for wanted in range(position, end):
            if block := self._blocks.get(wanted):
                yield wanted, len(block[1]), block[1][:head_bytes]

    def fold_from(self, position: int) -> None:
        self._check_open()
        assert position <= self._next_position, f"a fold from {position} begins behind the end"
        self._fold_position = max(position, self._fold_position)

    def leave_out(self, positions: frozenset[int], *, fold_position: int) -> None:
        self._check_open()
        self._left_out, self._fold_position = positions, fold_position
        self._left_out_times += 1

    def drop(self, position: int) -> None:
        self._check_open()
        assert position <= self._next_position, f"a drop below {position} reaches behind the end"
        oldest, self._first_position = self._first_position, max(position, self._first_position)
        for dropped in range(oldest, self._first_position):
            if block := self._blocks.pop(dropped, None):
                self._size_bytes -= len(block[1])

    def tidy(self) -> bool:
        self._check_open()
        return False

    def size_bytes(self) -> int:
        self._check_open()
        return self._size_bytes

    @property
    def memory_bytes(self) -> int:
        return self._size_bytes

    def free_bytes(self) -> int | None:
        self._check_open()
        return None

    def reusable_bytes(self) -> int:
        return 0

    @property
    def is_reserve_spent(self) -> bool:
        return False

    def restore_reserve(self) -> bool:
        self._check_open()
        return True

    def close(self) -> None:
        self._is_closed = True
        self._blocks.clear()
        self._size_bytes = 0

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosed(NAME)
