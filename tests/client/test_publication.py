import pytest
from msgspec import UNSET

from smista.client.batch import raw_message
from smista.client.publication import Properties, Publication, body_of
from smista.core.errors import InvalidArgument


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


def test_what_cannot_be_written_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidArgument, match="cannot be written as JSON"):
        body_of({"when": object()})
    with pytest.raises(InvalidArgument, match="not int"):
        body_of(UNSET, 7)
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        raw_message(Publication(1, headers={"when": object()}))


def test_a_publication_carries_the_body_and_the_content_type_that_follows_from_it() -> None:
    one = Publication({"order": 7}, priority=9)
    assert (one.body, one.content_type, one.priority, one.message) == (b'{"order":7}', "application/json", 9, UNSET)
    assert Publication(b"x").content_type is None
    assert Publication("x", content_type="text/x-json").content_type == "text/x-json"


def test_every_property_can_be_given_to_publish_and_to_a_publication() -> None:
    assert {*Properties.__annotations__, "message", "body"} == set(Publication.__struct_fields__)
