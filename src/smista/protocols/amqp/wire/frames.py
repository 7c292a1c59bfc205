"""Frames: type, channel, size, payload, end octet."""

from __future__ import annotations

import struct

from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.methods import Method

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE
END_BYTES = b"\xce"
HEAD = struct.Struct(">BHI")
HEAD_BYTES = 7
OVERHEAD = 8
FRAME_MIN = 4096
FRAME_MAX_BEFORE_LOGIN = 8_192
"""As in RabbitMQ: what a stranger sends is short."""
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + END_BYTES


def method_frame(channel: int, method: Method) -> bytes:
    return frame(METHOD, channel, methods.write(method))


def body_frames(channel: int, body: bytes, frame_max: int) -> list[bytes]:
    """The body in frames that fit; none for an empty one."""
    room = frame_max - OVERHEAD
    if len(body) <= room:
        return [frame(BODY, channel, body)] if body else []
    return [frame(BODY, channel, body[start : start + room]) for start in range(0, len(body), room)]
