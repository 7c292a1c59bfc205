"""A subscription, and its credit: how many more unsettled deliveries it may hold, of its own and of what it shares."""

from __future__ import annotations

from collections.abc import Callable

from smista.core.message import Receipt
from smista.core.queue import Queue
from smista.engine.delivery import Delivery
from smista.errors import BrokerError

PUSHED_BYTES_MAX = 1 << 20
"""The same of what a subscription is handed at a time. It gets more as soon as it can: whoever writes to a slow reader
can have it held back in between."""


class CreditPool:
    """Credit that several subscriptions share, beside what each has of its own."""

    __slots__ = ("held", "limit", "members")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: set[tuple[int, int]] = set()
        """By queue and sequence, what counts against the limit: what members hold, and what they held when its queue
        was deleted, until whoever owns the pool lets go of it."""
        self.members: dict[Subscription, None] = {}

    @property
    def credit(self) -> int:
        return self.limit - len(self.held)

    def counts(self, receipt: Receipt) -> bool:
        """Whether this delivery counts against the limit."""
        return (receipt.queue, receipt.sequence) in self.held


class Subscription:
    """A standing consumer. `deliver` is called with each batch, on the loop; `ended` once, if the broker ends it."""

    __slots__ = (
        "channel",
        "consumer",
        "deliver",
        "ended",
        "fetching",
        "held",
        "is_cancelled",
        "is_counted",
        "is_held_back",
        "lease_ms",
        "pool",
        "prefetch",
        "priority",
        "queue",
    )

    bytes_max = PUSHED_BYTES_MAX
    several_per_group = False

    def __init__(
        self,
        queue: Queue,
        consumer: str,
        deliver: Callable[[list[Delivery]], None],
        ended: Callable[[BrokerError], None],
        *,
        prefetch: int,
        priority: int,
        lease_ms: int | None,
        pool: CreditPool | None = None,
        is_counted: bool = True,
        channel: object = None,
    ) -> None:
        self.queue = queue
        self.consumer = consumer
        self.deliver = deliver
        self.ended = ended
        self.prefetch = prefetch
        self.priority = priority
        self.lease_ms = lease_ms
        self.held: dict[int, Receipt] = {}
        """By sequence, the receipts of what it has not settled."""
        self.fetching: list[Receipt] = []
        """Those of them that have not reached it, as their bodies are being read back."""
        self.is_cancelled = False
        self.is_held_back = False
        """Its consumer cannot take more just now, whatever its credit."""
        self.pool = pool
        self.channel = self if channel is None else channel
        """What brings messages to it. To those who share one, they go in the order in which they are distributed."""
        self.is_counted = is_counted
        """Whether what it holds counts in its pool. If not, it gets what it likes while there is credit at all."""
        if pool is not None:
            pool.members[self] = None

    @property
    def credit(self) -> int:
        own = 0 if self.is_held_back else self.prefetch - len(self.held)
        if self.pool is None:
            return own
        if self.is_counted:
            return min(own, self.pool.credit)
        return own if self.pool.credit > 0 else 0

    def hold(self, sequences: list[int], receipts: list[Receipt]) -> None:
        self.held.update(zip(sequences, receipts, strict=True))
        if self.pool is not None and self.is_counted:
            self.pool.held.update((self.queue.number, sequence) for sequence in sequences)

    def let_go(self, sequences: list[int]) -> None:
        held = self.held
        for sequence in sequences:
            held.pop(sequence, None)
        if self.pool is not None and not self.queue.is_deleted:
            self.pool.held.difference_update((self.queue.number, sequence) for sequence in sequences)
