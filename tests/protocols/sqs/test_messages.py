"""Sending, receiving, deleting, and changing visibility, on standard queues."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # has no types of its own

from tests.protocols.sqs.clients import Client, make_client, new_queue, refused
from tests.served import Served
from tests.waiting import eventually, with_more_time

MIB = 1 << 20


def body_md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def receive(sqs: Client, queue: str, **parameters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sqs.receive_message(QueueUrl=queue, **parameters).get("Messages", [])
    return found


def wait_for(sqs: Client, queue: str, **parameters: Any) -> dict[str, Any]:
    """The next message, which may take a while to become visible."""
    [message] = receive(sqs, queue, WaitTimeSeconds=20, **parameters)
    return message


def waited_ms(message: dict[str, Any]) -> int:
    """How long it was from sending to receiving a message for the first time."""
    received_ms, sent_ms = (
        int(message["Attributes"][name]) for name in ("ApproximateFirstReceiveTimestamp", "SentTimestamp")
    )
    return received_ms - sent_ms


def count(sqs: Client, queue: str, suffix: str = "") -> int:
    name = "ApproximateNumberOfMessages" + suffix
    answer = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=[name])
    return int(answer["Attributes"][name])


# -- sending ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["x", "a\tb\r\nc", "<&>\"'", "żółć 🎉 \U0001f600", " padded ", '{"json": [1]}'])
def test_a_body_comes_out_as_it_went_in(sqs: Client, queue: str, body: str) -> None:
    sent = sqs.send_message(QueueUrl=queue, MessageBody=body)
    assert sent["MD5OfMessageBody"] == body_md5(body)
    assert "SequenceNumber" not in sent
    [message] = receive(sqs, queue)
    assert (message["Body"], message["MessageId"]) == (body, sent["MessageId"])
    assert message["MD5OfBody"] == body_md5(body)
    assert "Attributes" not in message
    assert "MessageAttributes" not in message


def test_attributes_of_every_type_come_out_as_they_went_in(sqs: Client, queue: str) -> None:
    given = {
        "text": {"DataType": "String", "StringValue": "żółw"},
        "whole": {"DataType": "Number", "StringValue": "42"},
        "precise": {"DataType": "Number.float", "StringValue": "-1.50e-3"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "image": {"DataType": "Binary.png", "BinaryValue": b"PNG"},
        "a.label": {"DataType": "String.my label", "StringValue": "<&>"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    # boto3 checks the digests of what it receives, and of the attributes it sent, only for the body; so we look.
    sent = sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=given, MessageSystemAttributes=trace)
    [message] = receive(sqs, queue, MessageAttributeNames=["All"], AttributeNames=["All"])
    assert message["MessageAttributes"] == given
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]
    assert len(sent["MD5OfMessageSystemAttributes"]) == 32


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["All"], {"a", "b.c", "b.d"}),
        ([".*"], {"a", "b.c", "b.d"}),
        (["a"], {"a"}),
        (["b.*"], {"b.c", "b.d"}),
        (["a", "b.d", "unknown"], {"a", "b.d"}),
        (["unknown"], set()),
    ],
)
def test_attributes_are_chosen_by_name_and_prefix(boto: Client, names: list[str], expected: set[str]) -> None:
    queue = new_queue(boto)
    given = {name: {"DataType": "String", "StringValue": "v"} for name in ("a", "b.c", "b.d")}
    boto.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=given)
    [message] = receive(boto, queue, MessageAttributeNames=names)
    assert set(message.get("MessageAttributes", {})) == expected


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("x", {"DataType": "String", "StringValue": ""}, "must contain a non-empty value of type 'String'"),
        ("x", {"DataType": "Binary", "BinaryValue": b""}, "must contain a non-empty value of type 'Binary'"),
        ("x", {"DataType": "Number", "StringValue": "one"}, "to a number"),
        ("x", {"DataType": "Text", "StringValue": "v"}, "the set of supported type prefixes"),
        ("x", {"DataType": "", "StringValue": "v"}, "non-empty message attribute type"),
        ("AWS.x", {"DataType": "String", "StringValue": "v"}, "reserved for internal use"),
        ("amazon.x", {"DataType": "String", "StringValue": "v"}, "reserved for internal use"),
        (".x", {"DataType": "String", "StringValue": "v"}, "beginning or ending with a period"),
        ("x.", {"DataType": "String", "StringValue": "v"}, "beginning or ending with a period"),
        ("x y", {"DataType": "String", "StringValue": "v"}, "non-alphanumeric character"),
        ("n" * 257, {"DataType": "String", "StringValue": "v"}, "between 1 and 256 characters"),
    ],
)
def test_attributes_that_no_message_may_have(sqs: Client, queue: str, name: str, value: Any, text: str) -> None:
    with refused("InvalidParameterValue") as refusal:
        sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes={name: value})
    assert text in refusal.message
    assert count(sqs, queue) == 0


def test_no_more_than_ten_attributes(boto: Client) -> None:
    queue = new_queue(boto)
    given = {str(number): {"DataType": "String", "StringValue": "v"} for number in range(11)}
    with refused("InvalidParameterValue"):
        boto.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=given)


def test_lists_of_values_are_not_supported_as_with_aws(boto: Client) -> None:
    value = {"DataType": "String", "StringListValues": ["a"]}
    with refused("UnsupportedOperation"):
        boto.send_message(QueueUrl=new_queue(boto), MessageBody="x", MessageAttributes={"x": value})


def test_other_system_attributes_than_the_trace_header_are_refused(boto: Client) -> None:
    queue = new_queue(boto)
    for name, value in (
        ("Other", {"DataType": "String", "StringValue": "v"}),
        ("AWSTraceHeader", {"DataType": "Number"}),
    ):
        with refused("InvalidParameterValue"):
            boto.send_message(QueueUrl=queue, MessageBody="x", MessageSystemAttributes={name: value})


@pytest.mark.parametrize("character", ["\x00", "\x08", "\x0b", "\x1f", "\ufffe", "\uffff"], ids=ascii)
def test_an_attribute_with_characters_that_xml_cannot_hold_is_an_invalid_value(
    sqs: Client, queue: str, character: str
) -> None:
    value = {"DataType": "String", "StringValue": f"x{character}"}
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes={"a": value})
    entry = {"Id": "a", "MessageBody": "x", "MessageAttributes": {"a": value}}
    [failed] = sqs.send_message_batch(QueueUrl=queue, Entries=[entry])["Failed"]
    assert failed["Code"] == "InvalidParameterValue"


def test_attributes_are_named_in_any_script(sqs: Client, queue: str) -> None:
    attributes = {name: {"DataType": "String", "StringValue": "v"} for name in ("attr.1øßä", "größe_2", "名前-٣")}
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=attributes)
    [message] = receive(sqs, queue, MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == attributes
    for name in ("§", "a!", 'a"b', "a(b", "a?b", "a b"):
        with refused("InvalidParameterValue"):
            sqs.send_message(
                QueueUrl=queue, MessageBody="x", MessageAttributes={name: {"DataType": "String", "StringValue": "v"}}
            )


def test_a_star_stands_for_all_attributes(sqs: Client, queue: str) -> None:
    attributes = {name: {"DataType": "String", "StringValue": "v"} for name in ("one", "two.three")}
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=attributes)
    [message] = receive(sqs, queue, MessageAttributeNames=["*"])
    assert message["MessageAttributes"] == attributes


@pytest.mark.parametrize("character", ["\x00", "\x08", "\x0b", "\x1f", "\ufffe", "\uffff"], ids=ascii)
def test_characters_that_xml_cannot_hold_are_refused(sqs: Client, queue: str, character: str) -> None:
    with refused("InvalidMessageContents"):
        sqs.send_message(QueueUrl=queue, MessageBody=f"x{character}")
    assert count(sqs, queue) == 0


def test_a_body_is_needed(sqs: Client, queue: str) -> None:
    with refused("MissingParameter") as refusal:
        sqs.send_message(QueueUrl=queue, MessageBody="")
    assert refusal.message == "The request must contain the parameter MessageBody."


def test_a_message_has_a_mebibyte_at_most_attributes_included(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x" * MIB)
    attribute = {"n": {"DataType": "String", "StringValue": "v"}}
    fits = MIB - len("nStringv")
    sqs.send_message(QueueUrl=queue, MessageBody="x" * fits, MessageAttributes=attribute)
    for body, attributes in (("x" * (MIB + 1), {}), ("ü" * (MIB // 2 + 1), {}), ("x" * (fits + 1), attribute)):
        with refused("InvalidParameterValue") as refusal:
            sqs.send_message(QueueUrl=queue, MessageBody=body, MessageAttributes=attributes)
        assert refusal.message == (
            "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes."
        )


def test_a_queue_may_take_less(boto: Client) -> None:
    queue = new_queue(boto, MaximumMessageSize="1024")
    boto.send_message(QueueUrl=queue, MessageBody="x" * 1024)
    with refused("InvalidParameterValue"):
        boto.send_message(QueueUrl=queue, MessageBody="x" * 1025)


@pytest.mark.slow
def test_a_message_is_delayed_by_itself_or_by_its_queue(sqs: Client) -> None:
    queue = new_queue(sqs, DelaySeconds="900")
    sqs.send_message(QueueUrl=queue, MessageBody="later")
    sqs.send_message(QueueUrl=queue, MessageBody="now", DelaySeconds=0)
    sqs.send_message(QueueUrl=queue, MessageBody="soon", DelaySeconds=1)
    seen = [wait_for(sqs, queue, AttributeNames=["All"]) for _ in range(2)]
    assert [message["Body"] for message in seen] == ["now", "soon"]
    assert waited_ms(seen[1]) >= 1000
    assert count(sqs, queue, "Delayed") == 1
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=901)


def test_what_only_fifo_queues_know_is_refused_but_groups_are_fine(sqs: Client, queue: str) -> None:
    with refused("InvalidParameterValue") as refusal:
        sqs.send_message(QueueUrl=queue, MessageBody="x", MessageDeduplicationId="d")
    assert "not valid for this queue type" in refusal.message
    sqs.send_message(QueueUrl=queue, MessageBody="fair", MessageGroupId="tenant-1")
    [message] = receive(sqs, queue, AttributeNames=["MessageGroupId"])
    assert message["Attributes"] == {"MessageGroupId": "tenant-1"}


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_tells_of_each_entry(sqs: Client, queue: str) -> None:
    answer = sqs.send_message_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "good", "MessageBody": "a", "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "1"}}},
            {"Id": "bad", "MessageBody": "\x00"},
            {"Id": "late", "MessageBody": "c", "DelaySeconds": 901},
            {"Id": "fine", "MessageBody": "d"},
        ],
    )
    assert [one["Id"] for one in answer["Successful"]] == ["good", "fine"]
    assert answer["Successful"][0]["MD5OfMessageBody"] == body_md5("a")
    assert answer["Successful"][0]["MD5OfMessageAttributes"]
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in answer["Failed"]] == [
        ("bad", "InvalidMessageContents", True),
        ("late", "InvalidParameterValue", True),
    ]
    assert sorted(message["Body"] for message in receive(sqs, queue, MaxNumberOfMessages=10)) == ["a", "d"]


ENTRY: dict[str, dict[str, Any]] = {
    "send_message_batch": {"MessageBody": "x"},
    "delete_message_batch": {"ReceiptHandle": "x"},
    "change_message_visibility_batch": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
}


@pytest.mark.parametrize("method", ENTRY)
def test_batches_that_are_refused_as_a_whole(sqs: Client, queue: str, method: str) -> None:
    def call(*ids: str) -> None:
        getattr(sqs, method)(QueueUrl=queue, Entries=[{"Id": id, **ENTRY[method]} for id in ids])

    with refused("EmptyBatchRequest"):
        call()
    with refused("TooManyEntriesInBatchRequest") as refusal:
        call(*map(str, range(20)))
    assert refusal.message == "Maximum number of entries per request are 10. You have sent 20."
    with refused("BatchEntryIdsNotDistinct") as refusal:
        call("a", "b", "a")
    assert refusal.message == "Id a repeated."
    for id in ("", "a b", "x" * 81, "ü"):
        with refused("InvalidBatchEntryId") as refusal:
            call(id)
        assert refusal.message == (
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
            "It can be at most 80 letters long."
        )
    assert count(sqs, queue) == 0


def test_a_batch_has_a_mebibyte_at_most(sqs: Client, queue: str) -> None:
    with refused("BatchRequestTooLong") as refusal:
        sqs.send_message_batch(
            QueueUrl=queue, Entries=[{"Id": "a", "MessageBody": "x" * MIB}, {"Id": "b", "MessageBody": "x"}]
        )
    assert refusal.message == "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."
    assert count(sqs, queue) == 0


# -- receiving --------------------------------------------------------------------------------------------------------


def test_up_to_ten_at_a_time(sqs: Client, queue: str) -> None:
    for batch in range(2):
        entries = [{"Id": str(number), "MessageBody": f"{batch}{number}"} for number in range(8)]
        sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert len(receive(sqs, queue)) == 1
    assert len(receive(sqs, queue, MaxNumberOfMessages=10)) == 10
    assert len(receive(sqs, queue, MaxNumberOfMessages=10)) == 5
    assert "Messages" not in sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)
    assert count(sqs, queue, "NotVisible") == 16


@pytest.mark.parametrize(
    ("parameter", "value", "reason"),
    [
        ("MaxNumberOfMessages", 11, "Must be between 1 and 10, if provided."),
        ("MaxNumberOfMessages", 0, "Must be between 1 and 10, if provided."),
        ("WaitTimeSeconds", 21, "Must be >= 0 and <= 20, if provided."),
        ("WaitTimeSeconds", -1, "Must be >= 0 and <= 20, if provided."),
        ("VisibilityTimeout", 43201, "Must be >= 0 and <= 43200, if provided."),
    ],
)
def test_receives_out_of_range(sqs: Client, queue: str, parameter: str, value: int, reason: str) -> None:
    with refused("InvalidParameterValue") as refusal:
        receive(sqs, queue, **{parameter: value})
    assert refusal.message == f"Value {value} for parameter {parameter} is invalid. Reason: {reason}"


def test_system_attributes_are_given_when_asked_for(sqs: Client, queue: str) -> None:
    before_ms = int(time.time() * 1000) - 5000
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [first] = receive(sqs, queue, VisibilityTimeout=0, AttributeNames=["All"])
    assert set(first["Attributes"]) == {
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
    }
    assert first["Attributes"]["ApproximateReceiveCount"] == "1"
    assert int(first["Attributes"]["SentTimestamp"]) >= before_ms
    again = wait_for(sqs, queue, MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp"])
    assert again["Attributes"] == {
        "ApproximateReceiveCount": "2",
        "SentTimestamp": first["Attributes"]["SentTimestamp"],
    }
    assert again["ReceiptHandle"] != first["ReceiptHandle"]


def test_the_first_receive_is_remembered(boto: Client) -> None:
    queue = new_queue(boto)
    boto.send_message(QueueUrl=queue, MessageBody="x")
    names = ["ApproximateFirstReceiveTimestamp"]
    seen = [wait_for(boto, queue, VisibilityTimeout=0, AttributeNames=names)["Attributes"] for _ in range(3)]
    assert seen[0] == seen[1] == seen[2]


def test_whoever_only_looks_sees_a_message_again_and_again(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    for _ in range(10):
        [message] = receive(sqs, queue, VisibilityTimeout=0)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert receive(sqs, queue) == []


@pytest.mark.slow
@pytest.mark.parametrize("wakes", ["message", "delay", "visibility"])
def test_a_long_poll_wakes_when_something_becomes_visible(boto: Client, server: Served, wakes: str) -> None:
    queue = new_queue(boto)
    if wakes == "delay":
        boto.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=1)
    elif wakes == "visibility":
        boto.send_message(QueueUrl=queue, MessageBody="x")
        receive(boto, queue, VisibilityTimeout=1)
    else:
        sender = threading.Timer(0.3, lambda: boto.send_message(QueueUrl=queue, MessageBody="x"))
        sender.start()
    waiting = make_client(server.url)
    assert wait_for(waiting, queue)["Body"] == "x"


@pytest.mark.slow
def test_a_queue_may_wait_by_itself(boto: Client) -> None:
    queue = new_queue(boto, ReceiveMessageWaitTimeSeconds="20")
    boto.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=1)
    assert [message["Body"] for message in receive(boto, queue)] == ["x"]


def test_a_poll_whose_client_left_loses_no_message(boto: Client, server: Served) -> None:
    queue = new_queue(boto)
    impatient = make_client(server.url, read_timeout=0.5, retries={"total_max_attempts": 1})
    from botocore.exceptions import ReadTimeoutError

    with pytest.raises(ReadTimeoutError):
        receive(impatient, queue, WaitTimeSeconds=20)
    boto.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(boto, queue, AttributeNames=["All"], WaitTimeSeconds=20)
    assert message["Body"] == "x"


# -- deleting ---------------------------------------------------------------------------------------------------------


def test_a_deleted_message_does_not_come_back_and_may_be_deleted_again(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue)
    for _ in range(2):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert count(sqs, queue) == count(sqs, queue, "NotVisible") == 0


@pytest.mark.slow
def test_a_handle_whose_lease_ran_out_still_deletes(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue, VisibilityTimeout=1)
    eventually(lambda: count(sqs, queue) == 1)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert count(sqs, queue) == 0


@pytest.mark.slow
def test_a_handle_whose_message_was_handed_out_again_deletes_nothing(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [first] = receive(sqs, queue, VisibilityTimeout=1)
    second = wait_for(sqs, queue)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"])
    assert count(sqs, queue, "NotVisible") == 1
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"])
    assert count(sqs, queue, "NotVisible") == 0


def test_a_handle_that_is_none(sqs: Client, queue: str) -> None:
    with refused("ReceiptHandleIsInvalid") as refusal:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle="x")
    assert refusal.message == 'The input receipt handle "x" is not a valid receipt handle.'


def test_a_handle_of_another_version(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue)
    handle = message["ReceiptHandle"]
    other = "2" + handle[1:]
    text = "The specified receipt handle isn't valid for the current version."
    with refused("InvalidIdFormat") as refusal:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=other)
    assert (refusal.code, refusal.status, refusal.message) == ("InvalidIdFormat", 400, text)
    answer = sqs.delete_message_batch(QueueUrl=queue, Entries=[{"Id": "a", "ReceiptHandle": other}])
    assert answer["Failed"] == [{"Id": "a", "Code": "InvalidIdFormat", "Message": text, "SenderFault": True}]
    with refused("ReceiptHandleIsInvalid") as refusal:
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=other, VisibilityTimeout=0)
    assert refusal.message == text
    entry = {"Id": "a", "ReceiptHandle": other, "VisibilityTimeout": 0}
    answer = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=[entry])
    assert [failed["Code"] for failed in answer["Failed"]] == ["ReceiptHandleIsInvalid"]
    # What has not the shape of a handle has no version either.
    for none in (handle[1:], "2" + handle, handle + "A", "2" + handle[2:], "." + handle[1:], handle[:-1] + "=", "1"):
        with refused("ReceiptHandleIsInvalid"):
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=none)
    assert receive(sqs, queue) == []
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle)


def test_deleting_a_batch_tells_of_each_entry(sqs: Client, queue: str) -> None:
    sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": str(n), "MessageBody": "x"} for n in range(3)])
    messages = receive(sqs, queue, MaxNumberOfMessages=3)
    entries = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)]
    answer = sqs.delete_message_batch(QueueUrl=queue, Entries=[*entries, {"Id": "bad", "ReceiptHandle": "x"}])
    assert [one["Id"] for one in answer["Successful"]] == ["0", "1", "2"]
    assert [(one["Id"], one["Code"]) for one in answer["Failed"]] == [("bad", "ReceiptHandleIsInvalid")]
    assert count(sqs, queue, "NotVisible") == 0


# -- visibility -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_visibility_is_shortened_and_lengthened(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    for attempt in with_more_time(1, 10, 60, errors=(ClientError,)):
        with attempt as lease_s:
            handle = wait_for(sqs, queue, VisibilityTimeout=int(lease_s))["ReceiptHandle"]
            sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=40000)
    time.sleep(lease_s + 0.2)
    assert count(sqs, queue) == 0
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    assert receive(sqs, queue)[0]["Body"] == "x"


@pytest.mark.slow
def test_twelve_hours_count_from_the_receive(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue, VisibilityTimeout=43200)
    handle = message["ReceiptHandle"]
    time.sleep(1.1)
    with refused("InvalidParameterValue") as refusal:
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=43200)
    text = (
        "Value 43200 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is "
        "beyond the limit [43200 seconds]."
    )
    assert refusal.message == text
    entries = [{"Id": str(s), "ReceiptHandle": handle, "VisibilityTimeout": s} for s in (43200, 40000)]
    answer = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=entries)
    assert [(failed["Id"], failed["Message"]) for failed in answer["Failed"]] == [("43200", text)]
    assert answer["Successful"] == [{"Id": "40000"}]


def test_visibility_of_what_is_not_in_flight(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue)
    handle = message["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    # As with AWS that succeeds, on a standard queue; here it changes nothing.
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=10)
    assert count(sqs, queue) == 1
    [again] = receive(sqs, queue)
    for timeout_s in (0, 10):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=timeout_s)
        assert (count(sqs, queue), count(sqs, queue, "NotVisible")) == (0, 1)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=again["ReceiptHandle"])
    with refused("InvalidParameterValue") as refusal:
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=10)
    assert "Message does not exist or is not available for visibility timeout change." in refusal.message
    with refused("ReceiptHandleIsInvalid"):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle="x", VisibilityTimeout=10)
    with refused("InvalidParameterValue"):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=43201)


@pytest.mark.slow
def test_visibility_by_an_expired_handle(sqs: Client, queue: str, fifo: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
    old, old_of_fifo = (receive(sqs, url, VisibilityTimeout=1)[0]["ReceiptHandle"] for url in (queue, fifo))
    eventually(lambda: count(sqs, queue) == count(sqs, fifo) == 1)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=old, VisibilityTimeout=10)
    entry = {"Id": "a", "ReceiptHandle": old, "VisibilityTimeout": 10}
    assert sqs.change_message_visibility_batch(QueueUrl=queue, Entries=[entry])["Successful"] == [{"Id": "a"}]
    assert receive(sqs, queue)[0]["Body"] == "x"
    with refused("InvalidParameterValue") as refusal:
        sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=old_of_fifo, VisibilityTimeout=10)
    assert refusal.message.endswith("Reason: The receipt handle has expired.")


def test_changing_a_batch_tells_of_each_entry(sqs: Client, queue: str) -> None:
    sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": str(n), "MessageBody": "x"} for n in range(3)])
    handles = [message["ReceiptHandle"] for message in receive(sqs, queue, MaxNumberOfMessages=3)]
    answer = sqs.change_message_visibility_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "free", "ReceiptHandle": handles[0], "VisibilityTimeout": 0},
            {"Id": "hold", "ReceiptHandle": handles[1], "VisibilityTimeout": 100},
            {"Id": "over", "ReceiptHandle": handles[2], "VisibilityTimeout": 43201},
            {"Id": "none", "ReceiptHandle": "x", "VisibilityTimeout": 1},
        ],
    )
    assert [one["Id"] for one in answer["Successful"]] == ["free", "hold"]
    assert [(one["Id"], one["Code"]) for one in answer["Failed"]] == [
        ("over", "InvalidParameterValue"),
        ("none", "ReceiptHandleIsInvalid"),
    ]
    assert (count(sqs, queue), count(sqs, queue, "NotVisible")) == (1, 2)
