import math
from collections.abc import Mapping
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smista.core.exchanges.arguments import freeze
from smista.core.exchanges.headers import HeadersMatcher
from tests.core.exchanges.kept import is_empty
from tests.core.exchanges.work import lines_run

Table = Mapping[str, object]


def is_met(arguments: Table, headers: Table | None) -> bool:
    exchange: HeadersMatcher[str] = HeadersMatcher()
    exchange.bind("q", "", freeze(arguments))
    return exchange.match("whatever", headers) == ("q",)


ORDER_OF_ANNA = {"type": "order", "customer": "anna"}


@pytest.mark.parametrize("arguments", [ORDER_OF_ANNA, {**ORDER_OF_ANNA, "x-match": "all"}])
def test_all_is_the_default_and_wants_every_pair(arguments: Table) -> None:
    assert is_met(arguments, {"type": "order", "customer": "anna", "more": 1})
    assert not is_met(arguments, {"type": "order"})
    assert not is_met(arguments, {"type": "order", "customer": "bob"})
    assert not is_met(arguments, {})
    assert not is_met(arguments, None)


def test_any_wants_one_pair() -> None:
    arguments = {**ORDER_OF_ANNA, "x-match": "any"}
    assert is_met(arguments, {"type": "order"})
    assert is_met(arguments, {"type": "invoice", "customer": "anna"})
    assert not is_met(arguments, {"type": "invoice", "customer": "bob"})
    assert not is_met(arguments, None)


def test_nothing_to_compare_takes_every_message_under_all_and_none_under_any() -> None:
    for arguments in ({}, {"x-match": "all"}, {"x-match": "all-with-x"}, {"x-match": "all", "x-other": 1}):
        assert is_met(arguments, None)
        assert is_met(arguments, {"a": 1})
    for arguments in ({"x-match": "any"}, {"x-match": "any-with-x"}, {"x-match": "any", "x-other": 1}):
        assert not is_met(arguments, {"a": 1, "x-other": 1})


def test_arguments_that_start_with_x_count_only_where_asked_for() -> None:
    for how in ("all", "any"):
        assert is_met({"x-match": how, "a": 1, "x-b": 2}, {"a": 1})
    assert not is_met({"x-match": "any", "a": 1, "x-b": 2}, {"x-b": 2})
    assert is_met({"x-match": "any-with-x", "a": 1, "x-b": 2}, {"x-b": 2})
    assert not is_met({"x-match": "all-with-x", "a": 1, "x-b": 2}, {"a": 1})
    assert is_met({"x-match": "all-with-x", "a": 1, "x-b": 2}, {"a": 1, "x-b": 2})


def test_the_x_match_of_a_message_is_never_compared() -> None:
    assert is_met({"x-match": "all-with-x", "a": 1}, {"a": 1, "x-match": "any"})
    assert not is_met({"x-match": "any-with-x", "a": 1}, {"x-match": "any-with-x"})


@pytest.mark.parametrize("how", ["all", "any"])
def test_an_argument_without_a_value_asks_only_that_the_header_is_there(how: str) -> None:
    arguments = {"x-match": how, "a": None}
    some: list[object] = [1, "x", None, [], False]
    assert all(is_met(arguments, {"a": value}) for value in some)
    assert not is_met(arguments, {"b": 1})


def test_a_header_without_a_value_meets_no_value() -> None:
    assert not is_met({"a": 1}, {"a": None})
    assert not is_met({"a": ""}, {"a": None})


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        (1, 1.0, True),
        (1.0, 1, True),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (0, False, False),
        ("1", 1, False),
        ("a", b"a", False),
        (b"a", b"a", True),
        (1, Decimal(1), False),
        (Decimal("1.0"), Decimal(1), True),
        ([1, "a"], [1, "a"], True),
        ([1, "a"], ["a", 1], False),
        ([1], [True], False),
        ([True], [True], True),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({}, [], False),
        (2**63, float(2**63), True),
        (math.nan, math.nan, True),
    ],
)
def test_values_meet_by_type_and_value_but_numbers_by_value(wanted: object, value: object, expected: bool) -> None:
    for how in ("all", "any"):
        assert is_met({"x-match": how, "h": wanted}, {"h": value}) is expected


