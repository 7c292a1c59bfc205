"""What a request may cost: nothing is read for whoever is not let in, and what is long is read in steps."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any
from urllib.parse import quote_plus, unquote_to_bytes

import msgspec
import pytest

from smista.engine import Broker
from smista.log import MemoryLog
from smista.protocols.sqs import json_protocol, message_attributes, query_protocol, sending
from smista.protocols.sqs.actions import send_message_batch
from smista.protocols.sqs.actions.delete_message_batch import DeleteMessageBatch
from smista.protocols.sqs.actions.receive_message import ReceiveAnswer, Received
from smista.protocols.sqs.actions.send_message_batch import PREPARED_AT_ONCE, SendMessageBatch
from smista.protocols.sqs.app import SqsApp
from smista.protocols.sqs.errors import SqsError
from smista.protocols.sqs.limits import MIB, RELAXED, STRICT, Limits, SqsSettings
from smista.protocols.sqs.query_protocol import AT_ONCE_BYTES, WRITTEN_AT_ONCE, parameters, parameters_in_steps
from smista.protocols.web.asgi import Event, Scope
from smista.service.service import Service

FORM = b"application/x-www-form-urlencoded"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        yield broker


def app_of(broker: Broker, settings: SqsSettings | None = None) -> SqsApp:
    app = SqsApp(settings or SqsSettings())
    app.service = Service(broker)
    return app


async def answer_to(app: SqsApp, action: str, **parameters: object) -> bytes:
    """Of an action that succeeds, in JSON."""
    target = f"AmazonSQS.{action}".encode()
    head = ((b"content-type", json_protocol.CONTENT_TYPE), (b"x-amz-target", target))
    start, answer = await exchange(app, msgspec.json.encode(parameters), *head)
    assert start["status"] == 200, answer
    body: bytes = answer["body"]
    return body


async def status_of(app: SqsApp, body: bytes, *headers: tuple[bytes, bytes]) -> int:
    status: int = (await exchange(app, body, *headers))[0]["status"]
    return status


async def exchange(app: SqsApp, body: bytes, *headers: tuple[bytes, bytes]) -> list[Event]:
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(b"content-length", b"%d" % len(body)), *headers],
    }
    sent: list[Event] = []

    async def receive() -> Event:
        return {"type": "http.request", "body": body}

    async def send(event: Event) -> None:
        sent.append(event)

    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("protocol", ["form", "json"])
async def test_nothing_is_read_of_a_request_that_is_not_signed(
    broker: Broker, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(query_protocol, "parse_qsl", lambda *_, **__: read.append("form"))
    monkeypatch.setattr(query_protocol, "unquote_to_bytes", lambda *_: read.append("form"))
    monkeypatch.setattr(json_protocol, "read", lambda *_: read.append("json"))
    app = app_of(broker, SqsSettings(access_keys={"key": "secret"}))
    head = [(b"content-type", FORM)]
    if protocol == "json":
        head = [(b"content-type", json_protocol.CONTENT_TYPE), (b"x-amz-target", b"AmazonSQS.ListQueues")]
    assert await status_of(app, b"Action=ListQueues&x=" + b"%41" * 1000, *head) == 403
    assert read == []


@pytest.mark.parametrize("target", [(), ((b"x-amz-target", b"AmazonSQS.SendMessage"),)])
async def test_a_request_longer_than_any_that_keeps_the_limits_is_refused(
    broker: Broker, target: tuple[tuple[bytes, bytes], ...]
) -> None:
    app = app_of(broker)
    kind = json_protocol.CONTENT_TYPE if target else FORM
    bytes_max = STRICT.request_bytes_max(is_form=not target)
    assert await status_of(app, b" " * (bytes_max + 1), (b"content-type", kind), *target) == 413
    assert await status_of(app, b" " * bytes_max, (b"content-type", kind), *target) == 400


def test_the_longest_requests_that_keep_the_limits_fit() -> None:
    assert STRICT.request_bytes_max(is_form=True) > len(quote_plus("/" * MIB)) + 10 * 10 * 300
    assert STRICT.request_bytes_max(is_form=False) > len(r"\u003c") * MIB + 10 * 10 * 300
    assert RELAXED.request_bytes_max(is_form=True) > SqsSettings().request_bytes_max


async def test_a_long_form_is_read_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def watched(text: bytes) -> bytes:
        sizes.append(len(text))
        return unquote_to_bytes(text)

    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1
        await asyncio.sleep(0)

    monkeypatch.setattr(query_protocol, "unquote_to_bytes", watched)
    form = b"Action=SendMessage&MessageBody=" + b"%41" * MIB
    assert await parameters_in_steps(b"", form, turn) == {"Action": "SendMessage", "MessageBody": "A" * MIB}
    assert max(sizes) <= AT_ONCE_BYTES
    assert turns >= len(form) // AT_ONCE_BYTES - 1


async def test_steps_read_a_form_as_it_is_read_at_once() -> None:
    async def turn() -> None: ...

    chance = random.Random(11)
    for _ in range(3):
        pieces = chance.choices([b"%41", b"%", b"%4", b"%zz", b"+", b"g", b"=", b"&", b"%C3%A9", b"%%"], k=60_000)
        form = b"".join(pieces).replace(b"&", b"", max(0, pieces.count(b"&") - 9))
        assert await parameters_in_steps(b"a=1&x=2", form, turn) == parameters(b"a=1&x=2", form)


@pytest.mark.parametrize("form", [b"x=" + b"%FF" * MIB, b"x=\xff" + b"a" * MIB, b"&" * MIB])
async def test_what_is_no_form_is_refused_in_steps_too(form: bytes) -> None:
    async def turn() -> None: ...

    with pytest.raises(SqsError):
        await parameters_in_steps(b"", form, turn)


# -- answers ----------------------------------------------------------------------------------------------------------

ESCAPED = "<>&\"\r'\t\n\x01\0\x1f\ufffe\uffffé€𝄞]]>"


def received(*bodies: str) -> ReceiveAnswer:
    return ReceiveAnswer([Received("id", "receipt", "md5", body) for body in bodies])


class Turns:
    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1


def python_calls(run: Callable[[], object]) -> int:
    """How many functions of ours are called: the same on every machine, however busy."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("text", ["<", '"', "\x01", "\ufffe", "é&"])
