"""Names for the outside: message ids and receipts as text. The one home of what is packed into them, and of how a
sequence is made.

A **sequence** is a shard and a count, which begins at 1. So whatever has a sequence in it says which shard it is of
and is unique over all shards of a cluster: a message's number, which is the first sequence it had, and a receipt.

    sequence      ssssssssssssssss cc...c          s shard (16 bits), c count (46 bits)

A **message id** looks like a UUID of version 7, so ids sort by time. It is opaque to clients; the broker reads the
number back out of it. Its shard is the one the message was published in, where it need not have stayed.

    high half     tt...t 0111 bbbbbbbbbbbb         t creation time (48 bits), b broker (12 bits)
    low half      10 nn...n                        n number (62 bits)

A **receipt** is the queue, the sequence, the delivery and the run, sealed with a keyed hash, so that it can be neither
guessed nor altered into another's. Its shard is the one that handed the message out. All shards of a cluster have one
key, so any node can check a receipt and read where it has to go.

    receipt       queue u32 | sequence u64 | delivery u32 | run u32 | seal, 10 bytes
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct

from smista.core.message import Receipt
from smista.errors import InvalidReceipt, MessageNotFound

SHARDS_MAX = 1 << 16
ID_LENGTH = 36
DASHES = (8, 13, 18, 23)
"""Where dashes stand in an id."""
TIME_SHIFT = 16
VERSION = 0x7000
VARIANT = 1 << 63
_COUNT_BITS = 46
_NUMBER_BITS = 62
_BROKER_BITS = 12
_RECEIPT = struct.Struct("<IQII")
_SEAL_BYTES = 10
_LENGTH = (_RECEIPT.size + _SEAL_BYTES) * 4 // 3
"""30 bytes are 40 characters of base64, with no bits to spare that could differ unseen."""
_PLAIN = str.maketrans("-_+/", "+/!!")
"""From the alphabet of receipts to that of base64, which has a spelling of its own for two digits."""


def first_sequence(shard: int) -> int:
    """The first one that a shard gives out. The counts after it last for 11 years at 200,000 messages a second."""
    assert 0 <= shard < SHARDS_MAX, shard
    return shard << _COUNT_BITS | 1


def shard_of(sequence: int) -> int:
    """The shard that gave out a sequence, or published the message with this number."""
    return sequence >> _COUNT_BITS


class Ids:
    """The names that one shard gives out and reads back."""

    def __init__(self, identity: bytes, shard: int = 0) -> None:
        """`identity` is the cluster's, or that of the only log: the same for the life of the data."""
        self.shard = shard
        of_shard = hashlib.blake2s(identity + shard.to_bytes(2, "big"), person=b"shard").digest()
        self.log_id = hashlib.blake2s(of_shard, person=b"log", digest_size=8).hexdigest()
        """Tells this shard's log from others, so that a position is not looked for in the wrong one."""
        self.broker = int.from_bytes(hashlib.blake2s(identity, person=b"id").digest()[:2], "big") >> 16 - _BROKER_BITS
        """Tells the ids of this broker, all its shards, from those of others."""
        self._version = VERSION | self.broker
        self._key = hashlib.blake2s(identity, person=b"receipt").digest()

    def message_id(self, number: int, created_at_ms: int) -> str:
        text = f"{created_at_ms << TIME_SHIFT | self._version:016x}{VARIANT | number:016x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def parse(self, message_id: str) -> tuple[int, int]:
        """Number and creation time inside an id that a shard of this broker gave out; raises `MessageNotFound` for
        anything else."""
        try:
            value = int(message_id.replace("-", ""), 16)
        except (ValueError, AttributeError, TypeError):
            raise MessageNotFound(f"{message_id!r} is not the id of a message.") from None
        number, created_at_ms = value & ((1 << _NUMBER_BITS) - 1), value >> (64 + TIME_SHIFT)
        if self.message_id(number, created_at_ms) != message_id:
            raise MessageNotFound(f"{message_id!r} is not the id of a message of this broker.")
        return number, created_at_ms

    def receipt_text(self, receipt: Receipt) -> str:
        data = _RECEIPT.pack(receipt.queue, receipt.sequence, receipt.delivery, receipt.run)
        return base64.urlsafe_b64encode(data + self._seal(data)).decode()

    def receipt(self, text: str) -> Receipt:
        """Read a receipt back; raises `InvalidReceipt` for what this shard never gave out."""
        receipt = self.any_receipt(text)
        if (shard := shard_of(receipt.sequence)) != self.shard:
            raise InvalidReceipt(
                f"{text!r} is a receipt of shard {shard} and was handed to shard {self.shard}; pass it on to that one."
            )
        return receipt

    def any_receipt(self, text: str) -> Receipt:
        """Read a receipt of any shard; raises `InvalidReceipt` for what none of this broker gave out."""
        try:
            data = binascii.a2b_base64(text.translate(_PLAIN), strict_mode=True) if len(text) == _LENGTH else b""
        except (binascii.Error, ValueError, AttributeError, TypeError):
            data = b""
        body, seal = data[: _RECEIPT.size], data[_RECEIPT.size :]
        if not data or not hmac.compare_digest(seal, self._seal(body)):
            raise InvalidReceipt(f"{str(text)[:60]!r} is not a receipt of this broker; pass on what receive returned.")
        return Receipt(*_RECEIPT.unpack(body))

    def _seal(self, data: bytes) -> bytes:
        return hashlib.blake2s(data, key=self._key, digest_size=_SEAL_BYTES).digest()
