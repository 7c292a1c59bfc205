"""How many bytes of properties one receive hands out, and what it costs to find out where to stop."""

from __future__ import annotations

import pytest

from smista.core import ready
from smista.core.message import Envelope, Message, Publication
from smista.core.receiving import MEASURED_AT_ONCE
from tests.core import invariants
from tests.core.bench import Bench

COUNT = 2_000
PROPERTIES = b"p" * 150


def test_a_receive_ends_with_the_message_whose_properties_reach_the_bound(bench: Bench) -> None:
    received = bench.receive(COUNT, properties_max=100 * len(PROPERTIES))
    assert [each.body for each in received] == [b"%d" % number for number in range(100)]
    invariants.check(bench.state)
    following = bench.receive(1)
    assert [each.body for each in following] == [b"100"]


def test_little_is_taken_out_of_the_line_to_be_put_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    put_back: list[Message] = []
    put_in = ready.Bucket.put_back

    def counting(bucket: ready.Bucket, message: Message) -> None:
        put_back.append(message)
        put_in(bucket, message)

    monkeypatch.setattr(ready.Bucket, "put_back", counting)
    received = bench.receive(COUNT, properties_max=100 * len(PROPERTIES))
    assert len(received) == 100
    assert len(put_back) <= MEASURED_AT_ONCE


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.publish_all([Publication(b"%d" % number, Envelope(PROPERTIES)) for number in range(COUNT)])
    return bench
