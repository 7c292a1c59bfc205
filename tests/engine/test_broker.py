"""What a broker does for those who publish, settle, look and operate; consumers and crashes have files of their own."""

from __future__ import annotations

import asyncio

import pytest

from smista.core.browsing import Wanted
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Envelope, Publication, Reason, Receipt, State
from smista.core.settings import Backoff, DeadLetterMode, QueueSettings
from smista.engine import Published, deadlines, slices
from smista.errors import (
    BrokerError,
    DeadLetterCycle,
    InvalidArgument,
    InvalidName,
    InvalidPriority,
    InvalidReceipt,
    InvalidSettings,
    LeaseExpired,
    MessageNotFound,
    MessageTooLarge,
    NamespaceNotFound,
    QueueDiffers,
    QueueFull,
    QueueInUse,
    QueueNotEmpty,
    QueueNotFound,
    StaleReceipt,
)
from smista.exchange_errors import ExchangeNotFound
from tests.engine.bench import LONGEST_WAIT_MS, SHORT_MS, Bench, Consumer, until

# -- publishing -------------------------------------------------------------------------------------------------------


async def test_a_batch_tells_what_became_of_each(orders: Bench) -> None:
    await orders.declare("small", QueueSettings(body_bytes_max=3, max_depth=2, max_priority=5))
    results = await orders.broker.publishing.publish(
        "small",
        [
            Publication(b"one"),
            Publication(b"too large"),
            Publication(b"two", priority=6),
            Publication("text"),  # type: ignore[arg-type]  # the mistake under test
            Publication(b"two", delay_ms=-1),
            Publication(b"two"),
            Publication(b"3"),
        ],
    )
    assert [type(result) for result in results] == [
        Published,
        MessageTooLarge,
        InvalidPriority,
        InvalidArgument,
        InvalidArgument,
        Published,
        QueueFull,
    ]
    assert await orders.bodies(10, "small") == [b"one", b"two"]


async def test_ids_are_unique_and_in_order(orders: Bench) -> None:
    published = await orders.publish(*[b"x"] * 100)
    ids = [one.id for one in published]
    assert len(set(ids)) == 100
    assert ids == sorted(ids)


async def test_a_publish_says_its_place_in_the_queue(orders: Bench) -> None:
    assert [one.position for one in await orders.publish(b"a", b"b")] == [1, 2]
    assert [one.position for one in await orders.publish(b"c", priority=1)] == [1]


async def test_an_exchange_stores_in_all_queues_or_in_none(orders: Bench) -> None:
    await orders.declare("tiny", QueueSettings(max_depth=1))
    await orders.fanout("all", "orders", "tiny")
    published = await orders.broker.publishing.publish_to_exchange("all", Publication(b"x"))
    assert sorted(one.queue for one in published) == ["orders", "tiny"]
    with pytest.raises(QueueFull):
        await orders.broker.publishing.publish_to_exchange("all", Publication(b"y"))
    assert orders.counts()[0] == orders.counts("tiny")[0] == 1


async def test_what_no_binding_matches_is_stored_nowhere(orders: Bench) -> None:
    await orders.fanout("nobody")
    assert await orders.broker.publishing.publish_to_exchange("nobody", Publication(b"x")) == []


async def test_the_default_exchange_leads_to_the_queue_of_that_name(orders: Bench) -> None:
    await orders.broker.publishing.publish_to_exchange("", Publication(b"x", Envelope(routing_key="orders")))
    assert await orders.bodies() == [b"x"]


async def test_headers_and_extra_keys_route(orders: Bench) -> None:
    await orders.broker.declaring.bind(Binding.to_queue("amq.headers", "orders", "", {"x-match": "any", "a": 1}))
    assert (
        len(await orders.broker.publishing.publish_to_exchange("amq.headers", Publication(b"x"), headers={"a": 1})) == 1
    )
    assert (
        len(await orders.broker.publishing.publish_to_exchange("amq.headers", Publication(b"x"), headers={"a": 2})) == 0
    )
    assert len(await orders.broker.publishing.publish_to_exchange("", Publication(b"y"), extra_keys=["orders"])) == 1


async def test_a_dry_run_says_where_a_message_would_go(orders: Bench) -> None:
    await orders.fanout("all", "orders")
    assert list(orders.broker.catalog.route("all", "k").queues) == ["orders"]
    assert orders.counts() == (0, 0, 0, 0)


# -- settling ---------------------------------------------------------------------------------------------------------


