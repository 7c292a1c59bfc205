"""Publishing: one message, many, or through an exchange."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, ClassVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from smista.core.caches import cached_if_small
from smista.core.checks import BATCH_ID_LENGTH_MAX, ID_LENGTH_MAX, RETRIES_MAX
from smista.core.errors import InvalidArgument, MessageTooLarge
from smista.core.message import PLAIN, Envelope, Publication
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine import Published
from smista.engine.lane import Lane
from smista.errors import BrokerError
from smista.protocols import properties
from smista.protocols.http.bounded import AT_ONCE_BYTES, BoundedDecoder, Members, Skim, byte_count
from smista.protocols.http.commands.base import (
    DECODERS,
    Choice,
    Command,
    Door,
    Milliseconds,
    Name,
    Seconds,
    command,
)
from smista.protocols.http.errors import ErrorBody, InvalidRequest, error_body
from smista.protocols.http.formats import MESSAGE_PACK, Decoder, Format, Turn, Untranslatable, check_plain
from smista.protocols.http.translating import TooLong, json_in_steps
from smista.protocols.properties import JSON_BYTES, Properties
from smista.protocols.turns import SLICE_S

BATCH_MAX = 10_000
TOLD_AT_ONCE = 2_000
"""Of the messages of a batch, how many are told of in one turn of the loop what became of them."""
HEADERS_NESTING_MAX = 32
PROPERTIES_BYTES_MAX = 64 << 10
"""Headers and properties of one message, as the log keeps them."""

ErrorClass = type[BrokerError]
Identifier = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_LENGTH_MAX)]
BatchId = Annotated[str, msgspec.Meta(min_length=1, max_length=BATCH_ID_LENGTH_MAX)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=255)]


class MessageFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to be published: `message` (any JSON value) or `body` (bytes), and what else is said of it."""

    choices: ClassVar[tuple[Choice, ...]] = (
        Choice(("message", "body")),
        Choice(("ttl", "ttl_ms"), is_required=False),
        Choice(("delay_ms", "deliver_at_ms"), is_required=False),
    )
    too_large: ClassVar[ErrorClass] = MessageTooLarge
    is_measured_as_kept: ClassVar[bool] = True

    message: msgspec.Raw | UnsetType = UNSET
    body: bytes | UnsetType = UNSET
    priority: Priority | None = None
    ttl: Seconds | None = None
    ttl_ms: Milliseconds | None = None
    delay_ms: Milliseconds | None = None
    deliver_at_ms: Milliseconds | None = None
    group: Identifier | None = None
    deduplication_id: Identifier | None = None
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=RETRIES_MAX)] | None = None
    headers: dict[str, Any] | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    type: str | None = None
    app_id: str | None = None
    user_id: str | None = None
    external_id: str | None = None
    timestamp_ms: Milliseconds | None = None
    properties: bytes | None = None
    """As another protocol keeps them, and as browsing `raw` shows them; instead of all the others, with a `body`."""


@cached_if_small(lambda said, exchange="", routing_key="", group=None, *_: len(said) + len(exchange) + len(routing_key))
def _envelope(
    said: bytes,
    exchange: str = "",
    routing_key: str = "",
    group: str | None = None,
    ttl_ms: int | None = None,
    max_retries: int | None = None,
) -> Envelope:
    """Messages published alike share one envelope in memory."""
    return Envelope(said, exchange, routing_key, group, None, ttl_ms, max_retries)


async def translate(
    fields: MessageFields, door: Door, queue: str | None = None, namespace: str = DEFAULT_NAMESPACE
) -> None:
    """Have a `message` as its body where it is so long that it takes many steps to make one of the other."""
    if (
        fields.message is UNSET
        or door.request_format is not MESSAGE_PACK
        or byte_count(fields.message) <= AT_ONCE_BYTES
        or fields.body is not UNSET
    ):
        return
    limit = None if queue is None else door.broker.body_limit(queue, namespace=namespace)
    try:
        fields.body = await json_in_steps(bytes(fields.message), door.broker.lane.turn, limit)
    except TooLong:
        raise MessageTooLarge(
            f"`message` is over the limit of {limit} bytes for queue {queue!r}; raise its body_bytes_max, or send less."
        ) from None
    except Untranslatable as problem:
        raise _no_json(problem) from None
    fields.message = UNSET
    fields.content_type = fields.content_type or "application/json"