def test_a_header_too_deep_to_compare_is_there_and_equals_nothing() -> None:
    deep: object = []
    for _ in range(10_000):
        deep = [deep]
    assert is_met({"a": None}, {"a": deep})
    assert not is_met({"a": 1}, {"a": deep})


def test_two_bindings_that_differ_in_their_arguments_are_two() -> None:
    exchange: HeadersMatcher[str] = HeadersMatcher()
    one, other = freeze({"a": 1}), freeze({"a": 2})
    exchange.bind("q", "", one)
    exchange.bind("q", "", other)
    exchange.unbind("q", "", one)
    assert exchange.match("", {"a": 1}) == ()
    assert exchange.match("", {"a": 2}) == ("q",)


def test_a_binding_met_by_several_headers_counts_once() -> None:
    exchange: HeadersMatcher[str] = HeadersMatcher()
    exchange.bind("q", "", freeze({"x-match": "any", "a": 1, "b": None}))
    assert exchange.match("", {"a": 1, "b": 2}) == ("q",)
    assert len(exchange.explain("", {"a": 1, "b": 2})) == 1


def test_the_work_of_a_match_does_not_grow_with_bindings_on_other_values() -> None:
    def work(bindings: int) -> int:
        exchange: HeadersMatcher[str] = HeadersMatcher()
        for number in range(bindings):
            exchange.bind(f"q{number}", "", freeze({"type": "order", "customer": number, "land": "it"}))
            exchange.bind(f"r{number}", "", freeze({"x-match": "any", "land": number, "street": number}))
        message = {"type": "order", "customer": 7, "land": "it", "street": 3}
        assert exchange.match("", message) == ("q7", "r3")
        return lines_run(lambda: exchange.match("", message))

    assert work(bindings=10_000) == work(bindings=20)


def same(one: object, other: object) -> bool:
    """Equality as the rule has it, in plain code."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return type(one) is type(other) and one == other


def plainly_met(arguments: Table, headers: Table) -> bool:
    how = str(arguments.get("x-match", "all"))
    wanted = {
        name: value
        for name, value in arguments.items()
        if name != "x-match" and (how.endswith("-with-x") or not name.startswith("x-"))
    }
    met = [name in headers and (value is None or same(value, headers[name])) for name, value in wanted.items()]
    return all(met) if how.startswith("all") else any(met)


scalar = st.sampled_from([None, True, False, 0, 1, 1.0, 2, "1", "a", b"a", ""])
value = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("kl"), inner, max_size=2),
)
table = st.dictionaries(st.sampled_from(["a", "b", "c", "x-d"]), value, max_size=4)
mode = st.sampled_from([{}, *({"x-match": how} for how in ("all", "any", "all-with-x", "any-with-x"))])
some_arguments = st.builds(lambda pairs, how: {**pairs, **how}, table, mode)
some_change = st.tuples(st.booleans(), st.sampled_from("qr"), some_arguments)


@settings(deadline=None)
@given(st.lists(some_change, max_size=15), st.lists(table, min_size=1, max_size=4), st.data())
def test_the_index_agrees_with_trying_every_binding_after_any_changes(
    changes: list[tuple[bool, str, Table]], messages: list[Table], data: st.DataObject
) -> None:
    exchange: HeadersMatcher[str] = HeadersMatcher()
    bindings: list[tuple[str, Table]] = []
    for is_unbind, destination, arguments in changes:
        if is_unbind and bindings:
            gone = bindings.pop(data.draw(st.integers(0, len(bindings) - 1)))
            assert exchange.unbind(gone[0], "", freeze(gone[1]))
        elif exchange.bind(destination, "", freeze(arguments)):
            bindings.append((destination, arguments))
        for headers in messages:
            meeting = [binding for binding in bindings if plainly_met(binding[1], headers)]
            assert set(exchange.match("", headers)) == {destination for destination, _ in meeting}
            reasons = {(reason.destination, reason.arguments) for reason in exchange.explain("", headers)}
            assert reasons == {(destination, freeze(arguments)) for destination, arguments in meeting}
    for destination, arguments in bindings:
        assert exchange.unbind(destination, "", freeze(arguments))
    assert is_empty(exchange)
    assert not (exchange._filed)
    assert not (exchange._takes_all)
    assert not (exchange._name_counts)
