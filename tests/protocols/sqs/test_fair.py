"""Fair queues: on standard queues a tenant, named by MessageGroupId, that floods the queue holds nobody up."""

from __future__ import annotations

from typing import Any

from smista.client import Client as SmistaClient
from tests.protocols.sqs.clients import Client, new_queue
from tests.served import Served

NOISY, QUIET = 1_000, 10


def send(sqs: Client, queue: str, *bodies: str, **parameters: Any) -> None:
    for start in range(0, len(bodies), 10):
        entries = [
            {"Id": str(number), "MessageBody": body, **parameters}
            for number, body in enumerate(bodies[start : start + 10])
        ]
        assert "Failed" not in sqs.send_message_batch(QueueUrl=queue, Entries=entries)


def receive(sqs: Client, queue: str, limit: int = 10) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sqs.receive_message(
        QueueUrl=queue, MaxNumberOfMessages=limit, AttributeNames=["MessageGroupId"]
    ).get("Messages", [])
    return found


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def test_a_quiet_tenant_does_not_wait_behind_a_noisy_one(sqs: Client, queue: str) -> None:
    send(sqs, queue, *(f"noisy {number}" for number in range(NOISY)), MessageGroupId="noisy")
    in_flight = [message for _ in range(5) for message in receive(sqs, queue)]
    assert bodies(in_flight) == [f"noisy {number}" for number in range(50)]
    quiet = [f"quiet {number}" for number in range(QUIET)]
    send(sqs, queue, *quiet, MessageGroupId="quiet")
    next_ones = receive(sqs, queue) + receive(sqs, queue)
    assert bodies(next_ones) == quiet + [f"noisy {number}" for number in range(50, 60)]
    assert [message["Attributes"] for message in next_ones[:QUIET]] == [{"MessageGroupId": "quiet"}] * QUIET


def test_tenants_take_turns_where_everything_is_deleted_at_once(sqs: Client, queue: str) -> None:
    send(sqs, queue, *(f"noisy {number}" for number in range(100)), MessageGroupId="noisy")
    send(sqs, queue, *(f"quiet {number}" for number in range(5)), MessageGroupId="quiet")
    first: list[str] = []
    for _ in range(10):
        [message] = receive(sqs, queue, 1)
        first.append(message["Body"])
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert first == [f"{tenant} {number}" for number in range(5) for tenant in ("noisy", "quiet")]


def test_messages_without_a_group_are_one_tenant_and_keep_their_order(sqs: Client, queue: str) -> None:
    nobodys = [f"nobody's {number}" for number in range(30)]
    send(sqs, queue, *nobodys)
    assert bodies(receive(sqs, queue)) == nobodys[:10]
    send(sqs, queue, "tenant's", MessageGroupId="tenant")
    assert bodies(receive(sqs, queue, 3)) == ["tenant's", *nobodys[10:12]]
    assert not receive(sqs, queue, 1)[0].get("Attributes")


def test_what_becomes_visible_again_is_in_flight_no_longer(sqs: Client, queue: str) -> None:
    send(sqs, queue, "a 0", "a 1", MessageGroupId="a")
    held = receive(sqs, queue)
    send(sqs, queue, "b 0", "b 1", MessageGroupId="b")
    receive(sqs, queue, 1)
    for message in held:
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert bodies(receive(sqs, queue)) == ["a 0", "b 1", "a 1"]


def test_standard_queues_are_fair_and_fifo_queues_ordered(sqs: Client, server: Served) -> None:
    with SmistaClient(server.url) as client:
        for queue, expected in ((new_queue(sqs), (True, False)), (new_queue(sqs, FifoQueue="true"), (False, True))):
            settings = client.queue_settings(queue.rsplit("/", 1)[1])
            assert (settings.fair, settings.ordered) == expected
            sqs.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "7"})
            settings = client.queue_settings(queue.rsplit("/", 1)[1])
            assert (settings.fair, settings.ordered) == expected
