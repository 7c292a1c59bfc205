"""Which number is which queue. Records name a queue by its number; numbers and names never change and are never used
again.

The broker sends the names of the queues it has. A queue that has been deleted since is found in the log: its deletion
stands behind everything else that names it, and since blocks are dropped from the front, it is kept as long as they
are. So it is searched for forwards.
"""

from __future__ import annotations

import threading
import time

from smista import records
from smista.log import LogView
from smista.log.errors import LogError
from smista.records import Kind

WAIT_S = 5.0
"""How long a name may take to become durable: that of a queue deleted while its last block was being read."""
SEARCH_AGAIN_S = 0.05


class Names:
    def __init__(self, log: LogView) -> None:
        self._log = log
        self._known: dict[int, tuple[str, str]] = {}
        self._searching = threading.Lock()
        self._searched_from = self._searched_to = 0

    def learn(self, queues: list[tuple[int, str, str]]) -> None:
        for number, namespace, name in queues:
            self._known[number] = (namespace, name)

    def find(self, number: int, position: int) -> tuple[str, str]:
        """Namespace and name of a queue that is named by a record of block `position`."""
        known = self._known.get(number)
        return self._search(number, position) if known is None else known

    def _search(self, number: int, position: int) -> tuple[str, str]:
        end_s = time.monotonic() + WAIT_S
        with self._searching:
            while True:
                if self._searched_from <= position <= self._searched_to:
                    position = self._searched_to
                else:
                    self._searched_from = position
                self._learn_from(position)
                known = self._known.get(number)
                if known is not None:
                    return known
                if time.monotonic() > end_s:
                    raise LogError(f"Block {position} names a queue by number {number}, whose declaration is missing.")
                time.sleep(SEARCH_AGAIN_S)

    def _learn_from(self, position: int) -> None:
        for at, block in self._log.blocks(position, self._log.next_position()):
            for kind, start, end in records.blocks.walk(block):
                if kind in (Kind.QUEUE_DECLARED, Kind.QUEUE_DELETED):
                    named = records.queue_declared.decode_name(memoryview(block)[start:end])
                    self._known[named.number] = (named.namespace, named.name)
            self._searched_to = at + 1
