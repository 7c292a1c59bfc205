"""Publishing many messages to a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from smista.errors import BrokerError, InvalidRequest, MessageTooLarge
from smista.protocols.http.bounded import AT_ONCE_BYTES, BoundedDecoder, Members, Skim, byte_count
from smista.protocols.http.commands.base import COMMANDS, DECODERS, Call, OwnCommand, command
from smista.protocols.http.commands.message_fields import MessageFields, plain_envelope, publication, translate
from smista.protocols.http.errors import ErrorBody, error_body
from smista.protocols.http.formats import Decoder, Format, Turn
from smista.protocols.turns import SLICE_S
from smista.service.fields import BatchId, Choice, Name
from smista.service.values import FairTurns, Publication, Published

BATCH_MAX = 10_000
ANSWERED_AT_ONCE = 2_000
"""Of a batch, for how many messages the results are made in one turn of the loop."""


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


def _check_room(call: Call) -> None:
    if (refusal := call.session.service.refusal) is not None:
        raise refusal


class Unreadable(MessageFields, kw_only=True):
    """Stands in a batch for a message that could not be read."""

    why: BrokerError


class Unread(MessageFields, kw_only=True):
    """Stands in a batch for a message that is read when its turn comes."""

    read: Callable[[], MessageFields]


@command
class PublishBatch(OwnCommand[BatchAnswer], changes=True):
    """Publish many messages to a queue; one that is refused does not keep the others out."""

    name = "queue.publish_batch"
    choices = (
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

    async def carry_out(self, call: Call) -> BatchAnswer:
        self.check_choices()
        refused: dict[int, BrokerError] = {}
        publications: list[Publication] = []
        if self.bodies is not None:
            envelope = plain_envelope(self.content_type)
            publications = [Publication(body, envelope) for body in self.bodies]
        _check_room(call)
        slice_ends_s = time.perf_counter() + SLICE_S
        for index, fields in enumerate(self.messages or ()):
            if isinstance(self.messages, Later) and time.perf_counter() > slice_ends_s:
                await call.fair_turns.turn()
                # Else many long batches are read to their ends, and hold memory meanwhile, only to be refused.
                _check_room(call)
                slice_ends_s = time.perf_counter() + SLICE_S
            if isinstance(fields, Unread):
                fields = fields.read()
            try:
                if isinstance(fields, Unreadable):
                    raise fields.why
                await translate(fields, call, self.queue)
                publications.append(publication(fields, call.request_format))
            except BrokerError as error:
                refused[index] = error
        call.begun()
        results = await call.session.publish(self.queue, publications, batch_id=self.batch_id)
        if refused:
            stored = iter(results)
            results = [refused.get(index) or next(stored) for index in range(len(results) + len(refused))]
        return await self._answer(results, call.fair_turns)

    async def _answer(self, results: list[Published | BrokerError], fair_turns: FairTurns) -> BatchAnswer:
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
                async for one in fair_turns.in_turns(results, ANSWERED_AT_ONCE)
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
        kind: Any = COMMANDS[PublishBatch.name]
        self._whole: Decoder[PublishBatch] = spoken.decoder(kind, place="payload")
        self._loose = spoken.decoder(_Loose, place="payload")
        self._rest = spoken.decoder(dict[str, msgspec.Raw], place="payload")
        self._skim = Skim(kind, spoken, place="payload")
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
        # The rest may be wrong as well; then the whole is refused.
        batch = self._whole(self._format.encode(rest))
        if loose.messages is not None:
            batch.messages = [Unread(read=partial(self._read, self._message, raw)) for raw in loose.messages]
        elif loose.bodies is not None:
            content_type, batch.bodies, batch.content_type = batch.content_type, None, None
            of_type = partial(self._with, content_type=content_type)
            batch.messages = [Unread(read=partial(self._read, of_type, raw)) for raw in loose.bodies]
        return batch

    def _long(self, outline: Any, messages: Members) -> PublishBatch:
        given = {name: getattr(outline, name) for name in outline.__struct_fields__}
        rest = {name: raw for name, raw in given.items() if raw is not UNSET} | {"messages": []}
        batch = self._whole(self._format.encode(rest))
        others = None if batch.partial else rest
        batch.messages = cast(
            list[MessageFields], Later(messages, lambda index, raw: self._in_turn(index, raw, others))
        )
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
        """The error of a batch of which one message cannot be read."""
        try:
            self._whole(self._format.encode(rest | {"messages": [raw]}))
        except InvalidRequest as found:
            return InvalidRequest(str(found).replace("`messages[0]", f"`messages[{index}]"))
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
