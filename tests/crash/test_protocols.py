"""kill -9 of a real server under load, over HTTP and WebSocket, again and again on the same data and port.

The clients are in this process and outlive every kill. Each must get something confirmed from every life of the broker,
so each has found it again by itself; what they noted is checked after every restart and at the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from smista.client.backoff import Backoff
from tests.crash.protocol_clients import CREWS, LEASE_MS, QUEUE, Crew, HttpCaller, Lost, Refused, contents
from tests.crash.protocol_ledger import Found, ProtocolLedger, body_of
from tests.server_process import ServerProcess

KILLS = 85 if os.environ.get("SMISTA_LONG") else 3


class Lives:
    """A broker that is killed and started again."""

    def __init__(self, data: Path | None, ledger: ProtocolLedger) -> None:
        self.data = data
        self.ledger = ledger
        self.server = ServerProcess(data).start()
        self.address = self.server.address
        self.caller = HttpCaller(self.address)
        self._ahead_ms = 0

    async def set_up(self) -> None:
        await self.caller.call("queue.declare", queue=QUEUE, settings={"max_retries": None, "retry_base_ms": 0})
        info = await self.caller.call("broker.info")
        self._ahead_ms = info["now_ms"] - _now_ms()

    async def kill(self) -> None:
        self.server.signal(signal.SIGKILL)
        await asyncio.to_thread(self.server.wait)
        self.ledger.killed(_now_ms() + self._ahead_ms)
        self.caller.close()
        self.server.__exit__()

    async def start(self) -> None:
        self.server = await asyncio.to_thread(ServerProcess(self.data).start, port=self.address[1])

    async def check(self) -> None:
        """Judge what is there, while the clients go on."""
        expected, ended = self.ledger.expected(), self.ledger.ended()
        while True:
            try:
                found = await contents(self.caller)
            except (Lost, Refused):
                continue
            self.ledger.check_found(found, expected=expected, ended=ended)
            return

    async def is_empty(self) -> bool:
        stats = await self.caller.call("queue.stats", queue=QUEUE)
        return not stats["depth"]

    async def drained(self) -> None:
        """Return when consumers have taken everything, and what somebody left lying too."""
        while not await self.is_empty():  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        self.caller.close()
        self.server.__exit__()


@contextmanager
def lives(data: Path | None) -> Iterator[Lives]:
    living = Lives(data, ProtocolLedger())
    try:
        yield living
    finally:
        living.stop()


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that look for a lost broker often, so that the time goes into kills."""
    monkeypatch.setattr("smista.client.session.Backoff", partial(Backoff, cap_ms=200))


async def kill_again_and_again(living: Lives, crew: Crew, kills: int, source: random.Random) -> None:
    for _ in range(kills):
        await crew.progress()
        await asyncio.sleep(source.uniform(0.0, 0.1))
        await living.kill()
        await living.start()
        await living.check()


@pytest.mark.slow
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("protocol", CREWS)
async def test_no_kill_breaks_a_promise(tmp_path: Path, protocol: str, tell: Callable[[str], None]) -> None:
    with lives(tmp_path / "data") as living:
        ledger = living.ledger
        await living.set_up()
        crew = CREWS[protocol](living.address, ledger, seed=1)
        crew.start()
        await kill_again_and_again(living, crew, KILLS, random.Random(1))
        await crew.progress()
        crew.is_publishing = False
        await living.drained()
        await crew.stop()
        await living.check()
    totals = ledger.totals
    tell(
        f"kills of a server, {protocol}: {totals['kills']} kills; {totals['published']} publishes and "
        f"{totals['acknowledged']} acks confirmed, {totals['delivered']} deliveries, delivered again because of "
        f"{dict(ledger.causes)}: {len(ledger.violations)} violations"
    )
    assert ledger.violations == []
    assert ledger.expected() == set()
    assert (totals["kills"], totals["checks"]) == (KILLS, KILLS + 1)
    assert min(totals["published"], totals["acknowledged"]) >= 2 * KILLS


# -- the check can fail -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("protocol", CREWS)
async def test_a_broker_that_forgets_everything_is_found_out(protocol: str) -> None:
    with lives(None) as living:
        await living.set_up()
        crew = CREWS[protocol](living.address, living.ledger, seed=1)
        crew.start()
        await crew.progress()
        await living.kill()
        await crew.stop_quietly()
        expected = living.ledger.expected()
        await living.start()
        await living.set_up()
        await living.check()
    assert expected
    assert living.ledger.kinds == {"lost"}


