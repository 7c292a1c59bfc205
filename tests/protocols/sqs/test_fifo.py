"""FIFO queues: order within groups, deduplication, receipt handles, repeated receives."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.protocols.sqs.clients import Client, new_queue, refused
from tests.protocols.sqs.test_messages import count, receive, wait_for, waited_ms
from tests.waiting import eventually


def send(sqs: Client, queue: str, body: str, group: str = "g", **parameters: Any) -> dict[str, Any]:
    parameters.setdefault("MessageDeduplicationId", f"{group}-{body}")
    answer: dict[str, Any] = sqs.send_message(QueueUrl=queue, MessageBody=body, MessageGroupId=group, **parameters)
    return answer


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def delete(sqs: Client, queue: str, messages: list[dict[str, Any]]) -> None:
    for message in messages:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def test_a_group_waits_for_what_it_has_in_flight_and_others_do_not(sqs: Client, fifo: str) -> None:
    for body in ("1", "2", "3"):
        send(sqs, fifo, body, "a")
    send(sqs, fifo, "x", "b")
    first = receive(sqs, fifo)
    assert bodies(first) == ["1"]
    assert bodies(receive(sqs, fifo, MaxNumberOfMessages=10)) == ["x"]
    assert receive(sqs, fifo, MaxNumberOfMessages=10) == []
    delete(sqs, fifo, first)
    assert bodies(receive(sqs, fifo, MaxNumberOfMessages=10)) == ["2", "3"]


def test_one_receive_takes_several_of_a_group_in_order(sqs: Client, fifo: str) -> None:
    for number in range(5):
        send(sqs, fifo, str(number))
    messages = receive(sqs, fifo, MaxNumberOfMessages=10, AttributeNames=["All"])
    assert bodies(messages) == ["0", "1", "2", "3", "4"]
    numbers = [message["Attributes"]["SequenceNumber"] for message in messages]
    assert numbers == sorted(numbers)
    assert [message["Attributes"]["MessageDeduplicationId"] for message in messages] == [f"g-{n}" for n in range(5)]
    assert {message["Attributes"]["MessageGroupId"] for message in messages} == {"g"}


def test_visibility_zero_frees_the_group(sqs: Client, fifo: str) -> None:
    send(sqs, fifo, "1")
    send(sqs, fifo, "2")
    [first] = receive(sqs, fifo)
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    assert bodies(receive(sqs, fifo, MaxNumberOfMessages=10)) == ["1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["visibility", "timeout", "delete"])
def test_a_group_that_becomes_visible_again_goes_behind_the_others(sqs: Client, fifo: str, how: str) -> None:
    for group in ("a", "b", "c"):
        for number in ("1", "2"):
            send(sqs, fifo, group + number, group)
    [first] = receive(sqs, fifo, VisibilityTimeout=1 if how == "timeout" else 30)
    assert first["Body"] == "a1"
    if how == "visibility":
        sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    elif how == "delete":
        delete(sqs, fifo, [first])
    else:
        eventually(lambda: count(sqs, fifo, "NotVisible") == 0)
    found = bodies([message for _ in range(3) for message in receive(sqs, fifo, MaxNumberOfMessages=2)])
    assert found == ["b1", "b2", "c1", "c2", *(["a2"] if how == "delete" else ["a1", "a2"])]


@pytest.mark.slow
def test_an_expired_handle_is_refused(sqs: Client, fifo: str) -> None:
    send(sqs, fifo, "1")
    [first] = receive(sqs, fifo, VisibilityTimeout=1)
    eventually(lambda: count(sqs, fifo) == 1)
    for _ in range(2):
        with refused("InvalidParameterValue") as refusal:
            sqs.delete_message(QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"])
        assert refusal.message.endswith("Reason: The receipt handle has expired.")
        # And the same once the message is with somebody else.
        receive(sqs, fifo)
    assert count(sqs, fifo, "NotVisible") == 1


def test_a_handle_of_a_deleted_message_is_fine(sqs: Client, fifo: str) -> None:
    send(sqs, fifo, "1")
    messages = receive(sqs, fifo)
    delete(sqs, fifo, messages)
    delete(sqs, fifo, messages)


# -- deduplication ----------------------------------------------------------------------------------------------------


def test_a_repeat_is_answered_like_the_first_and_not_stored(sqs: Client, fifo: str) -> None:
    first = send(sqs, fifo, "1", MessageDeduplicationId="d")
    again = send(sqs, fifo, "other body", "other-group", MessageDeduplicationId="d")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    delete(sqs, fifo, receive(sqs, fifo))
    send(sqs, fifo, "1", MessageDeduplicationId="d")
    assert count(sqs, fifo) == 0


def test_deduplication_by_content(sqs: Client) -> None:
    queue = new_queue(sqs, FifoQueue="true", ContentBasedDeduplication="true")
    for body in ("a", "a", "b"):
        sqs.send_message(QueueUrl=queue, MessageBody=body, MessageGroupId="g")
    digest = hashlib.sha256(b"a").hexdigest()
    # AWS: giving the digest of a body as the id is the same as leaving it out.
    send(sqs, queue, "anything", MessageDeduplicationId=digest)
    messages = receive(sqs, queue, MaxNumberOfMessages=10, AttributeNames=["MessageDeduplicationId"])
    assert bodies(messages) == ["a", "b"]
    assert messages[0]["Attributes"]["MessageDeduplicationId"] == digest
    send(sqs, queue, "a", MessageDeduplicationId="given-wins")
    assert count(sqs, queue) == 1


def test_deduplication_within_groups(sqs: Client) -> None:
    queue = new_queue(sqs, FifoQueue="true", DeduplicationScope="messageGroup")
    for group in ("a", "b", "a"):
        send(sqs, queue, group, group, MessageDeduplicationId="d")
    assert count(sqs, queue) == 2


def test_purging_forgets_what_was_sent(sqs: Client, fifo: str) -> None:
    send(sqs, fifo, "1")
    sqs.purge_queue(QueueUrl=fifo)
    send(sqs, fifo, "1")
    assert count(sqs, fifo) == 1


def test_a_deduplication_id_is_needed_unless_content_does(sqs: Client, fifo: str) -> None:
    with refused("InvalidParameterValue") as refusal:
        sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="g")
    assert refusal.message == (
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
    )


def test_a_group_is_needed(sqs: Client, fifo: str) -> None:
    with refused("MissingParameter") as refusal:
        sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageDeduplicationId="d")
    assert refusal.message == "The request must contain the parameter MessageGroupId."


@pytest.mark.parametrize("missing", ["MessageGroupId", "MessageDeduplicationId"])
def test_a_batch_fails_as_a_whole_where_an_entry_has_no_group_or_deduplication_id(
    sqs: Client, fifo: str, missing: str
) -> None:
    good = {"Id": "a", "MessageBody": "x", "MessageDeduplicationId": "d", "MessageGroupId": "g"}
    bad = {name: value for name, value in {**good, "Id": "b"}.items() if name != missing}
    with refused("InvalidParameterValue") as refusal:
        sqs.send_message_batch(QueueUrl=fifo, Entries=[good, bad])
    assert missing in refusal.message
    assert count(sqs, fifo) == 0
    assert sqs.send_message_batch(QueueUrl=fifo, Entries=[good])["Successful"][0]["SequenceNumber"]


@pytest.mark.parametrize("id", ["", "with blank", "x" * 129, "ü"], ids=lambda id: id[:5])
def test_ids_have_128_characters_and_no_blank(boto: Client, id: str) -> None:
    queue = new_queue(boto, FifoQueue="true")
    with refused("InvalidParameterValue"):
        send(boto, queue, "x", MessageDeduplicationId=id)
    with refused("InvalidParameterValue" if id else "MissingParameter"):
        send(boto, queue, "x", id, MessageDeduplicationId="d")


@pytest.mark.slow
def test_messages_are_delayed_by_the_queue_only(sqs: Client) -> None:
    queue = new_queue(sqs, FifoQueue="true", DelaySeconds="1")
    with refused("InvalidParameterValue") as refusal:
        send(sqs, queue, "x", DelaySeconds=2)
    assert refusal.message == (
        "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for "
        "this queue type."
    )
    send(sqs, queue, "x", DelaySeconds=0)
    message = wait_for(sqs, queue, AttributeNames=["All"])
    assert message["Body"] == "x"
    assert waited_ms(message) >= 1000


# -- repeated receives ------------------------------------------------------------------------------------------------


def test_the_same_attempt_brings_the_same_messages(sqs: Client, fifo: str) -> None:
    send(sqs, fifo, "1")
    send(sqs, fifo, "2")
    first = receive(sqs, fifo, MaxNumberOfMessages=2, ReceiveRequestAttemptId="attempt")
    again = receive(sqs, fifo, MaxNumberOfMessages=2, ReceiveRequestAttemptId="attempt")
    assert again == first
    assert receive(sqs, fifo, MaxNumberOfMessages=2, ReceiveRequestAttemptId="another") == []
    delete(sqs, fifo, first[:1])
    assert receive(sqs, fifo, MaxNumberOfMessages=2, ReceiveRequestAttemptId="attempt") == []


def test_an_attempt_ends_when_a_visibility_is_changed(boto: Client) -> None:
    queue = new_queue(boto, FifoQueue="true")
    send(boto, queue, "1")
    [message] = receive(boto, queue, ReceiveRequestAttemptId="attempt")
    boto.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=60)
    assert receive(boto, queue, ReceiveRequestAttemptId="attempt") == []
    with refused("InvalidParameterValue"):
        receive(boto, queue, ReceiveRequestAttemptId="a b")
