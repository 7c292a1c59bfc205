"""Time to live, dead letters, full queues and priorities."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.amqp.peer import Basic, Channel, Message, Peer
from tests.protocols.amqp.places import Place
from tests.waiting import eventually, with_more_time


def to(queue: str) -> dict[str, str]:
    """Arguments that send dead letters to a queue by its name."""
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def awaited(channel: Channel, queue: str) -> Message:
    """The next message in a queue, waited for; it is not acknowledged."""
    tag = channel.consume(queue)
    message = channel.delivery()
    channel.cancel(tag)
    return message


def reject(channel: Channel, queue: str) -> None:
    channel.reject(channel.got(queue).tag)


@pytest.fixture
def dead(place: Place, channel: Channel) -> str:
    return channel.declare(place.name("dead"))


# -- time to live -----------------------------------------------------------------------------------------------------


def test_a_message_expires_by_its_queues_time_to_live(place: Place, channel: Channel, dead: str) -> None:
    queue = channel.declare(place.name(), {"x-message-ttl": 100, **to(dead)})
    channel.publish(b"old", queue)
    assert awaited(channel, dead).body == b"old"
    assert channel.count(queue) == (0, 0)


def test_a_message_expires_by_its_own_time_to_live(place: Place, channel: Channel, dead: str) -> None:
    queue = channel.declare(place.name(), to(dead))
    channel.publish(b"old", queue, expiration="100")
    assert awaited(channel, dead).body == b"old"


@pytest.mark.parametrize(("of_queue", "of_message"), [(100, "600000"), (600_000, "100")])
def test_the_shorter_time_to_live_holds(
    place: Place, channel: Channel, dead: str, of_queue: int, of_message: str
) -> None:
    queue = channel.declare(place.name(), {"x-message-ttl": of_queue, **to(dead)})
    channel.publish(b"old", queue, expiration=of_message)
    assert awaited(channel, dead).body == b"old"


def test_without_dead_letters_what_expires_is_gone(place: Place, channel: Channel, dead: str) -> None:
    queue = channel.declare(place.name(), {"x-message-ttl": 100})
    clock = channel.declare(place.name(), {"x-message-ttl": 300, **to(dead)})
    channel.publish(b"gone", queue)
    channel.publish(b"later", clock)
    awaited(channel, dead)
    assert channel.count(queue) == (0, 0)
    assert channel.get(queue) is None


@pytest.mark.parametrize("by", ["queue", "message"])
def test_a_time_to_live_of_0_is_for_a_consumer_that_waits(place: Place, channel: Channel, dead: str, by: str) -> None:
    queue = channel.declare(place.name(), {**({"x-message-ttl": 0} if by == "queue" else {}), **to(dead)})
    expiration = None if by == "queue" else "0"
    channel.publish(b"nobody", queue, expiration=expiration)
    assert channel.get(queue) is None
    assert awaited(channel, dead).body == b"nobody"
    channel.consume(queue)
    for number in range(20):
        channel.publish(b"%d" % number, queue, expiration=expiration)
    assert [message.body for message in channel.deliveries(20)] == [b"%d" % number for number in range(20)]


def test_what_a_consumer_holds_does_not_expire(place: Place, channel: Channel) -> None:
    for attempt in with_more_time(100, 2_000, 20_000):
        with attempt as ttl_ms:
            dead, rang = channel.declare(place.name("dead")), channel.declare(place.name("rang"))
            queue = channel.declare(place.name(), {"x-message-ttl": int(ttl_ms), **to(dead)})
            clock = channel.declare(place.name(), {"x-message-ttl": 3 * int(ttl_ms), **to(rang)})
            channel.publish(b"held", queue)
            held = channel.got(queue)
            channel.publish(b"later", clock)
            awaited(channel, rang)
            assert channel.count(dead) == (0, 0)
            channel.nack(held.tag)
            assert awaited(channel, dead).deaths[0]["reason"] == "expired"


# -- what a dead letter carries ---------------------------------------------------------------------------------------


def test_a_dead_letter_tells_where_and_why_it_died(place: Place, channel: Channel, dead: str) -> None:
    exchange = channel.exchange(place.name("dlx"), "fanout")
    channel.bind(dead, exchange)
    queue = channel.declare(place.name(), {"x-message-ttl": 50, "x-dead-letter-exchange": exchange})
    source = channel.exchange(place.name("x"), "topic")
    channel.bind(queue, source, "a.*")
    channel.publish(b"body", "a.b", source, headers={"zz": 1, "aa": 2}, expiration="60000", delivery_mode=2, priority=3)
    message = awaited(channel, dead)
    assert message.body == b"body"
    assert isinstance(message.method, Basic.Deliver)
    assert (message.method.exchange, message.method.routing_key, message.redelivered) == (exchange, "a.b", False)
    properties = message.properties
    assert (properties.expiration, properties.delivery_mode, properties.priority) == (None, 2, 3)
    assert message.deaths == [
        {
            "count": 1,
            "reason": "expired",
            "queue": queue,
            "exchange": source,
            "routing-keys": ["a.b"],
            "original-expiration": "60000",
        }
    ]
    del message.headers["x-death"]
    assert {name: value for name, value in message.headers.items() if name != "x-death"} == {
        "aa": 2,
        "x-first-death-exchange": source,
        "x-first-death-queue": queue,
        "x-first-death-reason": "expired",
        "zz": 1,
    }
    assert list(message.headers) == sorted(message.headers)


def test_a_dead_letter_goes_by_its_queues_key_or_else_its_own(place: Place, channel: Channel, dead: str) -> None:
    exchange = channel.exchange(place.name("dlx"))
    with_key = channel.declare(
        place.name(), {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "of the queue"}
    )
    without = channel.declare(place.name(), {"x-dead-letter-exchange": exchange})
    channel.bind(dead, exchange, "of the queue")
    channel.bind(dead, exchange, without)
    for queue in (with_key, without):
        channel.publish(b"x", queue)
        reject(channel, queue)
    keys = [getattr(awaited(channel, dead).method, "routing_key", None) for _ in range(2)]
    assert keys == ["of the queue", without]


def test_a_dead_letters_further_keys_are_listed_and_followed(place: Place, channel: Channel, dead: str) -> None:
    exchange = channel.exchange(place.name("dlx"))
    also = channel.declare(place.name("also"))
    queue = channel.declare(place.name(), {"x-dead-letter-exchange": exchange})
    channel.bind(dead, exchange, queue)
    channel.bind(also, exchange, "further")
    channel.publish(b"x", queue, headers={"CC": ["further"]})
    reject(channel, queue)
    for target in (dead, also):
        message = awaited(channel, target)
        assert message.deaths[0]["routing-keys"] == [queue, "further"]
        assert message.headers["CC"] == ["further"]


def test_a_key_of_the_queues_replaces_further_keys(place: Place, channel: Channel, dead: str) -> None:
    queue = channel.declare(place.name(), to(dead))
    channel.publish(b"x", queue, headers={"CC": ["further"], "BCC": ["blind"]})
    reject(channel, queue)
    message = awaited(channel, dead)
    assert message.deaths[0]["routing-keys"] == [queue, "further"]
    assert "CC" not in message.headers


def test_dying_again_counts_up_and_the_newest_stands_first(place: Place, channel: Channel) -> None:
    work, retry = place.name("work"), place.name("retry")
    channel.declare(work, to(retry))
    channel.declare(retry, {"x-message-ttl": 50, **to(work)})
    channel.publish(b"x", work, expiration="60000")
    times = []
    for round_number in range(4):
        message = awaited(channel, work)
        if round_number:
            assert message.deaths == [
                {
                    "count": round_number,
                    "reason": "expired",
                    "queue": retry,
                    "exchange": "",
                    "routing-keys": [retry],
                },
                {
                    "count": round_number,
                    "reason": "rejected",
                    "queue": work,
                    "exchange": "",
                    "routing-keys": [work],
                    "original-expiration": "60000",
                },
            ]
            times.append([death["time"] for death in message.headers["x-death"]])
            assert message.headers["x-first-death-queue"] == work
            assert message.headers["x-first-death-reason"] == "rejected"
        channel.reject(message.tag)
    # An entry keeps the time of its first.
    assert times == [times[0]] * 3


def test_the_deaths_that_a_message_brings_along_are_gone_on_with(place: Place, channel: Channel, dead: str) -> None:
    queue = channel.declare(place.name(), to(dead))
    other = {"queue": "elsewhere", "reason": "expired", "count": 3}
    channel.publish(b"x", queue, headers={"x-death": [{"queue": queue, "reason": "rejected", "count": 5}, other]})
    reject(channel, queue)
    message = awaited(channel, dead)
    assert message.headers == {"x-death": [{"queue": queue, "reason": "rejected", "count": 6}, other]}


def test_a_dead_letter_goes_to_every_queue_its_exchange_leads_to(place: Place, channel: Channel, dead: str) -> None:
    exchange = channel.exchange(place.name("dlx"), "fanout")
    second = channel.declare(place.name("second"))
    channel.bind(dead, exchange)
    channel.bind(second, exchange)
    queue = channel.declare(place.name(), {"x-dead-letter-exchange": exchange})
    channel.publish(b"x", queue)
    reject(channel, queue)
    assert awaited(channel, dead).deaths == awaited(channel, second).deaths


def test_dead_letters_are_routed_by_their_headers(place: Place, channel: Channel, dead: str) -> None:
    exchange = channel.exchange(place.name("dlx"), "headers")
    channel.bind(dead, exchange, "", {"kind": "wanted"})
    queue = channel.declare(place.name(), {"x-dead-letter-exchange": exchange})
    for kind in ("other", "wanted"):
        channel.publish(kind.encode(), queue, headers={"kind": kind})
        reject(channel, queue)
    assert awaited(channel, dead).body == b"wanted"
    assert channel.count(dead) == (0, 0)


@pytest.mark.parametrize(
    "arguments", [{"x-dead-letter-exchange": "nowhere"}, {"x-dead-letter-exchange": "amq.direct"}, {}]
)
def test_dead_letters_that_lead_nowhere_are_gone(place: Place, channel: Channel, arguments: dict[str, Any]) -> None:
    queue = channel.declare(place.name(), arguments)
    channel.publish(b"x", queue)
    reject(channel, queue)
    channel.publish(b"next", queue)
    assert channel.bodies(queue) == [b"next"]


def test_a_queue_that_expires_takes_its_messages_along(place: Place, channel: Channel, dead: str) -> None:
    queue = channel.declare(place.name(), {"x-expires": 100, **to(dead)})
    clock = channel.declare(place.name(), {"x-message-ttl": 600, **to(dead)})
    channel.publish(b"no dead letter", queue)
    channel.publish(b"later", clock)
    assert awaited(channel, dead).body == b"later"
    assert channel.count(dead) == (0, 0)


# -- circles ----------------------------------------------------------------------------------------------------------


def test_a_circle_without_a_rejection_is_broken(place: Place, channel: Channel, dead: str) -> None:
    first, second = place.name("first"), place.name("second")
    channel.declare(first, {"x-message-ttl": 50, **to(second)})
    channel.declare(second, {"x-message-ttl": 50, **to(first)})
    alone = place.name("alone")
    channel.declare(alone, {"x-message-ttl": 50, **to(alone)})
    channel.publish(b"x", first)
    channel.publish(b"x", alone)
    clock = channel.declare(place.name(), {"x-message-ttl": 500, **to(dead)})
    channel.publish(b"later", clock)
    awaited(channel, dead)
    # A broker that was held up is late with all of them; a circle that is not broken never ends.
    eventually(lambda: all(channel.count(queue) == (0, 0) for queue in (first, second, alone) * 5))


def test_a_rejected_message_may_come_back_to_its_own_queue(place: Place, channel: Channel) -> None:
    queue = place.name()
    channel.declare(queue, to(queue))
    channel.publish(b"x", queue)
    for count in range(1, 4):
        reject(channel, queue)
        channel.settle(queue)
        message = awaited(channel, queue)
        assert [death["count"] for death in message.deaths] == [count]
        channel.nack(message.tag)
        channel.settle(queue)


# -- full queues ------------------------------------------------------------------------------------------------------


def publish_all(channel: Channel, queue: str, *bodies: bytes) -> list[int]:
    """Publish; returns the tags that were refused."""
    channel.confirm()
    for body in bodies:
        channel.publish(body, queue)
    return channel.confirmed(len(bodies))


def test_a_full_queue_drops_its_head(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-max-length": 2})
    assert publish_all(channel, queue, b"0", b"1", b"2", b"3") == []
    assert channel.bodies(queue) == [b"2", b"3"]


def test_what_a_full_queue_drops_is_a_dead_letter(place: Place, channel: Channel, dead: str) -> None:
    queue = channel.declare(place.name(), {"x-max-length": 2, **to(dead)})
    assert publish_all(channel, queue, b"0", b"1", b"2", b"3") == []
    letters = [awaited(channel, dead) for _ in range(2)]
    assert [letter.body for letter in letters] == [b"0", b"1"]
    assert [letter.deaths[0]["reason"] for letter in letters] == ["maxlen", "maxlen"]
    assert channel.bodies(queue) == [b"2", b"3"]


def test_a_full_queue_may_refuse_instead(place: Place, channel: Channel, dead: str) -> None:
    queue = channel.declare(place.name(), {"x-max-length": 2, "x-overflow": "reject-publish", **to(dead)})
    assert publish_all(channel, queue, b"0", b"1", b"2", b"3") == [3, 4]
    assert channel.bodies(queue) == [b"0", b"1"]
    assert channel.count(dead) == (0, 0)


def test_what_a_full_queue_refuses_may_be_a_dead_letter(place: Place, channel: Channel, dead: str) -> None:
    queue = channel.declare(place.name(), {"x-max-length": 2, "x-overflow": "reject-publish-dlx", **to(dead)})
    assert publish_all(channel, queue, b"0", b"1", b"2", b"3") == [3, 4]
    letters = [awaited(channel, dead) for _ in range(2)]
    assert [(letter.body, letter.deaths[0]["reason"]) for letter in letters] == [(b"2", "maxlen"), (b"3", "maxlen")]
    assert channel.bodies(queue) == [b"0", b"1"]


def test_a_limit_on_bytes_drops_as_many_as_it_takes(place: Place, channel: Channel, dead: str) -> None:
    queue = channel.declare(place.name(), {"x-max-length-bytes": 10, **to(dead)})
    assert publish_all(channel, queue, b"aaaa", b"bbbb", b"cccc", b"d" * 11, b"ee") == []
    assert [awaited(channel, dead).body for _ in range(4)] == [b"aaaa", b"bbbb", b"cccc", b"d" * 11]
    assert channel.bodies(queue) == [b"ee"]


def test_a_limit_on_bytes_may_refuse(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    assert publish_all(channel, queue, b"aaaa", b"bbbb", b"cccc", b"d" * 11, b"ee") == [3, 4]
    assert channel.bodies(queue) == [b"aaaa", b"bbbb", b"ee"]


@pytest.mark.parametrize("limit", [{"x-max-length": 1}, {"x-max-length-bytes": 10}])
def test_what_consumers_hold_does_not_count_towards_a_limit(
    place: Place, channel: Channel, limit: dict[str, int]
) -> None:
    queue = channel.declare(place.name(), {**limit, "x-overflow": "reject-publish"})
    assert publish_all(channel, queue, b"a" * 10) == []
    channel.got(queue)
    channel.publish(b"b" * 10, queue)
    assert isinstance(channel.next(), Basic.Ack)
    assert channel.bodies(queue) == [b"b" * 10]


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_what_goes_straight_to_a_consumer_never_fills_the_queue(place: Place, channel: Channel, overflow: str) -> None:
    queue = channel.declare(place.name(), {"x-max-length": 1, "x-overflow": overflow})
    channel.consume(queue)
    bodies = [b"%d" % number for number in range(50)]
    assert publish_all(channel, queue, *bodies) == []
    assert [message.body for message in channel.deliveries(50)] == bodies


def test_a_queue_of_no_length_only_passes_on(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-max-length": 0})
    assert publish_all(channel, queue, b"nobody") == []
    assert channel.bodies(queue) == []
    channel.consume(queue, no_ack=True)
    channel.publish(b"1", queue)
    channel.publish(b"2", queue)
    assert [message.body for message in channel.deliveries(2)] == [b"1", b"2"]


def test_what_comes_back_to_a_full_queue_is_its_head(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-max-length": 1})
    channel.publish(b"1", queue)
    held = channel.got(queue)
    channel.publish(b"2", queue)
    channel.nack(held.tag)
    channel.settle(queue)
    assert channel.bodies(queue) == [b"2"]


def test_a_full_dead_letter_queue_drops_its_own_head(place: Place, channel: Channel, dead: str) -> None:
    middle = channel.declare(place.name(), {"x-max-length": 1, **to(dead)})
    first = channel.declare(place.name(), {"x-max-length": 1, **to(middle)})
    assert publish_all(channel, first, b"0", b"1", b"2", b"3") == []
    letters = [awaited(channel, dead) for _ in range(2)]
    assert [letter.body for letter in letters] == [b"0", b"1"]
    assert [[death["queue"] for death in letter.deaths] for letter in letters] == [[middle, first]] * 2
    assert (channel.bodies(middle), channel.bodies(first)) == ([b"2"], [b"3"])


# -- priorities -------------------------------------------------------------------------------------------------------


def test_higher_priorities_come_first_and_none_counts_as_0(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-max-priority": 5})
    for body, priority in ((b"none", None), (b"0", 0), (b"1", 1), (b"5", 5), (b"3", 3)):
        channel.publish(body, queue, priority=priority)
    assert channel.bodies(queue) == [b"5", b"3", b"1", b"none", b"0"]


def test_a_priority_above_the_maximum_is_the_maximum(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-max-priority": 5})
    for number, priority in enumerate((5, 9, 255, 5)):
        channel.publish(b"%d" % number, queue, priority=priority)
    found = [channel.got(queue) for _ in range(4)]
    assert [(message.body, message.properties.priority) for message in found] == [
        (b"0", 5),
        (b"1", 9),
        (b"2", 255),
        (b"3", 5),
    ]


def test_without_a_maximum_priorities_mean_nothing(channel: Channel, queue: str) -> None:
    for number, priority in enumerate((0, 5, 9, 255, 1)):
        channel.publish(b"%d" % number, queue, priority=priority)
    assert channel.bodies(queue) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_full_queue_with_priorities_drops_what_would_come_first(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-max-priority": 5, "x-max-length": 2})
    for number, priority in enumerate((5, 1, 3, 1, 5)):
        channel.publish(b"%d" % number, queue, priority=priority)
    channel.settle(queue)
    assert channel.bodies(queue) == [b"1", b"3"]


def test_a_message_of_higher_priority_overtakes_what_waits(place: Place, peer: Peer, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-max-priority": 10})
    consumer = peer.channel()
    consumer.qos(1)
    channel.publish(b"first", queue, priority=1)
    consumer.consume(queue)
    first = consumer.delivery()
    channel.publish(b"low", queue, priority=1)
    channel.publish(b"high", queue, priority=10)
    channel.settle(queue)
    consumer.ack(first.tag)
    assert consumer.delivery().body == b"high"


# -- dead letters for who waits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["rejected", "expired", "maxlen"])
@pytest.mark.parametrize(
    ("bounds", "kept", "refused"),
    [
        ({"x-max-length": 1}, [b"4"], []),
        ({"x-max-length": 0}, [], []),
        ({"x-message-ttl": 0}, [], []),
        ({"x-max-length": 1, "x-overflow": "reject-publish"}, [b"2"], []),
        ({"x-max-length-bytes": 1, "x-overflow": "reject-publish"}, [b"2"], []),
        ({"x-max-length": 1, "x-overflow": "reject-publish-dlx"}, [b"2"], [b"3", b"4"]),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_dead_letters_reach_who_waits_on_a_queue_that_holds_little(
    place: Place,
    channel: Channel,
    prefetch: int,
    bounds: dict[str, object],
    kept: list[bytes],
    refused: list[bytes],
    way: str,
) -> None:
    full = channel.declare(place.name("full"))
    more = to(full) if "reject-publish-dlx" in bounds.values() else {}
    dead = channel.declare(place.name("dead"), {**bounds, **more})
    causes = {"expired": {"x-message-ttl": 100}, "maxlen": {"x-max-length": 0}}
    queue = channel.declare(place.name(), {**to(dead), **causes.get(way, {})})
    with place.connect() as peer:
        consumer = peer.channel()
        consumer.qos(prefetch)
        consumer.consume(dead)
        for number in range(5):
            channel.publish(b"%d" % number, queue)
        if way == "rejected":
            for _ in range(5):
                channel.got(queue)
            channel.nack(0, multiple=True, requeue=False)
        count = prefetch or 5
        assert [message.body for message in consumer.deliveries(count)] == [b"%d" % each for each in range(count)]
        eventually(lambda: channel.count(queue)[0] == 0)
        for each in (queue, dead, full):
            channel.settle(each)
        consumer.settle(dead)
        assert consumer.waiting() == []
        assert channel.bodies(dead) == (kept if prefetch else [])
        assert channel.bodies(full) == (refused if prefetch else [])


def test_a_dead_letter_that_a_queue_of_no_length_refuses_is_gone(place: Place, channel: Channel) -> None:
    dead = channel.declare(place.name("dead"), {"x-max-length": 0, "x-overflow": "reject-publish"})
    queue = channel.declare(place.name(), {**to(dead), "x-max-length": 0})
    channel.consume(dead)
    channel.publish(b"x", queue)
    for each in (queue, dead):
        channel.settle(each)
    assert channel.waiting() == []
    assert channel.count(dead) == (0, 1)