async def test_a_receipt_settles_once(orders: Bench) -> None:
    await orders.publish(b"x")
    delivery = await orders.receive_one()
    [first, second] = await orders.broker.settling.acknowledge([delivery.receipt, delivery.receipt])
    assert first is None
    assert isinstance(second, StaleReceipt)


async def test_a_stale_receipt_leaves_the_next_holder_alone(orders: Bench) -> None:
    await orders.publish(b"x")
    stale = await orders.receive_one(lease_ms=SHORT_MS)
    await until(lambda: orders.counts() == (1, 0, 0, 0))
    current = await orders.receive_one()
    for outcome in (
        await orders.broker.settling.acknowledge([stale.receipt]),
        await orders.broker.settling.nack([stale.receipt]),
        await orders.broker.settling.release([stale.receipt]),
        await orders.broker.settling.extend([stale.receipt], 1000),
    ):
        assert isinstance(outcome[0], StaleReceipt)
    await orders.acknowledge(current)


async def test_extending_after_the_lease_says_that_it_ran_out(orders: Bench) -> None:
    await orders.publish(b"x")
    late = await orders.receive_one(lease_ms=SHORT_MS)
    await until(lambda: orders.counts() == (1, 0, 0, 0))
    [outcome] = await orders.broker.settling.extend([late.receipt], 1000)
    assert isinstance(outcome, LeaseExpired)
    assert await orders.broker.settling.acknowledge([late.receipt]) == [None]


async def test_an_extended_lease_lasts(orders: Bench) -> None:
    await orders.publish(b"x")
    delivery = await orders.receive_one(lease_ms=60_000)
    assert await orders.broker.settling.extend([delivery.receipt], 600_000) == [None]
    orders.pass_time(120_000)
    await orders.restart()
    assert orders.counts() == (0, 0, 1, 0)


async def test_nacks_back_off_and_then_die(orders: Bench) -> None:
    await orders.declare("deadly", QueueSettings(max_retries=1, retry_backoff=Backoff.LINEAR, retry_base_ms=SHORT_MS))
    await orders.publish(b"x", queue="deadly")
    delivery = await orders.receive_one("deadly")
    nacked_at_ms = orders.broker.now_ms()
    assert await orders.broker.settling.nack([delivery.receipt], error="first") == [True]
    await until(lambda: orders.counts("deadly") == (1, 0, 0, 0))
    assert orders.broker.now_ms() - nacked_at_ms >= SHORT_MS
    delivery = await orders.receive_one("deadly")
    assert await orders.broker.settling.nack([delivery.receipt], error="second") == [False]
    [dead_letter] = (await orders.broker.browsing.browse("deadly_dlq")).messages
    [death] = dead_letter.deaths
    assert (death.queue, death.reason, death.delivery_count) == ("deadly", Reason.MAX_RETRIES, 2)
    assert [failure.error for failure in death.failures] == ["first", "second"]


async def test_a_message_can_be_settled_by_its_id_for_whoever_holds_it(orders: Bench) -> None:
    [published] = await orders.publish(b"x")
    with pytest.raises(MessageNotFound):
        orders.broker.receipts.of_message("orders", published.id)
    delivery = await orders.receive_one()
    assert orders.broker.receipts.of_message("orders", published.id) == delivery.receipt


async def test_a_stale_receipt_is_answered_with_whether_its_message_is_still_there(orders: Bench) -> None:
    async def stale(receipt: Receipt) -> StaleReceipt:
        [outcome] = await orders.broker.settling.acknowledge([receipt])
        assert isinstance(outcome, StaleReceipt)
        return outcome

    await orders.publish(b"x")
    first = await orders.receive_one()
    await orders.broker.settling.nack([first.receipt], delay_ms=0)
    second = await orders.receive_one()
    assert not (await stale(first.receipt)).is_gone
    await orders.broker.settling.acknowledge([second.receipt])
    assert (await stale(first.receipt)).is_gone
    assert (await stale(second.receipt)).is_gone
    await orders.broker.declaring.delete_queue("orders")
    assert (await stale(first.receipt)).is_gone


async def test_the_id_of_a_dead_letter_still_finds_it(orders: Bench) -> None:
    [published] = await orders.publish(b"x")
    await orders.reject(await orders.receive_one())
    assert (await orders.broker.browsing.get("orders_dlq", published.id)).body == b"x"
    delivery = await orders.receive_one("orders_dlq")
    assert delivery.id == published.id
    assert orders.broker.receipts.of_message("orders_dlq", published.id) == delivery.receipt


