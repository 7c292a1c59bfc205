"""What a broker tells its operator by itself: one line per change, and the same in its measures."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from smista.core.message import Publication
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.engine import BrokerSettings
from smista.log.errors import LogDamaged, LogUnreadable
from smista.protocols.http.app import HttpApp
from smista.service.service import Service
from tests.engine.bench import SETTINGS, Bench, KeptLog, MemoryPlace, turns, until
from tests.engine.test_failing_reads import Flaky, tried_again, use_log
from tests.engine.test_failing_reads import flaky as flaky


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "smista.engine")
    return caplog


def logged(lines: pytest.LogCaptureFixture, part: str) -> list[tuple[str, dict[str, object]]]:
    """Level and fields of the lines that say this."""
    return [
        (record.levelname, getattr(record, "fields", {})) for record in lines.records if part in record.getMessage()
    ]


async def test_publishing_that_is_refused_and_taken_again_is_told_once_each(lines: pytest.LogCaptureFixture) -> None:
    place = MemoryPlace()
    bench = Bench(place, BrokerSettings(disk_free_bytes_min=1000, watch_interval_s=0.001))
    async with await bench.open() as broker:
        await turns()
        assert logged(lines, "") == []
        place.log.free = 999
        await until(lambda: broker.intake.refusal is not None)
        place.log.free = 998
        await until(lambda: "998" in str(broker.intake.refusal))
        refused = {"code": "low_disk", "disk_free_bytes": 999, "reusable_bytes": 0, "held_bytes": 0}
        assert logged(lines, "publishing is refused: Only 999 bytes") == [("WARNING", refused)]
        assert logged(lines, "taken again") == []
        place.log.free = 5000
        await until(lambda: broker.intake.refusal is None)
        assert logged(lines, "publishing is taken again") == [
            ("INFO", {"disk_free_bytes": 5000, "reusable_bytes": 0, "held_bytes": 0})
        ]
        assert len(lines.records) == 2


class SpentLog(KeptLog):
    is_spent = False

    @property
    def is_reserve_spent(self) -> bool:
        return self.is_spent

    def restore_reserve(self) -> bool:
        return False


async def test_a_reserve_that_is_spent_and_restored_is_told_once_each(lines: pytest.LogCaptureFixture) -> None:
    place = MemoryPlace()
    log = place.log = SpentLog()
    async with await Bench(place, SETTINGS).open() as broker:
        log.is_spent = True
        await until(lambda: broker.intake.refusal is not None)
        await until(lambda: broker.statistics.measures().log.is_reserve_spent)
        log.is_spent = False
        await until(lambda: broker.intake.refusal is None)
    assert [level for level, _ in logged(lines, "given up its reserve")] == ["WARNING"]
    assert [level for level, _ in logged(lines, "set its reserve aside again")] == ["INFO"]
    assert not broker.statistics.measures().log.is_reserve_spent


async def test_a_block_that_waits_for_room_is_told_once_and_the_broker_is_not_ready(
    lines: pytest.LogCaptureFixture,
) -> None:
    place = MemoryPlace()
    bench = Bench(place, SETTINGS)
    app = HttpApp()
    async with await bench.open() as broker:
        app.service = Service(broker)
        assert app._not_ready() is None
        position = place.log.next_position
        place.log.is_full = True
        declaring = asyncio.create_task(bench.declare())
        await until(lambda: broker.log.is_full)
        tries = place.log.begun_count
        await until(lambda: place.log.begun_count > tries + 2)
        assert broker.statistics.measures().log.is_full
        assert "waits for room" in str(app._not_ready())
        waits = logged(lines, "a block waits for room")
        assert waits == [("ERROR", {"position": position, "disk_free_bytes": place.log.free})]
        place.log.is_full = False
        await declaring
        assert app._not_ready() is None
        assert not broker.statistics.measures().log.is_full
    [(level, fields)] = logged(lines, "has been written")
    assert (level, fields["position"]) == ("INFO", position)


async def test_a_damaged_block_is_told_with_the_messages_it_costs(
    flaky: Flaky, lines: pytest.LogCaptureFixture
) -> None:
    bench, log = flaky
    await bench.restart()
    log.lasting = LogDamaged
    assert await bench.broker.receiving.receive("orders", 10) == []
    dead = bench.counts()[3]
    damaged = logged(lines, "is damaged")
    assert {level for level, _ in damaged} == {"ERROR"}
    assert sum(int(str(fields["set_aside"])) for _, fields in damaged) == dead >= 10
    positions = [fields["position"] for _, fields in damaged]
    measures = bench.broker.statistics.measures().log
    assert (measures.damaged_blocks, measures.damaged_messages) == (len(set(positions)), dead)
    await bench.broker.browsing.browse("orders", with_bodies=True)
    await bench.broker.browsing.browse("orders", with_bodies=True)
    assert (
        len({fields["position"] for _, fields in logged(lines, "is damaged")})
        == bench.broker.statistics.measures().log.damaged_blocks
    )
    log.lasting = None


async def test_a_block_that_cannot_be_read_for_a_while_is_told_once_and_when_it_is_over(
    flaky: Flaky, lines: pytest.LogCaptureFixture
) -> None:
    bench, log = flaky
    front = log.first_position
    log.lasting = LogUnreadable
    await use_log(bench)
    await until(lambda: bench.broker.statistics.measures().log.unreadable_blocks == 1)
    await tried_again(log)
    [(level, fields)] = logged(lines, "trying again every")
    assert (level, fields["code"]) == ("ERROR", "log_unreadable")
    log.lasting = None
    await until(lambda: log.first_position > front)
    assert logged(lines, "can be read again") == [("INFO", {"position": fields["position"]})]
    measures = bench.broker.statistics.measures().log
    assert (measures.unreadable_blocks, measures.damaged_blocks, measures.damaged_messages) == (0, 0, 0)


async def test_what_a_start_found_is_summed_up_and_damaged_blocks_are_counted() -> None:
    place = MemoryPlace()
    bench = Bench(place, SETTINGS)
    async with await bench.open():
        await bench.declare()
        await bench.publish_one_by_one(b"a", b"b", b"c")
        last = place.log.next_position - 1
    place.log.damage(last - 1)
    place.log.damage(last - 2)
    damages: list[LogDamaged] = []
    async with await bench.open(on_damage=damages.append) as broker:
        assert len(damages) == broker.statistics.measures().log.damaged_blocks == 2
        recovered = broker.statistics.recovered
        assert (recovered.queues, recovered.messages, recovered.damaged_blocks) == (1, 1, 2)
        assert recovered.blocks == last - 2


async def test_dead_letters_are_told_by_queue_with_how_many_and_why(lines: pytest.LogCaptureFixture) -> None:
    bench = Bench(MemoryPlace())
    async with await bench.open() as broker:
        await bench.declare("orders", QueueSettings(max_retries=0, dead_letter_queue="orders_dlq"))
        await bench.declare("invoices", QueueSettings(max_retries=0, dead_letter=DeadLetterMode.PARK))
        for queue, count in (("orders", 5), ("invoices", 1)):
            await broker.publishing.publish(queue, [Publication(b"x")] * count)
            for delivery in await broker.receiving.receive(queue, limit=5):
                await broker.settling.nack([delivery.receipt], requeue=queue == "orders")
    found: Counter[tuple[object, object, str]] = Counter()
    for level, fields in logged(lines, "were dead-lettered"):
        reasons = fields["reasons"]
        assert isinstance(reasons, dict)
        assert (level, fields["count"]) == ("INFO", sum(reasons.values()))
        for reason, count in reasons.items():
            found[fields["namespace"], fields["queue"], reason] += count
    assert found == {("/", "orders", "max_retries"): 5, ("/", "invoices", "rejected"): 1}
