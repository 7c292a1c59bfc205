"""Receipts: read from text, found by a message's id, and asked whether they can still settle a delivery."""

from __future__ import annotations

from collections.abc import Sequence

from smista.core import settling
from smista.core.message import Receipt
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.running import Running
from smista.engine.tickets import Ticket
from smista.errors import InvalidReceipt


class Receipts:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state

    def read(self, text: str) -> Receipt:
        """Read a receipt that left the process as text; `InvalidReceipt` for what this broker never gave out."""
        receipt = self._running.ids.receipt(text)
        if receipt.sequence >= self._state.next_sequence:
            raise InvalidReceipt("The receipt names a message that does not exist yet; was the data restored?")
        return receipt

    def of_message(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Receipt:
        """The receipt of whoever holds a message now: for commands that can only name the message."""
        source = self._state.queue(queue, namespace)
        return settling.receipt_for(source, self._running.find(source, message_id).sequence)

    def can_be_settled(self, receipts: Sequence[Receipt]) -> Ticket[list[bool]]:
        """Whether receipts name the last deliveries of messages and nobody has settled those; their leases may be
        over."""
        return self._running.tickets.done([self._can_be_settled(receipt) for receipt in receipts])

    def _can_be_settled(self, receipt: Receipt) -> bool:
        queue = self._state.queues.get(receipt.queue)
        message = None if queue is None else queue.find(receipt.sequence)
        deliveries = None if message is None else message.deliveries
        return deliveries is not None and deliveries.is_open and deliveries.is_named_by(receipt)
