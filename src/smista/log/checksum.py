"""The CRC that travels with every block."""

from __future__ import annotations

import zlib


def block_crc(position: int, data: bytes) -> int:
    """CRC-32 over the position (8 bytes, little-endian) and the data, so that a good block in a wrong place
    is found."""
    return zlib.crc32(data, zlib.crc32(position.to_bytes(8, "little")))
