"""What a restart keeps, and what it forgets."""

from __future__ import annotations

import asyncio

import pytest

from smista.core.browsing import Wanted
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Envelope, Publication, Reason, State
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.engine import FOREVER_MS, Broker
from smista.errors import OutcomeUnknown, QueueNotFound, StaleReceipt
from smista.log.errors import LogDamaged, LogFailed
from tests.engine.bench import LONGEST_WAIT_MS, SETTINGS, SHORT_MS, Bench, Consumer, KeptLog, MemoryPlace, stored, turns


async def test_messages_come_back_in_order_byte_for_byte(orders: Bench) -> None:
    envelope = Envelope(properties=bytes(range(256)), exchange="e", routing_key="k", group="g", ttl_ms=60_000)
    await orders.publish(b"low", bytes(range(256)), b"", envelope=envelope)
    await orders.publish(b"high", priority=9)
    await orders.restart()
    deliveries = await orders.broker.receiving.receive("orders", 10)
    assert [delivery.body for delivery in deliveries] == [b"high", b"low", bytes(range(256)), b""]
    assert deliveries[1].envelope == envelope


async def test_leases_and_receipts_outlive_a_restart_in_both_forms(orders: Bench) -> None:
    await orders.publish(b"x", b"y")
    first = await orders.receive_one()
    second = await orders.receive_one()
    text = second.receipt_text
    await orders.restart()
    assert orders.counts() == (0, 0, 2, 0)
    await orders.acknowledge(first)
    assert await orders.broker.settling.acknowledge([orders.broker.receipts.read(text)]) == [None]
    await orders.restart()
    assert orders.counts() == (0, 0, 0, 0)


async def test_a_lease_that_ran_out_meanwhile_makes_the_message_ready(orders: Bench) -> None:
    await orders.publish(b"x")
    await orders.receive_one(lease_ms=60_000)
    await orders.broker.close()
    orders.pass_time(60_000)
    await orders.open()
    assert (await orders.receive_one(wait_ms=LONGEST_WAIT_MS)).delivery_count == 2


async def test_ids_stay_the_same(orders: Bench) -> None:
    [published] = await orders.publish(b"x")
    await orders.restart()
    assert (await orders.broker.browsing.get("orders", published.id)).body == b"x"
    assert (await orders.receive_one()).id == published.id


async def test_delays_go_on(orders: Bench) -> None:
    await orders.publish(b"later", delay_ms=60_000)
    await orders.publish(b"soon", delay_ms=SHORT_MS)
    await orders.restart()
    assert orders.counts()[1] >= 1
    assert (await orders.receive_one(wait_ms=LONGEST_WAIT_MS)).body == b"soon"
    assert orders.counts() == (0, 1, 1, 0)


async def test_delivery_counts_and_failures_go_on(orders: Bench) -> None:
    await orders.publish(b"x")
    delivery = await orders.receive_one()
    await orders.broker.settling.nack([delivery.receipt], delay_ms=0, error="broken")
    await orders.restart()
    delivery = await orders.receive_one()
    assert delivery.delivery_count == 2
    assert [(failure.reason, failure.error) for failure in delivery.failures] == [(Reason.NACKED, "broken")]


async def test_deduplication_goes_on(orders: Bench) -> None:
    envelope = Envelope(deduplication_id="1")
    [first] = await orders.publish(b"x", envelope=envelope)
    await orders.acknowledge(await orders.receive_one())
    await orders.restart()
    [again] = await orders.publish(b"x", envelope=envelope)
    assert (again.is_duplicate, again.id) == (True, first.id)
    assert orders.counts() == (0, 0, 0, 0)