def publication(fields: MessageFields, came_in: Format, *, exchange: str = "", routing_key: str = "") -> Publication:
    content_type = fields.content_type
    # Nearly every message passes here, and asking each choice takes 2 us.
    if (
        (fields.message is UNSET) == (fields.body is UNSET)
        or (fields.ttl is not None and fields.ttl_ms is not None)
        or (fields.delay_ms is not None and fields.deliver_at_ms is not None)
    ):
        for choice in fields.choices:
            choice.check(fields)
    if fields.message is not UNSET:
        try:
            body = came_in.body_from_value(fields.message)
        except Untranslatable as problem:
            raise _no_json(problem) from None
        content_type = content_type or "application/json"
    else:
        assert fields.body is not UNSET
        body = fields.body
    ttl_ms = fields.ttl_ms if fields.ttl is None else round(fields.ttl * 1000)
    said = _properties(fields, content_type)
    envelope = _envelope(said, exchange, routing_key, fields.group, ttl_ms, fields.max_retries)
    if fields.deduplication_id is not None:
        envelope = msgspec.structs.replace(envelope, deduplication_id=fields.deduplication_id)
    elif envelope == PLAIN:
        envelope = PLAIN
    return Publication(body, envelope, fields.priority, fields.delay_ms, fields.deliver_at_ms)


def _no_json(problem: Untranslatable) -> InvalidRequest:
    return InvalidRequest(f"`message` cannot be written as JSON: {problem}; give it as `body`.")


def _properties(fields: MessageFields, content_type: str | None) -> bytes:
    if (
        content_type == "application/json"
        and not fields.headers
        and fields.content_encoding is None
        and fields.correlation_id is None
        and fields.reply_to is None
        and fields.type is None
        and fields.app_id is None
        and fields.user_id is None
        and fields.external_id is None
        and fields.timestamp_ms is None
        and fields.properties is None
    ):
        return JSON_BYTES
    if fields.properties is not None:
        return _kept_properties(fields, fields.properties, content_type)
    given = Properties(
        headers=fields.headers or {},
        content_type=content_type,
        content_encoding=fields.content_encoding,
        correlation_id=fields.correlation_id,
        reply_to=fields.reply_to,
        type=fields.type,
        app_id=fields.app_id,
        user_id=fields.user_id,
        external_id=fields.external_id,
        timestamp_ms=fields.timestamp_ms,
    )
    try:
        # Measured before they are looked at one by one, which takes ten times as long.
        said = properties.write(given)
    except (OverflowError, RecursionError):
        check_named("headers", given.headers)
        raise
    if len(said) > PROPERTIES_BYTES_MAX:
        raise MessageTooLarge(
            f"`headers` and the other properties take {len(said)} bytes, over the limit of {PROPERTIES_BYTES_MAX}; "
            "put what is large into the body."
        )
    if given.headers:
        check_named("headers", given.headers)
    return said


_PROPERTIES = tuple(Properties.__struct_fields__)


def _kept_properties(fields: MessageFields, kept: bytes, content_type: str | None) -> bytes:
    others = [name for name in _PROPERTIES if getattr(fields, name) is not None]
    if content_type is not None and not others:
        others = ["message"]
    if others:
        raise InvalidArgument(f"Both `properties` and `{others[0]}` are given; give one of them.")
    if len(kept) > PROPERTIES_BYTES_MAX:
        raise MessageTooLarge(f"`properties` take {len(kept)} bytes, over the limit of {PROPERTIES_BYTES_MAX}.")
    try:
        properties.check_kept(kept)
    except ValueError as problem:
        raise InvalidArgument(f"`properties` are of no protocol: {problem}.") from None
    return kept


