"""Subscriptions on the stream over real sockets: what is pushed, how it is settled, and where it goes when the
connection does."""

from __future__ import annotations

import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.protocols.http.caller import Caller
from tests.protocols.http.talk import Stubborn, Talk, asked, bodies, fill
from tests.served import Served
from tests.server.raw_http import Opcode, frame
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import eventually

BIG = 10**30
"""More than MessagePack has integers for."""


@pytest.fixture(params=["json", "msgpack"])
def talk(server: Served, request: pytest.FixtureRequest) -> Iterator[Talk]:
    """Speaks one format, then the other."""
    with Talk(server.address, request.param) as talk:
        yield talk


@pytest.fixture
def queue(http: Caller) -> str:
    return http.new_queue()


# -- subscriptions ----------------------------------------------------------------------------------------------------


def test_messages_are_pushed_and_settled(talk: Talk, http: Caller, queue: str) -> None:
    [message_id] = http.publish(queue, "hello", headers={"a": 1})
    assert talk.subscribe(queue) == 1
    [message] = talk.messages(1)
    assert message.pop("created_at_ms") <= message.pop("delivered_at_ms")
    assert message == {
        "tag": 1,
        "message_id": message_id,
        "message": "hello",
        "queue": queue,
        "priority": 0,
        "headers": {"a": 1},
        "content_type": "application/json",
        "retry_count": 0,
        "delivery_count": 1,
    }
    assert talk.ask("ack", tags=[1]) == {"success": True}
    assert http.stats(queue)["depth"] == 0


def test_a_raw_subscription_gets_bytes(talk: Talk, http: Caller, queue: str) -> None:
    http.publish(queue, {"a": 1})
    talk.subscribe(queue, raw=True)
    [message] = talk.messages(1)
    assert "message" not in message
    expected: object = b'{"a":1}' if talk.speaks == "msgpack" else "eyJhIjoxfQ=="
    assert message["body"] == expected


@pytest.mark.parametrize("value", [BIG, [-BIG], {"a": {"b": BIG}}])
def test_what_a_format_has_no_words_for_comes_as_bytes(server: Served, http: Caller, queue: str, value: object) -> None:
    """MessagePack has no integers beyond 64 bits."""
    http.publish(queue, "before", value, "after")
    with Talk(server.address, "msgpack") as talk:
        talk.subscribe(queue)
        before, odd, after = talk.messages(3)
        assert (before["message"], after["message"]) == ("before", "after")
        assert odd["body"] == msgspec.json.encode(value)
        assert talk.ask("ack", tags=[before["tag"], odd["tag"], after["tag"]]) == {"success": True}


@pytest.mark.parametrize("value", [{None: 1}, msgspec.msgpack.Ext(5, b"x"), {(1, 2): 3}])
def test_headers_that_a_format_has_no_words_for_do_not_keep_the_message_back(
    server: Served, queue: str, value: object
) -> None:
    with Talk(server.address, "msgpack") as publisher:
        publisher.send(publisher.request("queue.publish", queue=queue, message="odd", headers={"x": value}))
        if "error" in (answer := publisher.next()):
            assert answer["error"]["code"] == "invalid_request"
            return
    with Talk(server.address, "json") as talk:
        talk.subscribe(queue)
        [message] = talk.messages(1)
        assert message["headers"] == {}
        assert talk.ask("ack", tags=[message["tag"]]) == {"success": True}


def test_never_more_than_the_prefetch_is_held(talk: Talk, http: Caller, queue: str) -> None:
    fill(http, queue, 100)
    subscription = talk.subscribe(queue, prefetch=7)
    held = talk.tags(7)
    for _ in range(20):
        settled, held = held[:3], held[3:]
        talk.ask("ack", tags=settled)
        assert http.stats(queue)["in_flight"] <= 7
        held += talk.tags(3)
        assert not talk.pushed
    assert (subscription, len(held), http.stats(queue)["in_flight"]) == (1, 7, 7)


def test_without_a_prefetch_the_queues_is_taken(talk: Talk, http: Caller) -> None:
    queue = http.new_queue(prefetch=4)
    fill(http, queue, 10)
    talk.subscribe(queue)
    assert len(talk.tags(4)) == 4
    assert http.stats(queue)["in_flight"] == 4


