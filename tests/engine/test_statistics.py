"""Statistics are read, and nothing else: to ask for them changes nothing."""

from __future__ import annotations

from smista.engine import Overflow, QueueSettings
from tests.engine.bench import Bench
from tests.waiting import until


async def test_to_ask_does_not_keep_limits_in_the_middle_of_the_caller(orders: Bench) -> None:
    settings = QueueSettings(max_depth=2, overflow=Overflow.DROP_OLDEST, limit_ready_only=True)
    await orders.broker.declaring.declare_queue("small", settings)
    await orders.publish(b"0", b"1", queue="small")
    held = await orders.broker.receiving.receive("small", 2)
    await orders.publish(b"2", b"3", queue="small")
    statistics = orders.broker.statistics
    orders.broker._running.release([delivery.receipt for delivery in held])
    assert statistics.stats("small").depth == 4
    assert statistics.message_count("small") == 4
    assert await statistics.totals()
    await until(lambda: statistics.message_count("small") == 2)
    assert statistics.stats("small").dropped_total == 2
