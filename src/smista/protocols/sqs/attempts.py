"""ReceiveRequestAttemptId: on a FIFO queue a receive whose answer got lost brings the same messages when repeated.

For five minutes, and only as long as nobody has settled any of them or changed its visibility; then it is a receive
like any other. Only receipts are remembered: the messages are in their queue as long as an attempt can be repeated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from smista.service.values import Receipt

KEPT_MS = 300_000
KEPT_MAX = 10_000
RECEIPTS_MAX = 100_000
"""Of all attempts together."""
ATTEMPT_BYTES = 700
RECEIPT_BYTES = 250
"""In memory, with their places in both tables."""

Key = tuple[str, str, str]
"""Namespace, queue, attempt."""


class Attempt(NamedTuple):
    receipts: tuple[Receipt, ...]
    until_ms: int


class Attempts:
    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Attempt] = OrderedDict()
        self._by_receipt: dict[Receipt, Key] = {}

    def find(self, key: Key, now_ms: int) -> tuple[Receipt, ...] | None:
        attempt = self._kept.get(key)
        return None if attempt is None or attempt.until_ms <= now_ms else attempt.receipts

    def keep(self, key: Key, receipts: Iterable[Receipt], now_ms: int) -> None:
        self.forget(key)
        made = Attempt(tuple(receipts), now_ms + KEPT_MS)
        while self._kept and (
            len(self._kept) >= KEPT_MAX
            or len(self._by_receipt) + len(made.receipts) > RECEIPTS_MAX
            or next(iter(self._kept.values())).until_ms <= now_ms
        ):
            self.forget(next(iter(self._kept)))
        self._kept[key] = made
        for receipt in made.receipts:
            self._by_receipt[receipt] = key

    def forget(self, key: Key) -> None:
        attempt = self._kept.pop(key, None)
        for receipt in attempt.receipts if attempt is not None else ():
            self._by_receipt.pop(receipt, None)

    def forget_queue(self, namespace: str, queue: str) -> None:
        """It was purged or deleted."""
        for key in [key for key in self._kept if key[:2] == (namespace, queue)]:
            self.forget(key)

    def held_bytes(self) -> int:
        return len(self._kept) * ATTEMPT_BYTES + len(self._by_receipt) * RECEIPT_BYTES

    def touched(self, receipt: Receipt) -> None:
        """One of its messages was settled or changed: the attempt cannot be repeated any more."""
        if self._by_receipt:
            key = self._by_receipt.get(receipt)
            if key is not None:
                self.forget(key)
