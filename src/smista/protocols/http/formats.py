"""JSON and MessagePack: two spellings of the same structures, chosen by content type.

Bytes are base64 text in JSON and binary in MessagePack; `msgspec` sees to that. What differs is a message given as a
value: it is stored as JSON text, so JSON takes and gives it as it stands, while MessagePack has to translate. Neither
can say all that the other can: MessagePack has bytes, times, extensions and NaN, JSON has whole numbers of any length.
What cannot be translated is refused on the way in, and given as bytes on the way out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from smista.errors import InvalidRequest
from smista.service.plain_values import Untranslatable, check_plain
from smista.wording import explained

T = TypeVar("T")
Turn = Callable[[], Awaitable[None]]
AT_ONCE_BYTES = 256 << 10
"""A longer body of JSON is given as bytes to whoever speaks MessagePack, where it would unfold to very many values: all
of them are made in one step."""
VALUES_MAX = 50_000

_raw_json = msgspec.json.Decoder(msgspec.Raw).decode
_json_value = msgspec.json.Decoder().decode
_msgpack_value = msgspec.msgpack.Decoder().decode
_encode_json = msgspec.json.Encoder().encode
_encode_msgpack = msgspec.msgpack.Encoder().encode


class Format:
    """One of the two."""

    name: str
    content_type: bytes
    widest: int
    """How many bytes it may take to say one byte of a text."""

    def encode(self, value: object) -> bytes:
        raise NotImplementedError

    def decoder(self, kind: type[T], place: str = "the request") -> Decoder[T]:
        raise NotImplementedError

    def value_from_body(self, body: bytes) -> msgspec.Raw:
        """A JSON body as a value that `encode` writes as it stands; raises `Untranslatable`."""
        raise NotImplementedError

    def body_from_value(self, value: msgspec.Raw) -> bytes:
        """The JSON text of a value that came in this format; raises `Untranslatable`."""
        raise NotImplementedError


class Decoder(Generic[T]):
    """Reads one type, and says in a sentence what is wrong where it cannot. `place` is where the whole thing stands."""

    def __init__(
        self, decoder: msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T], format_name: str, place: str
    ) -> None:
        self.plain = decoder.decode
        """The same, with msgspec's own errors."""
        self._kind = decoder.type
        self._format_name = format_name
        self._place = place

    def __call__(self, data: bytes | memoryview | msgspec.Raw) -> T:
        try:
            return self.plain(data)
        except msgspec.ValidationError as error:
            raise InvalidRequest(explained(error, self._kind, place=self._place)) from None
        except RecursionError:
            raise InvalidRequest(f"This {self._format_name} is nested too deeply.") from None
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidRequest(f"This is not {self._format_name}: {error}.") from None

    async def in_steps(self, data: bytes | memoryview | msgspec.Raw, turn: Turn) -> T:
        """The same, with `turn` awaited wherever much was gone through."""
        return self(data)


NESTING_MAX = 500
"""Of a message that came as MessagePack; as deep as one in JSON may safely be on any stack."""


class Json(Format):
    name = "JSON"
    content_type = b"application/json"
    widest = 6  # \u000a

    def encode(self, value: object) -> bytes:
        return _encode_json(value)

    def decoder(self, kind: type[T], place: str = "the request") -> Decoder[T]:
        return Decoder(msgspec.json.Decoder(kind), self.name, place)

    def value_from_body(self, body: bytes) -> msgspec.Raw:
        try:
            # Its syntax is checked by msgspec, its UTF-8 is not: it would make our whole answer unreadable.
            body.decode()
            return _raw_json(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Untranslatable(str(error)) from None

    def body_from_value(self, value: msgspec.Raw) -> bytes:
        body = bytes(value)
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise Untranslatable(str(error)) from None
        return body


def _has_very_many(body: bytes) -> bool:
    """Whether a body may hold more values than are to be made at once. Commas in texts count too."""
    count = 0
    for start in range(0, len(body), AT_ONCE_BYTES):
        count += sum(body.count(mark, start, start + AT_ONCE_BYTES) for mark in (b",", b"[", b"{"))
        if count > VALUES_MAX:
            return True
    return False


class MessagePack(Format):
    name = "MessagePack"
    content_type = b"application/msgpack"
    widest = 1

    def encode(self, value: object) -> bytes:
        return _encode_msgpack(value)

    def decoder(self, kind: type[T], place: str = "the request") -> Decoder[T]:
        return Decoder(msgspec.msgpack.Decoder(kind), self.name, place)

    def value_from_body(self, body: bytes) -> msgspec.Raw:
        if len(body) > AT_ONCE_BYTES and _has_very_many(body):
            raise Untranslatable(f"more than {VALUES_MAX} values")
        try:
            # Written at once, because not all that can be read here can be written, and the answer has to be.
            return msgspec.Raw(_encode_msgpack(_json_value(body)))
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise Untranslatable(str(error)) from None

    def body_from_value(self, value: msgspec.Raw) -> bytes:
        try:
            plain: Any = _msgpack_value(value)
            if type(plain) is not str:
                check_plain(plain, nesting_max=NESTING_MAX)
            return _encode_json(plain)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Untranslatable(str(error)) from None


JSON = Json()
MESSAGE_PACK = MessagePack()
