"""Where a message goes that has failed for good, what is known of it there, and how it comes back."""

from __future__ import annotations

import msgspec
import pytest

from smista.core.browsing import Wanted, last_error
from smista.core.declaring import bind, declare_exchange
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Message, Reason, State
from smista.core.settings import DeadLetterMode, Overflow, QueueSettings
from smista.errors import MessageNotFound, QueueFull, QueueNotFound, StaleReceipt
from tests.core import invariants
from tests.core.bench import DAY_MS, LEASE_MS, START_MS, Bench, bodies


def kill(bench: Bench, body: bytes = b"x", *, error: str = "", group: str | None = None) -> int:
    """Publish a message and have its consumer reject it."""
    placed = bench.publish(body, group=group)
    bench.reject(bench.receive_one(), error=error)
    return placed.number


def test_the_first_dead_letter_makes_the_queue_for_it(orders: Bench) -> None:
    assert not orders.has_queue("orders_dlq")
    number = kill(orders, b"poison")
    [letter] = orders.dead_letters()
    assert (letter.number, letter.body, letter.state) == (number, b"poison", State.READY)
    assert orders.depth == 0
    assert orders.find("orders_dlq").settings.max_depth == 10_000
    invariants.check(orders.state)


def test_a_named_dead_letter_queue_is_made_too() -> None:
    bench = Bench(QueueSettings(dead_letter_queue="morgue", dead_letter_max_depth=7, max_priority=9))
    kill(bench)
    assert len(bench.dead_letters("morgue")) == 1
    settings = bench.find("morgue").settings
    assert (settings.max_depth, settings.max_priority) == (7, 9)


def test_a_dead_letter_knows_why_where_when_and_how_often(orders: Bench) -> None:
    orders.publish()
    for attempt in range(4):
        orders.pass_time(ms=100)
        orders.nack(orders.receive_one(), delay_ms=0, error=f"error {attempt}")
    [letter] = orders.dead_letters()
    [death] = letter.deaths
    assert (death.queue, death.reason, death.at_ms) == ("orders", Reason.MAX_RETRIES, START_MS + 400)
    assert (death.delivery_count, death.count) == (4, 1)
    assert [(failure.delivery, failure.error) for failure in death.failures] == [
        (1, "error 0"),
        (2, "error 1"),
        (3, "error 2"),
        (4, "error 3"),
    ]
    assert last_error(letter) == "error 3"
    assert (letter.created_at_ms, letter.ready_at_ms) == (START_MS, START_MS + 400)
    assert letter.delivery_count == 0


def test_the_history_tells_nacks_from_timeouts_and_leaves_releases_out() -> None:
    bench = Bench(QueueSettings(max_retries=1))
    bench.publish()
    bench.release(bench.receive_one())
    bench.receive_one()
    bench.pass_time(ms=LEASE_MS)
    bench.nack(bench.receive_one())
    [letter] = bench.dead_letters()
    assert [(failure.delivery, failure.reason) for failure in letter.deaths[0].failures] == [
        (2, Reason.TIMED_OUT),
        (3, Reason.NACKED),
    ]


def test_the_history_is_bounded() -> None:
    bench = Bench(QueueSettings(max_retries=99))
    bench.publish()
    for attempt in range(100):
        bench.nack(bench.receive_one(), delay_ms=0, error=f"{attempt}" + "!" * 5000)
    [letter] = bench.dead_letters()
    failures = letter.deaths[0].failures
    assert [failure.delivery for failure in failures] == list(range(69, 101))
    assert max(len(failure.error) for failure in failures) == 1024


def test_each_way_to_die_has_its_reason() -> None:
    bench = Bench(QueueSettings(max_retries=0, max_depth=1, overflow=Overflow.DEAD_LETTER_OLDEST))
    bench.publish(b"rejected")
    bench.reject(bench.receive_one())
    bench.publish(b"failed")
    bench.nack(bench.receive_one())
    bench.publish(b"timed out")
    bench.receive_one()
    bench.pass_time(ms=LEASE_MS)
    bench.publish(b"expired", ttl_ms=2000)
    bench.pass_time(ms=2000)
    bench.publish(b"overflowed")
    bench.publish(b"survivor")
    assert [(letter.body, letter.deaths[-1].reason) for letter in bench.dead_letters()] == [
        (b"rejected", Reason.REJECTED),
        (b"failed", Reason.MAX_RETRIES),
        (b"timed out", Reason.MAX_RETRIES),
        (b"expired", Reason.EXPIRED),
        (b"overflowed", Reason.OVERFLOW),
    ]
    assert bench.stats().dead_lettered_total == 5