async def test_the_id_of_a_dead_letter_in_a_fleeting_queue_still_finds_it(orders: Bench) -> None:
    await orders.declare("fleeting", QueueSettings(durable=False))
    for source in ("orders", "fleeting"):
        await orders.declare(f"{source}-dead", QueueSettings(durable=False))
        settings = QueueSettings(dead_letter_queue=f"{source}-dead", durable=source != "fleeting")
        await orders.broker.declaring.alter_queue(source, settings)
        [published] = await orders.publish(b"x", queue=source)
        await orders.reject(await orders.receive_one(source))
        assert (await orders.broker.browsing.get(f"{source}-dead", published.id)).body == b"x", source


async def test_a_text_that_is_no_receipt_is_refused(orders: Bench) -> None:
    await orders.publish(b"x")
    text = (await orders.receive_one()).receipt_text
    for forged in ("", text[:-1], text + "A", "A" * len(text), text.swapcase()):
        with pytest.raises(InvalidReceipt):
            orders.broker.receipts.read(forged)
    future = orders.broker.ids.receipt_text(Receipt(1, 1 << 40, 1))
    with pytest.raises(InvalidReceipt):
        orders.broker.receipts.read(future)


# -- looking ----------------------------------------------------------------------------------------------------------


async def test_peeking_browsing_and_getting_change_nothing(orders: Bench) -> None:
    published = await orders.publish(b"a", b"b", b"c")
    await orders.publish(b"first", priority=1)
    before = orders.broker.statistics.stats("orders")
    assert [message.body for message in await orders.broker.browsing.peek("orders", 2)] == [b"first", b"a"]
    first = await orders.broker.browsing.browse("orders", limit=3)
    rest = await orders.broker.browsing.browse("orders", limit=3, after=first.after or 0)
    assert [message.body for message in first.messages + rest.messages] == [b"a", b"b", b"c", b"first"]
    assert (await orders.broker.browsing.get("orders", published[1].id)).body == b"b"
    after = orders.broker.statistics.stats("orders")
    assert (after.ready, after.delivered_total) == (before.ready, 0)


async def test_what_is_shown_is_a_copy(orders: Bench) -> None:
    await orders.publish(b"x")
    [shown] = await orders.broker.browsing.peek("orders")
    await orders.acknowledge(await orders.receive_one())
    assert (shown.body, shown.state) == (b"x", State.READY)


async def test_browsing_filters(orders: Bench) -> None:
    await orders.publish(b"later", delay_ms=60_000)
    await orders.publish(b"grouped", envelope=Envelope(group="g"), priority=3)
    for wanted, expected in (
        (Wanted(state=State.SCHEDULED), [b"later"]),
        (Wanted(priority=3), [b"grouped"]),
        (Wanted(group="g"), [b"grouped"]),
        (Wanted(headers={"a": 1}), []),
        (Wanted(deliveries_min=1), []),
    ):
        page = await orders.broker.browsing.browse("orders", wanted)
        assert [message.body for message in page.messages] == expected


async def test_an_id_that_names_nothing_here_is_not_found(orders: Bench) -> None:
    [published] = await orders.publish(b"x")
    await orders.acknowledge(await orders.receive_one())
    for message_id in (published.id, "nonsense"):
        with pytest.raises(MessageNotFound):
            await orders.broker.browsing.get("orders", message_id)


async def test_statistics_count(orders: Bench) -> None:
    orders.broker.subscribing.subscribe("orders", Consumer().deliver, prefetch=1)
    await orders.publish(b"a", b"b")
    await until(lambda: orders.counts() == (1, 0, 1, 0))
    stats = orders.broker.statistics.stats("orders")
    assert (stats.consumers, stats.depth, stats.body_bytes, stats.published_total) == (1, 2, 2, 2)


# -- scheduled --------------------------------------------------------------------------------------------------------


async def test_scheduled_messages_can_be_moved_and_cancelled(orders: Bench) -> None:
    sooner, never = await orders.publish(b"sooner", b"never", delay_ms=60_000)
    await orders.broker.messages.reschedule("orders", sooner.id, orders.broker.now_ms() + SHORT_MS)
    await orders.broker.messages.cancel("orders", never.id)
    assert (await orders.receive_one(wait_ms=LONGEST_WAIT_MS)).body == b"sooner"
    for message_id in (sooner.id, never.id):
        with pytest.raises(MessageNotFound):
            await orders.broker.messages.cancel("orders", message_id)
        with pytest.raises(MessageNotFound):
            await orders.broker.messages.reschedule("orders", message_id, 0)


