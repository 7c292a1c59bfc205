"""What a consumer gets, and what a publisher gets."""

from __future__ import annotations

import msgspec

from smista.core.message import Death, Envelope, Failure, Message, Receipt
from smista.engine.ids import Ids


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One handing-over of a message. A copy: what happens to the message later does not change it."""

    receipt: Receipt
    number: int
    body: bytes
    envelope: Envelope
    priority: int
    delivery_count: int
    created_at_ms: int
    ready_at_ms: int
    delivered_at_ms: int
    lease_until_ms: int | None
    failures: tuple[Failure, ...]
    deaths: tuple[Death, ...]
    ids: Ids

    @property
    def id(self) -> str:
        return self.ids.message_id(self.number, self.created_at_ms)

    @property
    def receipt_text(self) -> str:
        """The receipt as it may leave the process."""
        return self.ids.receipt_text(self.receipt)

    @property
    def retry_count(self) -> int:
        return self.delivery_count - 1

    @property
    def is_redelivered(self) -> bool:
        return self.delivery_count > 1


def receipt_of(message: Message) -> Receipt:
    """That of its last delivery."""
    deliveries = message.deliveries
    assert deliveries is not None
    return Receipt(message.queue, message.sequence, deliveries.count, deliveries.run)


def make_delivery(message: Message, receipt: Receipt, ids: Ids) -> Delivery:
    deliveries = message.deliveries
    body = message.body
    assert deliveries is not None
    assert type(body) is bytes
    return Delivery(
        receipt,
        message.number,
        body,
        message.envelope,
        message.priority,
        deliveries.count,
        message.created_at_ms,
        message.ready_at_ms,
        deliveries.last_at_ms,
        message.deadline_ms,
        deliveries.failures,
        message.deaths,
        ids,
    )


class Published(msgspec.Struct, frozen=True, gc=False):
    """A publication that was stored (or recognised as one that had been)."""

    number: int
    created_at_ms: int
    queue: str
    position: int
    is_duplicate: bool
    ids: Ids

    @property
    def id(self) -> str:
        return self.ids.message_id(self.number, self.created_at_ms)