async def test_settings_pause_and_counters_go_on(orders: Bench) -> None:
    settings = QueueSettings(lease_ms=5, max_depth=7, rate_limit=3.5)
    await orders.declare("special", settings)
    await orders.broker.declaring.alter_queue("orders", QueueSettings(lease_ms=77))
    await orders.publish(b"x")
    await orders.acknowledge(await orders.receive_one())
    await orders.broker.declaring.pause("orders")
    await orders.restart()
    assert orders.broker.catalog.queue_settings("special") == settings
    assert orders.broker.catalog.queue_settings("orders").lease_ms == 77
    stats = orders.broker.statistics.stats("orders")
    assert stats.is_paused
    assert (stats.published_total, stats.delivered_total, stats.acknowledged_total) == (1, 1, 1)
    await orders.declare("special", settings)


async def test_parked_and_moved_dead_letters_stay_with_their_history(orders: Bench) -> None:
    await orders.declare("parking", QueueSettings(dead_letter=DeadLetterMode.PARK))
    for queue in ("parking", "orders"):
        await orders.publish(b"poison", queue=queue)
        await orders.reject(await orders.receive_one(queue), error="no good")
    await orders.restart()
    assert orders.counts("parking") == (0, 0, 0, 1)
    for queue, source in (("parking", "parking"), ("orders_dlq", "orders")):
        page = await orders.broker.browsing.browse(queue, Wanted(reason=Reason.REJECTED, error_contains="good"))
        [message] = page.messages
        assert (message.body, message.deaths[-1].queue) == (b"poison", source)
    assert await orders.broker.redriving.redrive("orders_dlq") == 1
    assert await orders.bodies() == [b"poison"]


async def test_exchanges_and_bindings_stay(orders: Bench) -> None:
    await orders.declare("others")
    await orders.fanout("all", "orders", "others")
    headers = ExchangeSettings(ExchangeKind.HEADERS)
    await orders.broker.declaring.declare_exchange("by-headers", headers)
    binding = Binding.to_queue("by-headers", "orders", "", {"x-match": "all", "a": 1, "deep": {"b": [1, "2"]}})
    await orders.broker.declaring.bind(binding)
    await orders.broker.declaring.bind(Binding.to_exchange("amq.topic", "all", "a.*"))
    before = set(orders.broker.catalog.bindings())
    await orders.restart()
    assert set(orders.broker.catalog.bindings()) == before
    published = await orders.broker.publishing.publish_to_exchange(
        "amq.topic", Publication(b"x", Envelope(routing_key="a.b"))
    )
    assert sorted(one.queue for one in published) == ["orders", "others"]


async def test_queues_and_exchanges_that_are_not_durable_are_gone(orders: Bench) -> None:
    await orders.declare("fleeting", QueueSettings(durable=False))
    await orders.publish(b"x", queue="fleeting")
    await orders.broker.declaring.declare_exchange("passing", ExchangeSettings(ExchangeKind.FANOUT, durable=False))
    await orders.broker.declaring.bind(Binding.to_queue("amq.fanout", "fleeting"))
    await orders.restart()
    with pytest.raises(QueueNotFound):
        orders.broker.statistics.stats("fleeting")
    assert "passing" not in [exchange.name for exchange in orders.broker.catalog.exchanges()]
    assert orders.broker.catalog.bindings() == []


async def test_a_purge_and_a_deletion_stay(orders: Bench) -> None:
    await orders.publish(b"x", b"y")
    await orders.broker.declaring.purge("orders")
    await orders.publish(b"z")
    await orders.declare("others")
    await orders.publish(b"x", queue="others")
    await orders.broker.declaring.delete_queue("others")
    await orders.restart()
    assert await orders.bodies() == [b"z"]
    assert orders.broker.catalog.queue_names() == ["orders"]


async def test_scheduled_changes_stay(orders: Bench) -> None:
    one, other = await orders.publish(b"x", b"y", delay_ms=60_000)
    await orders.broker.messages.reschedule("orders", one.id, orders.broker.now_ms())
    await orders.broker.messages.cancel("orders", other.id)
    await orders.restart()
    assert (await orders.receive_one(wait_ms=LONGEST_WAIT_MS)).body == b"x"
    assert orders.counts() == (0, 0, 1, 0)