def test_the_receipt_of_a_dead_lettered_delivery_is_over(orders: Bench) -> None:
    orders.publish()
    delivery = orders.receive_one()
    orders.reject(delivery)
    with pytest.raises(StaleReceipt):
        orders.acknowledge(delivery)
    assert len(orders.dead_letters()) == 1


def test_where_dead_letters_are_parked_they_stay_in_their_queue() -> None:
    bench = Bench(QueueSettings(dead_letter=DeadLetterMode.PARK))
    kill(bench, b"four", error="why")
    assert bench.counts() == (0, 0, 0, 1)
    [parked] = bench.browse(Wanted(state=State.DEAD)).messages
    assert (parked.deaths[-1].reason, last_error(parked)) == (Reason.REJECTED, "why")
    assert (bench.stats().body_bytes, bench.receive()) == (4, [])
    assert not bench.has_queue("orders_dlq")


def test_where_dead_letters_are_dropped_they_are_gone_and_counted() -> None:
    bench = Bench(QueueSettings(dead_letter=DeadLetterMode.DROP))
    kill(bench)
    assert (bench.depth, bench.stats().dropped_total) == (0, 1)
    assert not bench.has_queue("orders_dlq")


def test_a_dead_letter_is_parked_when_its_target_is_full() -> None:
    bench = Bench(QueueSettings(dead_letter_max_depth=2))
    for body in (b"1", b"2", b"3"):
        kill(bench, body)
    assert bodies(bench.dead_letters()) == [b"1", b"2"]
    assert bodies(bench.browse(Wanted(state=State.DEAD)).messages) == [b"3"]
    invariants.check(bench.state)


def test_a_dead_letter_queue_may_be_declared_to_drop_its_oldest(orders: Bench) -> None:
    orders.declare("orders_dlq", QueueSettings(max_depth=2, overflow=Overflow.DROP_OLDEST))
    for body in (b"1", b"2", b"3"):
        kill(orders, body)
    assert bodies(orders.dead_letters()) == [b"2", b"3"]


def test_a_dead_letter_too_big_for_its_target_costs_the_others_nothing(orders: Bench) -> None:
    orders.declare("orders_dlq", QueueSettings(max_bytes=10, overflow=Overflow.DROP_OLDEST))
    kill(orders, b"small")
    kill(orders, b"eleven byte")
    assert bodies(orders.dead_letters()) == [b"small"]
    assert orders.counts() == (0, 0, 0, 1)


def test_a_queue_whose_dead_letter_queue_could_not_be_named_parks() -> None:
    bench = Bench(name="q" * 253)
    bench.publish()
    bench.reject(bench.receive_one())
    assert bench.counts() == (0, 0, 0, 1)


def test_a_dead_letter_exchange_sends_copies_to_all_its_queues() -> None:
    bench = Bench(QueueSettings(dead_letter_exchange="dlx"))
    first, second = bench.declare("first"), bench.declare("second")
    bench.fanout("dlx", first, second)
    number = kill(bench, b"poison")
    letters = [bench.dead_letters("first"), bench.dead_letters("second")]
    assert [bodies(found) for found in letters] == [[b"poison"], [b"poison"]]
    assert letters[0][0].number == number
    assert letters[1][0].number != number, "two messages, two identities"
    assert all(found[0].deaths[-1].queue == "orders" for found in letters)
    assert bench.depth == 0
    invariants.check(bench.state)