def test_credit_changes_how_many_may_be_held(talk: Talk, http: Caller, queue: str) -> None:
    fill(http, queue, 30)
    subscription = talk.subscribe(queue, prefetch=5)
    assert talk.tags(5) == [1, 2, 3, 4, 5]
    assert talk.ask("credit", subscription=subscription, prefetch=8) == {"success": True}
    assert talk.tags(3) == [6, 7, 8]
    talk.ask("credit", subscription=subscription, prefetch=2)
    talk.ask("ack", tags=[1, 2, 3, 4, 5, 6])
    assert http.stats(queue)["in_flight"] == 2
    talk.ask("ack", tags=[7])
    assert talk.tags(1) == [9]
    assert http.stats(queue)["in_flight"] == 2


def test_a_lowered_credit_does_not_stand_in_the_way_of_others(talk: Talk, http: Caller, queue: str) -> None:
    fill(http, queue, 5)
    first = talk.subscribe(queue, prefetch=10)
    talk.messages(5)
    talk.ask("credit", subscription=first, prefetch=3)
    with talk.another() as other:
        other.subscribe(queue, prefetch=10)
        fill(http, queue, 4)
        assert len(other.messages(4)) == 4
        assert not talk.pushed


def test_up_to_takes_all_earlier_ones_of_its_subscription(talk: Talk, http: Caller) -> None:
    ones, others = http.new_queue(), http.new_queue()
    fill(http, ones, 4)
    talk.subscribe(ones)
    assert talk.tags(4) == [1, 2, 3, 4]
    fill(http, others, 2)
    talk.subscribe(others)
    assert talk.tags(2) == [5, 6]
    fill(http, ones, 1)
    assert talk.tags(1) == [7]
    talk.ask("ack", tags=[2])
    assert talk.ask("ack", up_to=3) == {"success": True}
    assert (http.stats(ones)["in_flight"], http.stats(others)["in_flight"]) == (2, 2)
    assert talk.refused("ack", up_to=3).code == "invalid_receipt"
    assert talk.ask("release", up_to=7) == {"success": True}
    assert sorted(talk.tags(2)) == [8, 9]
    assert talk.ask("nack", up_to=9, requeue=False) == {"success": True, "action": "dead_lettered"}
    assert http.stats(ones)["dead_lettered_total"] == 2
    assert http.stats(others)["in_flight"] == 2


def test_a_failed_delivery_is_retried_or_set_aside(talk: Talk, http: Caller, queue: str) -> None:
    http.publish(queue, "a", "b")
    talk.subscribe(queue)
    first, second = talk.messages(2)
    answer = talk.ask("nack", tags=[first["tag"]], delay_ms=0, error="not today")
    assert answer == {"success": True, "action": "requeued"}
    [again] = talk.messages(1)
    assert (again["message"], again["retry_count"]) == ("a", 1)
    assert [failure["error"] for failure in again["failures"]] == ["not today"]
    talk.ask("nack", tags=[again["tag"], second["tag"]], requeue=False, error="never")
    [dead, _] = http.call("dlq.list", queue=queue)["messages"]
    assert (dead["message"], dead["deaths"][-1]["reason"]) == ("a", "rejected")


def test_nacks_that_come_to_different_ends_say_so_for_each(talk: Talk, http: Caller) -> None:
    queue = http.new_queue(max_retries=1, retry_backoff="none")
    http.publish(queue, "old")
    talk.subscribe(queue)
    [old] = talk.tags(1)
    assert talk.ask("nack", tags=[old]) == {"success": True, "action": "requeued"}
    http.publish(queue, "new")
    again, new = talk.messages(2)
    assert (again["message"], new["message"]) == ("old", "new")
    answer = talk.ask("nack", tags=[again["tag"], new["tag"]])
    assert answer == {"success": True, "results": [{"action": "dead_lettered"}, {"action": "requeued"}]}
    [last] = talk.tags(1)
    answer = talk.ask("nack", tags=[last, 99])
    assert answer["success"] is False
    assert [result.get("action") or result["error"]["code"] for result in answer["results"]] == [
        "dead_lettered",
        "invalid_receipt",
    ]