async def test_namespaces_are_worlds_of_their_own(orders: Bench) -> None:
    await orders.broker.declaring.declare_queue("orders", namespace="other")
    await orders.broker.publishing.publish("orders", [Publication(b"x")], namespace="other")
    await orders.restart()
    assert sorted(orders.broker.catalog.namespaces()) == ["/", "other"]
    assert await orders.bodies() == []
    [delivery] = await orders.broker.receiving.receive("orders", namespace="other")
    assert delivery.body == b"x"


async def test_receipts_of_a_fleeting_queue_settle_nothing_after_a_restart(orders: Bench) -> None:
    await orders.declare("fleeting", QueueSettings(durable=False))
    await orders.publish(b"x", queue="fleeting")
    old = (await orders.receive_one("fleeting")).receipt_text
    await orders.restart()
    await orders.declare("newer")
    await orders.publish(b"y", queue="newer")
    await orders.receive_one("newer")
    [outcome] = await orders.broker.settling.acknowledge([orders.broker.receipts.read(old)])
    assert isinstance(outcome, StaleReceipt)


async def test_a_receipt_whose_delivery_a_crash_undid_settles_nothing_of_another_holder() -> None:
    log = KeptLog()
    broker = await Broker.open(log, SETTINGS)
    await broker.declaring.declare_queue("orders")
    await broker.publishing.publish("orders", [Publication(b"x")])
    blocks = log._next_position, dict(log._blocks)
    [lost] = await broker.receiving.receive("orders")
    await broker.close()
    # Power is cut before the lease was written: a log without that block.
    log._next_position, log._blocks = blocks
    broker = await Broker.open(log, SETTINGS)
    [held] = await broker.receiving.receive("orders")
    assert held.body == b"x"
    [outcome] = await broker.settling.acknowledge([broker.receipts.read(lost.receipt_text)])
    assert isinstance(outcome, StaleReceipt), "one holder has acknowledged another's delivery"
    await broker.close()


async def test_a_receipt_of_a_message_a_crash_undid_settles_no_other_message() -> None:
    log = KeptLog()
    broker = await Broker.open(log, SETTINGS)
    await broker.declaring.declare_queue("orders")
    blocks = log._next_position, dict(log._blocks)
    broker.publishing.submit("orders", [Publication(b"never confirmed")]).result()
    [lost] = await broker.receiving.receive("orders")
    await broker.close()
    log._next_position, log._blocks = blocks
    broker = await Broker.open(log, SETTINGS)
    await broker.publishing.publish("orders", [Publication(b"another")])
    await broker.receiving.receive("orders")
    try:
        receipt = broker.receipts.read(lost.receipt_text)
    except StaleReceipt:
        pass
    else:
        [outcome] = await broker.settling.acknowledge([receipt])
        assert isinstance(outcome, StaleReceipt), "a message nobody has worked on is gone"
    await broker.close()


async def test_what_was_seen_before_it_was_on_disk_is_another_message_when_published_again() -> None:
    """What the ledger of the protocols' crash tests leaves room for: a delivery does not wait for the disk."""
    log = KeptLog()
    broker = await Broker.open(log, SETTINGS)
    await broker.declaring.declare_queue("orders")
    blocks = log._next_position, dict(log._blocks)
    append_count = log.append_count
    log.gate.clear()
    publication = Publication(b"x", Envelope(deduplication_id="once"))
    broker.publishing.submit("orders", [publication]).result()
    [seen] = await broker.receiving.receive("orders")
    assert log.append_count == append_count, "it is on disk"
    log.gate.set()
    await broker.close()
    log._next_position, log._blocks = blocks
    broker = await Broker.open(log, SETTINGS)
    await asyncio.sleep(0.002)  # an id has the millisecond in it
    [again] = map(stored, await broker.publishing.publish("orders", [publication]))
    [held] = await broker.receiving.receive("orders")
    assert (again.is_duplicate, held.body, held.id) == (False, b"x", again.id)
    assert held.id != seen.id
    await broker.close()