async def test_a_message_can_be_deleted_in_whatever_state_it_is(orders: Bench) -> None:
    await orders.broker.declaring.alter_queue("orders", QueueSettings(dead_letter=DeadLetterMode.PARK))
    [scheduled] = await orders.publish(b"scheduled", delay_ms=60_000)
    held, dead, ready = await orders.publish(b"held", b"dead", b"ready")
    holding = await orders.receive_one()
    await orders.reject(await orders.receive_one())
    assert orders.counts() == (1, 1, 1, 1)
    for message in (scheduled, held, dead, ready):
        await orders.broker.messages.delete("orders", message.id)
        with pytest.raises(MessageNotFound):
            await orders.broker.messages.delete("orders", message.id)
    assert orders.counts() == (0, 0, 0, 0)
    [outcome] = await orders.broker.settling.acknowledge([holding.receipt])
    assert isinstance(outcome, StaleReceipt)


async def test_a_deleted_message_frees_its_consumer_and_its_group(orders: Bench) -> None:
    await orders.broker.declaring.declare_queue("ordered", QueueSettings(ordered=True))
    consumer = Consumer()
    orders.broker.subscribing.subscribe("ordered", consumer.deliver, prefetch=1)
    publications = [Publication(body, Envelope(group="g")) for body in (b"first", b"second")]
    [first, _] = await orders.broker.publishing.publish("ordered", publications)
    await until(lambda: len(consumer.deliveries) == 1)
    assert isinstance(first, Published)
    await orders.broker.messages.delete("ordered", first.id)
    await until(lambda: consumer.bodies == [b"first", b"second"])


async def test_an_instant_may_be_named_instead_of_a_delay(orders: Bench) -> None:
    at_ms = orders.broker.now_ms() + SHORT_MS
    await orders.broker.publishing.publish("orders", [Publication(b"x", deliver_at_ms=at_ms)])
    await orders.receive_one(wait_ms=LONGEST_WAIT_MS)
    assert orders.broker.now_ms() >= at_ms


# -- dead letters -----------------------------------------------------------------------------------------------------


async def set_aside(bench: Bench, *bodies: bytes, error: str = "") -> None:
    await bench.publish(*bodies)
    await bench.reject(*await bench.broker.receiving.receive("orders", len(bodies)), error=error)


async def test_a_dry_run_only_counts(orders: Bench) -> None:
    await set_aside(orders, b"a", b"b")
    assert await orders.broker.redriving.redrive("orders_dlq", dry_run=True) == 2
    assert orders.counts("orders_dlq") == (2, 0, 0, 0)


async def test_redriving_is_narrowed_by_filter_and_limit(orders: Bench) -> None:
    await set_aside(orders, b"a", b"b", b"c", error="timeout")
    await set_aside(orders, b"d", error="parse")
    assert await orders.broker.redriving.redrive("orders_dlq", Wanted(error_contains="parse")) == 1
    assert await orders.broker.redriving.redrive("orders_dlq", limit=2) == 2
    assert await orders.bodies() == [b"d", b"a", b"b"]
    assert orders.counts("orders_dlq") == (1, 0, 0, 0)


async def test_redriving_may_name_another_queue(orders: Bench) -> None:
    await orders.declare("elsewhere")
    await set_aside(orders, b"a")
    assert await orders.broker.redriving.redrive("orders_dlq", to="elsewhere") == 1
    delivery = await orders.receive_one("elsewhere")
    assert (delivery.body, delivery.delivery_count) == (b"a", 1)


async def test_redriving_into_a_full_queue_stops_and_says_so(orders: Bench) -> None:
    await set_aside(orders, b"a", b"b")
    await orders.broker.declaring.alter_queue("orders", QueueSettings(max_depth=1))
    with pytest.raises(QueueFull):
        await orders.broker.redriving.redrive("orders_dlq")
    assert (orders.counts()[0], orders.counts("orders_dlq")[0]) == (1, 1)


# -- queues -----------------------------------------------------------------------------------------------------------


async def test_an_idle_queue_expires(orders: Bench) -> None:
    await orders.declare("idle", QueueSettings(expires_ms=SHORT_MS))
    await until(lambda: "idle" not in orders.broker.catalog.queue_names())
    await orders.restart()
    assert orders.broker.catalog.queue_names() == ["orders"]


