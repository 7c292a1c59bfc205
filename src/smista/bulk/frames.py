"""What the broker and the process that reads its log send each other, over a pair of Unix sockets.

    frame = length u32 | has_connection u8 | that many bytes of MessagePack

A frame that has a connection comes with its file descriptor beside the first byte (SCM_RIGHTS). Descriptors arrive in
the order of their frames. When one side is gone, however it went, the other reads the end of the stream.

    broker:   Begin, then Learn, Read (with the client's connection) or MakePlan
    process:  Taken, and Done at the end; Planned; Refused
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque

import msgspec

from smista.service.log_reading import MakePlan, Plan, Read

HEAD = struct.Struct("<IB")
_RECEIVED_AT_ONCE = 1 << 16
_DESCRIPTORS_AT_ONCE = 64


class Begin(msgspec.Struct, tag=True):
    """What the process is there for: the first frame."""

    log: bytes
    """The `LogLocation`, pickled. Not among the arguments of the process, which anybody can see."""
    broker: int
    """The number by which message ids tell this broker from others."""
    property_modules: list[str]
    """Where the readers of properties stand, see `smista.service.properties`."""
    timeout_s: float
    """After which a reader that takes nothing is cut off."""


class Learn(msgspec.Struct, tag=True):
    """Queues that the log names by their numbers: number, namespace, name."""

    queues: list[tuple[int, str, str]]


class Taken(msgspec.Struct, tag=True):
    """The connection has arrived; the broker may let go of it."""

    id: int


class Done(msgspec.Struct, tag=True):
    """The connection is closed."""

    id: int
    rows: int
    bytes: int
    problem: str
    """Why it was closed before its end; empty when it was not."""


class Planned(msgspec.Struct, tag=True):
    id: int
    plan: Plan


class Refused(msgspec.Struct, tag=True):
    """There is no plan, because of this."""

    id: int
    code: str
    problem: str


Request = Begin | Learn | Read | MakePlan
Reply = Taken | Done | Planned | Refused

encode = msgspec.msgpack.Encoder().encode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
_decode_request = msgspec.msgpack.Decoder(Request).decode


class Inbox:
    """Frames as the process receives them, with what comes beside them."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()

    def receive(self) -> tuple[Request, socket.socket | None] | None:
        """The next frame; None when the broker is gone."""
        head = self._take(HEAD.size)
        if head is None:
            return None
        length, has_connection = HEAD.unpack(head)
        data = self._take(length)
        if data is None:
            return None
        connection = socket.socket(fileno=self._descriptors.popleft()) if has_connection else None
        return _decode_request(data), connection

    def _take(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            data, descriptors, _, _ = socket.recv_fds(self._channel, _RECEIVED_AT_ONCE, _DESCRIPTORS_AT_ONCE)
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            self._descriptors += descriptors
            if not data:
                return None
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


def frame(reply: Reply) -> bytes:
    """What the process sends."""
    data = encode(reply)
    return HEAD.pack(len(data), 0) + data