def test_a_released_message_comes_again_uncounted(talk: Talk, http: Caller) -> None:
    queue = http.new_queue(max_retries=0)
    http.publish(queue, "a")
    talk.subscribe(queue)
    for tag in range(1, 6):
        [message] = talk.messages(1)
        assert (message["tag"], message["retry_count"], message.get("failures")) == (tag, tag - 1, None)
        assert talk.ask("release", tags=[tag]) == {"success": True}


def test_several_tags_are_settled_each_by_itself(talk: Talk, http: Caller, queue: str) -> None:
    fill(http, queue, 4)
    talk.subscribe(queue)
    talk.messages(4)
    talk.ask("ack", tags=[2])
    answer = talk.ask("ack", tags=[1, 2, 99, 3])
    assert answer["success"] is False
    assert [one and one["error"]["code"] for one in answer["results"]] == [
        None,
        "invalid_receipt",
        "invalid_receipt",
        None,
    ]
    assert http.stats(queue)["in_flight"] == 1
    assert talk.ask("ack", tags=[]) == {"success": True}


def test_a_tag_of_another_connection_is_none_of_ours(talk: Talk, http: Caller, queue: str) -> None:
    http.publish(queue, "a")
    talk.subscribe(queue)
    [tag] = talk.tags(1)
    with talk.another() as other:
        for command, more in (("ack", {}), ("nack", {}), ("release", {}), ("extend", {"lease_ms": 1})):
            assert other.ask(command, tags=[tag], **more)["success"] is False
    assert http.stats(queue)["in_flight"] == 1


def test_a_tag_is_stale_once_its_lease_ran_out(talk: Talk, http: Caller) -> None:
    queue = http.new_queue(max_retries=None)
    http.publish(queue, "a")
    talk.subscribe(queue, lease_ms=50)
    [first] = talk.messages(1)
    assert first["lease_until_ms"] == first["delivered_at_ms"] + 50
    [second] = talk.messages(1)
    assert (second["tag"], second["retry_count"]) == (2, 1)
    for command, more in (("extend", {"lease_ms": 1_000}), ("nack", {})):
        [failure] = talk.ask(command, tags=[first["tag"]], **more)["results"]
        assert failure["error"]["code"] in ("stale_receipt", "invalid_receipt")
    assert http.stats(queue)["depth"] == 1


def test_a_lease_can_be_made_longer_and_shorter(talk: Talk, http: Caller, queue: str) -> None:
    http.publish(queue, "kept", "lost")
    talk.subscribe(queue, prefetch=2, lease_ms=600_000)
    kept, lost = talk.messages(2)
    assert talk.ask("extend", tags=[kept["tag"]], lease_ms=1_200_000) == {"success": True}
    shown = http.call("queue.get", queue=queue, message_id=kept["message_id"])
    assert shown["lease_until_ms"] >= kept["lease_until_ms"] + 600_000
    assert talk.ask("extend", tags=[lost["tag"]], lease_ms=1) == {"success": True}
    [again] = talk.messages(1)
    assert (again["message"], again["tag"], again["failures"][0]["reason"]) == ("lost", 3, "timed_out")
    assert talk.ask("ack", tags=[kept["tag"], again["tag"]]) == {"success": True}


def test_messages_that_never_get_settled_do_not_pile_up_as_tags(talk: Talk, http: Caller) -> None:
    queue = http.new_queue(max_retries=None)
    fill(http, queue, 100)
    talk.subscribe(queue, prefetch=100, lease_ms=1)
    tags = talk.tags(1_500)
    assert talk.refused("ack", up_to=1).code == "invalid_receipt"
    assert tags == list(range(1, 1_501))


def test_one_connection_has_many_subscriptions(talk: Talk, http: Caller) -> None:
    queues = [http.new_queue() for _ in range(3)]
    numbers = [talk.subscribe(queue) for queue in queues]
    assert numbers == [1, 2, 3]
    for queue in reversed(queues):
        http.publish(queue, queue)
    for _ in queues:
        while not talk.pushed:
            talk.ask("broker.info")
        subscription, message = talk.pushed.popleft()
        assert message["message"] == queues[subscription - 1]
        talk.ask("ack", tags=[message["tag"]])


def test_the_same_queue_may_be_subscribed_twice(talk: Talk, http: Caller, queue: str) -> None:
    talk.subscribe(queue, prefetch=5)
    talk.subscribe(queue, prefetch=5)
    fill(http, queue, 20)
    talk.messages(10)
    assert http.stats(queue)["in_flight"] == 10


