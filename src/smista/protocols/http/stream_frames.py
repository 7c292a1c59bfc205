"""What goes over the stream, as structures: requests and the stream's own commands in, answers and messages out."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from smista.errors import InvalidRequest
from smista.protocols.http.bounded import AT_ONCE_BYTES, BoundedDecoder, CountingDecoder
from smista.protocols.http.commands.receiving import Action, Result
from smista.protocols.http.errors import ErrorBody, error_body
from smista.protocols.http.formats import JSON, MESSAGE_PACK, Decoder, Format
from smista.protocols.http.messages import MessageView
from smista.service.fields import Milliseconds, Name
from smista.service.values import DEFAULT_NAMESPACE

ARRAY_MAX = 10_000
TAGS_MAX = 10_000
ID_CHARACTERS_MAX = 1_024

RequestId = (
    Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    | Annotated[str, msgspec.Meta(max_length=ID_CHARACTERS_MAX)]
    | None
)
Tag = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
Prefetch = Annotated[int, msgspec.Meta(ge=1, le=65_535)]

# -- in ---------------------------------------------------------------------------------------------------------------


class StreamRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    command: str
    id: RequestId = None
    payload: msgspec.Raw = msgspec.Raw()


class Identified(msgspec.Struct):
    """As much of a request as is needed to say which one could not be read."""

    id: RequestId = None


class Subscribe(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    queue: Name
    prefetch: Prefetch | None = None
    lease_ms: Milliseconds | None = None
    priority: Annotated[int, msgspec.Meta(ge=-(1 << 31), le=1 << 31)] = 0
    consumer: Annotated[str, msgspec.Meta(max_length=255)] = ""
    raw: bool = False
    namespace: Name = DEFAULT_NAMESPACE


class Credit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    subscription: int
    prefetch: Prefetch


class Unsubscribe(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    subscription: int


class Cancel(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Take back a request that still waits for something to happen."""

    request: RequestId


class Cancelled(msgspec.Struct):
    cancelled: bool
    """False where it was answered already, or never waited: its answer counts."""


class Tags(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which deliveries a command is about."""

    tags: Annotated[list[Tag], msgspec.Meta(max_length=TAGS_MAX)] | None = None
    up_to: Tag | None = None


class AcknowledgeTags(Tags, kw_only=True):
    pass


class NackTags(Tags, kw_only=True):
    requeue: bool = True
    delay_ms: Milliseconds | None = None
    error: str = ""


class ReleaseTags(Tags, kw_only=True):
    pass


class ExtendTags(Tags, kw_only=True):
    lease_ms: Milliseconds


STREAM_COMMANDS: dict[str, type] = {
    "subscribe": Subscribe,
    "credit": Credit,
    "unsubscribe": Unsubscribe,
    "cancel": Cancel,
    "ack": AcknowledgeTags,
    "nack": NackTags,
    "release": ReleaseTags,
    "extend": ExtendTags,
}
"""The commands that only the stream has."""

# -- out --------------------------------------------------------------------------------------------------------------


class Answer(msgspec.Struct):
    id: RequestId
    result: Any


class Refusal(msgspec.Struct):
    id: RequestId
    error: ErrorBody


class Subscribed(msgspec.Struct):
    subscription: int


class SettledTags(msgspec.Struct):
    success: bool
    action: Action | UnsetType = UNSET
    """Of a nack, where it is the same for all."""
    results: list[Result | None] | UnsetType = UNSET
    """Where not all came to the same: per tag why it had no effect, or null; of a nack the action instead of null."""


class Pushed(msgspec.Struct):
    subscription: int
    messages: list[MessageView]


class Ended(msgspec.Struct):
    subscription: int
    ended: ErrorBody


# -- reading ----------------------------------------------------------------------------------------------------------

OWN_DECODERS: dict[Format, dict[str, Decoder[Any]]] = {
    each: {name: BoundedDecoder(kind, each) for name, kind in STREAM_COMMANDS.items()} for each in (JSON, MESSAGE_PACK)
}

_FRAME: Any = StreamRequest | Annotated[list[StreamRequest], msgspec.Meta(min_length=1, max_length=ARRAY_MAX)]
_FRAME_DECODERS: dict[Format, Decoder[StreamRequest | list[StreamRequest]]] = {
    each: each.decoder(_FRAME) for each in (JSON, MESSAGE_PACK)
}
_COUNTING_DECODERS: dict[Format, CountingDecoder] = {
    each: CountingDecoder(ARRAY_MAX, each) for each in (JSON, MESSAGE_PACK)
}
_ID_DECODERS: dict[Format, Decoder[Identified]] = {each: each.decoder(Identified) for each in (JSON, MESSAGE_PACK)}


Frame = StreamRequest | list[StreamRequest] | Refusal


def read_frame(spoken: Format, *, text: str | None, binary: bytes | None) -> Frame:
    """The request or requests in a frame; what to answer where they cannot be read."""
    if spoken is JSON:
        if text is None:
            return _refusal("On smista.json frames are text, and this one was binary; send it as text.")
        data = text.encode()
    else:
        if binary is None:
            return _refusal("On smista.msgpack frames are binary, and this one was text; send it as binary.")
        data = binary
    try:
        if len(data) > AT_ONCE_BYTES and _is_array(spoken, data):
            # Counted first: a million requests would be read to be refused.
            _COUNTING_DECODERS[spoken](data)
        return _FRAME_DECODERS[spoken](data)
    except InvalidRequest as error:
        return Refusal(_id_in(spoken, data), error_body(error))


def _is_array(spoken: Format, data: bytes) -> bool:
    if spoken is JSON:
        return data[:100].lstrip(b" \t\r\n").startswith(b"[")
    return 0x90 <= data[0] <= 0x9F or data[0] in (0xDC, 0xDD)


def _refusal(sentence: str) -> Refusal:
    return Refusal(None, error_body(InvalidRequest(sentence)))


def _id_in(spoken: Format, data: bytes) -> RequestId:
    """The id of a request that is wrong otherwise, so that the answer can be matched to it."""
    try:
        return _ID_DECODERS[spoken](data).id
    except InvalidRequest:
        return None