def test_a_dead_letter_exchange_routes_by_the_key_of_the_settings_or_of_the_message() -> None:
    bench = Bench(QueueSettings(dead_letter_exchange="dlx", dead_letter_routing_key="dead"))
    declare_exchange(bench.state, "dlx", ExchangeSettings(ExchangeKind.DIRECT))
    bench.declare("wanted")
    bench.declare("other")
    bind(bench.state, bench.state.namespace("/"), Binding.to_queue("dlx", "wanted", "dead"))
    bind(bench.state, bench.state.namespace("/"), Binding.to_queue("dlx", "other", ""))
    kill(bench)
    assert (len(bench.dead_letters("wanted")), len(bench.dead_letters("other"))) == (1, 0)
    bench.alter(QueueSettings(dead_letter_exchange="dlx"))
    kill(bench)
    assert (len(bench.dead_letters("wanted")), len(bench.dead_letters("other"))) == (1, 1)


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_dead_letter_exchange_that_leads_nowhere_parks(is_declared: bool) -> None:
    bench = Bench(QueueSettings(dead_letter_exchange="dlx"))
    if is_declared:
        bench.fanout("dlx")
    kill(bench)
    assert bench.counts() == (0, 0, 0, 1)


def test_a_dead_letter_exchange_that_leads_back_to_the_queue_parks() -> None:
    bench = Bench(QueueSettings(dead_letter_exchange="dlx"))
    bench.fanout("dlx", bench.queue)
    kill(bench)
    assert bench.counts() == (0, 0, 0, 1)


def retry_through_a_waiting_room() -> Bench:
    """RabbitMQ's way to retry later: reject into a queue with a TTL, whose dead letters come back."""
    bench = Bench(QueueSettings(dead_letter_exchange="to waiting", max_retries=0))
    waiting = bench.declare("waiting", QueueSettings(message_ttl_ms=2000, dead_letter_exchange="to orders"))
    bench.fanout("to waiting", waiting)
    bench.fanout("to orders", bench.queue)
    return bench


def test_reject_wait_and_come_back_may_go_on_for_ever() -> None:
    bench = retry_through_a_waiting_room()
    bench.publish()
    for _ in range(10):
        bench.reject(bench.receive_one())
        assert bench.depth == 0
        bench.pass_time(ms=2000)
    [message] = bench.browse().messages
    assert sorted((death.queue, death.reason, death.count) for death in message.deaths) == [
        ("orders", Reason.REJECTED, 10),
        ("waiting", Reason.EXPIRED, 10),
    ]


def test_a_circle_that_no_consumer_asked_for_ends_in_parking() -> None:
    bench = Bench(QueueSettings(dead_letter_exchange="to other", message_ttl_ms=2000))
    other = bench.declare("other", QueueSettings(dead_letter_exchange="to orders", message_ttl_ms=2000))
    bench.fanout("to other", other)
    bench.fanout("to orders", bench.queue)
    bench.publish()
    bench.pass_time(ms=100_000)
    assert (bench.stats().dead, bench.stats(other).dead) in {(1, 0), (0, 1)}


OWN = QueueSettings(dead_letter_queue="orders", own_dead_letters=True, max_retries=0)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_queue_may_be_its_own_dead_letter_queue(is_full: bool) -> None:
    bench = Bench(OWN)
    if is_full:
        bench.alter(msgspec.structs.replace(OWN, max_depth=2))
    for body in (b"1", b"2"):
        bench.publish(body)
    for expected in (b"1", b"2", b"1", b"2", b"1"):
        delivery = bench.receive_one()
        assert (delivery.body, delivery.delivery_count) == (expected, 1)
        bench.nack(delivery)
        invariants.check(bench.state)
    assert bench.counts() == (2, 0, 0, 0)
    [first, _] = bench.browse().messages
    assert [(death.queue, death.reason, death.count) for death in first.deaths] == [("orders", Reason.MAX_RETRIES, 2)]


def test_what_expires_does_not_come_back_to_its_own_queue() -> None:
    bench = Bench(msgspec.structs.replace(OWN, message_ttl_ms=1000))
    bench.publish(b"1")
    bench.pass_time(ms=100_000)
    assert bench.counts() == (0, 0, 0, 1)


def test_a_chain_may_end_in_a_queue_that_names_itself() -> None:
    bench = Bench(QueueSettings(dead_letter_queue="last"))
    bench.declare("last", msgspec.structs.replace(OWN, dead_letter_queue="last"))
    bench.alter(QueueSettings(dead_letter_queue="last", max_retries=0))


def test_a_message_that_fails_in_the_dead_letter_queue_is_parked_there(orders: Bench) -> None:
    kill(orders)
    letters = orders.find("orders_dlq")
    orders.reject(orders.receive_one(queue=letters))
    assert orders.counts(letters) == (0, 0, 0, 1)
    assert not orders.has_queue("orders_dlq_dlq")


