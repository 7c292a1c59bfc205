"""Message ids and receipts as the outside sees them."""

from __future__ import annotations

import base64
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smista.core.message import Receipt
from smista.engine.id_column import id_characters
from smista.engine.ids import SHARDS_MAX, Ids, first_sequence, shard_of
from smista.errors import InvalidReceipt, MessageNotFound

IDENTITY = bytes(range(32))
SHARDS = st.integers(0, SHARDS_MAX - 1)
COUNTS = st.integers(0, (1 << 46) - 2)
NUMBERS = st.builds(lambda shard, count: first_sequence(shard) + count, SHARDS, COUNTS)
TIMES_MS = st.integers(0, (1 << 48) - 1)


def receipts(sequences: st.SearchStrategy[int]) -> st.SearchStrategy[Receipt]:
    small = st.integers(0, (1 << 32) - 1)
    return st.builds(Receipt, small, sequences, small, small)


RECEIPTS = receipts(st.builds(lambda count: first_sequence(0) + count, COUNTS))
_DIGITS = string.ascii_letters + string.digits + "-_+/="
ids = Ids(IDENTITY)


@given(SHARDS, COUNTS)
def test_a_sequence_says_its_shard(shard: int, count: int) -> None:
    assert shard_of(first_sequence(shard) + count) == shard


@given(st.lists(st.tuples(SHARDS, COUNTS), min_size=2, max_size=2, unique=True))
def test_no_two_shards_give_out_the_same_sequence(pair: list[tuple[int, int]]) -> None:
    (shard, count), (other_shard, other_count) = pair
    assert first_sequence(shard) + count != first_sequence(other_shard) + other_count


def test_the_first_shard_counts_from_1() -> None:
    assert first_sequence(0) == 1


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


@given(NUMBERS, TIMES_MS, SHARDS)
def test_every_shard_reads_the_ids_of_all(number: int, created_at_ms: int, shard: int) -> None:
    assert Ids(IDENTITY, shard).parse(ids.message_id(number, created_at_ms)) == (number, created_at_ms)


@given(st.lists(st.tuples(NUMBERS, TIMES_MS), max_size=20))
def test_a_column_of_ids_has_the_same_ids(messages: list[tuple[int, int]]) -> None:
    numbers, times_ms = (np.array([message[at] for message in messages], np.int64) for at in (0, 1))
    rows = id_characters(ids.broker, numbers, times_ms)
    assert [bytes(row).decode() for row in rows] == [ids.message_id(*message) for message in messages]


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


@given(RECEIPTS)
def test_a_receipt_with_one_bit_flipped_is_refused(receipt: Receipt) -> None:
    data = base64.urlsafe_b64decode(ids.receipt_text(receipt))
    for bit in range(8 * len(data)):
        flipped = (int.from_bytes(data, "big") ^ 1 << bit).to_bytes(len(data), "big")
        with pytest.raises(InvalidReceipt, match="is not a receipt of this broker"):
            ids.any_receipt(base64.urlsafe_b64encode(flipped).decode())


@given(receipts(NUMBERS), SHARDS)
def test_every_shard_reads_the_receipts_of_all(receipt: Receipt, shard: int) -> None:
    assert ids.any_receipt(Ids(IDENTITY, shard).receipt_text(receipt)) == receipt


def test_a_receipt_of_another_shard_is_refused_by_the_name_of_the_shard() -> None:
    of_shard_7 = Ids(IDENTITY, 7)
    text = of_shard_7.receipt_text(Receipt(1, first_sequence(7), 1, 1))
    assert of_shard_7.receipt(text).sequence == first_sequence(7)
    with pytest.raises(InvalidReceipt, match="is a receipt of shard 7 and was handed to shard 0"):
        ids.receipt(text)


def test_each_shard_has_a_log_of_its_own() -> None:
    assert len({Ids(IDENTITY, shard).log_id for shard in range(100)}) == 100
    assert Ids(IDENTITY, 3).log_id == Ids(IDENTITY, 3).log_id


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
