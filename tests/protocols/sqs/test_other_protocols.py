"""The same queues through SQS and through other protocols."""

from __future__ import annotations

import base64
import json

import pika  # type: ignore[import-untyped]  # has no types of its own
import pytest

from tests.protocols.sqs.clients import Client, make_client, new_name, new_queue, refused
from tests.protocols.sqs.raw import command
from tests.protocols.sqs.test_messages import receive, wait_for
from tests.served import Served


@pytest.fixture
def shared(boto: Client) -> tuple[str, str]:
    """A queue's URL and its name."""
    url = new_queue(boto)
    return url, url.rpartition("/")[2]


def test_what_sqs_sends_has_headers_elsewhere(boto: Client, server: Served, shared: tuple[str, str]) -> None:
    url, name = shared
    attributes = {
        "text": {"DataType": "String", "StringValue": "v"},
        "number": {"DataType": "Number", "StringValue": "1.50"},
    }
    sent = boto.send_message(QueueUrl=url, MessageBody="żółw", MessageAttributes=attributes)
    [message] = command(server, "queue.receive", queue=name, raw=True)["messages"]
    assert message["message_id"] == sent["MessageId"]
    assert base64.b64decode(message["body"]).decode() == "żółw"
    assert message["headers"] == {"text": "v", "number": "1.50"}
    command(server, "queue.ack", receipt=message["receipt"])
    assert receive(boto, url) == []


def test_headers_from_elsewhere_are_attributes(boto: Client, server: Served, shared: tuple[str, str]) -> None:
    url, name = shared
    headers = {"text": "v", "whole": 5, "half": 0.5, "yes": True, "nested": {"a": 1}, "no name!": "x", "empty": ""}
    command(server, "queue.publish", queue=name, message={"a": 1}, headers=headers)
    [message] = receive(boto, url, MessageAttributeNames=["All"])
    assert json.loads(message["Body"]) == {"a": 1}
    assert message["MessageAttributes"] == {
        "text": {"DataType": "String", "StringValue": "v"},
        "whole": {"DataType": "Number", "StringValue": "5"},
        "half": {"DataType": "Number", "StringValue": "0.5"},
        "yes": {"DataType": "String", "StringValue": "true"},
    }


@pytest.mark.parametrize("body", [b"\xff\x00", b"\x01"])
def test_what_is_no_text_comes_in_base64(boto: Client, server: Served, shared: tuple[str, str], body: bytes) -> None:
    url, name = shared
    command(server, "queue.publish", queue=name, body=base64.b64encode(body).decode())
    [message] = receive(boto, url, MessageAttributeNames=["All"])
    assert base64.b64decode(message["Body"]) == body
    assert message["MessageAttributes"] == {"smista.body-encoding": {"DataType": "String", "StringValue": "base64"}}


def test_a_queue_of_another_protocol_is_described(boto: Client, server: Served) -> None:
    name = new_name()
    command(server, "queue.declare", queue=name, settings={"lease_ms": 1500, "max_retries": 4})
    url = boto.get_queue_url(QueueName=name)["QueueUrl"]
    found = boto.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found["VisibilityTimeout"] == "2"
    assert json.loads(found["RedrivePolicy"])["maxReceiveCount"] == 5
    assert boto.create_queue(QueueName=name)["QueueUrl"] == url
    boto.tag_queue(QueueUrl=url, Tags={"a": "b"})
    assert boto.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "b"}


def test_a_queue_of_a_single_active_consumer_is_not_received_from_while_there_is_one(
    boto: Client, server: Served
) -> None:
    name = new_name()
    with pika.BlockingConnection(pika.ConnectionParameters(*server.amqp_address)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, arguments={"x-single-active-consumer": True})
        channel.basic_consume(name, lambda *_: None)
        with refused("UnsupportedOperation") as refusal:
            boto.receive_message(QueueUrl=name)
        assert "single active consumer" in refusal.message
        boto.send_message(QueueUrl=name, MessageBody="x")
    [message] = receive(boto, name, WaitTimeSeconds=20)
    assert message["Body"] == "x"


def test_accounts_are_namespaces(server: Served) -> None:
    sqs = make_client(server.url, key="123456789012")
    url = new_queue(sqs)
    command(server, "queue.publish", queue=url.rpartition("/")[2], namespace="123456789012/us-east-1", message="x")
    assert wait_for(sqs, url)["Body"] == '"x"'


# -- relaxed ----------------------------------------------------------------------------------------------------------


def test_limits_are_lifted_where_they_are_relaxed(relaxed_server: Served) -> None:
    sqs = make_client(relaxed_server.url)
    new_queue(sqs, MessageRetentionPeriod="5")
    url = new_queue(sqs, VisibilityTimeout="100000", DelaySeconds="1000")
    sqs.send_message(QueueUrl=url, MessageBody="\x00" + "x" * 3_000_000, DelaySeconds=0)
    entries = [{"Id": str(number), "MessageBody": str(number), "DelaySeconds": 0} for number in range(50)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 50
    messages = receive(sqs, url, MaxNumberOfMessages=100)
    assert len(messages) == 51
    assert messages[0]["Body"][0] == "\x00"
    dotted = sqs.create_queue(QueueName=new_name("dots.are.fine"))["QueueUrl"]
    sqs.send_message(QueueUrl=dotted, MessageBody="x")
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=url, MessageBody="x" * 4_000_001)


def test_a_policy_is_shown_and_never_becomes_what_was_declared(
    boto: Client, server: Served, shared: tuple[str, str]
) -> None:
    url, name = shared
    command(server, "policy.set", policy=name, pattern=name, settings={"lease_ms": 7_000})
    shown = boto.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"]
    assert shown == {"VisibilityTimeout": "7"}
    assert boto.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "30"})["QueueUrl"] == url
    boto.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "3"})
    boto.tag_queue(QueueUrl=url, Tags={"a": "b"})
    command(server, "policy.delete", policy=name)
    shown = boto.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout", "DelaySeconds"])["Attributes"]
    assert shown == {"VisibilityTimeout": "30", "DelaySeconds": "3"}
