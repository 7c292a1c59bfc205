"""The class connection: the handshake, and the end."""

from __future__ import annotations

from smista.protocols.amqp.wire.methods.method import (
    Bit,
    Long,
    LongString,
    Method,
    Octet,
    Short,
    ShortString,
    Table,
    method,
)


@method(10, 10)
class ConnectionStart(Method):
    version_major: Octet
    version_minor: Octet
    server_properties: Table
    mechanisms: LongString
    locales: LongString


@method(10, 11)
class ConnectionStartOk(Method):
    client_properties: Table
    mechanism: ShortString
    response: LongString
    locale: ShortString


@method(10, 20)
class ConnectionSecure(Method):
    challenge: LongString


@method(10, 21)
class ConnectionSecureOk(Method):
    response: LongString


@method(10, 30)
class ConnectionTune(Method):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@method(10, 31)
class ConnectionTuneOk(Method):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@method(10, 40)
class ConnectionOpen(Method):
    virtual_host: ShortString
    capabilities: ShortString = ""
    insist: Bit = False


@method(10, 41)
class ConnectionOpenOk(Method):
    known_hosts: ShortString = ""


@method(10, 50)
class ConnectionClose(Method):
    reply_code: Short
    reply_text: ShortString
    class_id: Short
    method_id: Short


@method(10, 51)
class ConnectionCloseOk(Method):
    pass


@method(10, 60)
class ConnectionBlocked(Method):
    reason: ShortString


@method(10, 61)
class ConnectionUnblocked(Method):
    pass


@method(10, 70)
class ConnectionUpdateSecret(Method):
    new_secret: LongString
    reason: ShortString


@method(10, 71)
class ConnectionUpdateSecretOk(Method):
    pass
