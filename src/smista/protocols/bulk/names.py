"""Which number is which queue. Records name a queue by its number; numbers and names never change and are never used
again.

The broker tells the names of the queues it has. A queue that has been deleted since is found in the log: its deletion
stands behind everything else that names it, and since blocks are dropped from the front, it is kept as long as they
are. So looking forward finds it.
"""

from __future__ import annotations

import threading
import time

import msgspec

from smista.log.errors import LogError
from smista.log.records import Kind
from smista.protocols.bulk.log_file import LogFile
from smista.protocols.bulk.walking import walk

WAIT_S = 5.0
"""How long a name may take to become durable: that of a queue deleted while its last block was being read."""
LOOK_AGAIN_S = 0.05


class _Named(msgspec.Struct, array_like=True):
    """The beginning of a declaration and of a deletion."""

    number: int
    namespace: str
    name: str


_decode = msgspec.msgpack.Decoder(_Named).decode


class Names:
    def __init__(self, log: LogFile) -> None:
        self._log = log
        self._known: dict[int, tuple[str, str]] = {}
        self._looking = threading.Lock()
        self._looked_from = self._looked_to = 0

    def learn(self, queues: list[tuple[int, str, str]]) -> None:
        for number, namespace, name in queues:
            self._known[number] = (namespace, name)

    def find(self, number: int, position: int) -> tuple[str, str]:
        """Namespace and name of a queue that is named by a record of block `position`."""
        known = self._known.get(number)
        return self._look(number, position) if known is None else known

    def _look(self, number: int, position: int) -> tuple[str, str]:
        end_s = time.monotonic() + WAIT_S
        with self._looking:
            while True:
                if self._looked_from <= position <= self._looked_to:
                    position = self._looked_to
                else:
                    self._looked_from = position
                self._learn_from(position)
                known = self._known.get(number)
                if known is not None:
                    return known
                if time.monotonic() > end_s:
                    raise LogError(f"Block {position} names a queue by number {number}, whose declaration is missing.")
                time.sleep(LOOK_AGAIN_S)

    def _learn_from(self, position: int) -> None:
        for at, block in self._log.blocks(position, self._log.end()):
            for kind, start, end in walk(block):
                if kind in (Kind.QUEUE_DECLARED, Kind.QUEUE_DELETED):
                    named = _decode(memoryview(block)[start:end])
                    self._known[named.number] = (named.namespace, named.name)
            self._looked_to = at + 1
