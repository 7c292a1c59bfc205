import dataclasses
import datetime
import enum
import uuid
from decimal import Decimal

import msgspec
import pytest
from msgspec import UNSET

from smista.client.batch import raw_message
from smista.client.publication import Properties, Publication, body_of
from smista.errors import InvalidArgument


def test_a_value_becomes_json_with_that_content_type() -> None:
    assert body_of({"pizza": "margherita"}) == (b'{"pizza":"margherita"}', "application/json")
    assert body_of("text") == (b'"text"', "application/json")
    assert body_of(None) == (b"null", "application/json")


@pytest.mark.parametrize("given", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")])
def test_bytes_stay_as_they_are(given: bytes) -> None:
    assert body_of(given) == (b"\x00\xff", None)
    assert body_of(UNSET, given) == (b"\x00\xff", None)


def test_neither_or_both_of_message_and_body_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="needs a `message` or a `body`"):
        body_of(UNSET)
    with pytest.raises(InvalidArgument, match="Both"):
        body_of({"a": 1}, b"b")


class Size(enum.Enum):
    LARGE = "large"
    BOUNDLESS = float("inf")


@dataclasses.dataclass
class Order:
    price: float
    photo: object = None


class Parcel(msgspec.Struct):
    weight: float


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "it is the number nan"),
        (float("-inf"), "it is the number -inf"),
        ({"order": {"price": float("nan")}}, "order.price is the number nan"),
        ([1.0, float("inf")], r"\[1\] is the number inf"),
        ((1, {float("nan")}), r"\[1\]\[0\] is the number nan"),
        ({float("inf"): 1}, "a name in it is the number inf"),
        ({"photo": b"\xff"}, "photo is bytes"),
        ({"photos": [bytearray(b"x")]}, r"photos\[0\] is bytes"),
        ({"photo": memoryview(b"x")}, "photo is bytes"),
        ({"a": {b"x": 1}}, "a name in a is bytes"),
        (Order(float("nan")), "price is the number nan"),
        ({"order": Order(1.0, b"x")}, "order.photo is bytes"),
        ([Parcel(float("inf"))], r"\[0\].weight is the number inf"),
        (Size.BOUNDLESS, "it is the number inf"),
    ],
)
def test_what_json_cannot_represent_is_refused_and_not_stored_as_something_else(value: object, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"cannot be written as JSON: {problem}, which JSON"):
        body_of(value)


def test_what_has_a_usual_form_in_json_is_written_in_that_form() -> None:
    value = {
        "price": Decimal("1.10"),
        "id": uuid.UUID(int=7),
        "at": datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC),
        "on": datetime.date(2026, 1, 31),
        "sizes": (Size.LARGE, frozenset({1})),
        "order": Order(1.5),
        "parcel": Parcel(2.5),
        "names": {7: "seven"},
        "raw": msgspec.Raw(b"[1.0]"),
        "large": 1 << 70,
    }
    assert msgspec.json.decode(body_of(value)[0]) == {
        "price": "1.10",
        "id": "00000000-0000-0000-0000-000000000007",
        "at": "2026-01-31T12:00:00Z",
        "on": "2026-01-31",
        "sizes": ["large", [1]],
        "order": {"price": 1.5, "photo": None},
        "parcel": {"weight": 2.5},
        "names": {"7": "seven"},
        "raw": [1.0],
        "large": 1 << 70,
    }


def test_what_holds_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        body_of(endless)


def test_what_cannot_be_written_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidArgument, match="cannot be written as JSON"):
        body_of({"when": object()})
    with pytest.raises(InvalidArgument, match="not int"):
        body_of(UNSET, 7)
    with pytest.raises(InvalidArgument, match=r"^`headers.when` of the message cannot be sent"):
        raw_message(Publication(1, headers={"fine": 1, "when": object()}))
    with pytest.raises(InvalidArgument, match=r"^`group` of the message cannot be sent"):
        raw_message(Publication(1, group="\ud800"))


def test_a_publication_carries_the_body_and_the_content_type_that_follows_from_it() -> None:
    one = Publication({"order": 7}, priority=9)
    assert (one.body, one.content_type, one.priority, one.message) == (b'{"order":7}', "application/json", 9, UNSET)
    assert Publication(b"x").content_type is None
    assert Publication("x", content_type="text/x-json").content_type == "text/x-json"


def test_every_property_can_be_given_to_publish_and_to_a_publication() -> None:
    assert {*Properties.__annotations__, "message", "body"} == set(Publication.__struct_fields__)