def test_a_move_takes_a_new_place_and_keeps_the_identity(orders: Bench) -> None:
    orders.publish(b"1", priority=9)
    orders.publish(b"2", priority=9)
    first, second = orders.receive(2)
    orders.reject(second)
    orders.reject(first)
    letters = orders.dead_letters()
    assert [letter.number for letter in letters] == [second.id, first.id]
    assert [letter.priority for letter in letters] == [9, 9]


def test_a_priority_is_lowered_to_what_the_target_takes() -> None:
    bench = Bench(QueueSettings(dead_letter_queue="flat"))
    bench.declare("flat", QueueSettings(max_priority=2))
    bench.publish(priority=200)
    bench.reject(bench.receive_one())
    assert bench.dead_letters("flat")[0].priority == 2


def test_a_dead_letter_lives_on_by_the_rules_of_its_new_queue() -> None:
    bench = Bench(QueueSettings(dead_letter_queue="short", message_ttl_ms=2000))
    bench.declare("short", QueueSettings(message_ttl_ms=64_000, dead_letter=DeadLetterMode.PARK))
    bench.publish()
    bench.pass_time(ms=2000)
    bench.pass_time(ms=63_999)
    assert len(bench.dead_letters("short")) == 1
    bench.pass_time(ms=1)
    assert bench.dead_letters("short") == []


def test_dead_letters_leave_when_their_queues_retention_is_over(orders: Bench) -> None:
    kill(orders)
    orders.pass_time(ms=13 * DAY_MS)
    assert len(orders.dead_letters()) == 1
    orders.pass_time(ms=2 * DAY_MS)
    assert orders.dead_letters() == []


def test_parked_messages_leave_when_the_retention_is_over_even_if_their_ttl_was() -> None:
    bench = Bench(QueueSettings(dead_letter_max_depth=1, retention_ms=DAY_MS, max_retries=0))
    kill(bench)
    bench.publish(ttl_ms=100_000)
    bench.nack(bench.receive_one())
    assert bench.counts() == (0, 0, 0, 1)
    bench.purge(bench.find("orders_dlq"))
    bench.pass_time(ms=2 * DAY_MS)
    assert (bench.depth, bench.dead_letters()) == (0, [])


# -- the way back -----------------------------------------------------------------------------------------------------


def test_a_redriven_message_starts_again_in_the_queue_it_came_from(orders: Bench) -> None:
    number = kill(orders, b"again")
    [moved] = orders.redrive(orders.dead_letters())
    assert (moved.number, moved.deaths[-1].queue) == (number, "orders")
    assert orders.dead_letters() == []
    delivery = orders.receive_one()
    assert (delivery.id, delivery.body, delivery.delivery_count) == (number, b"again", 1)
    assert orders.stats().redriven_total == 1
    invariants.check(orders.state)


def test_a_redriven_message_has_all_its_retries_again(orders: Bench) -> None:
    orders.publish()
    for _ in range(2):
        for _ in range(4):
            orders.nack(orders.receive_one(), delay_ms=0)
        [letter] = orders.dead_letters()
        orders.redrive([letter])
    assert orders.receive_one().message.deaths[-1].count == 2


def test_messages_can_be_redriven_elsewhere(orders: Bench) -> None:
    kill(orders, b"x")
    elsewhere = orders.declare("elsewhere")
    orders.redrive(orders.dead_letters(), to=elsewhere)
    assert orders.receive_bodies(queue=elsewhere) == [b"x"]


def test_letters_of_several_queues_each_go_home(orders: Bench) -> None:
    shared = QueueSettings(dead_letter_queue="shared")
    first, second = orders.declare("first", shared), orders.declare("second", shared)
    for queue, body in ((first, b"1"), (second, b"2"), (first, b"3")):
        orders.publish(body, queue=queue)
        orders.reject(orders.receive_one(queue=queue))
    orders.redrive(orders.dead_letters("shared"), out_of=orders.find("shared"))
    assert [orders.receive_bodies(queue=queue) for queue in (first, second)] == [[b"1", b"3"], [b"2"]]


def test_parked_messages_are_redriven_into_their_own_queue() -> None:
    bench = Bench(QueueSettings(dead_letter=DeadLetterMode.PARK))
    kill(bench, b"x")
    bench.redrive(bench.browse().messages, out_of=bench.queue)
    assert bench.counts() == (1, 0, 0, 0)
    invariants.check(bench.state)


