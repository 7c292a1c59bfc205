"""A table is a dict, whatever order its keys come and go in; only it never holds them all in one."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smista.core import table
from smista.core.table import Table

KEYS = st.integers(min_value=1, max_value=60)
STEPS = st.lists(st.tuples(st.sampled_from(["set", "set", "set", "delete", "pop", "popitem"]), KEYS), max_size=200)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(table, "CHUNK", 4)
    yield
    patch.undo()


def chunks_of(numbers: Table[str]) -> list[dict[int, str]]:
    return [numbers._only] if numbers._chunks is None else numbers._chunks


@given(STEPS)
def test_a_table_holds_what_a_dict_would(steps: list[tuple[str, int]]) -> None:
    plain: dict[int, str] = {}
    numbers: Table[str] = Table()
    for step, key in steps:
        match step:
            case "set":
                plain[key] = numbers[key] = f"{key} of {len(plain)}"
            case "delete" if key in plain:
                del plain[key], numbers[key]
            case "pop":
                assert numbers.pop(key, None) == plain.pop(key, None)
            case "popitem" if plain:
                removed, value = numbers.popitem()
                assert plain.pop(removed) == value
        assert len(numbers) == len(plain)
        assert bool(numbers) is bool(plain)
        assert dict(numbers.items()) == plain
        assert sorted(numbers) == sorted(plain)
        assert sorted(numbers.values()) == sorted(plain.values())
        assert all(numbers[present] == plain[present] == numbers.get(present) for present in plain)
        assert all((other in numbers) is (other in plain) for other in range(1, 61))
        assert all(len(chunk) <= 6 for chunk in chunks_of(numbers))


@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_no_chunk_outgrows_its_bound(order: str) -> None:
    keys = list(range(1, 1001))
    if order == "descending":
        keys.reverse()
    elif order == "random":
        random.Random(1).shuffle(keys)
    numbers: Table[str] = Table()
    for key in keys:
        numbers[key] = str(key)
    assert max(map(len, chunks_of(numbers))) <= 5
    assert len(chunks_of(numbers)) <= 500
    assert len(numbers) == 1000


def test_what_is_missing_is_a_key_error() -> None:
    numbers = Table({number: str(number) for number in range(20)})
    for wrong in (20, -1):
        with pytest.raises(KeyError):
            numbers[wrong]
        with pytest.raises(KeyError):
            numbers.pop(wrong)
        with pytest.raises(KeyError):
            del numbers[wrong]
    assert len(numbers) == 20


def test_an_emptied_table_is_one_plain_dict_again() -> None:
    numbers = Table({number: str(number) for number in range(20)})
    for number in range(18):
        del numbers[number]
    assert chunks_of(numbers) == [{18: "18", 19: "19"}]


@pytest.mark.parametrize("count", range(1, 13))
def test_a_table_of_any_size_can_be_emptied_and_used_again(count: int) -> None:
    """One more than a chunk holds is still one chunk: what is left when that is empty must be a table too."""
    numbers: Table[str] = Table()
    for _ in range(2):
        for number in range(count):
            numbers[number] = str(number)
        for number in range(count):
            del numbers[number]
        assert (len(numbers), numbers.get(0), list(numbers)) == (0, None, [])


@given(st.lists(st.tuples(st.booleans(), st.sets(KEYS)), max_size=20))
def test_many_at_once_is_as_one_after_the_other(steps: list[tuple[bool, set[int]]]) -> None:
    plain: dict[int, str] = {}
    numbers: Table[str] = Table()
    for is_adding, keys in steps:
        if is_adding:
            added = {key: f"{key} of {len(plain)}" for key in sorted(keys)}
            plain.update(added)
            numbers.add_all(added)
        else:
            gone = keys & plain.keys()
            numbers.remove_all(gone)
            for key in gone:
                del plain[key]
        assert dict(numbers.items()) == plain
        assert len(numbers) == len(plain)
        assert all(numbers.get(key) == plain.get(key) for key in range(1, 61))


def test_a_table_gives_up_the_room_of_what_is_gone() -> None:
    numbers: Table[str] = Table()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "CHUNK", 16_384)
        for key in range(20_000):
            numbers[key] = str(key)
        for key in range(19_990):
            del numbers[key]
    before = sum(map(sys.getsizeof, chunks_of(numbers)))
    numbers.shrink()
    assert sum(map(sys.getsizeof, chunks_of(numbers))) < before / 10
    assert dict(numbers.items()) == {key: str(key) for key in range(19_990, 20_000)}


def test_a_table_that_is_full_stays_as_it_is() -> None:
    numbers = Table({key: str(key) for key in range(1000)})
    before = chunks_of(numbers)
    numbers.shrink()
    assert all(after is chunk for after, chunk in zip(chunks_of(numbers), before, strict=True))