@pytest.mark.slow
async def test_a_broker_that_comes_back_with_old_data_is_found_out(tmp_path: Path) -> None:
    """What a disk that lies about its syncs, or a restored backup, would do."""
    with lives(tmp_path / "data") as living:
        await living.set_up()
        crew = CREWS["stream"](living.address, living.ledger, seed=1)
        crew.start()
        await crew.progress()
        await living.kill()
        shutil.copytree(tmp_path / "data", tmp_path / "old")
        await living.start()
        for _ in range(5):
            await crew.progress()
        await living.kill()
        shutil.rmtree(tmp_path / "data")
        shutil.copytree(tmp_path / "old", tmp_path / "data")
        await living.start()
        await living.check()
        crew.is_publishing = False
        await living.drained()
        await crew.stop()
    assert living.ledger.kinds >= {"lost", "back"}


class Story:
    """A ledger, and what happens to one message."""

    def __init__(self) -> None:
        self.ledger = ProtocolLedger()
        self.body = body_of("m", 50)
        self.ledger.publishing("m", self.body)
        self.ledger.confirmed("m", "id-1")

    def deliver(self, at_ms: int, *, until_ms: int | None = None, message_id: str = "id-1") -> None:
        self.handed = self.ledger.delivered(
            self.body, message_id, at_ms=at_ms, until_ms=until_ms, connection="a connection"
        )

    def acknowledge(self) -> None:
        assert self.handed is not None
        self.ledger.asking(self.handed)
        self.ledger.acknowledged(self.handed)

    def look(self, *found: Found) -> None:
        self.ledger.check_found(found, expected=self.ledger.expected(), ended=self.ledger.ended())


@pytest.fixture
def story() -> Story:
    return Story()


def test_nothing_is_found_in_a_good_story(story: Story) -> None:
    story.look(Found("id-1", story.body))
    story.deliver(100)
    story.ledger.killed(200)
    story.deliver(1_000, until_ms=2_000)
    story.deliver(2_000)
    assert story.handed is not None
    story.ledger.gave_back(story.handed, "released")
    story.deliver(2_001)
    story.ledger.dropped("a connection")
    story.deliver(2_002)
    assert story.handed is not None
    story.ledger.asking(story.handed)
    story.ledger.killed(3_000)
    story.deliver(4_000)
    story.acknowledge()
    story.look()
    assert story.ledger.violations == []
    assert story.ledger.causes == {
        "killed": 1,
        "lease ended": 1,
        "released": 1,
        "connection lost": 1,
        "killed before the ack was confirmed": 1,
    }


def test_a_message_that_is_gone_is_lost(story: Story) -> None:
    story.look()
    assert story.ledger.kinds == {"lost"}


def test_a_message_whose_ack_was_refused_may_not_be_gone(story: Story) -> None:
    story.deliver(100, until_ms=200)
    assert story.handed is not None
    story.ledger.asking(story.handed)
    story.look()
    assert story.ledger.kinds == set()
    story.ledger.ack_refused(story.handed)
    story.look()
    assert story.ledger.kinds == {"lost"}


def test_an_acknowledged_message_may_not_come_back(story: Story) -> None:
    story.deliver(100)
    story.acknowledge()
    story.look(Found("id-1", story.body))
    assert story.ledger.kinds == {"back"}
    story.ledger.violations.clear()
    story.ledger.killed(200)
    story.deliver(1_000)
    assert story.ledger.kinds == {"back"}


def test_a_delivery_without_a_cause_is_a_duplicate(story: Story) -> None:
    story.deliver(100)
    story.deliver(200)
    assert story.ledger.kinds == {"duplicate"}


def test_a_delivery_before_the_end_of_the_lease_is_a_duplicate(story: Story) -> None:
    story.ledger.killed(10)
    story.deliver(100, until_ms=100 + LEASE_MS)
    story.deliver(99 + LEASE_MS)
    assert story.ledger.kinds == {"duplicate"}


def test_what_was_seen_unconfirmed_before_a_kill_may_be_another_message_after_it() -> None:
    ledger = ProtocolLedger()
    body = body_of("m", 50)
    ledger.publishing("m", body)
    ledger.delivered(body, "id-1", at_ms=100, until_ms=None, connection="a connection")
    ledger.killed(200)
    ledger.delivered(body, "id-1", at_ms=150, until_ms=None, connection="a connection")
    ledger.confirmed("m", "id-2")
    assert "doubled" not in ledger.kinds
    ledger.delivered(body, "id-1", at_ms=1_000, until_ms=None, connection="a connection")
    assert "doubled" in ledger.kinds


def test_one_publish_may_not_become_two_messages(story: Story) -> None:
    story.look(Found("id-1", story.body), Found("id-2", story.body))
    assert story.ledger.kinds == {"doubled"}


def test_what_nobody_published_or_what_was_refused_is_unexpected(story: Story) -> None:
    story.look(Found("id-1", story.body), Found("id-9", body_of("other", 20)))
    assert story.ledger.kinds == {"unexpected"}
    story.ledger.violations.clear()
    story.ledger.refused("m")
    story.deliver(100)
    assert story.ledger.kinds == {"unexpected"}


def test_other_bytes_than_were_published_are_told(story: Story) -> None:
    story.look(Found("id-1", story.body + b"!"))
    assert story.ledger.kinds == {"changed"}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
