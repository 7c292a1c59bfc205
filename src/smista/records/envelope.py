"""The envelope of a message as the log has it: a packed array, and nothing for one that has nothing in it."""

from __future__ import annotations

import msgspec

from smista.core.message import PLAIN, Envelope

_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Envelope).decode
"""Of one that is not empty."""


def encode(envelope: Envelope) -> bytes:
    return b"" if envelope is PLAIN else _encode(envelope)
