"""One channel: what each method does, and what the channel holds.

    publishing         messages go to the connection's `publisher`, or wait for the commit; then see `outcomes`
    consuming          basic.qos, consume, cancel; each consumer's deliveries
    acknowledgements   basic.ack, nack, reject, recover: of what is unacked
    getting            basic.get
    queues, exchanges  what is declared, bound, purged and deleted
    transaction        once there was tx.select

Publishes and settlements are done at once, on the loop. What is declared has to be on disk before it is answered: such
a method is a coroutine, and the connection looks at no further frame until it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from smista.errors import BrokerError
from smista.protocols.amqp.channel import exchanges
from smista.protocols.amqp.channel.acknowledgements import Acknowledgements
from smista.protocols.amqp.channel.consuming import Consuming
from smista.protocols.amqp.channel.getting import get
from smista.protocols.amqp.channel.outcomes import Outcomes
from smista.protocols.amqp.channel.prepared import Prepared
from smista.protocols.amqp.channel.publisher import Publisher
from smista.protocols.amqp.channel.queues import Queues
from smista.protocols.amqp.channel.run import Run
from smista.protocols.amqp.channel.target import Target
from smista.protocols.amqp.channel.transaction import Transaction
from smista.protocols.amqp.client import Client, Later
from smista.protocols.amqp.errors import closing
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.channel import ChannelState
from smista.protocols.amqp.wire.methods import Method
from smista.protocols.amqp.wire.replies import (
    COMMAND_INVALID,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelClosing,
    ConnectionClosing,
)
from smista.service.values import Receipt, Subscription


class Channel:
    __slots__ = (
        "acknowledge",
        "acknowledgements",
        "client",
        "consuming",
        "count_per_step",
        "outcomes",
        "publisher",
        "queues",
        "state",
        "targets",
        "transaction",
    )

    def __init__(self, client: Client, publisher: Publisher, state: ChannelState) -> None:
        self.client = client
        self.publisher = publisher
        self.state = state
        self.targets = publisher.targets
        self.outcomes = Outcomes(state)
        self.queues = Queues(client)
        self.acknowledgements = Acknowledgements(client, state)
        self.consuming = Consuming(client, state, self.queues, self.acknowledgements)
        self.transaction: Transaction | None = None
        # Called for each message, or nearly.
        self.acknowledge = self.acknowledgements.acknowledge
        self.count_per_step = publisher.count_per_step

    # -- publishing ---------------------------------------------------------------------------------------------------

    def target(self, payload: bytes) -> Target:
        target = self.targets.known.get(payload) or self.targets.read(payload)
        client = self.client
        if not client.has_published:
            client.has_published = True
            if client.service.refusal is not None:
                client.driver.block()
        return target

    def prepare(self, target: Target, raw: bytes) -> Prepared:
        return self.targets.prepare(target, raw, self.consuming.reply_token)

    def publish(self, target: Target, prepared: Prepared, bodies: list[bytes], properties: list[bytes]) -> None:
        """Publish messages that are whole, or keep them for the commit."""
        if not target.is_enough(prepared):
            # An exchange on the way looks at headers since the content header came.
            prepared = self.prepare(target, properties[0])
        queues = self.publisher.route(target, prepared)
        run = Run(target, prepared.terms, bodies, prepared.envelopes(properties))
        if self.transaction is not None:
            self.transaction.publish(run, queues)
        else:
            self.publisher.publish(self.outcomes, run, queues)

    # -- methods ------------------------------------------------------------------------------------------------------

    def method(self, method: Method) -> None:
        if type(method) in _ENGAGING:
            self.client.engaged[self] = None
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise ConnectionClosing(COMMAND_INVALID, "unimplemented method")
        try:
            work = handler(self, method)
        except BrokerError as error:
            raise closing(error) from None
        if work is not None:
            self.client.driver.hold(self._finish(method, work))

    async def _finish(self, method: Method, work: Later) -> None:
        client = self.client
        try:
            try:
                await work
            except BrokerError as error:
                raise closing(error) from None
        except ChannelClosing as error:
            client.connection.close_channel(self.state, error, method.INDEX)
        except ConnectionClosing as error:
            error.ids = error.ids or method.INDEX
            raise
        finally:
            if not self.state.is_open:
                # Gone meanwhile: what it got all the same goes back.
                client.leave(*self.let_go())
                client.driver.flush()
                await client.until_done()

    def flow(self, method: methods.ChannelFlow) -> None:
        if not method.active:
            raise ConnectionClosing(NOT_IMPLEMENTED, "active=false")
        self.state.send(methods.ChannelFlowOk(True))

    def cancel(self, method: methods.BasicCancel) -> None:
        if self.consuming.is_for_replies(method.consumer_tag):
            self._forget_replies()
        else:
            self.consuming.cancel(method.consumer_tag)
        if not method.no_wait:
            self.state.send(methods.BasicCancelOk(method.consumer_tag))

    def _forget_replies(self) -> None:
        self.consuming.forget_replies()
        # That may hold the token.
        self.client.connection.forget_patterns()

    def get(self, method: methods.BasicGet) -> Later:
        return get(self.client, self.state, self.queues, self.acknowledgements.unacked, method)

    def tx_select(self, method: methods.TxSelect) -> None:
        self.outcomes.select_transactions()
        if self.transaction is None:
            self.transaction = Transaction(self.client, self.publisher, self.outcomes, self.acknowledgements)
            self.acknowledgements.transaction = self.transaction
        self.state.send(methods.TxSelectOk())

    async def tx_commit(self, method: methods.TxCommit) -> None:
        await self._selected().commit()
        if not self.state.is_closing:
            self.state.send(methods.TxCommitOk())

    def tx_roll_back(self, method: methods.TxRollback) -> Later | None:
        work = self._selected().roll_back()
        if work is not None:
            return self._rolled_back(work)
        self.state.send(methods.TxRollbackOk())
        return None

    async def _rolled_back(self, work: Later) -> None:
        await work
        if not self.state.is_closing:
            self.state.send(methods.TxRollbackOk())

    def _selected(self) -> Transaction:
        if self.transaction is None:
            raise ChannelClosing(PRECONDITION_FAILED, "channel is not transactional")
        return self.transaction

    async def answer(self, work: Coroutine[Any, Any, Method], *, no_wait: bool) -> None:
        client = self.client
        cancelled: list[Callable[[], None]] = []
        client.cancelled = cancelled
        try:
            reply = await work
            if not no_wait:
                self.state.send(reply)
        finally:
            client.cancelled = None
            for send_cancelled in cancelled:
                send_cancelled()

    # -- the end ------------------------------------------------------------------------------------------------------

    def closed(self) -> None:
        client = self.client
        client.driver.flush()
        client.leave(*self.let_go())
        if client.has_under_way:
            client.driver.hold(self._agree())
        else:
            self.state.send(methods.ChannelCloseOk())

    async def _agree(self) -> None:
        # When all is back, which `hold` waits for.
        self.state.send(methods.ChannelCloseOk())

    def failed(self, error: ChannelClosing) -> None:
        client = self.client
        client.shared.closing_channels.note(error.log_text, client.address)
        client.driver.flush()
        client.leave(*self.let_go())
        client.driver.hold_until_done()

    def let_go(self) -> tuple[list[Subscription], list[Receipt]]:
        """Who consumes here and what is held, for the client to give back; nothing stays."""
        self.client.engaged.pop(self, None)
        self._forget_replies()
        if self.transaction is not None:
            self.transaction.drop()
        return self.consuming.let_go(), list(self.acknowledgements.unacked.take_all().values())

    def leave(self) -> tuple[list[Subscription], list[Receipt]]:
        """As `let_go`; what is under way here learns that the channel is gone."""
        self.state.leave()
        return self.let_go()


def _declaring(
    work: Callable[[Channel, Any], Coroutine[Any, Any, Method]],
) -> Callable[[Channel, Any], Later]:
    """A handler that is answered when what it declares is on disk."""

    def handle(channel: Channel, method: Any) -> Later:
        return channel.answer(work(channel, method), no_wait=getattr(method, "no_wait", False))

    return handle


_ENGAGING = frozenset((methods.BasicConsume, methods.BasicGet, methods.TxSelect))
"""After one of these a channel may hold something at the broker."""
_HANDLERS: dict[type[Method], Callable[[Channel, Any], Later | None]] = {
    methods.ChannelFlow: Channel.flow,
    methods.ExchangeDeclare: _declaring(lambda channel, method: exchanges.declare(channel.client.session, method)),
    methods.ExchangeDelete: _declaring(lambda channel, method: exchanges.delete(channel.client.session, method)),
    methods.ExchangeBind: _declaring(lambda channel, method: exchanges.bind(channel.client.session, method)),
    methods.ExchangeUnbind: _declaring(lambda channel, method: exchanges.unbind(channel.client.session, method)),
    methods.QueueDeclare: _declaring(lambda channel, method: channel.queues.declare(method)),
    methods.QueueBind: _declaring(lambda channel, method: channel.queues.bind(method)),
    methods.QueueUnbind: _declaring(lambda channel, method: channel.queues.unbind(method)),
    methods.QueuePurge: _declaring(lambda channel, method: channel.queues.purge(method)),
    methods.QueueDelete: _declaring(lambda channel, method: channel.queues.delete(method)),
    methods.BasicQos: lambda channel, method: channel.consuming.qos(method),
    methods.BasicConsume: lambda channel, method: channel.consuming.consume(method),
    methods.BasicCancel: Channel.cancel,
    methods.BasicGet: Channel.get,
    methods.BasicAck: lambda channel, method: channel.acknowledgements.ack(method),
    methods.BasicNack: lambda channel, method: channel.acknowledgements.nack(method),
    methods.BasicReject: lambda channel, method: channel.acknowledgements.reject(method),
    methods.BasicRecover: lambda channel, method: channel.acknowledgements.recover(method),
    methods.BasicRecoverAsync: lambda channel, method: channel.acknowledgements.recover(method),
    methods.ConfirmSelect: lambda channel, method: channel.outcomes.select(method),
    methods.TxSelect: Channel.tx_select,
    methods.TxCommit: Channel.tx_commit,
    methods.TxRollback: Channel.tx_roll_back,
}
