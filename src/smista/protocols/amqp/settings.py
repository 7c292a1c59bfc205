"""What a server of AMQP offers and allows."""

from __future__ import annotations

import msgspec

FRAME_MAX = 131_072


class AmqpSettings(msgspec.Struct, frozen=True, kw_only=True):
    body_bytes_max: int = 128 << 20
    frame_max: int = FRAME_MAX
    channel_max: int = 2047
    heartbeat_s: int = 60
    handshake_timeout_s: float = 10.0
    connections_max: int = 10_000
    output_bytes_max: int = 16 << 20
    output_timeout_s: float = 30.0