async def test_a_long_answer_in_xml_is_written_in_steps(text: str) -> None:
    body = text * (MIB // len(text))
    turns = Turns()
    _, parts = await query_protocol.write("ReceiveMessage", received(body, body), "id", turns)
    assert turns.count >= 2 * len(body) // WRITTEN_AT_ONCE
    assert max(map(len, parts)) <= 2 * len("&quot;") * WRITTEN_AT_ONCE
    answer = received(body)
    calls = python_calls(lambda: list(query_protocol._in_xml("ReceiveMessage", answer, "id")))
    assert calls < 1_000, "something is called for each character"


async def test_texts_are_escaped_in_xml_wherever_they_are_cut() -> None:
    [[head]] = [(await query_protocol.write("ReceiveMessage", received("x"), "id", Turns()))[1]]
    for shift in range(12):
        body = "-" * (WRITTEN_AT_ONCE - shift) + ESCAPED
        _, parts = await query_protocol.write("ReceiveMessage", received(body), "id", Turns())
        shown = "-" * (WRITTEN_AT_ONCE - shift) + "&lt;&gt;&amp;&quot;&#xD;'\t\n" + "\ufffd" * 5 + "é€𝄞]]&gt;"
        assert b"".join(parts) == head.replace(b"<Body>x<", f"<Body>{shown}<".encode())


async def test_a_long_answer_in_json_is_written_message_by_message() -> None:
    answer = received(*['"' * MIB] * 10)
    turns = Turns()
    parts = await json_protocol.write(answer, turns)
    assert turns.count == 10
    assert b"".join(parts) == json_protocol.encode(answer)
    turns = Turns()
    _, parts = await query_protocol.write("ReceiveMessage", answer, "id", turns, in_json=True)
    assert turns.count == 10
    shown = msgspec.json.decode(b"".join(parts))["ReceiveMessageResponse"]
    assert [one["Body"] for one in shown["ReceiveMessageResult"]["messages"]] == ['"' * MIB] * 10


async def test_long_messages_are_looked_through_in_turns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(broker)
    await answer_to(app, "CreateQueue", QueueName="q")
    for _ in range(10):
        await answer_to(app, "SendMessage", QueueUrl="/000000000000/q", MessageBody="x" * MIB)
    done: list[str] = []
    turn = broker.fair_turns.turn
    digest = message_attributes.md5

    async def noted_turn() -> None:
        done.append("turn")
        await turn()

    def noted_digest(data: bytes) -> str:
        done.append("digest")
        return digest(data)

    monkeypatch.setattr(broker.fair_turns, "turn", noted_turn)
    monkeypatch.setattr(message_attributes, "md5", noted_digest)
    [start, *parts] = await exchange(
        app,
        msgspec.json.encode({"QueueUrl": "/000000000000/q", "MaxNumberOfMessages": 10}),
        (b"content-type", json_protocol.CONTENT_TYPE),
        (b"x-amz-target", b"AmazonSQS.ReceiveMessage"),
    )
    assert done == ["digest", "turn"] * 10 + ["turn"] * 10
    body = b"".join(part["body"] for part in parts)
    assert (b"content-length", b"%d" % len(body)) in start["headers"]
    assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]
    assert [one["Body"] for one in msgspec.json.decode(body)["Messages"]] == ["x" * MIB] * 10


@pytest.mark.parametrize("member", [b"{}", b'""', b"1", rb'"\""', rb'"\\"'])
def test_a_request_with_millions_of_members_is_not_unfolded(member: bytes) -> None:
    body = b'{"QueueUrl":"q","Entries":[' + (member + b",") * 300_000 + member + b"]}"
    with pytest.raises(SqsError, match="more than 10000 members"):
        json_protocol.read(b"AmazonSQS.SendMessageBatch", body)


