"""What is too much is refused before it is unfolded, and what is long is read in turns."""

from __future__ import annotations

import json
import re
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from smista.core.message import Envelope, Publication
from smista.engine import Broker, QueueSettings
from smista.errors import BrokerError, InvalidRequest, LowMemory, MessageTooLarge, RequestTooLarge
from smista.log import MemoryLog
from smista.protocols.http import rest, routes, translating
from smista.protocols.http.answering import encoded
from smista.protocols.http.app import HttpApp
from smista.protocols.http.bounded import (
    AT_ONCE_BYTES,
    OBJECT_BYTES_MAX,
    STEP_BYTES,
    _members,
    byte_count,
    check_values,
    in_steps,
)
from smista.protocols.http.commands import DECODERS, Call, batches
from smista.protocols.http.commands.batches import Later, PublishBatch, Unread
from smista.protocols.http.commands.browsing import Browse
from smista.protocols.http.commands.message_fields import MessageFields
from smista.protocols.http.commands.publishing import Publish
from smista.protocols.http.commands.receiving import Acknowledge, Receive, Result, Settled
from smista.protocols.http.formats import JSON, MESSAGE_PACK, Decoder, Format
from smista.protocols.http.stream_frames import OWN_DECODERS, TAGS_MAX, Refusal, read_frame
from smista.protocols.http.translating import token_counts
from smista.protocols.web.asgi import Scope, respond
from smista.service import plain_values, properties
from smista.service.commands.staged import CommitStaged
from smista.service.principal import anyone
from smista.service.properties import Properties
from smista.service.service import Service
from tests.protocols.http.peer import Peer

FORMATS = [JSON, MESSAGE_PACK]
NESTED: dict[Format, msgspec.Raw] = {JSON: msgspec.Raw(b"[" + b"[]," * 200_000 + b"[]]")}
NESTED[MESSAGE_PACK] = msgspec.Raw(b"\xdd" + struct.pack(">I", 100_000) + b"\x90" * 100_000)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue("q", QueueSettings())
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


def call(broker: Broker, spoken: Format) -> Call:
    return Call(Service(broker).session(anyone("http")), spoken, spoken)


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
    bytes_max = OBJECT_BYTES_MAX * (spoken.widest if command.endswith(".publish") else 1)
    with pytest.raises(BrokerError, match=f"takes .* over the limit of {bytes_max}") as refusal:
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
    monkeypatch.setattr(batches, "SLICE_S", -1.0)
    turns = 0
    plain = broker.fair_turns.turn

    async def turn() -> None:
        nonlocal turns
        turns += 1
        await plain()

    monkeypatch.setattr(broker.fair_turns, "turn", turn)
    headers = {f"name {number}": number for number in range(20)}
    messages = [{"message": {"n": number}, "headers": headers} for number in range(500)]
    batch = DECODERS[spoken]["queue.publish_batch"](spoken.encode({"queue": "q", "messages": messages, "brief": True}))
    assert isinstance(batch, PublishBatch)
    assert all(isinstance(each, Unread) for each in batch.messages or ())
    answer = await batch.carry_out(call(broker, spoken))
    assert (answer.accepted, answer.errors) == (500, [])
    assert max(decoded) < 1000
    assert turns == 500
    stored = await broker.receiving.receive("q", 1000)
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
        await long_batch(spoken, is_partial=False, priority="high").carry_out(call(broker, spoken))
    assert await broker.receiving.receive("q", 1) == []
    answer = await long_batch(spoken, is_partial=True, priority="high").carry_out(call(broker, spoken))
    assert answer.accepted == 999
    assert isinstance(answer.errors, list)
    assert [error.index for error in answer.errors] == [700]


@pytest.mark.parametrize("spoken", FORMATS)
async def test_a_long_batch_with_a_message_whose_headers_are_too_large(broker: Broker, spoken: Format) -> None:
    batch = long_batch(spoken, is_partial=False, headers={"a": NESTED[spoken]})
    answer = await batch.carry_out(call(broker, spoken))
    assert answer.accepted == 999
    assert isinstance(answer.errors, list)
    assert [(error.index, error.code) for error in answer.errors] == [(700, "message_too_large")]


