"""Answers with large messages are bounded by bytes, not by their number alone; what is left out comes with the next."""

from __future__ import annotations

from typing import Any

import pytest

from smista import Client
from tests.protocols.http.caller import Caller
from tests.protocols.http.talk import Stubborn, Talk
from tests.served import Served
from tests.waiting import eventually

BODY_BYTES = 1_000_000
COUNT = 40
BOUND = 16 << 20


@pytest.fixture
def photos(http: Caller) -> str:
    """A queue with 40 MB in it: more than a bound, twice."""
    queue = http.new_queue()
    for number in range(COUNT):
        http.publish(queue, f"{number:02}" * (BODY_BYTES // 2))
    return queue


def numbers(answer: dict[str, Any]) -> list[int]:
    return [int(message["message"][:2]) for message in answer["messages"]]


def test_a_receive_of_large_messages_gives_fewer_and_the_next_one_goes_on(http: Caller, photos: str) -> None:
    seen = []
    while batch := numbers(http.call("queue.receive", queue=photos, limit=1_000)):
        assert len(batch) * BODY_BYTES < BOUND + BODY_BYTES
        seen.append(batch)
    assert [number for batch in seen for number in batch] == list(range(COUNT))
    assert len(seen) == 3
    assert http.stats(photos)["in_flight"] == COUNT


def test_so_do_a_consume_and_a_receive_that_waits(http: Caller, photos: str) -> None:
    http.call("queue.pause", queue=photos)
    with http.another() as other:
        other.start_command("queue.receive", {"queue": photos, "limit": 1_000, "wait_ms": 20_000})
        http.call("queue.resume", queue=photos)
        assert numbers(other.answer().value) == list(range(17))
    assert numbers(http.call("queue.consume", queue=photos, prefetch=1_000)) == list(range(17, 34))


def test_a_peek_at_large_messages_shows_fewer(http: Caller, photos: str) -> None:
    assert numbers(http.call("queue.peek", queue=photos, limit=1_000)) == list(range(17))
    assert http.stats(photos)["ready"] == COUNT


@pytest.mark.parametrize("command", ["queue.browse", "dlq.list", "scheduled.list"])
def test_pages_of_large_messages_are_shorter_and_together_have_each_once(http: Caller, command: str) -> None:
    queue = http.new_queue(dead_letter="park")
    more = {"delay_ms": 3_600_000} if command == "scheduled.list" else {}
    for number in range(COUNT):
        http.publish(queue, f"{number:02}" * (BODY_BYTES // 2), **more)
    if command == "dlq.list":
        while batch := http.receive(queue, 1_000):
            http.call("queue.nack", receipts=[one["receipt"] for one in batch], requeue=False)
    pages, after = [], 0
    while after is not None:
        page = http.call(command, queue=queue, limit=10_000, after=after)
        pages.append(numbers(page))
        after = page["after"]
    assert [len(page) for page in pages] == [16, 16, 8]
    assert [number for page in pages for number in page] == list(range(COUNT))
    without = http.call(command, queue=queue, limit=10_000, bodies=False)
    assert (len(without["messages"]), without["after"]) == (COUNT, None)


def test_a_subscription_that_does_not_read_is_pushed_no_more_than_it_has_room_for(
    server: Served, http: Caller, photos: str
) -> None:
    with Stubborn(server.address, receive_buffer=10_000) as client:
        client.ask("subscribe", queue=photos, prefetch=1_000)
        eventually(lambda: http.stats(photos)["in_flight"] > 0)
        assert http.stats(photos)["in_flight"] < 10
        assert http.stats(photos)["ready"] > COUNT - 10
    eventually(lambda: http.stats(photos)["in_flight"] == 0)


def test_a_subscription_that_reads_gets_them_all_in_order(server: Served, http: Caller, photos: str) -> None:
    with Talk(server.address, "msgpack") as talk:
        talk.subscribe(photos, prefetch=1_000)
        messages = talk.messages(COUNT)
        assert numbers({"messages": messages}) == list(range(COUNT))
        assert http.stats(photos)["in_flight"] == COUNT
        assert talk.ask("ack", up_to=messages[-1]["tag"]) == {"success": True}


def test_the_client_goes_on_where_a_receive_was_short(server: Served, photos: str) -> None:
    with Client(server.url) as client:
        assert len(client.peek(photos, 1_000)) == 17
        seen: list[str] = []
        while deliveries := client.receive(photos, 1_000):
            seen += [delivery.json()[:2] for delivery in deliveries]
    assert seen == [f"{number:02}" for number in range(COUNT)]
