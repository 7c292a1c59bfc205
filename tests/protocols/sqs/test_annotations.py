"""What AMQP and SQS keep with a queue: not to be set over HTTP, and nothing that they fail for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]  # has no types of its own
import pytest

from smista.engine import Broker, QueueSettings
from smista.log import SqliteLog
from tests.protocols.sqs.clients import Client, arn, make_client, new_name, new_queue
from tests.protocols.sqs.raw import ask, command
from tests.served import Served
from tests.server_thread import ServerThread

NAMES = (
    "amqp.arguments",
    "amqp.auto-delete",
    "amqp.consumer-timeout",
    "sqs.Policy",
    "sqs.KmsMasterKeyId",
    "sqs.ReceiveMessageWaitTimeSeconds",
    "sqs.RedriveAllowPolicy",
    "sqs.SqsManagedSseEnabled",
    "sqs.FifoThroughputLimit",
    "sqs.created",
    "sqs.tag:a",
)
JUNK = (
    '{"',
    "zzz",
    "[]",
    "null",
    '{"a":' * 500,
    "9" * 23,
    "-1",
    '{"x-queue-type":["longstr","none"]}',
    "",
)


def refusal(server: Served, name: str, **payload: object) -> Any:
    data = json.dumps({"command": name, "payload": payload})
    answer = ask(server, "POST", "/v1/command", data, {"Content-Type": "application/json"})
    assert answer.status == 400, answer.body
    return answer.json()["error"]


@pytest.mark.parametrize("name", NAMES)
def test_annotations_of_a_protocol_are_not_set_over_http(server: Served, boto: Client, name: str) -> None:
    queue = new_name()
    settings = {"annotations": [[name, "x"], ["mine", "y"]]}
    for action in ("queue.declare", "queue.create"):
        error = refusal(server, action, queue=queue, settings=settings)
        assert (error["code"], name in error["message"]) == ("invalid_settings", True)
    url = boto.create_queue(QueueName=queue, tags={"t": "1"})["QueueUrl"]
    for action in ("queue.declare", "queue.alter"):
        assert refusal(server, action, queue=queue, settings=settings)["code"] == "invalid_settings"
    answer = ask(
        server,
        "PUT",
        f"/v1/queues/{new_name()}",
        json.dumps(settings),
        {"Content-Type": "application/json"},
    )
    assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_settings")
    assert boto.list_queue_tags(QueueUrl=url)["Tags"] == {"t": "1"}


def test_altering_a_queue_over_http_leaves_what_a_protocol_keeps(server: Served, boto: Client) -> None:
    queue = new_name()
    url = boto.create_queue(QueueName=queue, tags={"t": "1"})["QueueUrl"]
    command(server, "queue.alter", queue=queue, settings={"annotations": [["mine", "y"]]})
    shown = dict(command(server, "queue.settings", queue=queue)["settings"]["annotations"])
    assert (shown["mine"], shown["sqs.tag:t"]) == ("y", "1")
    # All of them, as they are shown, may be given back.
    command(server, "queue.alter", queue=queue, settings=command(server, "queue.settings", queue=queue)["settings"])
    command(server, "queue.alter", queue=queue, settings={"annotations": []})
    assert boto.list_queue_tags(QueueUrl=url)["Tags"] == {"t": "1"}


@pytest.fixture(scope="module")
def junk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with queues that a program in its own process has given what no protocol would write."""
    path = tmp_path_factory.mktemp("junk")

    async def write() -> None:
        broker = await Broker.open(SqliteLog.open(path))
        for place, text in enumerate(JUNK):
            await broker.declaring.declare_queue(
                f"junk{place}",
                QueueSettings(annotations=tuple((name, text) for name in NAMES), max_retries=None),
            )
        await broker.close()

    asyncio.run(write())
    return path


def test_annotations_that_cannot_be_read_break_no_protocol(junk: Path) -> None:
    with ServerThread(junk) as server:
        sqs = make_client(server.url)
        for place in range(len(JUNK)):
            _use_over_sqs(sqs, f"junk{place}")
            _use_over_amqp(server, f"junk{place}")
    assert server.faults == []


def _use_over_sqs(sqs: Client, name: str) -> None:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    sqs.list_queue_tags(QueueUrl=url)
    sqs.list_dead_letter_source_queues(QueueUrl=url)
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, url), "maxReceiveCount": 3})
    sqs.set_queue_attributes(QueueUrl=new_queue(sqs), Attributes={"RedrivePolicy": policy})
    sqs.list_message_move_tasks(SourceArn=arn(sqs, url))
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = sqs.receive_message(QueueUrl=url)["Messages"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["111111111111"], Actions=["SendMessage"])
    sqs.tag_queue(QueueUrl=url, Tags={"b": "c"})


def _use_over_amqp(server: Served, name: str) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(*server.amqp_address)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, passive=True)
        channel.queue_declare(name, durable=True)
        channel.basic_publish("", name, b"x")
        for method, _, body in channel.consume(name, inactivity_timeout=30):
            assert body == b"x"
            channel.basic_ack(method.delivery_tag)
            break
        channel.cancel()
        assert channel.basic_get(name) == (None, None, None)