def test_some_can_be_chosen_by_what_killed_them(orders: Bench) -> None:
    kill(orders, b"1", error="database is down")
    kill(orders, b"2", error="bad input")
    kill(orders, b"3", error="database is gone")
    letters = orders.find("orders_dlq")
    orders.redrive(orders.matching(Wanted(error_contains="database"), queue=letters))
    assert orders.receive_bodies() == [b"1", b"3"]
    assert bodies(orders.dead_letters()) == [b"2"]


def test_redriving_is_exempt_from_deduplication(orders: Bench) -> None:
    orders.publish(deduplication_id="once")
    orders.reject(orders.receive_one())
    orders.redrive(orders.dead_letters())
    assert orders.depth == 1
    assert orders.publish(deduplication_id="once").is_duplicate


def test_redriving_keeps_the_targets_limit_and_stops_there() -> None:
    bench = Bench(QueueSettings(max_depth=2))
    for body in (b"1", b"2", b"3"):
        kill(bench, body)
    with pytest.raises(QueueFull, match="'orders' is full"):
        bench.redrive(bench.dead_letters())
    assert (bench.receive_bodies(), bodies(bench.dead_letters())) == ([b"1", b"2"], [b"3"])
    invariants.check(bench.state)


def test_what_is_parked_does_not_count_and_goes_back_only_where_there_is_room() -> None:
    bench = Bench(QueueSettings(max_depth=1, dead_letter=DeadLetterMode.PARK))
    kill(bench, b"parked")
    bench.publish(b"next")
    with pytest.raises(QueueFull, match="'orders' is full"):
        bench.redrive(bench.matching(Wanted(state=State.DEAD)), out_of=bench.queue)
    assert bench.receive_bodies() == [b"next"]
    invariants.check(bench.state)


def test_a_message_redriven_twice_at_once_is_there_once(orders: Bench) -> None:
    kill(orders)
    [letter] = orders.dead_letters()
    assert len(orders.redrive([letter, letter])) == 1
    assert orders.redrive([letter]) == []
    assert (orders.depth, orders.find("orders_dlq").depth) == (1, 0)
    invariants.check(orders.state)


@pytest.mark.parametrize("how", ["acknowledged", "purged"])
def test_a_message_that_left_before_it_was_redriven_stays_away(orders: Bench, how: str) -> None:
    kill(orders)
    letters = orders.find("orders_dlq")
    found = orders.dead_letters()
    if how == "acknowledged":
        orders.acknowledge(orders.receive_one(queue=letters))
    else:
        orders.purge(letters)
    assert orders.redrive(found) == []
    assert orders.depth == 0


def test_what_never_died_has_no_queue_to_go_back_to(orders: Bench) -> None:
    letters = orders.declare("orders_dlq")
    orders.publish(queue=letters)
    with pytest.raises(MessageNotFound, match="no dead letter"):
        orders.redrive(orders.dead_letters())
    assert letters.depth == 1


def test_a_source_that_was_deleted_is_named(orders: Bench) -> None:
    kill(orders)
    letters = orders.find("orders_dlq")
    orders.delete()
    with pytest.raises(QueueNotFound, match="'orders'"):
        orders.redrive(orders.dead_letters(), out_of=letters)
    assert letters.depth == 1


def test_dead_letters_stay_in_their_namespace(orders: Bench) -> None:
    there = orders.declare("orders", namespace="there")
    orders.publish(queue=there)
    orders.reject(orders.receive_one(queue=there))
    assert orders.has_queue("orders_dlq", "there")
    assert not orders.has_queue("orders_dlq")


def test_deaths_are_counted_up_and_the_list_is_bounded(orders: Bench) -> None:
    for number in range(20):
        orders.declare(f"stop {number}", QueueSettings(dead_letter_queue="end"))
    kill(orders)
    message: Message = orders.dead_letters()[0]
    here = orders.find("orders_dlq")
    for number in range(20):
        stop = orders.find(f"stop {number}")
        orders.redrive([message], out_of=here, to=stop)
        orders.reject(orders.receive_one(queue=stop))
        here = orders.find("end")
        [message] = orders.dead_letters("end")
    assert len(message.deaths) == 16
    assert message.deaths[-1].queue == "stop 19"
