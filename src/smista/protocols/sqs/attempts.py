"""ReceiveRequestAttemptId: on a FIFO queue a receive whose answer got lost brings the same messages when repeated.

For five minutes, and only as long as nobody has settled any of them or changed its visibility; then it is a receive
like any other.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from smista.core.message import Receipt
from smista.engine.delivery import Delivery

KEPT_MS = 300_000
KEPT_MAX = 10_000

Key = tuple[str, str, str]
"""Namespace, queue, attempt."""


class Attempt(NamedTuple):
    deliveries: list[Delivery]
    until_ms: int


class Attempts:
    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Attempt] = OrderedDict()
        self._by_receipt: dict[Receipt, Key] = {}

    def find(self, key: Key, now_ms: int) -> list[Delivery] | None:
        attempt = self._kept.get(key)
        return None if attempt is None or attempt.until_ms <= now_ms else attempt.deliveries

    def keep(self, key: Key, deliveries: list[Delivery], now_ms: int) -> None:
        self.forget(key)
        while self._kept and (len(self._kept) >= KEPT_MAX or next(iter(self._kept.values())).until_ms <= now_ms):
            self.forget(next(iter(self._kept)))
        self._kept[key] = Attempt(deliveries, now_ms + KEPT_MS)
        for delivery in deliveries:
            self._by_receipt[delivery.receipt] = key

    def forget(self, key: Key) -> None:
        attempt = self._kept.pop(key, None)
        for delivery in attempt.deliveries if attempt is not None else ():
            self._by_receipt.pop(delivery.receipt, None)

    def touched(self, receipt: Receipt) -> None:
        """Somebody did something with one of its messages: the attempt cannot be repeated any more."""
        if self._by_receipt:
            key = self._by_receipt.get(receipt)
            if key is not None:
                self.forget(key)
