"""Dead-letter queues and the tasks that move messages back."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.sqs.clients import Client, arn, make_client, new_name, new_queue, refused
from tests.protocols.sqs.raw import command
from tests.protocols.sqs.test_messages import count, receive, wait_for
from tests.served import Served
from tests.server_process import ServerProcess
from tests.waiting import eventually, with_more_time


def dead_letters_of(sqs: Client, *, receives: object = 1, **attributes: str) -> tuple[str, str]:
    """A queue and its dead-letter queue."""
    target = new_queue(sqs, **attributes)
    source = new_queue(sqs, RedrivePolicy=policy(arn(sqs, target), receives), **attributes)
    return source, target


def policy(target: str, receives: object) -> str:
    return json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": receives})


def kill(sqs: Client, source: str, number: int) -> None:
    """Put messages into a queue and from there into its dead-letter queue."""
    for n in range(number):
        sqs.send_message(QueueUrl=source, MessageBody=str(n))
    for _ in range(number):
        [message] = receive(sqs, source)
        sqs.change_message_visibility(QueueUrl=source, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)


def ended(sqs: Client, source: str) -> dict[str, Any]:
    def task_that_ended() -> dict[str, Any] | None:
        [task] = sqs.list_message_move_tasks(SourceArn=source)["Results"]
        return None if task["Status"] in ("RUNNING", "CANCELLING") else dict(task)

    task = eventually(task_that_ended)
    assert task is not None
    return task


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lease", "visibility"])
def test_a_message_goes_to_the_dead_letter_queue_after_so_many_receives(sqs: Client, how: str) -> None:
    source, target = dead_letters_of(sqs, receives="2")
    attribute = {"n": {"DataType": "Number", "StringValue": "1"}}
    sent = sqs.send_message(QueueUrl=source, MessageBody="x", MessageAttributes=attribute)
    for received in ("1", "2"):
        message = wait_for(sqs, source, VisibilityTimeout=1 if how == "lease" else 30, AttributeNames=["All"])
        assert message["Attributes"]["ApproximateReceiveCount"] == received
        assert "DeadLetterQueueSourceArn" not in message["Attributes"]
        if how == "visibility":
            sqs.change_message_visibility(QueueUrl=source, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    dead = wait_for(sqs, target, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert (dead["MessageId"], dead["Body"]) == (sent["MessageId"], "x")
    assert dead["MessageAttributes"] == attribute
    assert dead["Attributes"]["SentTimestamp"] == message["Attributes"]["SentTimestamp"]
    assert dead["Attributes"]["DeadLetterQueueSourceArn"] == arn(sqs, source)
    assert count(sqs, source) == count(sqs, source, "NotVisible") == 0


def test_a_deleted_message_does_not_die(sqs: Client) -> None:
    source, target = dead_letters_of(sqs)
    sqs.send_message(QueueUrl=source, MessageBody="x")
    [message] = receive(sqs, source)
    sqs.delete_message(QueueUrl=source, ReceiptHandle=message["ReceiptHandle"])
    assert count(sqs, target) == 0


def test_without_a_policy_a_message_comes_back_for_ever(boto: Client) -> None:
    queue = new_queue(boto)
    boto.send_message(QueueUrl=queue, MessageBody="x")
    for _ in range(20):
        wait_for(boto, queue, VisibilityTimeout=0)
    message = wait_for(boto, queue, AttributeNames=["All"])
    assert message["Attributes"]["ApproximateReceiveCount"] == "21"


def test_the_policy_is_shown_as_it_counts(sqs: Client) -> None:
    source, target = dead_letters_of(sqs, receives="5")
    shown = sqs.get_queue_attributes(QueueUrl=source, AttributeNames=["RedrivePolicy"])["Attributes"]
    assert json.loads(shown["RedrivePolicy"]) == {"deadLetterTargetArn": arn(sqs, target), "maxReceiveCount": 5}
    name = source.rpartition("/")[2]
    assert sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy(arn(sqs, target), 5)})


def test_policies_that_are_refused(sqs: Client) -> None:
    standard, fifo = arn(sqs, new_queue(sqs)), arn(sqs, new_queue(sqs, FifoQueue="true"))
    queue = new_queue(sqs)
    for bad in (
        policy(standard, 0),
        policy(standard, 1001),
        policy(standard, "x"),
        policy(standard + "-none", 3),
        policy(standard.replace("us-east-1", "eu-west-1"), 3),
        policy("x", 3),
        policy(fifo, 3),
    ):
        with refused("InvalidAttributeValue"):
            sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": bad})


def test_a_dead_letter_queue_chooses_its_sources(sqs: Client) -> None:
    source, target = new_queue(sqs), new_queue(sqs)
    attributes = {"RedrivePolicy": policy(arn(sqs, target), 3)}
    for permission, arns, is_allowed in (
        ("denyAll", None, False),
        ("byQueue", [arn(sqs, target)], False),
        ("byQueue", [arn(sqs, source)], True),
        ("allowAll", None, True),
    ):
        allow = {"redrivePermission": permission, **({"sourceQueueArns": arns} if arns else {})}
        sqs.set_queue_attributes(QueueUrl=target, Attributes={"RedriveAllowPolicy": json.dumps(allow)})
        if is_allowed:
            sqs.set_queue_attributes(QueueUrl=source, Attributes=attributes)
        else:
            with refused("InvalidAttributeValue"):
                sqs.set_queue_attributes(QueueUrl=source, Attributes=attributes)


def test_the_receive_count_goes_on_in_the_dead_letter_queue(sqs: Client) -> None:
    last = new_queue(sqs)
    target = new_queue(sqs, RedrivePolicy=policy(arn(sqs, last), 1))
    source = new_queue(sqs, RedrivePolicy=policy(arn(sqs, target), 2))
    sqs.send_message(QueueUrl=source, MessageBody="x")
    for queue, expected in ((source, 1), (source, 2), (target, 3), (last, 4), (last, 5)):
        message = wait_for(sqs, queue, AttributeNames=["ApproximateReceiveCount"])
        assert message["Attributes"] == {"ApproximateReceiveCount": str(expected)}
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)


def test_a_message_that_was_moved_elsewhere_counts_anew(sqs: Client) -> None:
    source, target = dead_letters_of(sqs)
    elsewhere = new_queue(sqs)
    kill(sqs, source, 1)
    sqs.start_message_move_task(SourceArn=arn(sqs, target), DestinationArn=arn(sqs, elsewhere))
    message = wait_for(sqs, elsewhere, AttributeNames=["ApproximateReceiveCount"])
    assert message["Attributes"] == {"ApproximateReceiveCount": "1"}


@pytest.mark.parametrize("is_fifo", [False, True], ids=["standard", "fifo"])
def test_a_queue_may_be_its_own_dead_letter_queue(sqs: Client, is_fifo: bool) -> None:
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if is_fifo else {}
    group = {"MessageGroupId": "g"} if is_fifo else {}
    queue = new_queue(sqs, **fifo)
    own = policy(arn(sqs, queue), 1)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": own})
    shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["RedrivePolicy"])["Attributes"]
    assert json.loads(shown["RedrivePolicy"]) == json.loads(own)
    assert sqs.list_dead_letter_source_queues(QueueUrl=queue)["queueUrls"] == [queue]
    for body in ("1", "2"):
        sqs.send_message(QueueUrl=queue, MessageBody=body, **group)
    for expected in ("1", "2", "1", "2"):
        message = wait_for(sqs, queue)
        assert message["Body"] == expected
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    message = wait_for(sqs, queue, AttributeNames=["ApproximateReceiveCount"])
    assert (message["Body"], message["Attributes"]) == ("1", {"ApproximateReceiveCount": "3"})
    assert count(sqs, queue) + count(sqs, queue, "NotVisible") == 2


def test_a_queue_is_created_as_its_own_dead_letter_queue(boto: Client) -> None:
    name = new_name()
    own = policy(f"arn:aws:sqs:us-east-1:000000000000:{name}", 3)
    url = boto.create_queue(QueueName=name, Attributes={"RedrivePolicy": own})["QueueUrl"]
    assert boto.create_queue(QueueName=name, Attributes={"RedrivePolicy": own})["QueueUrl"] == url


def test_the_sources_of_a_dead_letter_queue_are_listed(sqs: Client) -> None:
    first, target = dead_letters_of(sqs)
    sources = {first} | {new_queue(sqs, RedrivePolicy=policy(arn(sqs, target), 3)) for _ in range(2)}
    listed = sqs.list_dead_letter_source_queues(QueueUrl=target)["queueUrls"]
    assert set(listed) == sources
    pages = sqs.get_paginator("list_dead_letter_source_queues").paginate(
        QueueUrl=target, PaginationConfig={"PageSize": 2}
    )
    assert [url for page in pages for url in page["queueUrls"]] == listed
    assert sqs.list_dead_letter_source_queues(QueueUrl=first).get("queueUrls", []) == []


# -- move tasks -------------------------------------------------------------------------------------------------------


def test_dead_letters_are_moved_back_to_where_they_came_from(sqs: Client) -> None:
    source, target = dead_letters_of(sqs)
    kill(sqs, source, 5)
    assert (count(sqs, source), count(sqs, target)) == (0, 5)
    handle = sqs.start_message_move_task(SourceArn=arn(sqs, target))["TaskHandle"]
    task = ended(sqs, arn(sqs, target))
    assert task["Status"] == "COMPLETED"
    assert task["ApproximateNumberOfMessagesMoved"] == task["ApproximateNumberOfMessagesToMove"] == 5
    assert task["SourceArn"] == arn(sqs, target)
    assert "TaskHandle" not in task
    assert (count(sqs, source), count(sqs, target)) == (5, 0)
    [message] = receive(sqs, source, AttributeNames=["All"])
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    with refused("UnsupportedOperation"):
        sqs.cancel_message_move_task(TaskHandle=handle)


def test_dead_letters_are_moved_elsewhere(sqs: Client) -> None:
    source, target = dead_letters_of(sqs)
    elsewhere = new_queue(sqs)
    kill(sqs, source, 2)
    sqs.start_message_move_task(SourceArn=arn(sqs, target), DestinationArn=arn(sqs, elsewhere))
    task = ended(sqs, arn(sqs, target))
    assert task["DestinationArn"] == arn(sqs, elsewhere)
    assert count(sqs, elsewhere) == 2


def test_a_redrive_of_another_protocol_keeps_a_task_out_and_is_named(sqs: Client, server: Served) -> None:
    """Its job is listed under the name of the source, so not by SQS."""
    source, target = dead_letters_of(sqs)
    kill(sqs, source, 2)
    name = source.rpartition("/")[2]
    running = command(server, "redrive.start", queue=name, per_second=0.001)
    with refused("InvalidParameterValue") as refusal:
        sqs.start_message_move_task(SourceArn=arn(sqs, target))
    assert refusal.message.startswith("There is already a task running.")
    assert f"Redrive {running['job']} of queue '{name}'" in refusal.message
    command(server, "redrive.cancel", queue=name, job=running["job"])
    sqs.start_message_move_task(SourceArn=arn(sqs, target))
    assert ended(sqs, arn(sqs, target))["Status"] == "COMPLETED"


@pytest.mark.slow
def test_a_slow_task_is_watched_and_cancelled(sqs: Client) -> None:
    source, target = dead_letters_of(sqs)
    kill(sqs, source, 20)
    started = sqs.start_message_move_task(SourceArn=arn(sqs, target), MaxNumberOfMessagesPerSecond=1)
    [running] = sqs.list_message_move_tasks(SourceArn=arn(sqs, target))["Results"]
    assert (running["Status"], running["TaskHandle"]) == ("RUNNING", started["TaskHandle"])
    assert running["MaxNumberOfMessagesPerSecond"] == 1
    with refused("InvalidParameterValue") as refusal:
        sqs.start_message_move_task(SourceArn=arn(sqs, target))
    assert refusal.status == 400
    assert refusal.message == (
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
    )
    answer = sqs.cancel_message_move_task(TaskHandle=started["TaskHandle"])
    assert 0 <= answer["ApproximateNumberOfMessagesMoved"] < 20
    task = ended(sqs, arn(sqs, target))
    assert task["Status"] == "CANCELLED"
    assert count(sqs, source) == task["ApproximateNumberOfMessagesMoved"]
    assert count(sqs, source) + count(sqs, target) == 20
    sqs.start_message_move_task(SourceArn=arn(sqs, target))
    assert ended(sqs, arn(sqs, target))["Status"] == "COMPLETED"
    both = sqs.list_message_move_tasks(SourceArn=arn(sqs, target), MaxResults=10)["Results"]
    assert [task["Status"] for task in both] == ["COMPLETED", "CANCELLED"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_task_goes_on_after_a_restart(tmp_path: Path, how: str) -> None:
    # One a second: so many that it is not done yet when the server is there again, on this machine or on a slow one.
    for attempt in with_more_time(6, 20, 100):
        with attempt as seconds, ServerProcess(tmp_path / str(seconds)) as server:
            messages, sqs = round(seconds), make_client(server.url)
            source, target = dead_letters_of(sqs)
            kill(sqs, source, messages)
            started = sqs.start_message_move_task(SourceArn=arn(sqs, target), MaxNumberOfMessagesPerSecond=1)
            eventually(lambda sqs=sqs, source=source: count(sqs, source))  # type: ignore[misc]  # default arguments
            server.stop() if how == "stop" else server.kill()
            server.restart()
            [task] = sqs.list_message_move_tasks(SourceArn=arn(sqs, target))["Results"]
            assert (task["Status"], task["TaskHandle"]) == ("RUNNING", started["TaskHandle"])
            task = ended(sqs, arn(sqs, target))
            assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", messages)
            assert (count(sqs, source), count(sqs, target)) == (messages, 0)
            server.stop()
            server.restart()
            [task] = sqs.list_message_move_tasks(SourceArn=arn(sqs, target))["Results"]
            assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", messages)


@pytest.mark.slow
def test_a_destination_that_is_deleted_meanwhile_ends_the_task(sqs: Client) -> None:
    source, target = dead_letters_of(sqs)
    elsewhere = new_queue(sqs)
    kill(sqs, source, 10)
    sqs.start_message_move_task(
        SourceArn=arn(sqs, target), DestinationArn=arn(sqs, elsewhere), MaxNumberOfMessagesPerSecond=1
    )
    sqs.delete_queue(QueueUrl=elsewhere)
    task = ended(sqs, arn(sqs, target))
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
    assert task["ApproximateNumberOfMessagesToMove"] == 10
    assert count(sqs, target) == 10 - task["ApproximateNumberOfMessagesMoved"] > 0
    with refused("NonExistentQueue"):
        sqs.get_queue_url(QueueName=elsewhere.rpartition("/")[2])


def test_a_handle_says_which_task_of_which_queue(sqs: Client) -> None:
    source, target = dead_letters_of(sqs)
    kill(sqs, source, 1)
    text = sqs.start_message_move_task(SourceArn=arn(sqs, target))["TaskHandle"]
    handle = json.loads(base64.b64decode(text))
    assert set(handle) == {"taskId", "sourceArn"}
    assert str(uuid.UUID(handle["taskId"])) == handle["taskId"]
    assert handle["sourceArn"] == arn(sqs, target)
    for bad in ("x", "foobared", text[:-4] + "====", written(["a"]), written({"taskId": "a"}), "ü"):
        with refused("InvalidParameterValue") as refusal:
            sqs.cancel_message_move_task(TaskHandle=bad)
        assert (refusal.status, refusal.message) == (400, "Value for parameter TaskHandle is invalid.")
    with refused("ResourceNotFoundException") as refusal:
        sqs.cancel_message_move_task(TaskHandle=written({**handle, "taskId": str(uuid.uuid4())}))
    assert (refusal.status, refusal.message) == (404, "Task does not exist.")
    with refused("ResourceNotFoundException") as refusal:
        sqs.cancel_message_move_task(TaskHandle=written({**handle, "sourceArn": handle["sourceArn"] + "-none"}))
    assert refusal.message == "The resource that you specified for the SourceArn parameter doesn't exist."


def written(handle: object) -> str:
    return base64.b64encode(json.dumps(handle).encode()).decode()


def test_what_never_died_has_no_way_back(boto: Client) -> None:
    _, target = dead_letters_of(boto)
    boto.send_message(QueueUrl=target, MessageBody="put here by hand")
    boto.start_message_move_task(SourceArn=arn(boto, target))
    task = ended(boto, arn(boto, target))
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")
    assert count(boto, target) == 1


def test_tasks_that_are_refused(sqs: Client) -> None:
    _, target = dead_letters_of(sqs)
    queue, fifo = arn(sqs, new_queue(sqs)), arn(sqs, new_queue(sqs, FifoQueue="true"))
    with refused("InvalidParameterValue") as refusal:
        sqs.start_message_move_task(SourceArn=queue)
    assert refusal.message == "Source queue must be configured as a Dead Letter Queue."
    with refused("ResourceNotFoundException") as refusal:
        sqs.start_message_move_task(SourceArn=queue + "-none")
    assert refusal.status == 404
    with refused("ResourceNotFoundException"):
        sqs.start_message_move_task(SourceArn=arn(sqs, target), DestinationArn=queue + "-none")
    with refused("UnsupportedOperation"):
        sqs.start_message_move_task(SourceArn=arn(sqs, target), DestinationArn=fifo)
    for rate in (0, 501):
        with refused("InvalidParameterValue"):
            sqs.start_message_move_task(SourceArn=arn(sqs, target), MaxNumberOfMessagesPerSecond=rate)
    with refused("InvalidParameterValue"):
        sqs.list_message_move_tasks(SourceArn=arn(sqs, target), MaxResults=11)
    with refused("ResourceNotFoundException"):
        sqs.list_message_move_tasks(SourceArn=queue + "-none")
    assert "Results" not in sqs.list_message_move_tasks(SourceArn=queue)
