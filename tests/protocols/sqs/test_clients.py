"""Programs that people have, unmodified: aioboto3, the AWS CLI, AWS's SDK for JavaScript, kombu, Celery."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.sqs import node
from tests.protocols.sqs.clients import Client, new_name, new_queue
from tests.protocols.sqs.test_messages import count
from tests.served import Served
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"


async def test_aioboto3(server: Served) -> None:
    import aioboto3  # type: ignore[import-untyped]  # has no types

    session = aioboto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1")
    async with session.client("sqs", endpoint_url=server.url) as sqs:
        url = (await sqs.create_queue(QueueName=new_name()))["QueueUrl"]
        waiting = [asyncio.create_task(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)) for _ in range(5)]
        await asyncio.sleep(0.1)
        entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(5)]
        assert len((await sqs.send_message_batch(QueueUrl=url, Entries=entries))["Successful"]) == 5
        messages = [message for answer in await asyncio.gather(*waiting) for message in answer.get("Messages", [])]
        assert sorted(message["Body"] for message in messages) == ["0", "1", "2", "3", "4"]
        for message in messages:
            await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        with pytest.raises(sqs.exceptions.QueueDoesNotExist):
            await sqs.get_queue_url(QueueName="none")
        await sqs.delete_queue(QueueUrl=url)


def aws(server: Served, *arguments: str) -> tuple[int, Any]:
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_PAGER": "",
    }
    command = [sys.executable, "-m", "awscli", "--endpoint-url", server.url, "--output", "json", "sqs", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode:
        return done.returncode, done.stderr
    return 0, json.loads(done.stdout or "{}")


@pytest.mark.slow
def test_the_aws_command_line(server: Served) -> None:
    name = new_name()
    _, made = aws(server, "create-queue", "--queue-name", name, "--attributes", "DelaySeconds=0,VisibilityTimeout=20")
    url = made["QueueUrl"]
    assert aws(server, "get-queue-url", "--queue-name", name) == (0, {"QueueUrl": url})
    attributes = '{"n": {"DataType": "Number", "StringValue": "1"}}'
    _, sent = aws(
        server, "send-message", "--queue-url", url, "--message-body", "żółw", "--message-attributes", attributes
    )
    _, received = aws(
        server,
        *("receive-message", "--queue-url", url, "--attribute-names", "All"),
        *("--message-attribute-names", "All", "--wait-time-seconds", "5"),
    )
    [message] = received["Messages"]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "żółw")
    assert aws(server, "delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])[0] == 0
    code, text = aws(server, "send-message", "--queue-url", url + "-none", "--message-body", "x")
    assert code != 0
    assert "(AWS.SimpleQueueService.NonExistentQueue)" in text
    assert aws(server, "purge-queue", "--queue-url", url)[0] == 0
    assert aws(server, "delete-queue", "--queue-url", url)[0] == 0


@pytest.mark.slow
def test_the_sdk_for_javascript(server: Served) -> None:
    name = new_name() + ".fifo"
    command = ["node", str(PROGRAMS / "client.mjs"), server.url, str(node.modules()), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "url": f"{server.url}/000000000000/{name}",
        "tags": {"a": "b"},
        "batch": [["a"], ["InvalidMessageContents"]],
        "bodies": ["żółć 🎉", "second"],
        "isSame": True,
        "bytes": [0, 255],
        "group": "g",
        "deleted": 2,
        "empty": None,
        "attributes": {"ApproximateNumberOfMessages": "0"},
        "error": ["QueueDoesNotExist", True, 400],
    }


def test_kombu(server: Served) -> None:
    from kombu.connection import Connection

    host, port = server.address
    options = {"region": "us-east-1", "is_secure": False, "wait_time_seconds": 1}
    url = f"sqs://key:secret@{host}:{port}"
    with Connection(url, transport_options=options) as connection:  # type: ignore[no-untyped-call]  # kombu has none
        queue = connection.SimpleQueue(new_name())
        queue.put({"hello": [1, "ü"]}, headers={"h": 1})
        message = queue.get(timeout=PATIENCE_S)
        assert (message.payload, message.headers["h"]) == ({"hello": [1, "ü"]}, 1)
        message.requeue()
        queue.get(timeout=PATIENCE_S).ack()
        assert queue.qsize() == 0
        queue.close()


@pytest.mark.slow
def test_celery(server: Served, boto: Client, tmp_path: Path) -> None:
    host, port = server.address
    notes, prefix = tmp_path / "notes", new_name("celery") + "-"
    environment = {
        **os.environ,
        "BROKER": f"sqs://key:secret@{host}:{port}",
        "PREFIX": prefix,
        "NOTES": str(notes),
        "PYTHONPATH": str(PROGRAMS),
    }
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--pool", "solo", "--loglevel", "warning"],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        send = "import celery_app\nfor text in ('one', 'fails once', 'three'):\n    celery_app.note.delay(text)\n"
        subprocess.run([sys.executable, "-c", send], env=environment, cwd=tmp_path, check=True, timeout=PATIENCE_S)
        eventually(
            lambda: notes.exists() and len(notes.read_text().splitlines()) >= 3,
            every_s=0.1,
            as_long_as=lambda: worker.poll() is None,
            show=lambda: worker.poll() is not None and worker.communicate()[0],
        )
    finally:
        worker.terminate()
        worker.communicate(timeout=PATIENCE_S)
    assert sorted(notes.read_text().splitlines()) == ["fails once", "one", "three"]
    [url] = boto.list_queues(QueueNamePrefix=prefix)["QueueUrls"]
    eventually(lambda: not count(boto, url, "NotVisible"))
    assert count(boto, url) == 0


def test_boto3_as_a_resource(server: Served) -> None:
    import boto3  # type: ignore[import-untyped]  # has no types

    sqs = boto3.Session("test", "test", region_name="us-east-1").resource("sqs", endpoint_url=server.url)
    queue = sqs.create_queue(QueueName=new_name())
    queue.send_message(MessageBody="x")
    [message] = queue.receive_messages()
    assert message.body == "x"
    message.delete()
    queue.delete()


def test_old_clients_name_queues_by_their_urls(boto: Client, server: Served) -> None:
    """Where the host of a queue's URL is another name of the broker's machine."""
    url = new_queue(boto)
    other = url.replace("127.0.0.1", "localhost")
    boto.send_message(QueueUrl=other, MessageBody="x")
    assert count(boto, url) == 1
