"""What a channel settles: basic.ack, nack, reject and recover, of what it has `unacked`, by delivery tag.

At once, or, where it is very much, in slices; the connection is read on when it is done. In a transaction it waits for
the commit, see `transaction`. An unknown tag closes the channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from smista.protocols.amqp.channel.unacked import Settlement, Unacked
from smista.protocols.amqp.client import Client
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.channel import ChannelState
from smista.protocols.amqp.wire.methods import Method
from smista.protocols.amqp.wire.replies import NOT_IMPLEMENTED, ConnectionClosing
from smista.service.values import Receipt, SharedCredit, Ticket


class Postponed(Protocol):
    """A transaction, to which settling is put off."""

    def settle(self, settlement: Settlement, taken: dict[int, Receipt]) -> None: ...


class Acknowledgements:
    __slots__ = ("_channel", "_client", "shared", "transaction", "unacked")

    def __init__(self, client: Client, channel: ChannelState) -> None:
        self._client = client
        self._channel = channel
        self.unacked = Unacked(self._look_at)
        self.shared: SharedCredit | None = None
        """A prefetch for all consumers of the channel together."""
        self.transaction: Postponed | None = None

    def acknowledge(self, tag: int, multiple: bool) -> None:
        """Hot: most of what a consumer sends."""
        taken = self.unacked.take(tag, multiple)
        if self.transaction is not None:
            self.transaction.settle(Settlement.ACK, taken)
        else:
            if self.shared is not None:
                self.shared.let_go(taken.values())
            self._client.acknowledge(taken.values())

    def ack(self, method: methods.BasicAck) -> None:
        self.acknowledge(method.delivery_tag, method.multiple)

    def nack(self, method: methods.BasicNack) -> None:
        self._give_back(self.unacked.take(method.delivery_tag, method.multiple), requeue=method.requeue)

    def reject(self, method: methods.BasicReject) -> None:
        self._give_back(self.unacked.take(method.delivery_tag, False), requeue=method.requeue)

    def _give_back(self, taken: dict[int, Receipt], *, requeue: bool) -> None:
        settlement = Settlement.REQUEUE if requeue else Settlement.REJECT
        if self.transaction is not None:
            self.transaction.settle(settlement, taken)
        else:
            self.settle(settlement, taken)

    def recover(self, method: methods.BasicRecover | methods.BasicRecoverAsync) -> None:
        if not method.requeue:
            raise ConnectionClosing(NOT_IMPLEMENTED, "requeue=false")
        is_answered = isinstance(method, methods.BasicRecover)
        self.settle(Settlement.REQUEUE, self.unacked.take_all(), methods.BasicRecoverOk() if is_answered else None)

    def settle(self, settlement: Settlement, taken: dict[int, Receipt], reply: Method | None = None) -> None:
        """Settle at once, or, where they are very many, in slices: the next frame is looked at when that is done. Then
        it is answered, before anybody gets what goes back."""
        client, channel = self._client, self._channel
        receipts = list(taken.values())
        client.has_settled = True
        if self.shared is not None:
            self.shared.let_go(receipts)

        def settled(ticket: Ticket[object]) -> None:
            ticket.result()
            if reply is not None and not channel.is_closing:
                channel.send(reply)

        ticket = self._submit(settlement, receipts)
        client.unanswered.add(ticket)
        client.do_first(ticket, settled)

    def _submit(self, settlement: Settlement, receipts: Sequence[Receipt]) -> Ticket[object]:
        session = self._client.session
        match settlement:
            case Settlement.ACK:
                return session.acknowledge(receipts)
            case Settlement.REQUEUE:
                return session.nack(receipts, delay_ms=0)
            case Settlement.REJECT:
                return session.nack(receipts, requeue=False)

    def _look_at(self, held: dict[int, Receipt]) -> None:
        """Forget those of which settling would change nothing, not even what counts against the channel's prefetch."""

        def known(ticket: Ticket[list[bool]]) -> None:
            if ticket.error is None:
                shared = self.shared
                self.unacked.forget(
                    tag
                    for (tag, receipt), can_be_settled in zip(held.items(), ticket.result(), strict=True)
                    if not can_be_settled and (shared is None or not shared.counts(receipt))
                )

        self._client.session.can_be_settled(list(held.values())).when_known(known)
