"""Message ids and receipts as the outside sees them."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smista.core.errors import InvalidReceipt, MessageNotFound
from smista.core.message import Receipt
from smista.engine.ids import Ids

IDENTITY = bytes(range(32))
NUMBERS = st.integers(1, (1 << 50) - 1)
TIMES_MS = st.integers(0, (1 << 48) - 1)
RECEIPTS = st.builds(
    Receipt,
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
)
_DIGITS = string.ascii_letters + string.digits + "-_+/="
ids = Ids(IDENTITY)


@given(NUMBERS, TIMES_MS)
def test_an_id_says_number_and_time_again(number: int, created_at_ms: int) -> None:
    assert ids.parse(ids.message_id(number, created_at_ms)) == (number, created_at_ms)


@given(st.lists(st.tuples(TIMES_MS, NUMBERS), min_size=2, max_size=2, unique=True))
def test_ids_sort_by_time_and_then_by_number_and_are_unique(pair: list[tuple[int, int]]) -> None:
    first, second = sorted(pair)
    assert ids.message_id(first[1], first[0]) < ids.message_id(second[1], second[0])


def test_an_id_looks_like_a_uuid_of_version_7() -> None:
    text = ids.message_id(1, 1_700_000_000_000)
    assert [len(part) for part in text.split("-")] == [8, 4, 4, 4, 12]
    assert (text[14], text[19] in "89ab") == ("7", True)


@pytest.mark.parametrize("text", ["", "x", "-", "0" * 32, "018bcfe5-6800-7000-8000-000000000001", "g" * 36, "9" * 5000])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(MessageNotFound):
        ids.parse(text)


def test_the_id_of_another_broker_is_refused() -> None:
    with pytest.raises(MessageNotFound):
        ids.parse(Ids(bytes(32)).message_id(1, 1_700_000_000_000))


@given(st.text(max_size=60))
def test_no_text_does_harm_as_an_id(text: str) -> None:
    with pytest.raises(MessageNotFound):
        ids.parse(text)


@given(RECEIPTS)
def test_a_receipt_comes_back_from_its_text(receipt: Receipt) -> None:
    assert ids.receipt(ids.receipt_text(receipt)) == receipt


@given(RECEIPTS, st.data())
def test_an_altered_receipt_is_refused(receipt: Receipt, data: st.DataObject) -> None:
    text = ids.receipt_text(receipt)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(sorted(set(_DIGITS) - {text[place]})))
    with pytest.raises(InvalidReceipt):
        ids.receipt(text[:place] + other + text[place + 1 :])


@given(RECEIPTS, st.sampled_from(["=", "==", "\n", " ", "."]), st.integers(0, 40))
def test_a_receipt_with_something_more_is_refused(receipt: Receipt, more: str, place: int) -> None:
    text = ids.receipt_text(receipt)
    with pytest.raises(InvalidReceipt):
        ids.receipt(text[:place] + more + text[place:])


@given(RECEIPTS, st.data())
def test_a_truncated_receipt_is_refused(receipt: Receipt, data: st.DataObject) -> None:
    text = ids.receipt_text(receipt)
    with pytest.raises(InvalidReceipt):
        ids.receipt(text[: data.draw(st.integers(0, len(text) - 1))])


def test_a_receipt_of_another_broker_is_refused() -> None:
    with pytest.raises(InvalidReceipt):
        ids.receipt(Ids(bytes(32)).receipt_text(Receipt(1, 2, 3)))


@given(st.text(max_size=80))
def test_no_text_does_harm_as_a_receipt(text: str) -> None:
    with pytest.raises(InvalidReceipt):
        ids.receipt(text)


@pytest.mark.parametrize("value", [None, 3, b"bytes"])
def test_what_is_no_text_is_refused(value: str) -> None:
    with pytest.raises(InvalidReceipt):
        ids.receipt(value)
    with pytest.raises(MessageNotFound):
        ids.parse(value)
