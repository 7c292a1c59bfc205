"""A client that sees everything: every frame in order, nothing retried, reconnected or hidden.

The codec is pamqp's, so that ours is held against another's. What the server does wrong or refuses comes out as text,
`channel 404 NOT_FOUND - ...` or `connection 540 ...`, which tests compare to the letter.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pamqp import base, body, frame, header
from pamqp.commands import Basic, Confirm, Connection, Exchange, Queue, Tx
from pamqp.commands import Channel as ChannelClass

from tests.waiting import PATIENCE_S

CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}
F = TypeVar("F", bound=base.Frame)
Table = Mapping[str, Any]


class Closed(Exception):
    """The server closed a channel or the connection; the text says which, and why."""


class Message:
    """A message that came: by `deliver`, `get` or `return`."""

    def __init__(self, method: Basic.Deliver | Basic.GetOk | Basic.Return, raw: bytes, content: bytes) -> None:
        self.method = method
        self.raw = raw
        """The properties as they stood on the wire, flags first."""
        self.body = content
        head = header.ContentHeader()
        head.unmarshal(struct.pack(">HHQ", 60, 0, len(content)) + raw)
        assert head.properties is not None
        self.properties: Basic.Properties = head.properties

    @property
    def tag(self) -> int:
        assert not isinstance(self.method, Basic.Return)
        assert self.method.delivery_tag is not None
        return self.method.delivery_tag

    @property
    def redelivered(self) -> bool:
        assert not isinstance(self.method, Basic.Return)
        return bool(self.method.redelivered)

    @property
    def consumer(self) -> str:
        assert isinstance(self.method, Basic.Deliver)
        return str(self.method.consumer_tag)

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})

    @property
    def deaths(self) -> list[dict[str, Any]]:
        """Its x-death, without the times."""
        return [{name: value for name, value in death.items() if name != "time"} for death in self.headers["x-death"]]


Event = base.Frame | Message


class Peer:
    """One connection."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        capabilities: Mapping[str, bool] = CAPABILITIES,
        frame_max: int = 131_072,
    ) -> None:
        self.frame_max = frame_max
        self._socket = socket.create_connection(address, PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._channels: dict[int, Channel] = {}
        self._parts: dict[int, tuple[Any, bytes, int, list[bytes]]] = {}
        self.events: deque[base.Frame] = deque()
        """What came on channel 0."""
        try:
            self._shake_hands(user, password, vhost, capabilities)
        except BaseException:
            self._socket.close()
            raise

    def _shake_hands(self, user: str, password: str, vhost: str, capabilities: Mapping[str, bool]) -> None:
        self._socket.sendall(header.ProtocolHeader().marshal())
        self._expect(Connection.Start)
        self.send(
            0,
            Connection.StartOk(
                client_properties={"product": "peer", "capabilities": dict(capabilities)},
                mechanism="PLAIN",
                response=f"\0{user}\0{password}",
                locale="en_US",
            ),
        )
        self._expect(Connection.Tune)
        self.send(0, Connection.TuneOk(channel_max=2047, frame_max=self.frame_max, heartbeat=0))
        self.send(0, Connection.Open(virtual_host=vhost))
        self._expect(Connection.OpenOk)

    def channel(self, number: int | None = None) -> Channel:
        number = number or max(self._channels, default=0) + 1
        channel = self._channels[number] = Channel(self, number)
        channel.call(ChannelClass.Open(), ChannelClass.OpenOk)
        return channel

    def send(self, number: int, *sent: frame.FrameTypes) -> None:
        self._socket.sendall(b"".join(frame.marshal(each, number) for each in sent))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        """With the handshake."""
        self.send(0, Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0))
        self._expect(Connection.CloseOk)
        self.drop()

    def drop(self) -> None:
        """Without a word."""
        self._socket.close()

    def hang_up(self) -> None:
        """From another thread: whoever waits for a frame there gets `Closed` at once."""
        with contextlib.suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def read(self) -> None:
        """Take one more frame from the socket and put it where it belongs."""
        number, kind, payload = self._frame()
        if kind == 8:
            return
        if kind == 1:
            _, _, method = frame.unmarshal(struct.pack(">BHI", 1, number, len(payload)) + payload + b"\xce")
            assert isinstance(method, base.Frame)
            if isinstance(method, (Basic.Deliver, Basic.GetOk, Basic.Return)):
                self._parts[number] = (method, b"", -1, [])
            else:
                self._method(number, method)
            return
        method, raw, size, parts = self._parts[number]
        if kind == 2:
            raw, size = payload[12:], int.from_bytes(payload[4:12], "big")
        else:
            parts.append(payload)
        if sum(map(len, parts)) < size:
            self._parts[number] = (method, raw, size, parts)
        else:
            del self._parts[number]
            self._channels[number].events.append(Message(method, raw, b"".join(parts)))

    def _frame(self) -> tuple[int, int, bytes]:
        kind, number, length = struct.unpack(">BHI", self._take(7))
        payload = self._take(length)
        assert self._take(1) == b"\xce"
        return number, kind, payload

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            data = self._socket.recv(1 << 16)
            if not data:
                raise Closed("the socket was closed")
            self._buffer += data
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _method(self, number: int, method: base.Frame) -> None:
        if isinstance(method, Connection.Close):
            self.send(0, Connection.CloseOk())
            raise Closed(f"connection {method.reply_code} {method.reply_text}")
        if isinstance(method, ChannelClass.Close):
            self.send(number, ChannelClass.CloseOk())
            self._channels[number].closed = f"channel {method.reply_code} {method.reply_text}"
        elif number == 0:
            self.events.append(method)
        else:
            self._channels[number].events.append(method)

    def _expect(self, kind: type[F]) -> F:
        while True:
            for event in self.events:
                if isinstance(event, kind):
                    self.events.remove(event)
                    return event
            self.read()