async def test_a_large_message_of_messagepack_is_translated_in_turns(
    broker: Broker, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    plain = broker.fair_turns.turn

    async def turn() -> None:
        nonlocal turns
        turns += 1
        await plain()

    monkeypatch.setattr(broker.fair_turns, "turn", turn)
    monkeypatch.setattr(translating, "SLICE_S", -1.0)
    data = MESSAGE_PACK.encode({"queue": "q", "message": NESTED[MESSAGE_PACK]})
    command = DECODERS[MESSAGE_PACK]["queue.publish"](data)
    await command.carry_out(call(broker, MESSAGE_PACK))
    assert turns > len(data) // AT_ONCE_BYTES
    [stored] = await broker.receiving.receive("q", 1)
    assert stored.body == b"[" + b"[]," * 99_999 + b"[]]"


def test_members_are_those_that_were_given() -> None:
    found = msgspec.json.decode(b'[1,"",{}]', type=_members(5))
    assert [bytes(each) for each in found.given()] == [b"1", b'""', b"{}"]


async def test_a_large_message_of_messagepack_is_not_translated_further_than_its_queue_takes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.declaring.declare_queue("small", QueueSettings(body_bytes_max=1000))
    sizes: list[int] = []

    def watched(data: bytes) -> object:
        sizes.append(len(data))
        return msgspec.msgpack.decode(data)

    monkeypatch.setattr(translating, "_decode", watched)
    data = MESSAGE_PACK.encode({"queue": "small", "message": NESTED[MESSAGE_PACK]})
    with pytest.raises(MessageTooLarge, match="over the limit of 1000 bytes for queue 'small'"):
        await DECODERS[MESSAGE_PACK]["queue.publish"](data).carry_out(call(broker, MESSAGE_PACK))
    assert len(sizes) == 1
    await broker.declaring.set_policy("short", "small", {"body_bytes_max": 900})
    with pytest.raises(MessageTooLarge, match=r"900 bytes for queue 'small' \(body_bytes_max of policy 'short'\)"):
        await DECODERS[MESSAGE_PACK]["queue.publish"](data).carry_out(call(broker, MESSAGE_PACK))


@pytest.fixture
def turns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each turn that somebody who has much to do waits for."""
    found: list[None] = []
    plain = broker.fair_turns.turn

    async def turn() -> None:
        found.append(None)
        await plain()

    monkeypatch.setattr(broker.fair_turns, "turn", turn)
    return found


@pytest.mark.parametrize("spoken", FORMATS)
async def test_very_long_requests_are_gone_through_once_in_a_turn(
    broker: Broker, turns: list[None], spoken: Format
) -> None:
    batch = spoken.encode({"queue": "q", "messages": [{"message": "x" * 1000}] * 1500})
    found = await in_steps(DECODERS[spoken]["queue.publish_batch"], batch, broker.fair_turns)
    assert isinstance(found, PublishBatch)
    # Before it, before its messages are counted, and before the first of them is read.
    assert len(turns) == 3
    assert isinstance(found.messages, Later), "nothing is made for each message before its turn"
    turns.clear()
    one = spoken.encode({"queue": "q", "body": b"x" * 1_500_000})
    assert isinstance(await in_steps(DECODERS[spoken]["queue.publish"], one, broker.fair_turns), Publish)
    per_step = byte_count(one) // STEP_BYTES
    assert len(turns) == 2 * per_step
    turns.clear()
    longer = spoken.encode({"queue": "q", "body": b"x" * 6_000_000})
    assert isinstance(await in_steps(DECODERS[spoken]["queue.publish"], longer, broker.fair_turns), Publish)
    assert len(turns) >= 4 * 2 * per_step, "the longer a step is the more turns come after it"


@pytest.mark.parametrize("spoken", FORMATS)
async def test_others_are_read_in_one_step(broker: Broker, turns: list[None], spoken: Format) -> None:
    batch = spoken.encode({"queue": "q", "messages": [{"message": "x" * 1000}] * 500})
    await in_steps(DECODERS[spoken]["queue.publish_batch"], batch, broker.fair_turns)
    assert turns == []


@pytest.mark.parametrize("spoken", FORMATS)
def test_the_parts_of_a_commit_are_counted_before_they_are_read(decoded: list[int], spoken: Format) -> None:
    commit = DECODERS[spoken]["staged.commit"]
    fields = {"job": "j", "batch": "b", "queue": "q"}
    most = commit(spoken.encode({**fields, "parts": [(1, 2)] * 100_000}))
    assert isinstance(most, CommitStaged)
    assert len(most.parts) == 100_000
    decoded.clear()
    with pytest.raises(InvalidRequest, match=r"`parts` has too many members; give a list of at most 100,000\."):
        commit(spoken.encode({**fields, "parts": [(1, 2)] * 100_001}))
    assert decoded == []


@pytest.mark.parametrize("spoken", FORMATS)
def test_the_requests_of_a_frame_are_counted_before_they_are_read(decoded: list[int], spoken: Format) -> None:
    frame = spoken.encode([{"command": "queue.list"}] * 10_001)
    text, binary = (frame.decode(), None) if spoken is JSON else (None, frame)
    refusal = read_frame(spoken, text=text, binary=binary)
    assert isinstance(refusal, Refusal)
    assert refusal.error.message == "The request is too long; give a list of at most 10,000 members."
    assert decoded == []


@pytest.mark.parametrize("spoken", FORMATS)
@pytest.mark.parametrize(("method", "path"), [("POST", b"/v1/queues/q/messages"), ("PUT", b"/v1/queues/q")])
async def test_of_a_long_body_only_fields_that_there_are_are_looked_at(
    broker: Broker, decoded: list[int], spoken: Format, method: str, path: bytes
) -> None:
    route, named = routes.find(method, path)
    scope = {"headers": [(b"content-type", spoken.content_type)], "query_string": b""}
    body = spoken.encode({f"name {number}": 0 for number in range(100_000)})
    with pytest.raises(InvalidRequest, match="The unknown field `name 0` is given"):
        await rest.read(route, named, scope, body, broker.fair_turns)
    assert decoded == []


async def test_a_long_body_of_rest_is_read_like_a_short_one(broker: Broker) -> None:
    route, named = routes.find("POST", b"/v1/queues/q/messages")
    scope: Scope = {"headers": [(b"content-type", JSON.content_type)], "query_string": b"priority=0"}
    body = JSON.encode({"message": "x" * AT_ONCE_BYTES, "headers": {"a": 1}})
    found, _ = await rest.read(route, named, scope, body, broker.fair_turns)
    assert isinstance(found, Publish)
    assert (found.queue, found.headers, found.priority) == ("q", {"a": 1}, 0)
    route, named = routes.find("PUT", b"/v1/queues/q")
    scope["query_string"] = b""
    with pytest.raises(InvalidRequest, match="max_depth"):
        await rest.read(route, named, scope, JSON.encode({"max_depth": "x" * AT_ONCE_BYTES}), broker.fair_turns)


@pytest.mark.parametrize("spoken", FORMATS)
async def test_a_long_list_is_encoded_in_turns(broker: Broker, turns: list[None], spoken: Format) -> None:
    results = [Result(action="requeued") if number % 2 else None for number in range(2000)]
    answer = Settled(success=True, results=results)
    assert await encoded(answer, spoken, broker.fair_turns) == spoken.encode(answer)
    assert len(turns) >= 3
    assert answer.results is results
    turns.clear()
    assert await encoded(Settled(success=True, results=results[:10]), spoken, broker.fair_turns)
    assert turns == []


async def test_long_answers_are_given_to_the_connection_in_pieces() -> None:
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    body = bytes(range(256)) * 10_000
    await respond(send, 200, b"text/plain", body)
    assert (b"content-length", b"2560000") in sent[0]["headers"]
    assert b"".join(event["body"] for event in sent[1:]) == body
    assert max(len(event["body"]) for event in sent[1:]) <= 1 << 20
    assert [event.get("more_body", False) for event in sent[1:]] == [True, True, True, False]


@pytest.mark.parametrize("spoken", FORMATS)
async def test_many_receipts_are_read_and_told_of_in_turns(broker: Broker, turns: list[None], spoken: Format) -> None:
    wrong = Acknowledge(receipts=["none"] * 5_000)
    answer = await wrong.carry_out(call(broker, spoken))
    assert isinstance(answer.results, list)
    assert len(answer.results) == 5_000
    assert len(turns) >= 4


@pytest.mark.parametrize("spoken", FORMATS)
async def test_what_became_of_a_batch_is_told_in_turns(broker: Broker, turns: list[None], spoken: Format) -> None:
    batch = PublishBatch(queue="q", bodies=[b""] * 5_000)
    answer = await batch.carry_out(call(broker, spoken))
    assert isinstance(answer.results, list)
    assert len(answer.results) == 5_000
    assert len(turns) >= 2


@pytest.mark.parametrize("spoken", FORMATS)
async def test_long_headers_are_not_kept_unfolded(broker: Broker, spoken: Format) -> None:
    headers = {f"h{number}": number for number in range(1000)}
    messages = [MessageFields(body=b"", headers=headers)] * 3
    await PublishBatch(queue="q", messages=messages).carry_out(call(broker, spoken))
    page = await Browse(queue="q").carry_out(call(broker, spoken))
    received = await Receive(queue="q", limit=3).carry_out(call(broker, spoken))
    for view in (*page.messages, *received.messages):
        assert isinstance(view.headers, msgspec.Raw)
    read = msgspec.json.decode if spoken is JSON else msgspec.msgpack.decode
    answered = read(await encoded(received, spoken, broker.fair_turns))
    assert [each["headers"] for each in answered["messages"]] == [headers] * 3


async def test_long_headers_make_a_page_shorter(broker: Broker) -> None:
    envelope = Envelope(properties=properties.write(Properties(headers={"a": "x" * 60_000})))
    await broker.publishing.publish("q", [Publication(b"", envelope)] * 500)
    for bodies in (True, False):
        numbers: list[str] = []
        after: int | None = 0
        pages = 0
        while after is not None:
            page = await Browse(queue="q", limit=500, after=after, bodies=bodies).carry_out(call(broker, JSON))
            numbers += [view.message_id for view in page.messages]
            after = page.after
            pages += 1
        assert len(set(numbers)) == len(numbers) == 500
        assert pages == 2


async def test_a_long_body_of_very_many_values_is_bytes_in_messagepack(broker: Broker) -> None:
    few = JSON.encode(["x" * 1000] * 300)
    await broker.publishing.publish("q", [Publication(few, Envelope(properties=properties.JSON_BYTES))])
    [short] = (await Receive(queue="q").carry_out(call(broker, MESSAGE_PACK))).messages
    assert msgspec.msgpack.decode(short.message) == ["x" * 1000] * 300
    text = JSON.encode([[]] * 100_000)
    await broker.publishing.publish("q", [Publication(text, Envelope(properties=properties.JSON_BYTES))] * 2)
    [packed] = (await Receive(queue="q").carry_out(call(broker, MESSAGE_PACK))).messages
    assert (packed.body, packed.message) == (text, msgspec.UNSET)
    [plain] = (await Receive(queue="q").carry_out(call(broker, JSON))).messages
    assert bytes(plain.message) == text


async def test_more_values_than_are_gone_through_at_once_are_refused(
    broker: Broker, turns: list[None], decoded: list[int]
) -> None:
    dense = b'{"command":"queue.publish","payload":{"queue":"q","message":[' + b"[]," * 2_000_000 + b"0]}}"
    with pytest.raises(RequestTooLarge, match="more than 4000000 values"):
        await check_values(dense, JSON, broker.fair_turns)
    assert len(turns) >= 4
    turns.clear()
    await check_values(JSON.encode({"message": ["x" * 1000] * 5_000}), JSON, broker.fair_turns)
    assert len(turns) == 5
    turns.clear()
    await check_values(dense[:3_000_000], JSON, broker.fair_turns)
    assert turns == []


@pytest.mark.parametrize("dense", [b"\x90" * 5_000_000, b"\xa1x" * 5_000_000, b"\xcc\x00\x81" * 3_000_000])
async def test_so_are_those_of_messagepack(broker: Broker, turns: list[None], dense: bytes) -> None:
    request = b"\x82\xa7command\xadqueue.publish\xa7payload\xdd" + struct.pack(">I", len(dense)) + dense
    with pytest.raises(RequestTooLarge, match="more than 4000000 values"):
        await check_values(request, MESSAGE_PACK, broker.fair_turns)
    assert len(turns) >= 3
    turns.clear()
    few = MESSAGE_PACK.encode(
        {"payload": [{"body": bytes(1_000_000), "headers": {"a": 1.5}, "message": -(1 << 40)}] * 6}
    )
    await check_values(few, MESSAGE_PACK, broker.fair_turns)
    assert len(turns) == 1
    # A map of one name to a list of six maps of three names: a body, a map of one, a number.
    assert list(token_counts(few)) == [3 + 6 * (1 + 2 + 4 + 2)]


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/command"), ("POST", "/v1/queues/q/messages")])
async def test_such_a_request_is_answered_413(broker: Broker, method: str, path: str, decoded: list[int]) -> None:
    web = HttpApp()
    web.service = Service(broker)
    sent: list[Any] = []
    body = b'{"message":[' + b"[]," * 2_000_000 + b"0]}"
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(event: Any) -> None:
        sent.append(event)

    await web(scope, receive, send)
    assert sent[0]["status"] == 413
    assert b"request_too_large" in sent[1]["body"]
    assert decoded == []


async def test_such_a_frame_is_refused_too(broker: Broker, decoded: list[int]) -> None:
    peer = Peer(broker)
    peer.send("queue.publish", queue="q", message=[[]] * 2_000_000)
    refusal = await peer.next()
    assert refusal["error"]["code"] == "request_too_large"
    assert decoded == []
    await peer.go()


# -- what the stream takes beside commands ----------------------------------------------------------------------------

MANY = 500_000
FEW_BYTES = 4 << 20
"""What the members that are counted take, and less than it takes to unfold so many."""


def unfolded_bytes(read: Callable[[], object]) -> int:
    """How much memory it takes to read something, at most."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def many(spoken: Format, count: int, member: object) -> msgspec.Raw:
    """A list of so many."""
    one = spoken.encode(member)
    if spoken is JSON:
        return msgspec.Raw(b"[" + b",".join([one] * count) + b"]")
    return msgspec.Raw(b"\xdd" + struct.pack(">I", count) + one * count)


@pytest.mark.parametrize("spoken", FORMATS)
@pytest.mark.parametrize("command", ["ack", "nack", "release", "extend"])
def test_tags_that_are_too_many_are_not_unfolded(spoken: Format, command: str) -> None:
    data = spoken.encode({"tags": many(spoken, MANY, 77_777)})

    def refuse() -> None:
        with pytest.raises(InvalidRequest, match="`tags` has too many members; give a list of at most 10,000"):
            OWN_DECODERS[spoken][command](data)

    assert unfolded_bytes(refuse) < FEW_BYTES


@pytest.mark.parametrize("spoken", FORMATS)
def test_as_many_tags_as_may_be_are_read(spoken: Format) -> None:
    tags = list(range(1_000_000, 1_000_000 + TAGS_MAX))
    assert OWN_DECODERS[spoken]["ack"](spoken.encode({"tags": tags})).tags == tags


@pytest.mark.parametrize("turns_before", [0, 3])
async def test_a_long_batch_is_read_no_further_when_memory_gets_low(
    broker: Broker, turns_before: int, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "SLICE_S", -1.0)
    batch = long_batch(JSON, is_partial=False)
    decoded.clear()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == turns_before:
            broker._keeper.pressure.refusal = LowMemory("low")

    monkeypatch.setattr(broker.fair_turns, "turn", turn)
    if not turns_before:
        broker._keeper.pressure.refusal = LowMemory("low")
    with pytest.raises(LowMemory):
        await batch.carry_out(call(broker, JSON))
    assert len(decoded) == max(0, turns_before - 1)


@pytest.mark.parametrize(
    "written",
    [
        json.dumps({"title": "中" * 11_000}),
        json.dumps({f"k{number}": {"a": [number]} for number in range(2_500)}, indent=2),
    ],
)
async def test_headers_are_measured_as_the_log_keeps_them(broker: Broker, written: str) -> None:
    assert len(written) > OBJECT_BYTES_MAX
    data = f'{{"queue": "q", "message": 1, "headers": {written}}}'.encode()
    await DECODERS[JSON]["queue.publish"](data).carry_out(call(broker, JSON))
    [stored] = await broker.receiving.receive("q", 1)
    assert properties.read(stored.envelope.properties).headers == json.loads(written)


async def test_headers_that_are_too_long_are_not_looked_at_one_by_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[object] = []
    monkeypatch.setattr(plain_values, "check_plain", lambda value, **_: looked_at.append(value))
    value = b"[" + b"1," * 70_000 + b"1]"
    command = DECODERS[JSON]["queue.publish"](b'{"queue":"q","message":1,"headers":{"a":' + value + b"}}")
    with pytest.raises(MessageTooLarge, match=r"take 70\d+ bytes, over the limit"):
        await command.carry_out(call(broker, JSON))
    assert looked_at == []
