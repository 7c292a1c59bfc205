"""What holds for every kind of exchange."""

from collections.abc import Callable

import pytest

from smista.core.exchanges.arguments import freeze
from smista.core.exchanges.direct import DirectMatcher
from smista.core.exchanges.fanout import FanoutMatcher
from smista.core.exchanges.headers import HeadersMatcher
from smista.core.exchanges.matcher import Match, Matcher
from smista.core.exchanges.topic import TopicMatcher
from tests.core.exchanges.kept import is_empty

every_kind = pytest.mark.parametrize("new", [DirectMatcher, FanoutMatcher, TopicMatcher, HeadersMatcher])
New = Callable[[], Matcher[str]]


@every_kind
def test_a_new_exchange_is_empty_and_matches_nothing(new: New) -> None:
    exchange = new()
    assert is_empty(exchange)
    assert exchange.match("a", {"h": 1}) == ()
    assert exchange.explain("a", {"h": 1}) == []


@every_kind
def test_the_same_binding_made_twice_is_one_binding(new: New) -> None:
    exchange = new()
    assert exchange.bind("q", "a")
    assert not exchange.bind("q", "a")
    assert exchange.match("a") == ("q",)
    assert exchange.unbind("q", "a")
    assert exchange.match("a") == ()
    assert is_empty(exchange)


@every_kind
def test_a_destination_bound_with_three_arguments_stays_until_the_last_is_unbound(new: New) -> None:
    exchange = new()
    arguments = [freeze({"x-note": note}) for note in ("one", "two", "three")]
    for each in arguments:
        assert exchange.bind("q", "a", each)
        assert not exchange.bind("q", "a", each)
    assert exchange.match("a") == ("q",)
    assert exchange.explain("a") == [Match("q", "a", each) for each in arguments]
    for each in arguments:
        assert exchange.match("a") == ("q",)
        assert exchange.unbind("q", "a", each)
        assert not exchange.unbind("q", "a", each)
    assert exchange.match("a") == ()
    assert is_empty(exchange)


@pytest.mark.parametrize("new", [FanoutMatcher, HeadersMatcher])
def test_a_destination_bound_by_two_keys_stays_until_both_are_unbound(new: New) -> None:
    exchange = new()
    exchange.bind("q", "a")
    exchange.bind("q", "b")
    assert exchange.match("whatever") == ("q",)
    exchange.unbind("q", "a")
    assert exchange.match("whatever") == ("q",)
    exchange.unbind("q", "b")
    assert exchange.match("whatever") == ()


@every_kind
def test_unbinding_what_is_not_bound_changes_nothing(new: New) -> None:
    exchange = new()
    exchange.bind("q", "a.b")
    assert not exchange.unbind("other", "a.b")
    assert not exchange.unbind("q", "a")
    assert not exchange.unbind("q", "a.b.c")
    assert not exchange.unbind("q", "a.b", freeze({"x-note": 1}))
    assert exchange.match("a.b") == ("q",)


@every_kind
def test_destinations_come_in_the_order_they_were_bound(new: New) -> None:
    exchange = new()
    names = [f"q{number}" for number in (3, 1, 2, 9, 5)]
    for name in names:
        exchange.bind(name, "a")
    assert exchange.match("a") == tuple(names)


@every_kind
def test_what_a_match_gave_does_not_change_with_later_bindings(new: New) -> None:
    exchange = new()
    exchange.bind("q", "a")
    before = exchange.match("a")
    exchange.bind("r", "a")
    assert (before, exchange.match("a")) == (("q",), ("q", "r"))


@every_kind
def test_any_hashable_thing_can_be_a_destination(new: Callable[[], Matcher[object]]) -> None:
    exchange = new()
    for destination in (7, ("exchange", "x"), "q"):
        exchange.bind(destination, "a")
    assert exchange.match("a") == (7, ("exchange", "x"), "q")