def check_named(field: str, values: dict[str, Any]) -> None:
    """Refuse names and values that one of the formats, or a record of the log, cannot hold."""
    for name, value in values.items():
        try:
            check_plain(value, nesting_max=HEADERS_NESTING_MAX)
        except Untranslatable as problem:
            raise InvalidRequest(
                f"`{field}.{name[:100]}` is {problem}; give text, numbers, true, false, null, lists and objects."
            ) from None


class PublishedAnswer(msgspec.Struct, omit_defaults=True):
    message_id: str
    position: int
    """Its place in the queue: 1 is next. 0 for a duplicate."""
    duplicate: bool = False
    """It was there already, under the same deduplication id."""


def show_published(published: Published) -> PublishedAnswer:
    return PublishedAnswer(published.id, published.position, published.is_duplicate)


@command
class Publish(MessageFields, kw_only=True):
    """Publish a message to a queue; answered when it is on disk."""

    name: ClassVar[str] = "queue.publish"
    answer: ClassVar[Any] = PublishedAnswer

    queue: Name
    namespace: Name = DEFAULT_NAMESPACE

    async def run(self, door: Door) -> PublishedAnswer:
        await translate(self, door, self.queue, self.namespace)
        one = publication(self, door.request_format)
        door.begun()
        [result] = await door.broker.publish(self.queue, [one], namespace=self.namespace)
        if isinstance(result, BrokerError):
            raise result
        return show_published(result)


class BatchResult(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What became of one message of a batch: stored, or why not."""

    message_id: str | UnsetType = UNSET
    position: int | UnsetType = UNSET
    duplicate: bool = False
    error: ErrorBody | UnsetType = UNSET


class BatchError(msgspec.Struct):
    index: int
    code: str
    message: str


class BatchAnswer(msgspec.Struct, omit_defaults=True, kw_only=True):
    accepted: int
    """How many were stored, or had been."""
    duplicates: int = 0
    results: list[BatchResult] | UnsetType = UNSET
    errors: list[BatchError] | UnsetType = UNSET


def _check_room(door: Door) -> None:
    if (refusal := door.broker.refusal) is not None:
        raise refusal


class Unreadable(MessageFields, kw_only=True):
    """Stands in a batch for a message that could not be read."""

    why: BrokerError


class Unread(MessageFields, kw_only=True):
    """Stands in a batch for a message that is read when its turn comes."""

    read: Callable[[], MessageFields]


@command
class PublishBatch(Command):
    """Publish many messages to a queue; one that is refused does not keep the others out."""

    name: ClassVar[str] = "queue.publish_batch"
    answer: ClassVar[Any] = BatchAnswer
    choices: ClassVar[tuple[Choice, ...]] = (
        Choice(("messages", "bodies")),
        Choice(("messages", "content_type"), is_required=False),
    )

    queue: Name
    messages: Annotated[list[MessageFields], msgspec.Meta(max_length=BATCH_MAX)] | None = None
    bodies: Annotated[list[bytes], msgspec.Meta(max_length=BATCH_MAX)] | None = None
    content_type: str | None = None
    batch_id: BatchId | None = None
    brief: bool = False
    partial: bool = False
    """A message that cannot be read is refused by itself, rather than the whole batch: its neighbours may be
    somebody else's."""

    async def run(self, door: Door) -> BatchAnswer:
        self.check_choices()
        refused: dict[int, BrokerError] = {}
        publications: list[Publication] = []
        if self.bodies is not None:
            said = _properties(MessageFields(), self.content_type)
            envelope = _envelope(said) if said else PLAIN
            publications = [Publication(body, envelope) for body in self.bodies]
        _check_room(door)
        slice_ends_s = time.perf_counter() + SLICE_S
        for index, fields in enumerate(self.messages or ()):
            if isinstance(self.messages, Later) and time.perf_counter() > slice_ends_s:
                await door.broker.lane.turn()
                # Else many long batches are read to their ends, and hold memory meanwhile, only to be refused.
                _check_room(door)
                slice_ends_s = time.perf_counter() + SLICE_S
            if isinstance(fields, Unread):
                fields = fields.read()
            try:
                if isinstance(fields, Unreadable):
                    raise fields.why
                await translate(fields, door, self.queue, self.namespace)
                publications.append(publication(fields, door.request_format))
            except BrokerError as error:
                refused[index] = error
        door.begun()
        results = await door.broker.publish(self.queue, publications, batch_id=self.batch_id, namespace=self.namespace)
        if refused:
            stored = iter(results)
            results = [refused.get(index) or next(stored) for index in range(len(results) + len(refused))]
        return await self._answer(results, door.broker.lane)

    async def _answer(self, results: list[Published | BrokerError], lane: Lane) -> BatchAnswer:
        errors = [(index, one) for index, one in enumerate(results) if isinstance(one, BrokerError)]
        answer = BatchAnswer(
            accepted=len(results) - len(errors),
            duplicates=sum([one.is_duplicate for one in results if isinstance(one, Published)]),
        )
        if self.brief:
            answer.errors = [BatchError(index, error.code, str(error)) for index, error in errors]
        else:
            answer.results = [
                BatchResult(error=error_body(one))
                if isinstance(one, BrokerError)
                else BatchResult(message_id=one.id, position=one.position, duplicate=one.is_duplicate)
                async for one in lane.in_turns(results, TOLD_AT_ONCE)
            ]
        return answer


class Later:
    """The messages of a long batch, in their order: nothing is made of one before its turn comes."""

    def __init__(self, members: Members, read: Callable[[int, msgspec.Raw], MessageFields]) -> None:
        self._members = members
        self._read = read

    def __iter__(self) -> Iterator[Unread]:
        for index, raw in enumerate(self._members.given()):
            yield Unread(read=partial(self._read, index, raw))


class _Loose(msgspec.Struct):
    """As much of a batch as is needed to read its messages or bodies one by one."""

    messages: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=BATCH_MAX)] | None = None
    bodies: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=BATCH_MAX)] | None = None
    partial: bool = False


