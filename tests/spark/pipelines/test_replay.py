"""Archived messages are published again, each once under a replay's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped] # has no types
import pytest

from smista import Client
from smista.spark.errors import WrongOption
from smista.spark.pipelines import folder
from smista.spark.pipelines import replay as pipeline
from smista.spark.pipelines.archive import archive
from smista.spark.pipelines.errors import PipelineFailed
from smista.spark.pipelines.replay import Ledger, replay
from smista.spark.pipelines.run import Run
from tests.protocols.sqs.clients import make_client
from tests.server_process import ServerProcess
from tests.spark.pipelines.conftest import bodies


@pytest.fixture
def archived(client: Client, queue: str, at_broker: Run, tmp_path: Path) -> str:
    for number in range(4):
        client.publish(queue, {"n": number}, headers={"colour": "red"}, priority=number % 2)
    archive(at_broker, to=str(tmp_path / "archive"), queue=[queue])
    client.purge(queue)
    return str(tmp_path / "archive")


def test_a_message_is_replayed_once_under_a_name(
    client: Client, queue: str, at_broker: Run, archived: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[str, Any] = {"archive": archived, "name": "again", "to": queue, "where": "json:n::int >= 2"}
    assert replay(at_broker, **wanted, dry_run=True).facts["would_publish"] == 2
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "write_whole", dies_at(".done.json", folder.write_whole))
        with pytest.raises(RuntimeError, match="killed"):
            replay(at_broker, **wanted)
    assert bodies(client, queue) == ['{"n":3}', '{"n":2}']  # published, and nobody wrote that down; 3 is urgent
    [urgent, _] = client.peek(queue, 2)
    assert (urgent.headers, urgent.content_type) == ({"colour": "red"}, "application/json")

    replay(at_broker, **wanted)
    assert replay(at_broker, **wanted).facts["published"] == 0
    assert len(bodies(client, queue)) == 2

    more = replay(at_broker, **{**wanted, "where": None}, rate=2.0)
    assert more.facts["published"] == 2  # the others
    stats = client.stats(queue)
    assert (stats.ready, stats.scheduled) == (3, 1)  # the second of them half a second later
    client.declare_queue(f"{queue}-elsewhere")
    with pytest.raises(WrongOption, match="give the new one another --name"):
        replay(at_broker, **{**wanted, "to": f"{queue}-elsewhere"})
    with pytest.raises(WrongOption, match="There is no queue 'nosuch' at the broker; make it first: smista declare"):
        replay(at_broker, **{**wanted, "name": "other", "to": "nosuch"})
    with pytest.raises(WrongOption, match="There is no exchange 'nosuch' at the broker; make it first"):
        replay(at_broker, archive=archived, name="other", exchange="nosuch")
    with pytest.raises(WrongOption, match="There is no queue 'nosuch' in the archive"):
        replay(at_broker, **{**wanted, "name": "other"}, queue=["nosuch"])
    assert not (Path(archived) / "replays" / "other").exists()
    with pytest.raises(PipelineFailed, match="UNRESOLVED_COLUMN"):
        replay(at_broker, **{**wanted, "where": "nonsense = 1"})
    assert Ledger(Path(archived) / "replays" / "again").unpublished() == []


def test_all_that_publishers_said_comes_back_through_every_door(
    broker: ServerProcess, client: Client, queue: str, at_broker: Run, tmp_path: Path
) -> None:
    target = f"{queue}-again"
    client.declare_queue(target)
    native: dict[str, Any] = {
        "headers": {"n": 7, "list": [1, "a"], "deep": {"is": True}},
        "correlation_id": "c-1",
        "reply_to": "answers",
        "timestamp_ms": 1_234,
        "group": "table 4",
        "ttl_ms": 3_600_000,
        "max_retries": 9,
        "priority": 3,
    }
    client.publish(queue, body=b"native", content_type="text/plain", **native)
    said = pika.BasicProperties(
        headers={"n": 7, "raw": b"\xff", "nested": {"a": [1]}}, correlation_id="c-2", message_id="m-2", type="order",
        app_id="shop", expiration="3600000", content_encoding="identity", delivery_mode=2, priority=2, timestamp=9,
    )  # fmt: skip
    with pika.BlockingConnection(pika.ConnectionParameters(*broker.amqp_address)) as connection:
        connection.channel().basic_publish("", queue, b"amqp", said)
    sqs = make_client(broker.url)
    attributes = {
        "count": {"DataType": "Number.int", "StringValue": "7"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\xff\x00"},
    }
    try:
        [source_url, target_url] = [sqs.get_queue_url(QueueName=name)["QueueUrl"] for name in (queue, target)]
        sqs.send_message(QueueUrl=source_url, MessageBody="sqs", MessageAttributes=attributes)

        archive(at_broker, to=str(tmp_path / "archive"), queue=[queue])
        assert replay(at_broker, archive=str(tmp_path / "archive"), name="all", to=target).facts["published"] == 3
        messages = {message.body: message for message in client.peek(target, 3)}
        again = messages[b"native"]
        assert {name: getattr(again, name) for name in native} == native
        assert again.content_type == "text/plain"
        assert (messages[b"amqp"].ttl_ms, messages[b"amqp"].priority) == (3_600_000, 2)
        with pika.BlockingConnection(pika.ConnectionParameters(*broker.amqp_address)) as connection:
            by_amqp = {}
            channel = connection.channel()
            for _ in range(3):
                _, found, body = channel.basic_get(target)
                by_amqp[body] = found
        assert vars(by_amqp[b"amqp"]) == vars(said)  # what is not acknowledged goes back
        received = sqs.receive_message(
            QueueUrl=target_url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], WaitTimeSeconds=5
        )
        [by_sqs] = [each for each in received["Messages"] if each["Body"] == "sqs"]
        assert by_sqs["MessageAttributes"] == attributes
    finally:
        sqs.close()


def dies_at(ending: str, write: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
    def written(path: Path, content: bytes) -> None:
        if path.name.endswith(ending):
            raise RuntimeError("killed")
        write(path, content)

    return written


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Say where to"),
        ({"to": "a", "exchange": "b"}, "Say where to"),
        ({"to": "a", "rate": 1.0, "speed": 2.0}, "two ways to pace"),
        ({"to": "a", "name": "a/b"}, "is no name for a replay"),
        ({"to": "a"}, "There is no archive in"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_wrong_options_are_answered_before_spark_is_started(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongOption, match=said):
        replay(Run(), archive=str(tmp_path), **{"name": "x", **options})
