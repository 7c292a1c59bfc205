"""Recognising messages: a publisher sends the same frames again and again, but for the body and its size.

    method frame │ header frame: head, class, weight │ size │ properties, end │ body frame: kind, channel │ length │ ...
    └────────────── opening ─────────────────────────┘  8   └────────────────── middle ─────────────────┘    4

A message whose opening and middle are those of the one before it needs no taking apart: two comparisons of bytes and a
slice. Whatever does not fit in any way is left to be read frame by frame, which then says what is wrong with it.
Measured: 0.35 us a message of the same size as the last, 0.6 us of another size, 2.5 us frame by frame.
"""

from __future__ import annotations

from smista.protocols.amqp.wire.channel import ChannelState, Prepared, Target
from smista.protocols.amqp.wire.frames import END

OPENING_BYTES_MAX = 4_096
"""A longer beginning is not remembered."""
_HEADER_FRAME_BYTES = 7
_CLASS_AND_WEIGHT_BYTES = 4
_SIZE_BYTES = 8
_LENGTH_BYTES = 4


class Pattern:
    """Made of a message that has been published: its frames up to its body."""

    __slots__ = ("_again", "_middle", "_size", "channel", "opening", "prepared", "target")

    def __init__(self, channel: ChannelState, target: Target, prepared: Prepared, frames: bytes) -> None:
        self.channel = channel
        self.target = target
        self.prepared = prepared
        header_at = int.from_bytes(frames[3:7], "big") + 8
        size_at = header_at + _HEADER_FRAME_BYTES + _CLASS_AND_WEIGHT_BYTES
        self.opening = frames[:size_at]
        self._middle = frames[size_at + _SIZE_BYTES : -_LENGTH_BYTES]
        self._again = frames
        """With the size of the last message: the next one often has the same."""
        self._size = int.from_bytes(frames[-_LENGTH_BYTES:], "big")

    def fits(self, data: bytes, position: int, size_max: int) -> bool:
        """Whether a message at `position` may be like this one."""
        return data.startswith(self._again, position) or self._resize(data, position, size_max)

    def match(self, data: bytes, position: int, size_max: int, limit: int) -> tuple[list[bytes], int]:
        """The bodies of the whole messages at `position` that are like this one, `limit` of them at most, and where the
        next frame starts."""
        bodies: list[bytes] = []
        end = len(data)
        starts_with = data.startswith
        while True:
            if len(bodies) >= limit or not self.fits(data, position, size_max):
                return bodies, position
            # As many as follow of this size.
            again, size = self._again, self._size
            first, step = len(again), len(again) + size
            while starts_with(again, position) and len(bodies) < limit:
                body_end = position + step
                if body_end >= end or data[body_end] != END:
                    return bodies, position
                bodies.append(data[position + first : body_end])
                position = body_end + 1

    def _resize(self, data: bytes, position: int, size_max: int) -> bool:
        """Whether there is a message of another size that is like this one in all else."""
        opening, middle = self.opening, self._middle
        size_at = position + len(opening)
        length_at = size_at + _SIZE_BYTES + len(middle)
        if not data.startswith(opening, position) or not data.startswith(middle, size_at + _SIZE_BYTES):
            return False
        size = int.from_bytes(data[size_at : size_at + _SIZE_BYTES], "big")
        length = int.from_bytes(data[length_at : length_at + _LENGTH_BYTES], "big")
        if size != length or not 0 < size <= size_max or length_at + _LENGTH_BYTES > len(data):
            return False
        self._size = size
        self._again = data[position : length_at + _LENGTH_BYTES]
        return True