class _BatchDecoder(Decoder[Any]):
    """Reads a batch in one go, a partial one that cannot be read so message by message, and of a long one nothing but
    how many messages it has: each is read when it is its turn to be published."""

    def __init__(self, spoken: Format) -> None:
        self._whole = spoken.decoder(PublishBatch, place="payload")
        self._loose = spoken.decoder(_Loose, place="payload")
        self._rest = spoken.decoder(dict[str, msgspec.Raw], place="payload")
        self._skim = Skim(PublishBatch, spoken, place="payload")
        self._message = BoundedDecoder(MessageFields, spoken, place="the message")
        self._body = spoken.decoder(bytes, place="the body")
        self._format = spoken

    def __call__(self, data: bytes | memoryview | msgspec.Raw) -> PublishBatch:
        if byte_count(data) > AT_ONCE_BYTES:
            outline: Any = self._skim(data)
            if isinstance(outline.messages, Members):
                return self._long(outline, outline.messages)
        return self._short(data)

    async def in_steps(self, data: bytes | memoryview | msgspec.Raw, turn: Turn) -> PublishBatch:
        outline: Any = await self._skim.in_steps(data, turn)
        await turn()
        if isinstance(outline.messages, Members):
            return self._long(outline, outline.messages)
        return self._short(data)

    def _short(self, data: bytes | memoryview | msgspec.Raw) -> PublishBatch:
        try:
            return self._whole(data)
        except InvalidRequest:
            loose = self._readable(data)
            if loose is None:
                raise
        rest: dict[str, Any] = self._rest(data)
        rest |= {name: [] for name in ("messages", "bodies") if getattr(loose, name) is not None}
        # The rest may be wrong as well; that is said of the whole.
        batch = self._whole(self._format.encode(rest))
        if loose.messages is not None:
            batch.messages = [Unread(read=partial(self._read, self._message, raw)) for raw in loose.messages]
        elif loose.bodies is not None:
            said, batch.bodies, batch.content_type = batch.content_type, None, None
            with_said = partial(self._with, content_type=said)
            batch.messages = [Unread(read=partial(self._read, with_said, raw)) for raw in loose.bodies]
        return batch

    def _long(self, outline: Any, messages: Members) -> PublishBatch:
        given = {name: getattr(outline, name) for name in outline.__struct_fields__}
        rest = {name: raw for name, raw in given.items() if raw is not UNSET} | {"messages": []}
        batch = self._whole(self._format.encode(rest))
        told = None if batch.partial else rest
        batch.messages = cast(list[MessageFields], Later(messages, lambda index, raw: self._in_turn(index, raw, told)))
        return batch

    def _in_turn(self, index: int, raw: msgspec.Raw, rest: dict[str, Any] | None) -> MessageFields:
        """One message of a long batch; without `rest` the batch is partial."""
        try:
            return self._message(raw)
        except MessageTooLarge as error:
            return Unreadable(why=error)
        except InvalidRequest as error:
            if rest is None:
                return Unreadable(why=error)
            raise self._as_of_batch(index, raw, rest, error) from None

    def _as_of_batch(self, index: int, raw: msgspec.Raw, rest: dict[str, Any], error: InvalidRequest) -> InvalidRequest:
        """The words in which it is said of a batch that one of its messages cannot be read."""
        try:
            self._whole(self._format.encode(rest | {"messages": [raw]}))
        except InvalidRequest as said:
            return InvalidRequest(str(said).replace("`messages[0]", f"`messages[{index}]"))
        return error

    def _readable(self, data: bytes | memoryview | msgspec.Raw) -> _Loose | None:
        """A partial batch as far as it can be read."""
        try:
            loose = self._loose(data)
        except InvalidRequest:
            return None
        return loose if loose.partial else None

    def _with(self, raw: msgspec.Raw, content_type: str | None) -> MessageFields:
        return MessageFields(body=self._body(raw), content_type=content_type)

    def _read(self, read: Callable[[msgspec.Raw], MessageFields], raw: msgspec.Raw) -> MessageFields:
        try:
            return read(raw)
        except (InvalidRequest, MessageTooLarge) as error:
            return Unreadable(why=error)