def test_two_connections_share_a_queue(talk: Talk, http: Caller, queue: str) -> None:
    with talk.another() as other:
        seen: list[Any] = []
        for one in (talk, other):
            one.subscribe(queue, prefetch=5)
        fill(http, queue, 100)
        for _ in range(10):
            for one in (talk, other):
                messages = one.messages(5)
                seen += bodies(messages)
                one.ask("ack", tags=[message["tag"] for message in messages])
        assert sorted(seen) == list(range(100))


def test_a_higher_priority_is_served_first(talk: Talk, http: Caller, queue: str) -> None:
    talk.subscribe(queue, prefetch=5)
    with talk.another() as other:
        other.subscribe(queue, prefetch=5, priority=1)
        fill(http, queue, 5)
        assert bodies(other.messages(5)) == [0, 1, 2, 3, 4]
        http.publish(queue, "overflow")
        assert bodies(talk.messages(1)) == ["overflow"]


def test_unsubscribing_keeps_what_is_held_until_the_connection_ends(talk: Talk, http: Caller, queue: str) -> None:
    fill(http, queue, 4)
    with talk.another() as other:
        subscription = other.subscribe(queue, prefetch=3)
        tags = other.tags(3)
        assert other.ask("unsubscribe", subscription=subscription) == {"success": True}
        assert other.refused("unsubscribe", subscription=subscription).code == "consumer_not_found"
        assert other.refused("credit", subscription=subscription, prefetch=9).code == "consumer_not_found"
        assert other.ask("ack", tags=tags[:1]) == {"success": True}
        stats = http.stats(queue)
        assert (stats["in_flight"], stats["ready"], stats["consumers"]) == (2, 1, 0)
        assert not other.pushed
    talk.subscribe(queue)
    assert [(message["message"], message["retry_count"]) for message in talk.messages(3)] in (
        [(1, 1), (2, 1), (3, 0)],
        [(3, 0), (1, 1), (2, 1)],
    )


def test_a_subscription_ends_with_its_queue(talk: Talk, http: Caller, queue: str) -> None:
    http.publish(queue, "a")
    subscription = talk.subscribe(queue)
    [tag] = talk.tags(1)
    http.call("queue.delete", queue=queue)
    assert talk.end().code == "queue_deleted"
    [failure] = talk.ask("ack", tags=[tag])["results"]
    assert failure["error"]["code"] == "invalid_receipt"
    assert talk.refused("unsubscribe", subscription=subscription).code == "consumer_not_found"
    http.call("queue.declare", queue=queue)
    assert talk.subscribe(queue) == 2
    http.publish(queue, "new")
    assert bodies(talk.messages(1)) == ["new"]


def test_a_queue_deleted_under_messages_that_were_kept_does_no_harm(talk: Talk, http: Caller) -> None:
    queue, other_queue = http.new_queue(), http.new_queue()
    http.publish(queue, "a")
    http.publish(other_queue, "b")
    with talk.another() as other:
        subscription = other.subscribe(queue)
        other.subscribe(other_queue)
        other.messages(2)
        other.ask("unsubscribe", subscription=subscription)
        http.call("queue.delete", queue=queue)
        assert not other.ended
    talk.subscribe(other_queue)
    assert bodies(talk.messages(1)) == ["b"]


# -- when the connection goes -----------------------------------------------------------------------------------------


def consume(server: Served, http: Caller, queue: str, count: int) -> Stubborn:
    """A client that holds so many messages, and from then on does only what it is told to."""
    client = Stubborn(server.address)
    client.ask("subscribe", queue=queue, prefetch=count)
    eventually(lambda: http.stats(queue)["in_flight"] == count)
    return client


def close_frame(client: Stubborn) -> None:
    client.send(frame(Opcode.CLOSE, struct.pack("!H", 1000)))


def end_of_file(client: Stubborn) -> None:
    client.socket.shutdown(socket.SHUT_WR)


def nonsense(client: Stubborn) -> None:
    client.send(b"\xff\xff\xff\xff")


ENDINGS = [close_frame, Stubborn.reset, end_of_file, nonsense]


