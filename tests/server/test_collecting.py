"""Garbage in cycles is found, but nobody makes everybody wait for a full collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from smista.server import collecting
from smista.server.collecting import AGAIN_S, COUNT_AGAIN_S, FEW_OBJECTS, FREED_BYTES, LITTLE_BYTES, Collecting

pytestmark = pytest.mark.slow


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Knot:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(scope="module", autouse=True)
def kept_out_again() -> Iterator[None]:
    """What tests/conftest.py keeps out of collections is back in them after the first broker."""
    yield
    gc.freeze()


@pytest.fixture
def full_collections() -> Iterator[list[int]]:
    """One entry for each full collection."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            found.append(2)

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def make_old(count: int) -> list[list[list[object]]]:
    """Objects that stay, so many that Python would look through all there are."""
    return [[[]] for _ in range(count)]


def test_very_much_that_stays_makes_no_full_collection(full_collections: list[int]) -> None:
    with Collecting(Clock()) as watch:
        full_collections.clear()
        kept = make_old(1_000_000)
        watch.collect_if_due(0)
        assert full_collections == []
    assert len(kept) == 1_000_000


def test_cycles_are_found_after_a_while(full_collections: list[int]) -> None:
    clock = Clock()
    with Collecting(clock) as watch:
        knot = Knot()
        gone = weakref.ref(knot)
        # It has become old, and is no part of anything then.
        gc.collect(1)
        del knot
        gc.collect(1)
        assert gone() is not None
        watch.collect_if_due(0)
        assert gone() is not None
        clock.now_s = AGAIN_S
        watch.collect_if_due(0)
        assert gone() is None
        full_collections.clear()
        clock.now_s = 10 * AGAIN_S
        watch.collect_if_due(0)
        assert full_collections == [], "where nothing has become old there is nothing to find"


def test_a_collection_that_takes_long_is_not_soon_repeated(
    full_collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()

    def collect() -> None:
        clock.now_s += 1.0

    monkeypatch.setattr("smista.server.collecting.gc.collect", collect)
    with Collecting(clock) as watch:
        monkeypatch.undo()
        full_collections.clear()
        gc.collect(1)
        clock.now_s = 1_000.0
        watch.collect_if_due(0)
        assert full_collections == []
        clock.now_s = 1_002.0
        watch.collect_if_due(0)
        assert full_collections == [2]


def test_where_there_may_be_very_much_it_is_not_waited_for(
    full_collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "MANY", 5)
    with Collecting(Clock()) as watch:
        full_collections.clear()
        for _ in range(6):
            gc.collect(1)
        watch.collect_if_due(0)
        assert full_collections == [2]


def test_a_broker_that_has_been_emptied_has_a_collection_soon(full_collections: list[int]) -> None:
    """What Python keeps to use it again holds memory that could else go back."""
    clock = Clock()
    with Collecting(clock) as watch:
        full_collections.clear()
        watch.collect_if_due(LITTLE_BYTES + 2 * FREED_BYTES)
        watch.collect_if_due(LITTLE_BYTES + FREED_BYTES)
        assert full_collections == [], "what is left would have to be looked at"
        watch.collect_if_due(LITTLE_BYTES)
        assert full_collections == [2]
        clock.now_s += COUNT_AGAIN_S
        watch.collect_if_due(LITTLE_BYTES - FREED_BYTES + 1)
        assert full_collections == [2], "too little was freed since"
        watch.collect_if_due(LITTLE_BYTES - FREED_BYTES)
        assert full_collections == [2, 2]


def test_where_there_is_much_to_look_at_an_emptied_broker_waits_for_the_next_collection(
    full_collections: list[int],
) -> None:
    clock = Clock()
    with Collecting(clock) as watch:
        kept = make_old(FEW_OBJECTS)
        gc.collect()
        full_collections.clear()
        watch.collect_if_due(FREED_BYTES)
        while clock.now_s < AGAIN_S:
            watch.collect_if_due(0)
            assert full_collections == []
            clock.now_s += 1
        watch.collect_if_due(0)
        assert full_collections == [2]
        clock.now_s += AGAIN_S
        watch.collect_if_due(0)
        assert full_collections == [2], "that was all"
    assert len(kept) == FEW_OBJECTS


def test_afterwards_all_is_as_before() -> None:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    with Collecting():
        assert gc.get_threshold()[2] > 1_000_000
        assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0
