"""AWS JSON 1.0: the action in `X-Amz-Target`, parameters and answer as JSON, binary values in base64."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from smista.protocols.sqs.actions import ACTIONS
from smista.protocols.sqs.actions.base import Action, Answer
from smista.protocols.sqs.actions.receive_message import ReceiveAnswer
from smista.protocols.sqs.errors import SERIALIZATION, UNKNOWN_OPERATION, SqsError
from smista.protocols.sqs.limits import STRICT, Limits
from smista.wording import explained

CONTENT_TYPE = b"application/x-amz-json-1.0"
CONTENT_TYPES = frozenset((CONTENT_TYPE, b"application/x-amz-json-1.1", b"application/json"))
TARGET_PREFIX = b"AmazonSQS."

AT_ONCE_BYTES = 64 << 10
"""Of messages that are written in one turn of the loop, or one message: up to 10 ms for the longest that AWS knows."""

_DECODERS = {TARGET_PREFIX + name.encode(): msgspec.json.Decoder(action).decode for name, action in ACTIONS.items()}
encode = msgspec.json.Encoder().encode


async def write(answer: Answer, turn: Callable[[], Awaitable[None]]) -> list[bytes]:
    """In parts, with turns for others in between."""
    if not answer.has_result:
        # The answer to an action without a result has no body, as with AWS.
        return [b""]
    if not isinstance(answer, ReceiveAnswer) or sum([len(one.body) for one in answer.messages]) < AT_ONCE_BYTES:
        return [encode(answer)]
    parts = [b'{"Messages":[']
    for part in await each_written(answer.messages, turn):
        parts += part, b","
    parts[-1] = b"]}"
    return parts


async def each_written(messages: Sequence[object], turn: Callable[[], Awaitable[None]]) -> list[bytes]:
    written: list[bytes] = []
    some_bytes = 0
    for message in messages:
        written.append(encode(message))
        some_bytes += len(written[-1])
        if some_bytes >= AT_ONCE_BYTES:
            some_bytes = 0
            await turn()
    return written


class _ErrorAnswer(msgspec.Struct):
    kind: str = msgspec.field(name="__type")
    message: str


def read(target: bytes, body: bytes, limits: Limits = STRICT) -> Action:
    decode = _DECODERS.get(target)
    if decode is None:
        raise SqsError(UNKNOWN_OPERATION, f"The operation {target.decode('latin-1')[:100]} is not known.")
    if _has_more_members(body, limits.request_members_max):
        raise SqsError(SERIALIZATION, f"The request has more than {limits.request_members_max} members.")
    try:
        return decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise SqsError(SERIALIZATION, f"The request cannot be read: {explained(error)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError(SERIALIZATION, f"The request cannot be read: {error}") from None


def _has_more_members(body: bytes, most: int) -> bool:
    """Counted without decoding: millions of small ones would keep everybody waiting until they are decoded.

    Members are parted by commas that stand outside of texts. Once escaped quotes are gone, texts are every other piece
    between quotes.
    """
    if body.count(b",") <= most:
        return False
    pieces_max = 4 * most
    pieces = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', pieces_max)
    return len(pieces) > pieces_max or sum([piece.count(b",") for piece in pieces[::2]]) > most


def write_error(error: SqsError) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """The body, and the header by which SDKs know the code of the older protocol."""
    kind = error.kind
    body = encode(_ErrorAnswer("com.amazonaws.sqs#" + kind.name, error.message))
    fault = b"Sender" if kind.status < 500 else b"Receiver"
    return body, ((b"x-amzn-query-error", kind.code.encode() + b";" + fault),)
