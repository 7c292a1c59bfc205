"""What is wrong with a value is explained in ordinary words: the field, and what to give."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from smista.core.exchanges import ExchangeSettings
from smista.core.policies import Policy
from smista.core.settings import QueueSettings, check_settings
from smista.errors import InvalidSettings
from smista.exchange_errors import InvalidExchange
from smista.wording import explained
from tests.core.bench import Bench


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    colour: Colour | None = None


class Thing(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    number: int | None = None
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=3)] = "x"
    names: Annotated[list[str], msgspec.Meta(max_length=2)] = []
    is_on: bool = False
    mode: Literal["a", "b"] = "a"
    body: bytes = b""
    inner: list[Inner] = []
    table: dict[str, int] = {}
    pair: tuple[int, int] = (1, 2)
    numbers: dict[int, int] = {}


CASES: list[tuple[object, str]] = [
    ({"number": "x"}, "`number` is text; give a whole number, or null."),
    ({"number": 1.5}, "`number` is a number with a fraction; give a whole number, or null."),
    ({"share": "x"}, "`share` is text; give a number."),
    ({"share": 0}, "`share` is out of range; give a number above 0.0."),
    ({"share": 2}, "`share` is out of range; give a number, 1.0 or less."),
    ({"size": 0}, "`size` is out of range; give a whole number, 1 or more."),
    ({"name": ""}, "`name` is too short; give text of at least 1 character."),
    ({"name": "long"}, "`name` is too long; give text of at most 3 characters."),
    ({"name": None}, "`name` is null; give text."),
    ({"names": ["", "", ""]}, "`names` is too long; give a list of at most 2 members."),
    ({"is_on": 1}, "`is_on` is a whole number; give true or false."),
    ({"mode": "c"}, "`mode` is 'c'; give one of a, b."),
    ({"body": "!"}, "`body` is not base64; encode its bytes so."),
    ({"inner": [{"count": 1}, {}]}, "The required field `inner[1].count` is missing; give it."),
    (
        {"inner": [{"count": 1, "x": 1}]},
        "The unknown field `inner[0].x` is given; leave it out, or check its spelling.",
    ),
    ({"inner": [{"count": 1, "colour": "green"}]}, "`inner[0].colour` is 'green'; give one of red, blue."),
    ({"x": 1}, "The unknown field `x` is given; leave it out, or check its spelling."),
    ({"table": {"a": []}}, "`table[...]` is a list; give a whole number."),
    ({"pair": [1]}, "`pair` has another length; give a list of 2 members."),
    ({"numbers": {"a": 1}}, "A name in `numbers` is text; give a whole number."),
    ([], "The request is a list; give an object."),
]


@pytest.mark.parametrize(("value", "sentence"), CASES, ids=str)
def test_a_value_that_does_not_fit_is_told_with_its_cure(value: object, sentence: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(msgspec.json.encode(value), type=Thing)
    assert explained(raised.value, Thing) == sentence


def test_it_is_said_where_a_field_stands() -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert({"number": "x"}, Thing)
    text = explained(raised.value, place="payload", where=" in the query")
    assert text == "`number` in the query is text; give a whole number, or null."
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert([], Thing)
    assert explained(raised.value, place="payload") == "`payload` is a list; give an object."


WRONG: Any = "many"


def test_settings_in_process_are_told_so_too() -> None:
    with pytest.raises(InvalidSettings, match=r"`max_depth` is text; give a whole number, or null\.$"):
        check_settings(QueueSettings(max_depth=WRONG))
    with pytest.raises(InvalidSettings, match=r"`overflow` is 'many'; give one of reject, drop-oldest, "):
        check_settings(QueueSettings(overflow=WRONG))
    with pytest.raises(InvalidSettings, match=r"`lease_ms` is text; give a whole number\.$"):
        Policy("p", "*", 0, {"lease_ms": WRONG})
    with pytest.raises(InvalidSettings, match="give each field its type"):
        check_settings(QueueSettings(max_depth=object()))  # type: ignore[arg-type]  # that is the test


def test_an_exchanges_settings_are_told_so_too(orders: Bench) -> None:
    with pytest.raises(InvalidExchange, match="`kind` is 'many'; give one of direct, "):
        orders.state.namespaces["/"].topology.check_declare("new", ExchangeSettings(kind=WRONG))
