from decimal import Decimal

import pytest

from smista.core.exchanges.arguments import DEPTH_MAX, Unfreezable, freeze, freeze_value, thaw


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1),
        (False, 0),
        ("1", 1),
        (b"a", "a"),
        (None, 0),
        (None, ""),
        (Decimal(1), 1),
        ([1], 1),
        ([True], [1]),
    ],
)
def test_values_of_different_types_differ(one: object, other: object) -> None:
    assert freeze_value(one) != freeze_value(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (float("nan"), float("nan")),
        ([1, "a"], (1.0, "a")),
        ({"a": 1, "b": [True]}, {"b": [True], "a": 1}),
        (b"a", bytearray(b"a")),
    ],
)
def test_equal_values_are_equal_also_where_python_says_otherwise(one: object, other: object) -> None:
    assert freeze_value(one) == freeze_value(other)
    assert hash(freeze_value(one)) == hash(freeze_value(other))


def test_a_list_is_never_mistaken_for_the_form_of_another_value() -> None:
    assert freeze_value(["bool", True]) != freeze_value(True)
    assert freeze_value(["list", [1]]) != freeze_value([1])


def test_arguments_are_given_back_as_they_came() -> None:
    given: dict[str, object] = {
        "x-match": "any",
        "a": True,
        "b": [1, 2.5, None, {"c": b"raw"}],
        "d": {"e": {"f": []}},
        "g": Decimal("1.50"),
    }
    assert thaw(freeze(given)) == given
    assert thaw(freeze(None)) == {}


def test_nan_is_given_back_as_nan() -> None:
    value = thaw(freeze({"a": float("nan")}))["a"]
    assert isinstance(value, float)
    assert value != value


def test_the_order_of_arguments_says_nothing() -> None:
    assert freeze({"a": 1, "b": 2}) == freeze({"b": 2, "a": 1})


def nested(depth: int) -> object:
    value: object = []
    for _ in range(depth):
        value = [value]
    return value


def test_values_may_be_nested_up_to_a_bound_and_no_deeper() -> None:
    freeze_value(nested(DEPTH_MAX))
    with pytest.raises(Unfreezable):
        freeze_value(nested(DEPTH_MAX + 1))
    with pytest.raises(Unfreezable):
        freeze_value(nested(100_000))


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(Unfreezable, match="set"):
        freeze_value({1})
    with pytest.raises(Unfreezable, match="name"):
        freeze({"table": {1: "one", "two": 2}})
