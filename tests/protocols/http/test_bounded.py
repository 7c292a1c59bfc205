"""What is too much is refused before it is unfolded, and what is long is read in turns."""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from smista.core.errors import MessageTooLarge
from smista.engine import Broker, QueueSettings
from smista.errors import BrokerError
from smista.log import MemoryLog
from smista.protocols.http import translating
from smista.protocols.http.bounded import AT_ONCE_BYTES, OBJECT_BYTES_MAX, _members, byte_count
from smista.protocols.http.commands import DECODERS, Door, publishing
from smista.protocols.http.commands.publishing import PublishBatch, Unread
from smista.protocols.http.errors import InvalidRequest
from smista.protocols.http.formats import JSON, MESSAGE_PACK, Decoder, Format
from smista.protocols.http.staging import Staging

FORMATS = [JSON, MESSAGE_PACK]
NESTED: dict[Format, msgspec.Raw] = {JSON: msgspec.Raw(b"[" + b"[]," * 100_000 + b"[]]")}
NESTED[MESSAGE_PACK] = msgspec.Raw(b"\xdd" + struct.pack(">I", 100_000) + b"\x90" * 100_000)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declare_queue("q", QueueSettings())
        yield broker


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long what was decoded whole was, each time."""
    sizes: list[int] = []
    plain = Decoder.__call__

    def watched(self: Decoder[Any], data: bytes | memoryview | msgspec.Raw) -> Any:
        found = plain(self, data)
        if not re.match("Members|.*Outline$", type(found).__name__):
            sizes.append(byte_count(data))
        return found

    monkeypatch.setattr(Decoder, "__call__", watched)
    return sizes


def door(broker: Broker, spoken: Format) -> Door:
    return Door(broker, Staging(lambda: broker, None), spoken, spoken)


@pytest.mark.parametrize("spoken", FORMATS)
@pytest.mark.parametrize(
    ("command", "field"),
    [
        ("queue.publish", "headers"),
        ("exchange.publish", "headers"),
        ("exchange.bind", "arguments"),
        ("exchange.unbind", "arguments"),
        ("exchange.route", "headers"),
        ("queue.browse", "headers"),
        ("queue.declare", "settings"),
    ],
)
def test_an_object_that_is_too_large_is_not_unfolded(
    spoken: Format, command: str, field: str, decoded: list[int]
) -> None:
    value: object = {"a": NESTED[spoken]}
    if field == "settings":
        value = {"annotations": [["a", "x" * OBJECT_BYTES_MAX]]}
    data = spoken.encode({"queue": "q", "exchange": "e", field: value})
    if command in ("exchange.publish", "exchange.route"):
        data = spoken.encode({"exchange": "e", field: value})
    elif field in ("settings",) or command in ("queue.publish", "queue.browse"):
        data = spoken.encode({"queue": "q", field: value})
    with pytest.raises(BrokerError, match=f"takes .* over the limit of {OBJECT_BYTES_MAX}") as refusal:
        DECODERS[spoken][command](data)
    assert refusal.type is (MessageTooLarge if command.endswith(".publish") else InvalidRequest)
    assert decoded == []


@pytest.mark.parametrize("spoken", FORMATS)
@pytest.mark.parametrize(
    ("command", "field"),
    [("queue.publish_batch", "messages"), ("queue.publish_batch", "bodies"), ("queue.ack", "receipts")],
)
def test_a_list_that_is_too_long_is_not_unfolded(spoken: Format, command: str, field: str, decoded: list[int]) -> None:
    data = spoken.encode({"queue": "q", field: [{}] * 100_000})
    with pytest.raises(InvalidRequest, match=f"`{field}` has too many members; give a list of at most 10,000"):
        DECODERS[spoken][command](data)
    assert decoded == []


@pytest.mark.parametrize("spoken", FORMATS)
def test_a_list_as_long_as_it_may_be_is_read(spoken: Format) -> None:
    receipts = ["0123456789"] * 10_000
    found: Any = DECODERS[spoken]["queue.ack"](spoken.encode({"queue": "q", "receipts": receipts}))
    assert found.receipts == receipts


@pytest.mark.parametrize("spoken", FORMATS)
async def test_a_long_batch_is_read_message_by_message(
    broker: Broker, spoken: Format, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SLICE_S", -1.0)
    turns = 0
    plain = broker.lane.turn

    async def turn() -> None:
        nonlocal turns
        turns += 1
        await plain()

    monkeypatch.setattr(broker.lane, "turn", turn)
    headers = {f"name {number}": number for number in range(20)}
    messages = [{"message": {"n": number}, "headers": headers} for number in range(500)]
    batch = DECODERS[spoken]["queue.publish_batch"](spoken.encode({"queue": "q", "messages": messages, "brief": True}))
    assert isinstance(batch, PublishBatch)
    assert all(isinstance(each, Unread) for each in batch.messages or ())
    answer = await batch.run(door(broker, spoken))
    assert (answer.accepted, answer.errors) == (500, [])
    assert max(decoded) < 1000
    assert turns == 500
    stored = await broker.receive("q", 1000)
    assert [msgspec.json.decode(each.body) for each in stored] == [each["message"] for each in messages]


def long_batch(spoken: Format, *, is_partial: bool, **wrong: object) -> PublishBatch:
    messages: list[dict[str, object]] = [{"message": "x" * 100} for _ in range(1000)]
    messages[700] |= wrong
    found = DECODERS[spoken]["queue.publish_batch"](
        spoken.encode({"queue": "q", "messages": messages, "partial": is_partial, "brief": True})
    )
    assert isinstance(found, PublishBatch)
    return found


@pytest.mark.parametrize("spoken", FORMATS)
async def test_a_long_batch_with_a_message_that_cannot_be_read(broker: Broker, spoken: Format) -> None:
    with pytest.raises(InvalidRequest, match=r"`messages\[700\].priority` is text; give a whole number, or null"):
        await long_batch(spoken, is_partial=False, priority="high").run(door(broker, spoken))
    assert await broker.receive("q", 1) == []
    answer = await long_batch(spoken, is_partial=True, priority="high").run(door(broker, spoken))
    assert answer.accepted == 999
    assert isinstance(answer.errors, list)
    assert [error.index for error in answer.errors] == [700]


@pytest.mark.parametrize("spoken", FORMATS)
async def test_a_long_batch_with_a_message_whose_headers_are_too_large(broker: Broker, spoken: Format) -> None:
    batch = long_batch(spoken, is_partial=False, headers={"a": NESTED[spoken]})
    answer = await batch.run(door(broker, spoken))
    assert answer.accepted == 999
    assert isinstance(answer.errors, list)
    assert [(error.index, error.code) for error in answer.errors] == [(700, "message_too_large")]


async def test_a_large_message_of_messagepack_is_translated_in_turns(
    broker: Broker, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    plain = broker.lane.turn

    async def turn() -> None:
        nonlocal turns
        turns += 1
        await plain()

    monkeypatch.setattr(broker.lane, "turn", turn)
    monkeypatch.setattr(translating, "SLICE_S", -1.0)
    data = MESSAGE_PACK.encode({"queue": "q", "message": NESTED[MESSAGE_PACK]})
    command = DECODERS[MESSAGE_PACK]["queue.publish"](data)
    await command.run(door(broker, MESSAGE_PACK))
    assert turns > len(data) // AT_ONCE_BYTES
    [stored] = await broker.receive("q", 1)
    assert stored.body == b"[" + b"[]," * 99_999 + b"[]]"


def test_members_are_those_that_were_given() -> None:
    found = msgspec.json.decode(b'[1,"",{}]', type=_members(5))
    assert [bytes(each) for each in found.given()] == [b"1", b'""', b"{}"]


async def test_a_large_message_of_messagepack_is_not_translated_further_than_its_queue_takes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.declare_queue("small", QueueSettings(body_bytes_max=1000))
    sizes: list[int] = []

    def watched(data: bytes) -> object:
        sizes.append(len(data))
        return msgspec.msgpack.decode(data)

    monkeypatch.setattr(translating, "_decode", watched)
    data = MESSAGE_PACK.encode({"queue": "small", "message": NESTED[MESSAGE_PACK]})
    with pytest.raises(MessageTooLarge, match="over the limit of 1000 bytes for queue 'small'"):
        await DECODERS[MESSAGE_PACK]["queue.publish"](data).run(door(broker, MESSAGE_PACK))
    assert len(sizes) == 1
