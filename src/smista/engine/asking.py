"""What somebody asks about one queue, nothing changed: coroutines, since the queue may be in another process.

`Broker` answers at once, without waiting for anything.
"""

from __future__ import annotations

from smista.core.browsing import ANY, Wanted
from smista.core.counters import QueueStats
from smista.core.message import Receipt
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.browsing import Browsing
from smista.engine.claim_views import ClaimantView
from smista.engine.claiming import Claiming
from smista.engine.receipts import Receipts
from smista.engine.statistics import Statistics


class Asking:
    def __init__(self, statistics: Statistics, receipts: Receipts, browsing: Browsing, claiming: Claiming) -> None:
        self._statistics = statistics
        self._receipts = receipts
        self._browsing = browsing
        self._claiming = claiming

    async def stats(self, queue: str, *, namespace: str = DEFAULT_NAMESPACE) -> QueueStats:
        """As `Statistics.stats`."""
        return self._statistics.stats(queue, namespace=namespace)

    async def message_count(self, queue: str, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """As `Statistics.message_count`."""
        return self._statistics.message_count(queue, namespace=namespace)

    async def receipt_of(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Receipt:
        """As `Receipts.of_message`."""
        return self._receipts.of_message(queue, message_id, namespace=namespace)

    async def holds(
        self, queue: str, message_id: str, wanted: Wanted = ANY, *, namespace: str = DEFAULT_NAMESPACE
    ) -> bool:
        """As `Browsing.holds`."""
        return self._browsing.holds(queue, message_id, wanted, namespace=namespace)

    async def claimants(
        self, queue: str, consumer: str | None = None, *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[ClaimantView]:
        """As `Claiming.claimants`."""
        return self._claiming.claimants(queue, consumer, namespace=namespace)