for _each in DECODERS:
    DECODERS[_each][PublishBatch.name] = _BatchDecoder(_each)


EXTRA_KEYS_MAX = 10_000


class Routed(msgspec.Struct, omit_defaults=True):
    queue: str
    message_id: str
    position: int
    duplicate: bool = False


class RoutedAnswer(msgspec.Struct):
    routed: list[Routed]
    """One per queue it reached; none when no binding matched."""


@command
class PublishToExchange(MessageFields, kw_only=True):
    """Publish through an exchange: stored in every queue it leads to, or in none."""

    name: ClassVar[str] = "exchange.publish"
    answer: ClassVar[Any] = RoutedAnswer

    exchange: Annotated[str, msgspec.Meta(max_length=255)]
    routing_key: Annotated[str, msgspec.Meta(max_length=255)] = ""
    namespace: Name = DEFAULT_NAMESPACE
    extra_keys: Annotated[list[str], msgspec.Meta(max_length=EXTRA_KEYS_MAX)] = msgspec.field(default_factory=list)
    batch_id: BatchId | None = None
    """Sent again under the same one, it is not stored again. Unlike `deduplication_id` it is nothing of the message."""

    async def run(self, door: Door) -> RoutedAnswer:
        await translate(self, door)
        one = publication(self, door.request_format, exchange=self.exchange, routing_key=self.routing_key)
        door.begun()
        results = await door.broker.publish_to_exchange(
            self.exchange,
            one,
            headers=self.headers,
            extra_keys=self.extra_keys,
            batch_id=self.batch_id,
            namespace=self.namespace,
        )
        return RoutedAnswer([Routed(one.queue, one.id, one.position, one.is_duplicate) for one in results])