@pytest.mark.parametrize("go", ENDINGS, ids=lambda go: str(go.__name__))
def test_what_is_held_goes_back_at_once_when_the_connection_goes(
    server: Served, http: Caller, queue: str, go: Callable[[Stubborn], None]
) -> None:
    """The lease is as long as the connection lives, so that it comes back by this alone."""
    fill(http, queue, 3)
    with consume(server, http, queue, 3) as client, Talk(server.address) as talk:
        talk.subscribe(queue)
        go(client)
        messages = talk.messages(3)
    assert bodies(messages) == [0, 1, 2]
    assert [message["failures"][0]["reason"] for message in messages] == ["vanished"] * 3


def test_what_a_silent_peer_holds_goes_back() -> None:
    """Half open: nothing says that it is gone, but it answers no pings."""
    server = ServerThread(websocket_ping_s=0.2)
    with server, Caller(server.address) as http, Talk(server.address) as talk:
        queue = http.new_queue()
        http.publish(queue, "a")
        with consume(server, http, queue, 1) as client:
            client.ask("credit", subscription=1, prefetch=1_000)
            # Something is pushed to it up to the end, and also after it was given up.
            while http.stats(queue)["consumers"]:
                http.publish(queue, "b")
            talk.subscribe(queue)
            [message] = talk.messages(1)
            assert (message["message"], message["failures"][0]["reason"]) == ("a", "vanished")
    assert [line for line in server.lines if " ERROR " in line] == []


def test_a_message_that_kills_its_consumers_does_not_do_so_for_ever(server: Served, http: Caller, queue: str) -> None:
    http.call("queue.alter", queue=queue, settings={"max_retries": 2})
    http.publish(queue, "poison")
    for failures in range(1, 4):
        consume(server, http, queue, 1).reset()
        eventually(lambda: http.stats(queue)["in_flight"] == 0)
        assert http.stats(queue)["ready"] == (1 if failures < 3 else 0)
    [dead] = http.call("dlq.list", queue=queue)["messages"]
    assert dead["deaths"][-1]["reason"] == "max_retries"
    assert [failure["reason"] for failure in dead["deaths"][-1]["failures"]] == ["vanished"] * 3


def test_an_ack_right_before_the_end_counts(server: Served, http: Caller, queue: str) -> None:
    fill(http, queue, 3)
    with consume(server, http, queue, 2) as client:
        client.send(asked("ack", tags=[1]) + frame(Opcode.CLOSE, struct.pack("!H", 1000)))
        eventually(lambda: http.stats(queue)["in_flight"] == 0)
        assert (http.stats(queue)["acked_total"], http.stats(queue)["ready"]) == (1, 2)


@pytest.mark.slow
def test_a_stopping_broker_says_so_and_releases(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, Talk(server.address) as talk, Talk(server.address) as polling:
        talk.ask("queue.declare", queue="q", settings={"max_retries": 0})
        talk.ask("queue.publish", queue="q", message="a")
        talk.subscribe("q")
        talk.messages(1)
        polling.send(polling.request("queue.receive", queue="q", wait_ms=20_000))
        polling.ask("broker.info")
        server.signal(signal.SIGTERM)
        assert polling.next()["error"]["code"] == "broker_closed"
        assert (talk.close_code(), polling.close_code()) == (1001, 1001)
        assert server.wait() == 0
    with ServerProcess(tmp_path) as server, Talk(server.address) as talk:
        talk.subscribe("q")
        [message] = talk.messages(1)
        assert (message["message"], message["retry_count"], message.get("failures")) == ("a", 1, None)


def test_closing_while_connections_are_opened_leaves_nothing_behind(server: Served, http: Caller) -> None:
    queue = http.new_queue()
    fill(http, queue, 10)
    for _ in range(30):
        talk = Talk(server.address)
        talk.send(talk.request("subscribe", queue=queue))
        talk.socket.close()
    eventually(lambda: http.stats(queue)["consumers"] == 0)
    eventually(lambda: http.stats(queue)["in_flight"] == 0)
    stats = http.stats(queue)
    assert stats["ready"] + stats["dead_lettered_total"] == 10


def test_the_connection_is_closed_in_order(talk: Talk) -> None:
    talk.ask("broker.info")
    talk.socket.close()
    assert talk.close_code() == 1000
