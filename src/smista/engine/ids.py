"""Names for the outside: message ids and receipts as text.

A message id looks like a UUID of version 7 (time-ordered): 48 bits of creation time, then 24 bits that tell this broker
from others, then the message's number. It is opaque to clients; the broker reads the number back out of it.

    tttttttt-tttt-7bbb-Bbbn-nnnnnnnnnnnn       t time, b broker, n number (50 bits; B holds the variant)

A receipt is the queue, the sequence and the delivery, sealed with a keyed hash, so that it can be neither guessed nor
altered into another's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct

from smista.core.errors import InvalidReceipt, MessageNotFound
from smista.core.message import Receipt

_NUMBER_BITS = 50
_RECEIPT = struct.Struct("<IQII")
_SEAL_BYTES = 10
_LENGTH = (_RECEIPT.size + _SEAL_BYTES) * 4 // 3
"""30 bytes are 40 characters of base64, with no bits to spare that could differ unseen."""
_PLAIN = str.maketrans("-_+/", "+/!!")
"""From the alphabet of receipts to that of base64, which has a spelling of its own for two digits."""


class Ids:
    def __init__(self, identity: bytes) -> None:
        """`identity` is the log's: the same for the life of the data."""
        self.log_id = hashlib.blake2s(identity, person=b"log", digest_size=8).hexdigest()
        """Tells this log from others, so that a position is not looked for in the wrong one."""
        self.broker = int.from_bytes(hashlib.blake2s(identity, person=b"id").digest()[:3], "big")
        """The 24 bits that tell this broker from others."""
        self._key = hashlib.blake2s(identity, person=b"receipt").digest()

    def message_id(self, number: int, created_at_ms: int) -> str:
        high = (created_at_ms << 16) | 0x7000 | (self.broker >> 12)
        low = (1 << 63) | ((self.broker & 0xFFF) << _NUMBER_BITS) | number
        text = f"{high:016x}{low:016x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def parse(self, message_id: str) -> tuple[int, int]:
        """Number and creation time inside an id this broker gave out; raises `MessageNotFound` for anything else."""
        try:
            value = int(message_id.replace("-", ""), 16)
        except (ValueError, AttributeError, TypeError):
            raise MessageNotFound(f"{message_id!r} is not the id of a message.") from None
        number = value & ((1 << _NUMBER_BITS) - 1)
        if self.message_id(number, value >> 80) != message_id:
            raise MessageNotFound(f"{message_id!r} is not the id of a message of this broker.")
        return number, value >> 80

    def receipt_text(self, receipt: Receipt) -> str:
        data = _RECEIPT.pack(receipt.queue, receipt.sequence, receipt.delivery, receipt.run)
        return base64.urlsafe_b64encode(data + self._seal(data)).decode()

    def receipt(self, text: str) -> Receipt:
        """Read a receipt back; raises `InvalidReceipt` for what this broker never gave out."""
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
