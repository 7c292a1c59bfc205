"""Lines for what happens very often: few of them, and no number is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from smista import repeats
from smista.repeats import DETAILS_MAX, KINDS_MAX, OTHERS, Repeats
from tests.waiting import until


class Lines(list[tuple[str | None, Counter[str]]]):
    def tell(self, kind: str | None, counts: Counter[str]) -> None:
        self.append((kind, counts))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    monkeypatch.setattr(repeats, "FIRST_S", 0.0)
    monkeypatch.setattr(repeats, "EVERY_S", 3_600.0)
    return Lines()


async def test_the_first_ones_are_told_at_once_and_the_rest_together(lines: Lines) -> None:
    counted = Repeats[str](lines.tell)
    counted.note("login", "10.0.0.1")
    counted.note("login", "10.0.0.2")
    await until(lambda: lines)
    for _ in range(1_000):
        counted.note("login", "10.0.0.1")
    counted.note("limit")
    await until(lambda: len(lines) == 2)
    assert lines == [("login", {"10.0.0.1": 1, "10.0.0.2": 1}), ("limit", {"": 1})]
    counted.flush()
    assert lines[2:] == [("login", {"10.0.0.1": 1_000})]
    counted.flush()
    assert len(lines) == 3


async def test_after_a_quiet_while_the_next_is_told_at_once(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "EVERY_S", 0.001)
    counted = Repeats[str](lines.tell)
    counted.note("login")
    await until(lambda: lines)
    await until(lambda: not counted._counts)
    counted.note("login")
    await until(lambda: len(lines) == 2)
    counted.note("login")
    await until(lambda: len(lines) == 3)


async def test_what_clients_choose_is_bounded(lines: Lines) -> None:
    counted = Repeats[str](lines.tell)
    for number in range(1_000):
        counted.note(f"queue {number}", "expired")
        counted.note("queue 0", f"reason {number}")
    counted.flush()
    counts = dict(lines)
    assert len(counts) == KINDS_MAX + 1
    assert counts[None] == {"expired": 1_000 - KINDS_MAX}
    assert len(counts["queue 0"]) == DETAILS_MAX + 1
    assert counts["queue 0"][OTHERS] == 1_001 - DETAILS_MAX


def test_without_a_loop_each_is_told(lines: Lines) -> None:
    counted = Repeats[str](lines.tell)
    counted.note("login")
    counted.note("login")
    assert lines == [("login", {"": 1})] * 2
