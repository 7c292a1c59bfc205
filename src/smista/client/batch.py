"""A batch: messages of one queue that travel in one request."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from smista.client.publication import Publication
from smista.client.wire import PublishBatch, encode
from smista.errors import BrokerError, InvalidArgument

BATCH_COUNT = 500
BATCH_BYTES = 256 * 1024
MESSAGE_BYTES = 64
"""Roughly what a message takes in a request beside its body."""
_UNSENDABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


class Batch:
    """Bodies of one content type while no message has other properties, else whole messages. Also notes the places of
    messages that cannot be sent."""

    __slots__ = ("bodies", "content_type", "messages", "own_ids", "refused", "size")

    def __init__(self, content_type: str | None = None) -> None:
        self.bodies: list[bytes] = []
        self.messages: list[msgspec.Raw] | None = None
        self.content_type = content_type
        self.own_ids: set[int] = set()
        """Places, among those sent, of messages that have deduplication ids of their own."""
        self.refused: dict[int, BrokerError] = {}
        """Why a message is not sent, by its place among all, in order."""
        self.size = 0

    @property
    def count(self) -> int:
        """How many messages are sent."""
        return len(self.bodies) if self.messages is None else len(self.messages)

    @property
    def total(self) -> int:
        """How many messages there were, including those that are not sent."""
        return self.count + len(self.refused)

    def place_of(self, sent: int) -> int:
        """A sent message's place among all, from its place among those sent."""
        place = sent
        for refused in self.refused:
            if refused > place:
                break
            place += 1
        return place

    def has_room(self, size: int, *, count_max: int = BATCH_COUNT, bytes_max: int = BATCH_BYTES) -> bool:
        return self.total < count_max and self.size + size <= bytes_max

    def takes_bodies_of(self, content_type: str | None) -> bool:
        """Whether the batch is empty or holds bodies of this content type."""
        return self.messages is None and (self.content_type == content_type or not self.bodies)

    def takes_messages(self) -> bool:
        """Whether the batch is empty or holds whole messages."""
        return self.messages is not None or not self.bodies

    def refuse(self, error: BrokerError) -> None:
        self.refused[self.total] = error

    def add_body(self, body: bytes, content_type: str | None) -> int:
        """Returns its place."""
        if not self.takes_bodies_of(content_type):
            return self.add_message(raw_message(Publication(body=body, content_type=content_type)), has_own_id=False)
        self.size += body_size(body)
        self.content_type = content_type
        self.bodies.append(body)
        return len(self.bodies) - 1

    def add_message(self, message: msgspec.Raw, *, has_own_id: bool) -> int:
        """Returns its place."""
        if self.messages is None:
            content_type = self.content_type
            self.messages = [raw_message(Publication(body=body, content_type=content_type)) for body in self.bodies]
        place = len(self.messages)
        if has_own_id:
            self.own_ids.add(place)
        self.size += message_size(message)
        self.messages.append(message)
        return place

    def payload(self, queue: str, *, brief: bool = False) -> PublishBatch:
        if self.messages is None:
            return PublishBatch(queue, bodies=self.bodies, content_type=self.content_type, brief=brief)
        # A message with an id of its own needs to know whether it was the duplicate.
        return PublishBatch(queue, messages=self.messages, brief=brief and not self.own_ids)


def body_size(body: bytes) -> int:
    return len(body) + MESSAGE_BYTES


def message_size(message: msgspec.Raw) -> int:
    return len(memoryview(message))


def raw_message(publication: Publication) -> msgspec.Raw:
    """A message as it is sent; raises `InvalidArgument` where it cannot be encoded."""
    try:
        return msgspec.Raw(encode(publication))
    except _UNSENDABLE as error:
        raise InvalidArgument(f"{_culprit(publication)} of the message cannot be sent: {error}.") from None


def _culprit(publication: Publication) -> str:
    """The property, or the header, that cannot be sent."""
    for field in publication.__struct_fields__:
        value = getattr(publication, field)
        parts: dict[str, object] = (
            {f"`headers.{name}`": {name: one} for name, one in value.items()} if type(value) is dict else {}
        )
        for name, part in (parts or {f"`{field}`": value}).items():
            if part is not UNSET and not _can_be_sent(part):
                return name
    return "A property"


def _can_be_sent(value: object) -> bool:
    try:
        encode(value)
    except _UNSENDABLE:
        return False
    return True