async def test_a_purge_removes_exactly_what_was_there(orders: Bench) -> None:
    await orders.publish(*[b"x"] * 1500)
    await orders.publish(b"later", delay_ms=60_000)
    await orders.receive_one()
    assert await orders.broker.declaring.purge("orders", ready_only=True) == 1499
    assert orders.counts() == (0, 1, 1, 0)
    await orders.publish(b"new")
    assert await orders.broker.declaring.purge("orders") == 3
    await orders.publish(b"newer")
    assert await orders.bodies() == [b"newer"]


async def test_expired_messages_leave_wherever_they_stand(orders: Bench) -> None:
    await orders.publish(b"stays")
    await orders.publish(b"goes", envelope=Envelope(ttl_ms=SHORT_MS))
    await orders.publish(b"stays too")
    await until(lambda: orders.counts()[0] == 2)
    assert await orders.bodies() == [b"stays", b"stays too"]
    [dead_letter] = (await orders.broker.browsing.browse("orders_dlq")).messages
    assert dead_letter.deaths[-1].reason is Reason.EXPIRED


async def test_many_that_expire_at_once_do_not_hold_others_up(orders: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "SLICE_S", 0.0)  # however fast the machine is
    await orders.declare("brief")
    await orders.publish(*[b"x"] * 5000, queue="brief", envelope=Envelope(ttl_ms=64))
    left, most = orders.counts("brief")[0], 0
    while left:
        await asyncio.sleep(0)
        now_left = orders.counts("brief")[0]
        left, most = now_left, max(most, left - now_left)
    assert most == slices.SLICE


async def test_every_mistake_has_its_error_and_changes_nothing(orders: Bench) -> None:
    broker = orders.broker
    await orders.declare("a", QueueSettings(dead_letter_queue="b"))
    await orders.publish(b"x")
    subscription = broker.subscribing.subscribe("a", Consumer().deliver)
    before = (broker.catalog.queue_names(), [exchange.name for exchange in broker.catalog.exchanges()], orders.counts())
    for mistake, error in (
        (broker.declaring.declare_queue(""), InvalidName),
        (broker.declaring.declare_queue("x" * 256), InvalidName),
        (broker.declaring.declare_queue("bell\a"), InvalidName),
        (broker.declaring.declare_queue("q", QueueSettings(lease_ms=-1)), InvalidSettings),
        (broker.declaring.declare_queue("q", "settings"), InvalidArgument),  # type: ignore[arg-type]  # the mistake under test
        (broker.declaring.declare_queue("orders", QueueSettings(lease_ms=1)), QueueDiffers),
        (broker.declaring.declare_queue("b", QueueSettings(dead_letter_queue="a")), DeadLetterCycle),
        (broker.declaring.alter_queue("nowhere", QueueSettings()), QueueNotFound),
        (broker.declaring.alter_queue("orders", QueueSettings(durable=False)), QueueDiffers),
        (broker.declaring.delete_queue("nowhere"), QueueNotFound),
        (broker.declaring.delete_queue("orders", if_empty=True), QueueNotEmpty),
        (broker.declaring.delete_queue("a", if_unused=True), QueueInUse),
        (broker.declaring.purge("nowhere"), QueueNotFound),
        (broker.declaring.pause("nowhere"), QueueNotFound),
        (broker.publishing.publish("nowhere", [Publication(b"x")]), QueueNotFound),
        (broker.publishing.publish_to_exchange("nowhere", Publication(b"x")), ExchangeNotFound),
        (broker.publishing.publish_to_exchange("", Publication(b"x"), namespace="nowhere"), NamespaceNotFound),
        (broker.receiving.receive("nowhere"), QueueNotFound),
        (broker.declaring.bind(Binding.to_queue("nowhere", "orders")), ExchangeNotFound),
        (broker.declaring.bind(Binding.to_queue("amq.fanout", "nowhere")), BrokerError),
        (broker.declaring.declare_exchange("amq.mine", ExchangeSettings(ExchangeKind.FANOUT)), BrokerError),
        (broker.browsing.browse("orders", limit=0), InvalidArgument),
        (broker.redriving.redrive("orders", to="nowhere"), QueueNotFound),
        (broker.settling.extend([], -1), InvalidArgument),
    ):
        with pytest.raises(error):
            await mistake
    assert (
        broker.catalog.queue_names(),
        [exchange.name for exchange in broker.catalog.exchanges()],
        orders.counts(),
    ) == before
    broker.subscribing.cancel(subscription)
