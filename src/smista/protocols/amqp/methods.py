"""Every method of the protocol as a structure whose annotations are its wire format."""

from __future__ import annotations

import struct
import typing
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from smista.protocols.amqp import values
from smista.protocols.amqp.values import VALUES_MAX, Reader, SyntaxFault

Octet = Annotated[int, "octet"]
Short = Annotated[int, "short"]
Long = Annotated[int, "long"]
LongLong = Annotated[int, "long_long"]
ShortString = Annotated[str, "name"]
AnyShortString = Annotated[str, "short_string"]
"""Bytes that need not be text: in methods that come with content RabbitMQ does not look."""
LongString = Annotated[bytes, "long_string"]
Bit = Annotated[bool, "bit"]
Table = Annotated[dict[str, Any], "table"]


class Method(msgspec.Struct):
    INDEX: ClassVar[tuple[int, int]]
    FIELDS: ClassVar[tuple[tuple[str, str], ...]]


METHODS: dict[tuple[int, int], type[Method]] = {}

M = TypeVar("M", bound=type[Method])


def _method(class_number: int, method_number: int) -> typing.Callable[[M], M]:
    def enter(kind: M) -> M:
        hints = typing.get_type_hints(kind, include_extras=True)
        kind.INDEX = (class_number, method_number)
        kind.FIELDS = tuple((name, hints[name].__metadata__[0]) for name in kind.__struct_fields__)
        METHODS[kind.INDEX] = kind
        return kind

    return enter


def read(payload: bytes) -> Method:
    """The method in a frame. Raises `SyntaxFault`, or `KeyError` with the index of a method nobody knows."""
    reader = Reader(payload, VALUES_MAX)
    index = (reader.short(), reader.short())
    kind = METHODS[index]
    found: list[Any] = []
    bits = bit = 0
    for _, wire in kind.FIELDS:
        if wire == "bit":
            if bit == 0:
                bits = reader.octet()
            found.append(bool(bits >> bit & 1))
            bit = (bit + 1) % 8
        else:
            bit = 0
            found.append(getattr(reader, wire)())
    if reader.position != reader.end:
        raise SyntaxFault(f"{reader.end - reader.position} bytes follow the method's arguments")
    return kind(*found)


_INTEGERS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "long_long": struct.Struct(">Q"),
}


def write(method: Method) -> bytes:
    """The payload of the method's frame."""
    parts = [struct.pack(">HH", *method.INDEX)]
    bits = bit = 0
    for name, wire in method.FIELDS:
        value = getattr(method, name)
        if wire == "bit":
            if bit == 0:
                parts.append(b"")
                bits = 0
            bits |= bool(value) << bit
            parts[-1] = bytes((bits,))
            bit = (bit + 1) % 8
            continue
        bit = 0
        if wire in _INTEGERS:
            parts.append(_INTEGERS[wire].pack(value))
        elif wire in ("name", "short_string"):
            parts.append(values.short_string(value))
        elif wire == "long_string":
            parts.append(values.long_string(value))
        else:
            parts.append(values.table(value))
    return b"".join(parts)


# -- connection -------------------------------------------------------------------------------------------------------


@_method(10, 10)
class ConnectionStart(Method):
    version_major: Octet
    version_minor: Octet
    server_properties: Table
    mechanisms: LongString
    locales: LongString


@_method(10, 11)
class ConnectionStartOk(Method):
    client_properties: Table
    mechanism: ShortString
    response: LongString
    locale: ShortString


@_method(10, 20)
class ConnectionSecure(Method):
    challenge: LongString


@_method(10, 21)
class ConnectionSecureOk(Method):
    response: LongString


@_method(10, 30)
class ConnectionTune(Method):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@_method(10, 31)
class ConnectionTuneOk(Method):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@_method(10, 40)
class ConnectionOpen(Method):
    virtual_host: ShortString
    capabilities: ShortString = ""
    insist: Bit = False


@_method(10, 41)
class ConnectionOpenOk(Method):
    known_hosts: ShortString = ""


@_method(10, 50)
class ConnectionClose(Method):
    reply_code: Short
    reply_text: ShortString
    class_id: Short
    method_id: Short


@_method(10, 51)
class ConnectionCloseOk(Method):
    pass


@_method(10, 60)
class ConnectionBlocked(Method):
    reason: ShortString


@_method(10, 61)
class ConnectionUnblocked(Method):
    pass


@_method(10, 70)
class ConnectionUpdateSecret(Method):
    new_secret: LongString
    reason: ShortString


@_method(10, 71)
class ConnectionUpdateSecretOk(Method):
    pass


# -- channel ----------------------------------------------------------------------------------------------------------


@_method(20, 10)
class ChannelOpen(Method):
    out_of_band: ShortString = ""


@_method(20, 11)
class ChannelOpenOk(Method):
    channel_id: LongString = b""


@_method(20, 20)
class ChannelFlow(Method):
    active: Bit


@_method(20, 21)
class ChannelFlowOk(Method):
    active: Bit


@_method(20, 40)
class ChannelClose(Method):
    reply_code: Short
    reply_text: ShortString
    class_id: Short
    method_id: Short


@_method(20, 41)
class ChannelCloseOk(Method):
    pass


# -- exchange ---------------------------------------------------------------------------------------------------------