class Channel:
    def __init__(self, peer: Peer, number: int) -> None:
        self.peer = peer
        self.number = number
        self.events: deque[Event] = deque()
        self.closed = ""

    # -- plumbing -----------------------------------------------------------------------------------------------------

    def send(self, *methods: frame.FrameTypes) -> None:
        self.peer.send(self.number, *methods)

    def call(self, method: base.Frame, reply: type[F]) -> F:
        self.send(method)
        return self.expect(reply)

    def expect(self, kind: type[F]) -> F:
        """The next method of this kind; what else came before it stays for later."""
        event = self._find(lambda each: isinstance(each, kind))
        assert isinstance(event, kind)
        return event

    def next(self) -> Event:
        """Whatever comes next."""
        return self._find(lambda event: True)

    def _find(self, is_wanted: Callable[[Event], bool]) -> Event:
        while True:
            for event in self.events:
                if is_wanted(event):
                    self.events.remove(event)
                    return event
            if self.closed:
                raise Closed(self.closed)
            self.peer.read()

    def _message(self, kind: type[Basic.Deliver] | type[Basic.GetOk] | type[Basic.Return]) -> Message:
        event = self._find(lambda each: isinstance(each, Message) and isinstance(each.method, kind))
        assert isinstance(event, Message)
        return event

    def refusal(self, *methods: base.Frame) -> str:
        """Send this, and say how the server closes the channel or the connection for it."""
        self.send(*methods)
        return self.ending()

    def ending(self) -> str:
        try:
            while not self.closed:
                self.peer.read()
        except Closed as closed:
            return str(closed)
        return self.closed

    def settle(self, queue: str) -> None:
        """Return when all that this channel asked for before has reached the queue, and come back from it."""
        for _ in range(2):
            self.count(queue)

    # -- declaring ----------------------------------------------------------------------------------------------------

    def declare(self, queue: str = "", arguments: Table | None = None, /, **flags: bool) -> str:
        """With any of `passive`, `durable`, `exclusive`, `auto_delete`."""
        method = Queue.Declare(queue=queue, arguments=dict(arguments or {}), **flags)
        return str(self.call(method, Queue.DeclareOk).queue)

    def count(self, queue: str) -> tuple[int, int]:
        """Ready messages and consumers, as a passive declare tells."""
        found = self.call(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)
        return int(found.message_count or 0), int(found.consumer_count or 0)

    def exchange(self, name: str, kind: str = "direct", arguments: Table | None = None, **flags: bool) -> str:
        method = Exchange.Declare(exchange=name, exchange_type=kind, arguments=dict(arguments or {}), **flags)
        self.call(method, Exchange.DeclareOk)
        return name

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Table | None = None) -> None:
        method = Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=dict(arguments or {}))
        self.call(method, Queue.BindOk)

    def delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        deleted = self.call(Queue.Delete(queue=queue, if_unused=if_unused, if_empty=if_empty), Queue.DeleteOk)
        return int(deleted.message_count or 0)

    def purge(self, queue: str) -> int:
        return int(self.call(Queue.Purge(queue=queue), Queue.PurgeOk).message_count or 0)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(
        self, content: bytes, key: str = "", exchange: str = "", *, mandatory: bool = False, **properties: Any
    ) -> None:
        head = header.ContentHeader(body_size=len(content), properties=Basic.Properties(**properties))
        self._publish(Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory), head.marshal(), content)

    def publish_raw(self, content: bytes, raw: bytes, key: str, exchange: str = "") -> None:
        """With properties as they shall stand on the wire, flags first."""
        head = struct.pack(">HHQ", 60, 0, len(content)) + raw
        self._publish(Basic.Publish(exchange=exchange, routing_key=key), head, content)

    def _publish(self, method: Basic.Publish, head: bytes, content: bytes) -> None:
        room = self.peer.frame_max - 8
        data = frame.marshal(method, self.number)
        data += struct.pack(">BHI", 2, self.number, len(head)) + head + b"\xce"
        for start in range(0, len(content), room):
            data += frame.marshal(body.ContentBody(content[start : start + room]), self.number)
        self.peer.send_bytes(data)

    def confirm(self) -> None:
        self.call(Confirm.Select(), Confirm.SelectOk)

    def confirmed(self, up_to: int) -> list[int]:
        """Wait until every tag up to this one is answered; returns those that were refused."""
        answered: set[int] = set()
        refused: set[int] = set()
        while len(answered) < up_to:
            answer = self._find(lambda each: isinstance(each, (Basic.Ack, Basic.Nack)))
            assert isinstance(answer, (Basic.Ack, Basic.Nack))
            tag = int(answer.delivery_tag or 0)
            tags = set(range(1, tag + 1)) - answered if answer.multiple else {tag}
            answered |= tags
            if isinstance(answer, Basic.Nack):
                refused |= tags
        return sorted(refused)

    def expect_confirm(self) -> None:
        self.expect(Basic.Ack)

    def returned(self) -> Message:
        return self._message(Basic.Return)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        self.send(Basic.Get(queue=queue, no_ack=no_ack))
        answer = self._find(
            lambda each: (
                isinstance(each, Basic.GetEmpty) or (isinstance(each, Message) and isinstance(each.method, Basic.GetOk))
            )
        )
        return answer if isinstance(answer, Message) else None

    def got(self, queue: str, *, no_ack: bool = False) -> Message:
        """`get`, of a queue that has something."""
        message = self.get(queue, no_ack=no_ack)
        assert message is not None, f"{queue} is empty"
        return message

    def bodies(self, queue: str) -> list[bytes]:
        """All that is in a queue, taken out of it."""
        found = []
        while (message := self.get(queue, no_ack=True)) is not None:
            found.append(message.body)
        return found

    def consume(
        self,
        queue: str,
        tag: str = "",
        arguments: Table | None = None,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        no_local: bool = False,
    ) -> str:
        method = Basic.Consume(
            queue=queue,
            consumer_tag=tag,
            no_ack=no_ack,
            exclusive=exclusive,
            no_local=no_local,
            arguments=dict(arguments or {}),
        )
        return str(self.call(method, Basic.ConsumeOk).consumer_tag)

    def cancel(self, tag: str) -> None:
        self.call(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)

    def delivery(self) -> Message:
        return self._message(Basic.Deliver)

    def deliveries(self, count: int) -> list[Message]:
        return [self.delivery() for _ in range(count)]

    def waiting(self) -> list[bytes]:
        """Bodies that have been delivered and not been looked at; after `settle`, all there are."""
        return [event.body for event in self.events if isinstance(event, Message)]

    def qos(self, count: int, *, is_global: bool = False) -> None:
        self.call(Basic.Qos(prefetch_count=count, global_=is_global), Basic.QosOk)

    # -- settling -----------------------------------------------------------------------------------------------------

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send(Basic.Ack(delivery_tag=tag, multiple=multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.send(Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=requeue))

    def reject(self, tag: int, *, requeue: bool = False) -> None:
        self.send(Basic.Reject(delivery_tag=tag, requeue=requeue))

    # -- transactions -------------------------------------------------------------------------------------------------

    def tx(self) -> None:
        self.call(Tx.Select(), Tx.SelectOk)

    def commit(self) -> None:
        self.call(Tx.Commit(), Tx.CommitOk)

    def rollback(self) -> None:
        self.call(Tx.Rollback(), Tx.RollbackOk)

    def close(self) -> None:
        self.call(ChannelClass.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0), ChannelClass.CloseOk)


__all__ = ["Basic", "Channel", "ChannelClass", "Closed", "Confirm", "Exchange", "Message", "Peer", "Queue", "Tx"]
