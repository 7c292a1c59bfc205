"""AWS JSON 1.0: the action in `X-Amz-Target`, parameters and answer as JSON, binary values in base64."""

from __future__ import annotations

import msgspec

from smista.protocols.sqs.actions import ACTIONS
from smista.protocols.sqs.actions.base import Action
from smista.protocols.sqs.errors import SERIALIZATION, UNKNOWN_OPERATION, SqsError

CONTENT_TYPE = b"application/x-amz-json-1.0"
CONTENT_TYPES = frozenset((CONTENT_TYPE, b"application/x-amz-json-1.1", b"application/json"))
TARGET_PREFIX = b"AmazonSQS."

_DECODERS = {TARGET_PREFIX + name.encode(): msgspec.json.Decoder(action).decode for name, action in ACTIONS.items()}
encode = msgspec.json.Encoder().encode


class _ErrorAnswer(msgspec.Struct):
    kind: str = msgspec.field(name="__type")
    message: str


def read(target: bytes, body: bytes) -> Action:
    decode = _DECODERS.get(target)
    if decode is None:
        raise SqsError(UNKNOWN_OPERATION, f"The operation {target.decode('latin-1')[:100]} is not known.")
    try:
        return decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError(SERIALIZATION, f"The request cannot be read: {error}") from None


def write_error(error: SqsError) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """The body, and the header by which SDKs know the code of the older protocol."""
    kind = error.kind
    body = encode(_ErrorAnswer("com.amazonaws.sqs#" + kind.name, error.message))
    fault = b"Sender" if kind.status < 500 else b"Receiver"
    return body, ((b"x-amzn-query-error", kind.code.encode() + b";" + fault),)