@pytest.mark.parametrize("text", [b",", rb"\",", rb"\\,", rb"\u0022,"])
def test_commas_within_a_text_are_no_members(text: bytes) -> None:
    body = b'{"QueueUrl":"q","MessageBody":"' + text * 100_000 + b'"}'
    assert type(json_protocol.read(b"AmazonSQS.SendMessage", body)).__name__ == "SendMessage"


async def test_queues_are_listed_in_slices_and_not_all_put_in_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smista.engine.surveying.NAMES_AT_ONCE", 10)
    monkeypatch.setattr("smista.engine.surveying.QUEUES_AT_ONCE", 10)
    app = app_of(broker)
    policy = '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:dead","maxReceiveCount":3}'
    created = msgspec.json.decode(await answer_to(app, "CreateQueue", QueueName="dead"))
    for number in range(100):
        attributes = {"RedrivePolicy": policy}
        await answer_to(app, "CreateQueue", QueueName=f"q{99 - number:02}", Attributes=attributes)
    turns: list[None] = []
    turn = broker.fair_turns.turn

    async def counted() -> None:
        turns.append(None)
        await turn()

    monkeypatch.setattr(broker.fair_turns, "turn", counted)
    listed = msgspec.json.decode(await answer_to(app, "ListQueues", QueueNamePrefix="q", MaxResults=2))
    assert [url.rpartition("/")[2] for url in listed["QueueUrls"]] == ["q00", "q01"]
    assert len(turns) >= 9
    turns.clear()
    found = msgspec.json.decode(
        await answer_to(
            app,
            "ListDeadLetterSourceQueues",
            QueueUrl=created["QueueUrl"],
            MaxResults=3,
            NextToken=listed["NextToken"],
        )
    )
    assert [url.rpartition("/")[2] for url in found["queueUrls"]] == ["q02", "q03", "q04"]
    # Once to find them, and once to put the first of them in order.
    assert len(turns) >= 18


def test_parameters_do_not_unfold_to_very_much() -> None:
    members = {f"DeleteMessageBatchRequestEntry.{number}.Id": str(number) for number in range(1, 9_998)}
    found = query_protocol.read({"Action": "DeleteMessageBatch", **members}, is_at_queue=True)
    assert isinstance(found, DeleteMessageBatch)
    nested = {f"a{number}.1.2.3.4.5.6.7.8": "" for number in range(9_999)}
    with pytest.raises(SqsError, match="name more than 20000 lists, maps and members"):
        query_protocol.read({"Action": "ListQueues", **nested}, is_at_queue=False)


def full_batch(limits: Limits) -> bytes:
    """The longest batch, its entries as full as AWS lets them be."""
    value = {"DataType": "String", "StringValue": "v", "StringListValues": [], "BinaryListValues": []}
    entry = {
        "MessageBody": "hello",
        "DelaySeconds": 1,
        "MessageGroupId": "g",
        "MessageDeduplicationId": "d",
        "MessageAttributes": {f"name{number}": value for number in range(10)},
        "MessageSystemAttributes": {"AWSTraceHeader": value},
    }
    entries = [{"Id": str(number), **entry} for number in range(limits.batch_entries)]
    return msgspec.json.encode({"QueueUrl": "q", "Entries": entries})


@pytest.mark.parametrize("limits", [STRICT, RELAXED])
def test_the_longest_batch_that_is_allowed_is_read(limits: Limits) -> None:
    action = json_protocol.read(b"AmazonSQS.SendMessageBatch", full_batch(limits), limits)
    assert isinstance(action, SendMessageBatch)
    assert len(action.entries or ()) == limits.batch_entries


def test_a_relaxed_request_has_a_bound_too() -> None:
    body = b'{"QueueUrl":"q","Entries":[' + b"{}," * 300_000 + b"{}]}"
    with pytest.raises(SqsError, match="more than 100000 members"):
        json_protocol.read(b"AmazonSQS.SendMessageBatch", body, RELAXED)


async def test_a_long_batch_is_made_ready_in_turns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(broker, SqsSettings(relaxed=True))
    url = msgspec.json.decode(await answer_to(app, "CreateQueue", QueueName="q"))["QueueUrl"]
    prepared, turns = 0, []
    plain_turn = broker.fair_turns.turn

    def prepare(*given: Any, **named: Any) -> Any:
        nonlocal prepared
        prepared += 1
        return sending.prepare(*given, **named)

    async def turn() -> None:
        turns.append(prepared)
        await plain_turn()

    monkeypatch.setattr(send_message_batch, "prepare", prepare)
    monkeypatch.setattr(broker.fair_turns, "turn", turn)
    entries = [{"Id": str(number), "MessageBody": "x"} for number in range(500)]
    answer = msgspec.json.decode(await answer_to(app, "SendMessageBatch", QueueUrl=url, Entries=entries))
    assert len(answer["Successful"]) == 500
    # More on a busy machine: a turn ends early where it takes long.
    assert set(turns) >= set(range(PREPARED_AT_ONCE, 501, PREPARED_AT_ONCE))
