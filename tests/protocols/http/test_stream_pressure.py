"""Peers on the stream that do not keep up, or ask for too much: what we keep for them is bounded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.http.caller import Caller
from tests.protocols.http.talk import Stubborn, Talk, asked, decode, fill
from tests.served import Served
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S, eventually


@pytest.mark.parametrize("speaks", ["json", "msgpack"])
@pytest.mark.parametrize(
    "message",
    [{"message": "x" * 5_000}, {"message": 1, "headers": {"x": "y" * 5_000}}, {"message": ""}],
    ids=["bodies", "headers", "nothing"],
)
def test_a_frame_of_messages_has_its_bounds(server: Served, http: Caller, speaks: str, message: dict[str, Any]) -> None:
    """Many clients take no frame above 1 MiB."""
    queue = http.new_queue(max_prefetch=10_000)
    for _ in range(6):
        http.call("queue.publish_batch", queue=queue, messages=[message] * 500)
    with Talk(server.address, speaks) as talk:
        talk.subscribe(queue, prefetch=3_000)
        sizes: list[int] = []
        tags: list[int] = []
        while len(tags) < 3_000:
            data = talk.socket.recv(timeout=PATIENCE_S)
            sizes.append(len(data))
            tags += [one["tag"] for one in decode(speaks, data)["messages"]]
        assert tags == list(range(1, 3_001))
        assert max(sizes) < 1 << 20
        assert talk.ask("ack", up_to=3_000) == {"success": True}


def test_a_message_that_is_more_than_a_frame_should_be_comes_alone(server: Served, http: Caller) -> None:
    queue = http.new_queue()
    http.publish(queue, "a", "x" * 1_000_000, "b")
    with Talk(server.address) as talk:
        talk.subscribe(queue)
        sizes = [len(talk.socket.recv(timeout=PATIENCE_S)) for _ in range(3)]
        assert [size > 1_000_000 for size in sizes] == [False, True, False]


def test_a_slow_reader_gets_everything_however_much_waits(server: Served, http: Caller) -> None:
    """More than the bound waits for it, again and again, and it goes on reading."""
    with Talk(server.address, "msgpack") as talk:
        queue = http.new_queue(max_prefetch=10_000)
        fill(http, queue, 10)
        talk.subscribe(queue, prefetch=2_000)
        seen = len(talk.tags(10))
        for _ in range(40):
            http.call("queue.publish_batch", queue=queue, messages=[{"message": "x" * 10_000}] * 50)
        while seen < 2_000:
            seen += len(talk.tags(1))
        assert http.stats(queue)["in_flight"] == 2_000
        assert talk.ask("ack", up_to=2_000) == {"success": True}
        talk.messages(10)


def test_a_client_may_send_before_it_reads_what_was_pushed_to_it(server: Served, http: Caller) -> None:
    """If what is pushed kept us from reading, we would wait for each other."""
    with Stubborn(server.address, receive_buffer=10_000) as client:
        queue, target = http.new_queue(), http.new_queue()
        http.call("queue.publish_batch", queue=queue, messages=[{"message": "x" * 10_000}] * 500)
        client.ask("subscribe", queue=queue, prefetch=500)
        publish = asked("queue.publish", request_id=None, queue=target, message="x" * 50_000)
        for _ in range(400):
            client.send(publish)
        eventually(lambda: http.stats(target)["depth"] == 400)


@pytest.fixture(scope="module")
def hasty() -> Iterator[ServerProcess]:
    """A server that soon cuts off who reads nothing."""
    with ServerProcess(None, "--body-timeout-s", "3", "--output-bytes-max", "65536") as server:
        yield server
    assert server.faults == []


@pytest.mark.slow
def test_a_stalled_reader_holds_a_bounded_part_until_it_is_cut_off(hasty: Served) -> None:
    with Caller(hasty.address) as http, Talk(hasty.address) as talk:
        queue = http.new_queue(max_prefetch=60_000, max_retries=None)
        with Stubborn(hasty.address, receive_buffer=10_000) as client:
            client.ask("subscribe", queue=queue, prefetch=60_000)
            eventually(lambda: http.stats(queue)["consumers"] == 1)
            held = 0
            for _ in range(200):
                http.call("queue.publish_batch", queue=queue, messages=[{"message": "x" * 10_000}] * 20)
                held = max(held, http.stats(queue)["in_flight"])
            # What the kernel takes on loopback comes on top of our bound; 40 MB were published.
            assert held < 2_000
            eventually(lambda: http.stats(queue)["consumers"] == 0)
            assert http.stats(queue)["ready"] == 4_000
            eventually(lambda: client.is_refused)
        talk.subscribe(queue, prefetch=1_000)
        for _ in range(4):
            talk.ask("ack", tags=talk.tags(1_000))
        assert http.stats(queue)["depth"] == 0


@pytest.mark.slow
def test_a_client_that_sends_and_does_not_read_is_not_read_either(hasty: ServerProcess) -> None:
    with Caller(hasty.address) as http:
        queue = http.new_queue()
        http.publish(queue, "x" * 100_000)
        before = resident_bytes(hasty.pid)
        with Stubborn(hasty.address, receive_buffer=10_000) as client, contextlib.suppress(OSError):
            # Each of these asks for 100 KB: 10 GB in all.
            for _ in range(10_000):
                client.send(asked("queue.peek", queue=queue) * 10)
            pytest.fail("all of it was read")
        assert resident_bytes(hasty.pid) - before < 200 << 20
        assert http.stats(queue)["depth"] == 1


@pytest.mark.slow
def test_the_answers_to_an_array_have_their_bounds(hasty: Served) -> None:
    with Caller(hasty.address) as http, Talk(hasty.address) as talk:
        queue = http.new_queue()
        http.publish(queue, "x" * 10_000)
        talk.send([talk.request("queue.peek", queue=queue) for _ in range(1_000)])
        answers = talk.next()
        assert len(answers) == 1_000
        carried_out = [answer for answer in answers if "result" in answer]
        assert len(carried_out) < 200
        assert {answer["error"]["code"] for answer in answers[len(carried_out) :]} == {"too_many_requests"}


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")