async def test_subscriptions_hold_their_leases_over_a_restart(orders: Bench) -> None:
    consumer = Consumer()
    orders.broker.subscribing.subscribe("orders", consumer.deliver, ended=consumer.ended)
    await orders.publish(b"x")
    await turns()
    await orders.restart()
    assert orders.counts() == (0, 0, 1, 0)
    await orders.acknowledge(*consumer.deliveries)


async def test_states_are_kept_one_by_one(orders: Bench) -> None:
    await orders.publish(b"ready", b"flying", b"dead")
    await orders.publish(b"scheduled", delay_ms=60_000)
    await orders.broker.declaring.alter_queue("orders", QueueSettings(dead_letter=DeadLetterMode.PARK))
    deliveries = await orders.broker.receiving.receive("orders", 3)
    await orders.broker.settling.release([deliveries[0].receipt])
    await orders.reject(deliveries[2])
    await orders.restart()
    page = await orders.broker.browsing.browse("orders")
    assert {message.body: message.state for message in page.messages} == {
        b"ready": State.READY,
        b"flying": State.IN_FLIGHT,
        b"dead": State.DEAD,
        b"scheduled": State.SCHEDULED,
    }


async def test_a_queue_that_expires_has_its_whole_time_again(orders: Bench) -> None:
    """Who used it, and when, is not in the log. As in RabbitMQ."""
    await orders.declare("idle", QueueSettings(expires_ms=60_000))
    orders.broker.subscribing.subscribe("idle", lambda deliveries: None)
    await orders.publish(b"confirmed", queue="idle")
    orders.pass_time(ms=100_000)
    await orders.restart()
    orders.pass_time(ms=50_000)
    await turns()
    assert orders.broker.statistics.message_count("idle") == 1


async def test_what_is_released_at_the_start_may_need_a_dead_letter_queue(orders: Bench) -> None:
    """Held without a deadline by a consumer of the last run, and expired meanwhile: its dead-letter queue is made while
    the queues are gone through."""
    await orders.declare("brief", QueueSettings(message_ttl_ms=60_000))
    await orders.publish(b"x", queue="brief")
    await orders.receive_one("brief", lease_ms=FOREVER_MS)
    orders.pass_time(ms=120_000)
    await orders.restart()
    assert orders.counts("brief_dlq") == (1, 0, 0, 0)


async def test_an_exchange_that_still_led_to_a_fleeting_queue_stays(orders: Bench) -> None:
    """It is deleted with its last binding, and that one is not in the log."""
    await orders.declare("lasting")
    await orders.declare("fleeting", QueueSettings(durable=False))
    await orders.declare("later")
    settings = ExchangeSettings(ExchangeKind.FANOUT, auto_delete=True)
    await orders.broker.declaring.declare_exchange("e", settings)
    for queue in ("lasting", "fleeting"):
        await orders.broker.declaring.bind(Binding.to_queue("e", queue))
    await orders.broker.declaring.delete_queue("lasting")
    await orders.broker.declaring.bind(Binding.to_queue("e", "later"))
    await orders.restart()
    assert orders.broker.catalog.queues_for("e", "") == ("later",)


class UnclosableLog(KeptLog):
    is_unclosable = False

    def close(self) -> None:
        if self.is_unclosable:
            raise LogFailed("memory", why="it has to fail")


async def test_a_log_that_cannot_even_be_closed_does_not_hide_why_it_was_refused() -> None:
    place = MemoryPlace()
    log = place.log = UnclosableLog()
    bench = Bench(place)
    async with await bench.open():
        await bench.declare()
    log.damage(1)
    log.is_unclosable = True
    with pytest.raises(LogDamaged, match="block 1 ") as refusal:
        await bench.open()
    assert any("it has to fail" in note for note in refusal.value.__notes__)


async def test_a_first_block_that_fails_is_told_though_closing_fails_too() -> None:
    place = MemoryPlace()
    log = place.log = UnclosableLog()
    log.is_failing = log.is_unclosable = True
    with pytest.raises(OutcomeUnknown):
        await Bench(place).open()