@_method(40, 10)
class ExchangeDeclare(Method):
    ticket: Short
    exchange: ShortString
    kind: ShortString
    passive: Bit
    durable: Bit
    auto_delete: Bit
    internal: Bit
    no_wait: Bit
    arguments: Table


@_method(40, 11)
class ExchangeDeclareOk(Method):
    pass


@_method(40, 20)
class ExchangeDelete(Method):
    ticket: Short
    exchange: ShortString
    if_unused: Bit
    no_wait: Bit


@_method(40, 21)
class ExchangeDeleteOk(Method):
    pass


@_method(40, 30)
class ExchangeBind(Method):
    ticket: Short
    destination: ShortString
    source: ShortString
    routing_key: ShortString
    no_wait: Bit
    arguments: Table


@_method(40, 31)
class ExchangeBindOk(Method):
    pass


@_method(40, 40)
class ExchangeUnbind(Method):
    ticket: Short
    destination: ShortString
    source: ShortString
    routing_key: ShortString
    no_wait: Bit
    arguments: Table


@_method(40, 51)
class ExchangeUnbindOk(Method):
    pass


# -- queue ------------------------------------------------------------------------------------------------------------


@_method(50, 10)
class QueueDeclare(Method):
    ticket: Short
    queue: ShortString
    passive: Bit
    durable: Bit
    exclusive: Bit
    auto_delete: Bit
    no_wait: Bit
    arguments: Table


@_method(50, 11)
class QueueDeclareOk(Method):
    queue: ShortString
    message_count: Long
    consumer_count: Long


@_method(50, 20)
class QueueBind(Method):
    ticket: Short
    queue: ShortString
    exchange: ShortString
    routing_key: ShortString
    no_wait: Bit
    arguments: Table


@_method(50, 21)
class QueueBindOk(Method):
    pass


@_method(50, 30)
class QueuePurge(Method):
    ticket: Short
    queue: ShortString
    no_wait: Bit


@_method(50, 31)
class QueuePurgeOk(Method):
    message_count: Long


@_method(50, 40)
class QueueDelete(Method):
    ticket: Short
    queue: ShortString
    if_unused: Bit
    if_empty: Bit
    no_wait: Bit


@_method(50, 41)
class QueueDeleteOk(Method):
    message_count: Long


@_method(50, 50)
class QueueUnbind(Method):
    ticket: Short
    queue: ShortString
    exchange: ShortString
    routing_key: ShortString
    arguments: Table


@_method(50, 51)
class QueueUnbindOk(Method):
    pass


# -- basic ------------------------------------------------------------------------------------------------------------


@_method(60, 10)
class BasicQos(Method):
    prefetch_size: Long
    prefetch_count: Short
    is_global: Bit


@_method(60, 11)
class BasicQosOk(Method):
    pass


@_method(60, 20)
class BasicConsume(Method):
    ticket: Short
    queue: ShortString
    consumer_tag: ShortString
    no_local: Bit
    no_ack: Bit
    exclusive: Bit
    no_wait: Bit
    arguments: Table


@_method(60, 21)
class BasicConsumeOk(Method):
    consumer_tag: ShortString


@_method(60, 30)
class BasicCancel(Method):
    consumer_tag: ShortString
    no_wait: Bit


@_method(60, 31)
class BasicCancelOk(Method):
    consumer_tag: ShortString


@_method(60, 40)
class BasicPublish(Method):
    ticket: Short
    exchange: AnyShortString
    routing_key: AnyShortString
    mandatory: Bit
    immediate: Bit


@_method(60, 50)
class BasicReturn(Method):
    reply_code: Short
    reply_text: AnyShortString
    exchange: AnyShortString
    routing_key: AnyShortString


@_method(60, 60)
class BasicDeliver(Method):
    consumer_tag: AnyShortString
    delivery_tag: LongLong
    redelivered: Bit
    exchange: AnyShortString
    routing_key: AnyShortString


@_method(60, 70)
class BasicGet(Method):
    ticket: Short
    queue: ShortString
    no_ack: Bit


@_method(60, 71)
class BasicGetOk(Method):
    delivery_tag: LongLong
    redelivered: Bit
    exchange: AnyShortString
    routing_key: AnyShortString
    message_count: Long


@_method(60, 72)
class BasicGetEmpty(Method):
    cluster_id: ShortString = ""


@_method(60, 80)
class BasicAck(Method):
    delivery_tag: LongLong
    multiple: Bit


@_method(60, 90)
class BasicReject(Method):
    delivery_tag: LongLong
    requeue: Bit


@_method(60, 100)
class BasicRecoverAsync(Method):
    requeue: Bit


@_method(60, 110)
class BasicRecover(Method):
    requeue: Bit


@_method(60, 111)
class BasicRecoverOk(Method):
    pass


@_method(60, 120)
class BasicNack(Method):
    delivery_tag: LongLong
    multiple: Bit
    requeue: Bit


# -- confirm and tx ---------------------------------------------------------------------------------------------------


@_method(85, 10)
class ConfirmSelect(Method):
    no_wait: Bit


@_method(85, 11)
class ConfirmSelectOk(Method):
    pass


@_method(90, 10)
class TxSelect(Method):
    pass


@_method(90, 11)
class TxSelectOk(Method):
    pass


@_method(90, 20)
class TxCommit(Method):
    pass


@_method(90, 21)
class TxCommitOk(Method):
    pass


@_method(90, 30)
class TxRollback(Method):
    pass


@_method(90, 31)
class TxRollbackOk(Method):
    pass
