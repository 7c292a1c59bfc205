"""Delivery tags: unknown ones are errors, and those of deliveries that are over are forgotten and are none."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator

import pytest

from smista.engine import Publication, Receipt
from smista.protocols.amqp.channel.unacked import RANGES_MAX, STALE_MAX, Ranges, Unacked
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.replies import ChannelClosing
from tests.protocols.amqp.in_process import Client, Server, settle
from tests.protocols.amqp.raw import CLOSE_CHANNEL, consume, declare, on
from tests.waiting import until

MANY = 2_400


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server().start()
    yield server
    await server.stop()


class Deliverer:
    """Delivers message after message, whose deliveries are over when it says so."""

    def __init__(self) -> None:
        self.over: set[int] = set()
        self.unacked = Unacked(
            lambda held: self.unacked.forget(tag for tag, receipt in held.items() if receipt.sequence in self.over)
        )

    def deliver(self, count: int) -> list[int]:
        first = self.unacked.last_tag + 1
        tags = list(range(first, first + count))
        self.unacked.last_tag += count
        self.unacked.add(first, [Receipt(1, tag, 1) for tag in tags])
        return tags


def test_the_tags_of_what_is_over_are_forgotten() -> None:
    deliverer = Deliverer()
    for _ in range(1_000):
        deliverer.over.update(deliverer.deliver(10))
    assert len(deliverer.unacked.receipts) < 3 * STALE_MAX


def test_the_tags_of_what_is_held_stay() -> None:
    deliverer = Deliverer()
    held = deliverer.deliver(5_000)
    for _ in range(3_000):
        deliverer.over.update(deliverer.deliver(10))
    receipts = deliverer.unacked.receipts
    assert list(receipts)[:5_000] == held
    assert len(receipts) < 20_000


def test_one_turn_looks_at_a_few_only() -> None:
    looked_at: dict[int, Receipt] = {}
    unacked = Unacked(looked_at.update)
    unacked.receipts = {tag: Receipt(1, tag, 1) for tag in range(1, 100_001)}
    unacked.last_tag = 100_000
    unacked.delivered(1)
    assert 0 < len(looked_at) <= 1_000


def test_an_answer_that_comes_late_is_about_what_is_still_held() -> None:
    asked: dict[int, Receipt] = {}
    unacked = Unacked(asked.update)
    unacked.last_tag = MANY
    unacked.add(1, [Receipt(1, tag, 1) for tag in range(1, MANY + 1)])
    assert list(asked) == list(range(1, MANY + 1))
    unacked.take(5, False)
    unacked.forget(asked)
    assert unacked.receipts == {}
    assert unacked.take(6, False) == {}
    with pytest.raises(ChannelClosing, match="unknown delivery tag 5"):
        unacked.take(5, False)


def test_a_forgotten_tag_can_be_settled_without_effect_and_a_settled_one_cannot() -> None:
    deliverer = Deliverer()
    unacked = deliverer.unacked
    acked, *_ = deliverer.deliver(10)
    unacked.take(acked, False)
    over = deliverer.deliver(3 * STALE_MAX)
    deliverer.over.update(over)
    while over[-1] in unacked.receipts:
        deliverer.deliver(100)
    assert unacked.take(over[5], False) == {}
    assert list(unacked.take(over[7], True)) == list(range(2, 11))
    with pytest.raises(ChannelClosing, match="unknown delivery tag 1"):
        unacked.take(acked, False)
    with pytest.raises(ChannelClosing, match="unknown delivery tag 99999999"):
        unacked.take(99_999_999, False)
    with pytest.raises(ChannelClosing, match="unknown delivery tag 0"):
        unacked.take(0, False)


def test_what_is_remembered_of_forgotten_tags_is_bounded() -> None:
    deliverer = Deliverer()
    for _ in range(2_000):
        tags = deliverer.deliver(10)
        deliverer.over.update(tags[::2])
        for tag in tags[1::2]:
            deliverer.unacked.take(tag, False)
    assert len(deliverer.unacked.forgotten) <= RANGES_MAX
    # The oldest are the least exact: nobody is refused for what he does with them.
    assert deliverer.unacked.take(1, False) == {}


def test_what_is_put_back_is_in_its_place_again() -> None:
    unacked = (deliverer := Deliverer()).unacked
    deliverer.deliver(10)
    singly = [*unacked.take(7, False).items(), *unacked.take(2, False).items()]
    together = unacked.take(3, True)
    assert list(together) == [1, 3]
    unacked.put_back(singly)
    assert list(unacked.take(2, True)) == [2]
    unacked.put_back(together.items())
    assert list(unacked.take(8, True)) == [1, 3, 4, 5, 6, 7, 8]
    unacked.put_back(together.items())
    assert list(unacked.take_all()) == [1, 3, 9, 10]
    assert unacked.take(0, True) == {}


def test_tags_are_taken_and_put_back_as_by_a_sorted_map() -> None:
    draw = random.Random(1)
    unacked = (deliverer := Deliverer()).unacked
    held: set[int] = set()
    waiting: dict[int, Receipt] = {}
    for _ in range(5_000):
        if (step := draw.randrange(5)) == 0 and len(held) < 3_000:
            held.update(deliverer.deliver(draw.randrange(1, 30)))
        elif step == 1:
            unacked.put_back(waiting.items())
            held.update(waiting)
            waiting = {}
        elif held and step == 2:
            tag = draw.choice(sorted(held))
            taken = unacked.take(tag, True)
            assert list(taken) == sorted(each for each in held if each <= tag)
            held.difference_update(taken)
            waiting |= taken
        elif held:
            waiting |= unacked.take(tag := draw.choice(sorted(held)), False)
            held.remove(tag)
        if draw.random() < 0.1:
            waiting = {}
    assert list(unacked.take_all()) == sorted(held)


class Counted(dict[int, Receipt]):
    """Counts how often it is walked through."""

    walked = 0

    def __iter__(self) -> Iterator[int]:
        self.walked += 1
        return super().__iter__()


def test_to_take_the_lowest_and_to_put_back_does_not_touch_all_the_others() -> None:
    unacked = (deliverer := Deliverer()).unacked
    deliverer.deliver(10_000)
    unacked.receipts = counted = Counted(unacked.receipts)
    for _ in range(300):
        unacked.put_back(unacked.take(1, False).items())
    for tag in range(1, 300):
        assert list(unacked.take(tag, True)) == [tag]
    assert unacked.receipts is counted
    assert counted.walked == 0


def test_what_is_kept_of_settled_tags_is_bounded() -> None:
    unacked = (deliverer := Deliverer()).unacked
    kept = deliverer.deliver(10)
    for _ in range(2_000):
        for tag in deliverer.deliver(10):
            unacked.take(tag, False)
        unacked.put_back(unacked.take(kept[3], False).items())
    assert len(unacked._tags) + len(unacked._put_back) < 2 * STALE_MAX
    assert list(unacked.take(kept[-1], True)) == kept


def test_ranges_are_a_set_of_numbers_whose_lowest_grow_together() -> None:
    ranges = Ranges()
    for number in (5, 3, 4, 4, 9, 7, 8, 1):
        ranges.add(number)
    assert [number for number in range(12) if number in ranges] == [1, 3, 4, 5, 7, 8, 9]
    assert len(ranges) == 3
    for number in range(20, 20 + 2 * RANGES_MAX, 2):
        ranges.add(number)
    assert len(ranges) == RANGES_MAX
    assert [number for number in range(12) if number in ranges] == list(range(1, 12))
    ranges.add(2)
    assert 11 in ranges
    assert 20 + 2 * RANGES_MAX - 1 not in ranges


# -- on a channel -----------------------------------------------------------------------------------------------------


async def holding(server: Server, count: int) -> Client:
    client = await server.connect()
    await client.call(declare("q"), methods.QueueDeclareOk)
    await client.call(consume("q"), methods.BasicConsumeOk)
    await server.broker.publishing.publish("q", [Publication(b"%d" % number) for number in range(count)])
    await client.deliveries(count)
    return client


async def test_a_consumer_whose_deliveries_are_over_again_and_again_does_not_grow(server: Server) -> None:
    client = await holding(server, MANY)
    unacked = client.channel().acknowledgements.unacked
    for _ in range(10):
        [consumer] = client.channel().consuming._consumers.values()
        server.broker._running.release(list(consumer.subscription._engines.held.values()))
        await client.deliveries(MANY)
    assert unacked.last_tag == 11 * MANY
    assert len(unacked.receipts) < 5 * MANY
    # Late, and no error; the last delivery of each is as good as ever.
    client.feed(on(1, methods.BasicAck(1, False), methods.BasicNack(2, False, True)))
    client.feed(on(1, methods.BasicAck(unacked.last_tag, True)))
    await until(lambda: server.counts() == (0, 0, 1))
    client.feed(on(1, methods.BasicAck(unacked.last_tag, False)))
    closed = await client.expect(methods.ChannelClose)
    assert closed.reply_text == f"PRECONDITION_FAILED - unknown delivery tag {unacked.last_tag}"


async def test_tags_of_queues_that_have_gone_do_not_pile_up(server: Server) -> None:
    client = await server.connect()
    for number in range(6):
        await client.call(declare("q"), methods.QueueDeclareOk)
        await client.call(consume("q", f"t{number}"), methods.BasicConsumeOk)
        await server.broker.publishing.publish("q", [Publication(b"x")] * MANY)
        await client.deliveries(MANY)
        await server.broker.declaring.delete_queue("q")
        await client.expect(methods.BasicCancel)
    assert len(client.channel().acknowledgements.unacked.receipts) < 5 * MANY
    await client.call(CLOSE_CHANNEL, methods.ChannelCloseOk)
    await settle()
