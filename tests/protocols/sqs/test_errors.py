"""Every error that the API documents for an action, provoked through boto3.

The list is that of boto3's own model, so that nothing is forgotten when it grows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # has no types of its own

from smista.errors import (
    BrokerError,
    BulkReaderFailed,
    LogInMemory,
    LogPositionDropped,
    RequestError,
    TooManyReaders,
    stopped,
)
from smista.protocols.sqs import errors
from smista.protocols.sqs.move_tasks import Handle, write_handle
from smista.server.errors import InvalidConfiguration
from tests.protocols.sqs.clients import Client, arn, make_client, model, new_name, new_queue, refused
from tests.protocols.sqs.raw import command
from tests.served import Served
from tests.server_process import ServerProcess

BULK = (BulkReaderFailed, LogInMemory, LogPositionDropped, TooManyReaders)
DOCUMENTED = sorted(
    (action, error["shape"]) for action, operation in model()["operations"].items() for error in operation["errors"]
)
BATCHES: dict[str, dict[str, Any]] = {
    "SendMessageBatch": {"MessageBody": "x"},
    "DeleteMessageBatch": {"ReceiptHandle": "x"},
    "ChangeMessageVisibilityBatch": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
}
MINIMAL: dict[str, dict[str, Any]] = {
    "AddPermission": {"Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["*"]},
    "ChangeMessageVisibility": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
    "DeleteMessage": {"ReceiptHandle": "x"},
    "RemovePermission": {"Label": "l"},
    "SendMessage": {"MessageBody": "x"},
    "SetQueueAttributes": {"Attributes": {"DelaySeconds": "1"}},
    "TagQueue": {"Tags": {"a": "b"}},
    "UntagQueue": {"TagKeys": ["a"]},
    "CreateQueue": {"QueueName": "q"},
    "GetQueueUrl": {"QueueName": "q"},
    "ListQueues": {},
    "CancelMessageMoveTask": {"TaskHandle": write_handle(Handle("none", "arn:aws:sqs:us-east-1:000000000000:none"))},
    "ListMessageMoveTasks": {"SourceArn": "arn:aws:sqs:us-east-1:000000000000:none"},
    "StartMessageMoveTask": {"SourceArn": "arn:aws:sqs:us-east-1:000000000000:none"},
    **{action: {"Entries": [{"Id": "a", **entry}]} for action, entry in BATCHES.items()},
}
NAMES_A_QUEUE = {
    action
    for action, operation in model()["operations"].items()
    if "QueueUrl" in model()["shapes"][operation["input"]["shape"]]["members"]
}


def call(sqs: Client, action: str, url: str, **more: Any) -> Any:
    method = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in action)[1:]
    parameters = {**MINIMAL.get(action, {}), **more}
    if action in NAMES_A_QUEUE:
        parameters.setdefault("QueueUrl", url)
    return getattr(sqs, method)(**parameters)


# -- how each is provoked ---------------------------------------------------------------------------------------------


def no_such_queue(sqs: Client, action: str, server: Served) -> None:
    call(sqs, action, f"{server.url}/000000000000/none")


def not_an_address(sqs: Client, action: str, server: Served) -> None:
    call(make_client(server.url + "/not/here"), action, "q")


def kms(name: str) -> Callable[[Client, str, Served], None]:
    return lambda sqs, action, _: call(sqs, action, new_queue(sqs, KmsMasterKeyId=f"alias/smista/{name}"))


def batch(entries: list[dict[str, Any]]) -> Callable[[Client, str, Served], None]:
    return lambda sqs, action, _: call(
        sqs, action, new_queue(sqs), Entries=[{**BATCHES[action], **entry} for entry in entries]
    )


def full_queue(sqs: Client, action: str, server: Served) -> None:
    name = new_name()
    command(server, "queue.declare", queue=name, settings={"max_depth": 1})
    sqs.send_message(QueueUrl=name, MessageBody="x")
    answer = call(sqs, action, name)
    # A batch tells of it in its entry.
    [entry] = answer["Failed"]
    assert entry["Code"] == "RequestThrottled"
    raise _EntryFailed


class _EntryFailed(Exception):
    """The answer refuses an entry of a batch, and not the request."""


def list_values(sqs: Client, action: str, _: Served) -> None:
    attribute = {"x": {"DataType": "String", "StringListValues": ["a"]}}
    if action == "SendMessage":
        call(sqs, action, new_queue(sqs), MessageAttributes=attribute)
    answer = call(
        sqs, action, new_queue(sqs), Entries=[{"Id": "a", "MessageBody": "x", "MessageAttributes": attribute}]
    )
    assert answer["Failed"][0]["Code"] == "AWS.SimpleQueueService.UnsupportedOperation"
    raise _EntryFailed


def deleted_recently(_: Client, action: str, strict: Served) -> None:
    sqs = make_client(strict.url)
    url = new_queue(sqs)
    sqs.delete_queue(QueueUrl=url)
    call(sqs, action, "", QueueName=url.rpartition("/")[2])


def too_many_requests(_: Client, action: str, slow: Served) -> None:
    sqs = make_client(slow.url, retries={"total_max_attempts": 1})
    while True:
        # Only the first within a second gets as far as to be looked at.
        try:
            call(sqs, action, f"{slow.url}/000000000000/none")
        except ClientError as refusal:
            if refusal.response["Error"]["Code"] == "RequestThrottled":
                raise


def purged_twice(_: Client, action: str, strict: Served) -> None:
    sqs = make_client(strict.url)
    url = new_queue(sqs)
    for _ in range(2):
        call(sqs, action, url)


def not_in_flight(sqs: Client, action: str, _: Served) -> None:
    url = new_queue(sqs, FifoQueue="true")
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
    handle = sqs.receive_message(QueueUrl=url)["Messages"][0]["ReceiptHandle"]
    for timeout in (0, 5):
        call(sqs, action, url, ReceiptHandle=handle, VisibilityTimeout=timeout)


def of_another_version(sqs: Client, action: str, _: Served) -> None:
    url = new_queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    handle = sqs.receive_message(QueueUrl=url)["Messages"][0]["ReceiptHandle"]
    call(sqs, action, url, ReceiptHandle="2" + handle[1:])


def turned_off(_: Client, action: str, guarded: Served) -> None:
    name = new_name()
    command(guarded, "queue.declare", queue=name)
    call(make_client(guarded.url), action, name)


def too_many_in_flight(sqs: Client, action: str, server: Served) -> None:
    url = new_queue(sqs)
    name = url.rpartition("/")[2]
    for _ in range(121):
        command(server, "queue.publish_batch", queue=name, bodies=["eA=="] * 1000, brief=True)
    for _ in range(120):
        leased = command(server, "queue.receive", queue=name, limit=1000, lease_ms=600_000)
        assert len(leased["messages"]) == 1000
    try:
        call(sqs, action, url)
    finally:
        sqs.delete_queue(QueueUrl=url)


def too_many_statements(sqs: Client, action: str, _: Served) -> None:
    url = new_queue(sqs)
    for number in range(21):
        call(sqs, action, url, Label=str(number))


def different_attributes(sqs: Client, action: str, _: Served) -> None:
    name = new_name()
    for delay in ("1", "2"):
        call(sqs, action, "", QueueName=name, Attributes={"DelaySeconds": delay})


def ended_task(sqs: Client, action: str, _: Served) -> None:
    target = new_queue(sqs)
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, target), "maxReceiveCount": 1})
    new_queue(sqs, RedrivePolicy=policy)
    handle = sqs.start_message_move_task(SourceArn=arn(sqs, target))["TaskHandle"]
    if action == "StartMessageMoveTask":
        fifo = arn(sqs, new_queue(sqs, FifoQueue="true"))
        call(sqs, action, "", SourceArn=arn(sqs, target), DestinationArn=fifo)
    while sqs.list_message_move_tasks(SourceArn=arn(sqs, target))["Results"][0]["Status"] == "RUNNING":
        pass
    call(sqs, action, "", TaskHandle=handle)


def signed_otherwise(_: Client, action: str, locked: Served) -> None:
    def sign(request: Any, **_: object) -> None:
        request.headers["Authorization"] = "AWS3-HTTPS AWSAccessKeyId=x,Algorithm=HmacSHA256,Signature=x"

    sqs = make_client(locked.url)
    sqs.meta.events.register("before-send.sqs.*", sign)
    call(sqs, action, f"{locked.url}/000000000000/none")


def with_attributes(**attributes: str) -> Callable[[Client, str, Served], None]:
    return lambda sqs, action, _: call(sqs, action, new_queue(sqs), Attributes=attributes, **_named(action))


def _named(action: str) -> dict[str, str]:
    return {"QueueName": new_name()} if action == "CreateQueue" else {}


ANYWHERE: dict[str, Callable[[Client, str, Served], None]] = {
    "QueueDoesNotExist": no_such_queue,
    "InvalidAddress": not_an_address,
    "EmptyBatchRequest": batch([]),
    "TooManyEntriesInBatchRequest": batch([{"Id": str(number)} for number in range(11)]),
    "BatchEntryIdsNotDistinct": batch([{"Id": "a"}, {"Id": "a"}]),
    "InvalidBatchEntryId": batch([{"Id": "a b"}]),
    "BatchRequestTooLong": batch([{"Id": str(number), "MessageBody": "x" * (1 << 19)} for number in range(3)]),
    "ReceiptHandleIsInvalid": lambda sqs, action, _: call(sqs, action, new_queue(sqs)),
    "InvalidIdFormat": of_another_version,
    "MessageNotInflight": not_in_flight,
    "InvalidMessageContents": lambda sqs, action, _: call(sqs, action, new_queue(sqs), MessageBody="\x00"),
    "InvalidAttributeName": with_attributes(Unknown="1"),
    "InvalidAttributeValue": with_attributes(DelaySeconds="-1"),
    "QueueNameExists": different_attributes,
    "ResourceNotFoundException": lambda sqs, action, _: call(sqs, action, ""),
    "QueueDeletedRecently": deleted_recently,
    "RequestThrottled": too_many_requests,
    "PurgeQueueInProgress": purged_twice,
    "UnsupportedOperation": turned_off,
    "InvalidSecurity": signed_otherwise,
    **{name: kms(name) for name in errors.KMS},
}
IN_PARTICULAR: dict[tuple[str, str], Callable[[Client, str, Served], None]] = {
    ("GetQueueAttributes", "InvalidAttributeName"): lambda sqs, action, _: call(
        sqs, action, new_queue(sqs), AttributeNames=["Unknown"]
    ),
    ("AddPermission", "OverLimit"): too_many_statements,
    ("SetQueueAttributes", "OverLimit"): with_attributes(Policy=json.dumps({"Statement": [{}] * 21})),
    ("ReceiveMessage", "OverLimit"): too_many_in_flight,
    ("SendMessage", "RequestThrottled"): full_queue,
    ("SendMessageBatch", "RequestThrottled"): full_queue,
    ("SendMessage", "UnsupportedOperation"): list_values,
    ("SendMessageBatch", "UnsupportedOperation"): list_values,
    ("StartMessageMoveTask", "UnsupportedOperation"): ended_task,
    ("CancelMessageMoveTask", "UnsupportedOperation"): ended_task,
}
PLACES: dict[Callable[[Client, str, Served], None], str] = {
    deleted_recently: "strict_server",
    purged_twice: "strict_server",
    too_many_requests: "slow_server",
    turned_off: "guarded_server",
    signed_otherwise: "locked_server",
}
"""Where the server is another than the usual one."""


@pytest.mark.parametrize(("action", "error"), DOCUMENTED)
def test_a_documented_error_is_raised(boto: Client, request: pytest.FixtureRequest, action: str, error: str) -> None:
    provoke = IN_PARTICULAR.get((action, error)) or ANYWHERE[error]
    place = request.getfixturevalue(PLACES.get(provoke, "server"))
    try:
        with refused(error):
            provoke(boto, action, place)
    except _EntryFailed:
        pass


@pytest.mark.parametrize("wire", ["json", "query"])
def test_an_action_that_is_off_is_refused_before_anything_is_changed(guarded_server: Served, wire: str) -> None:
    sqs, name = make_client(guarded_server.url, wire), new_name()

    def state() -> list[Any]:
        return [command(guarded_server, look, queue=name) for look in ("queue.settings", "queue.browse")]

    command(guarded_server, "queue.declare", queue=name)
    command(guarded_server, "queue.publish", queue=name, message="x")
    before = state()
    for action in model()["operations"]:
        with refused("UnsupportedOperation") as refusal:
            call(sqs, action, f"{guarded_server.url}/000000000000/{name}", **_named(action))
        assert (refusal.code, refusal.status) == ("AWS.SimpleQueueService.UnsupportedOperation", 400)
        assert refusal.message == f"This broker does not offer {action}: sqs_actions_off names it."
    assert state() == before


@pytest.mark.slow
def test_actions_that_are_not_off_go_on() -> None:
    with ServerProcess(None, variables={"SMISTA_SQS_ACTIONS_OFF": "DeleteMessage, PurgeQueue"}) as server:
        sqs = make_client(server.url)
        url = new_queue(sqs)
        sqs.send_message(QueueUrl=url, MessageBody="x")
        with refused("UnsupportedOperation"):
            sqs.purge_queue(QueueUrl=url)
        [message] = sqs.receive_message(QueueUrl=url)["Messages"]
        # A batch is an action of its own.
        entry = {"Id": "a", "ReceiptHandle": message["ReceiptHandle"]}
        assert sqs.delete_message_batch(QueueUrl=url, Entries=[entry])["Successful"] == [{"Id": "a"}]
        sqs.delete_queue(QueueUrl=url)


def test_every_error_of_the_broker_has_an_answer() -> None:
    assert stopped(ValueError()).code in errors.KINDS
    pending: list[type[BrokerError]] = [BrokerError]
    codes = set()
    while pending:
        error = pending.pop()
        pending += error.__subclasses__()
        is_ours = not issubclass(error, (RequestError, InvalidConfiguration, *BULK))
        if is_ours and error.__module__ in ("smista.errors", "smista.exchange_errors"):
            codes.add(error.code)
    assert codes <= set(errors.KINDS)


def test_errors_of_the_model_are_answered_with_400_but_for_three() -> None:
    documented = {error for _, error in DOCUMENTED}
    kinds = {kind.name: kind for kind in vars(errors).values() if isinstance(kind, errors.Kind)}
    others = {name: kind.status for name, kind in kinds.items() if name in documented and kind.status != 400}
    assert others == {"OverLimit": 403, "PurgeQueueInProgress": 403, "ResourceNotFoundException": 404}


@pytest.mark.parametrize("action", ["DeleteMessage", "ChangeMessageVisibility"])
def test_a_receipt_handle_is_good_for_its_own_queue_only(boto: Client, action: str) -> None:
    mine, other = new_queue(boto), new_queue(boto)
    boto.send_message(QueueUrl=mine, MessageBody="x")
    [message] = boto.receive_message(QueueUrl=mine)["Messages"]
    handle = message["ReceiptHandle"]
    with refused("ReceiptHandleIsInvalid"):
        call(boto, action, other, ReceiptHandle=handle)
    entry = {**BATCHES[action + "Batch"], "Id": "1", "ReceiptHandle": handle}
    answer = call(boto, action + "Batch", other, Entries=[entry])
    assert [failed["Code"] for failed in answer["Failed"]] == ["ReceiptHandleIsInvalid"]
    call(boto, action, mine, ReceiptHandle=handle)
