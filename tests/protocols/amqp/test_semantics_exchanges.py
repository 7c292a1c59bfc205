"""Exchanges: where a message goes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.protocols.amqp.peer import Basic, Channel, Exchange, Queue
from tests.protocols.amqp.places import Place

Refused = Callable[..., str]


def exchange_bind(channel: Channel, source: str, destination: str, key: str = "") -> None:
    channel.call(Exchange.Bind(source=source, destination=destination, routing_key=key), Exchange.BindOk)


def arrives(channel: Channel, queue: str, exchange: str, key: str = "", **properties: Any) -> bool:
    channel.publish(b"x", key, exchange, **properties)
    found = channel.bodies(queue)
    assert len(found) <= 1
    return bool(found)


@pytest.mark.parametrize(
    "name", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", "amq.rabbitmq.trace"]
)
def test_there_are_exchanges_from_the_start(channel: Channel, name: str) -> None:
    channel.exchange(name, passive=True)


def test_the_default_exchange_leads_to_queues_by_their_names(channel: Channel, queue: str) -> None:
    assert arrives(channel, queue, "", queue)
    assert not arrives(channel, queue, "", queue + "x")


def test_a_direct_exchange_goes_by_the_key(place: Place, channel: Channel, queue: str) -> None:
    exchange = channel.exchange(place.name("x"), "direct")
    channel.bind(queue, exchange, "a")
    channel.bind(queue, exchange, "b")
    assert [arrives(channel, queue, exchange, key) for key in ("a", "b", "c", "a.b", "")] == [True, True, *[False] * 3]


def test_a_fanout_exchange_asks_for_nothing(place: Place, channel: Channel, queue: str) -> None:
    exchange = channel.exchange(place.name("x"), "fanout")
    channel.bind(queue, exchange, "a")
    channel.bind(queue, exchange, "b")
    assert arrives(channel, queue, exchange, "whatever")


KEYS = ("", "a", "a.b", "a.b.c", "b", "a..b", ".", "a.", ".b", "a.x.y.c", "A.b", "**", "a#")


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("#", KEYS),
        ("#.#", KEYS),
        ("*", ("a", "b", "**", "a#")),
        ("a.*", ("a.b", "a.")),
        ("a.#", ("a", "a.b", "a.b.c", "a..b", "a.", "a.x.y.c")),
        ("*.b", ("a.b", ".b", "A.b")),
        ("#.b", ("a.b", "b", "a..b", ".b", "A.b")),
        ("a.*.c", ("a.b.c",)),
        ("a.#.c", ("a.b.c", "a.x.y.c")),
        ("", ("",)),
        (".", (".",)),
        ("a..b", ("a..b",)),
        ("*.*", ("a.b", ".", "a.", ".b", "A.b")),
        ("**", ("**",)),
        ("a#", ("a#",)),
    ],
)
def test_a_topic_exchange_goes_by_words(
    place: Place, channel: Channel, queue: str, pattern: str, matches: tuple[str, ...]
) -> None:
    exchange = channel.exchange(place.name("x"), "topic")
    channel.bind(queue, exchange, pattern)
    assert tuple(key for key in KEYS if arrives(channel, queue, exchange, key)) == matches


WHEN = datetime(2020, 1, 1, tzinfo=UTC)
SAMPLES: dict[str, dict[str, Any] | None] = {
    "none": None,
    "a1": {"a": 1},
    "bx": {"b": "x"},
    "both": {"a": 1, "b": "x"},
    "x-a": {"x-a": 1},
    "float": {"a": 1.0},
    "bool": {"a": True},
    "text": {"a": "1"},
    "list": {"a": [1]},
    "table": {"a": {"b": 1}},
    "octets": {"a": bytearray(b"1")},
    "decimal": {"a": Decimal(1)},
    "time": {"a": WHEN},
    "seconds": {"a": 1_577_836_800},
}


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, "both"),
        ({"x-match": "any", "a": 1, "b": "x"}, "a1 bx both float"),
        ({"a": 1}, "a1 both float"),
        ({"x-match": "all"}, " ".join(SAMPLES)),
        ({"x-match": "any"}, ""),
        ({"a": None}, "a1 both float bool text list table octets decimal time seconds"),
        ({"x-match": "all", "x-a": 1}, " ".join(SAMPLES)),
        ({"x-match": "any-with-x", "x-a": 1}, "x-a"),
        ({"x-match": "all-with-x", "x-a": 1}, "x-a"),
        ({"a": 1.0}, "a1 both float"),
        ({"a": True}, "bool"),
        ({"a": "1"}, "text octets"),
        ({"a": [1]}, "list"),
        ({"a": {"b": 1}}, "table"),
        ({"a": bytearray(b"1")}, "text octets"),
        ({"a": Decimal(1)}, "decimal"),
        ({"a": WHEN}, "time seconds"),
    ],
    ids=str,
)
def test_a_headers_exchange_goes_by_headers(
    place: Place, channel: Channel, queue: str, rule: dict[str, Any], matches: str
) -> None:
    exchange = channel.exchange(place.name("x"), "headers")
    channel.bind(queue, exchange, "", rule)
    found = [name for name, headers in SAMPLES.items() if arrives(channel, queue, exchange, headers=headers)]
    assert " ".join(found) == matches
    unbind = Queue.Unbind(queue=queue, exchange=exchange, routing_key="", arguments=rule)
    channel.call(unbind, Queue.UnbindOk)
    assert not any(arrives(channel, queue, exchange, headers=headers) for headers in SAMPLES.values())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("most", 'Invalid x-match field value <<"most">>; expected all, any, all-with-x, or any-with-x'),
        (5, "Invalid x-match field type byte (value 5); expected longstr"),
    ],
)
def test_how_headers_are_matched_has_to_be_said_right(
    place: Place, channel: Channel, queue: str, refused: Refused, value: Any, text: str
) -> None:
    exchange = channel.exchange(place.name("x"), "headers")
    bind = Queue.Bind(queue=queue, exchange=exchange, routing_key="", arguments={"x-match": value})
    assert refused(bind) == f"channel 406 PRECONDITION_FAILED - {text}"


def test_arguments_of_a_binding_take_no_more_than_64_kib(
    place: Place, channel: Channel, queue: str, refused: Refused
) -> None:
    """As over HTTP. To RabbitMQ only the frame sets a limit, and each binding may then take 128 KiB of its memory."""
    if place.is_rabbitmq:
        pytest.skip("a limit of ours")
    source, target = (channel.exchange(place.name("x"), "headers") for _ in range(2))
    channel.bind(queue, source, "", {"h": "x" * 65_000})
    arguments: Any = {"h": "x" * 70_000}
    for bind in (
        Queue.Bind(queue=queue, exchange=source, routing_key="", arguments=arguments),
        Exchange.Bind(source=source, destination=target, routing_key="", arguments=arguments),
    ):
        refusal = refused(bind)
        assert refusal.startswith("channel 406 PRECONDITION_FAILED - ")
        assert "is the most" in refusal
    channel.call(Queue.Unbind(queue=queue, exchange=source, routing_key="", arguments=arguments), Queue.UnbindOk)


# -- from exchange to exchange ----------------------------------------------------------------------------------------


def test_a_queue_gets_one_copy_however_many_ways_lead_there(place: Place, channel: Channel, queue: str) -> None:
    source = channel.exchange(place.name("source"), "topic")
    middle = channel.exchange(place.name("middle"), "fanout")
    exchange_bind(channel, source, middle, "#")
    channel.bind(queue, middle)
    channel.bind(queue, source, "a.*")
    channel.bind(queue, source, "*.b")
    channel.publish(b"x", "a.b", source)
    message = channel.got(queue)
    assert isinstance(message.method, Basic.GetOk)
    assert (message.method.exchange, message.method.routing_key) == (source, "a.b")
    assert channel.get(queue) is None


@pytest.mark.parametrize("kind", ["amq.headers", "amq.match"])
def test_an_exchange_may_lead_to_one_that_looks_at_headers(
    place: Place, channel: Channel, queue: str, kind: str
) -> None:
    source = channel.exchange(place.name("source"), "fanout")
    exchange_bind(channel, source, kind)
    channel.bind(queue, kind, "", {"wanted": queue})
    assert [arrives(channel, queue, source, headers={"wanted": value}) for value in ("no", queue, "no")] == [
        False,
        True,
        False,
    ]


def test_an_unbound_exchange_leads_nowhere_any_more(place: Place, channel: Channel, queue: str) -> None:
    source = channel.exchange(place.name("source"), "fanout")
    target = channel.exchange(place.name("target"), "fanout")
    exchange_bind(channel, source, target)
    channel.bind(queue, target)
    assert arrives(channel, queue, source)
    channel.call(Exchange.Unbind(source=source, destination=target, routing_key=""), Exchange.UnbindOk)
    assert not arrives(channel, queue, source)


# -- alternate exchanges ----------------------------------------------------------------------------------------------


def test_what_matches_nothing_goes_to_the_alternate_exchange(place: Place, channel: Channel, queue: str) -> None:
    alternate = channel.exchange(place.name("alternate"), "fanout")
    exchange = channel.exchange(place.name("x"), "direct", {"alternate-exchange": alternate})
    other = channel.declare(place.name("other"))
    channel.bind(other, exchange, "known")
    channel.bind(queue, alternate)
    channel.confirm()
    channel.publish(b"known", "known", exchange, mandatory=True)
    channel.publish(b"unknown", "unknown", exchange, mandatory=True)
    assert channel.confirmed(2) == []
    assert not channel.events
    message = channel.got(queue)
    assert message.body == b"unknown"
    assert isinstance(message.method, Basic.GetOk)
    assert (message.method.exchange, message.method.routing_key) == (exchange, "unknown")
    assert channel.bodies(other) == [b"known"]


def test_an_alternate_exchange_that_is_not_there_takes_nothing(place: Place, channel: Channel) -> None:
    exchange = channel.exchange(place.name("x"), "direct", {"alternate-exchange": "nowhere"})
    channel.publish(b"back", "unknown", exchange, mandatory=True)
    assert channel.returned().body == b"back"
