"""What falls due together: one that fails takes no other's deadline with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from smista.core import dead_letters
from smista.core.due import run_due
from smista.core.message import Message
from tests.core.bench import Bench

TTL_MS = 4_000


@dataclass(eq=False)
class Foreign:
    """An entry of the calendar that is the engine's."""

    sequence: int
    deadline_ms: int | None = None


def fail_for(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def expire(state: Any, queue: Any, message: Message, **named: Any) -> None:
        if message.body == body:
            raise RuntimeError("our own fault")
        dead_letters.expire(state, queue, message, **named)

    monkeypatch.setattr("smista.core.due.expire", expire)


def test_where_one_fails_the_rest_of_its_slice_is_done_later(orders: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = Foreign(-(1 << 40)), Foreign(1 << 40)
    orders.state.calendar.add(before, orders.now_ms + TTL_MS, orders.now_ms)
    for number in range(5):
        orders.publish(b"%d" % number, ttl_ms=TTL_MS)
    orders.state.calendar.add(after, orders.now_ms + TTL_MS, orders.now_ms)
    fail_for(b"2", monkeypatch)
    orders.now_ms += TTL_MS
    with pytest.raises(RuntimeError, match="our own fault"):
        run_due(orders.state, now_ms=orders.now_ms)
    assert orders.peek() == [b"2", b"3", b"4"]
    assert orders.state.calendar.is_behind(orders.now_ms)
    # Also those that the caller should have got.
    assert {*run_due(orders.state, now_ms=orders.now_ms)} == {before, after}
    assert orders.peek() == [b"2"]
    assert not orders.state.calendar.is_behind(orders.now_ms)
