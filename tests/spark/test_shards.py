"""Whatever shards there are and however they grow, a query reads each of their blocks once."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from smista.spark.positions import Range, Taken, apportioned, between, taken_of
from tests.spark.made_logs import BLOCK_BYTES, BLOCK_ROWS, MadeLog, MadeLogs, blocks, reader

SHARDS = st.integers(0, 65_535)
PLACES = st.dictionaries(SHARDS, st.integers(1, 1 << 40), max_size=20)
RANGES = st.lists(
    st.builds(lambda shard, start, count: Range(shard, start, start + count), SHARDS, st.integers(1), st.integers(1)),
    min_size=1,
    max_size=30,
    unique_by=lambda each: each.shard,
)


# -- the arithmetic ---------------------------------------------------------------------------------------------------


@given(PLACES, PLACES)
def test_between_two_places_lies_what_the_second_is_ahead(start: dict[int, int], end: dict[int, int]) -> None:
    ranges = between(start, end)
    assert len({each.shard for each in ranges}) == len(ranges)
    assert all(each.start == start.get(each.shard, 1) < each.end == end[each.shard] for each in ranges)
    assert {each.shard for each in ranges} == {shard for shard in end if end[shard] > start.get(shard, 1)}


@given(st.lists(PLACES, min_size=1, max_size=10))
def test_batches_that_follow_each_other_join(places: list[dict[int, int]]) -> None:
    reached: list[dict[int, int]] = [{}]
    for place in places:
        before = reached[-1]
        reached.append({shard: max(before.get(shard, 1), place.get(shard, 1)) for shard in {**before, **place}})
    batches = [between(start, end) for start, end in itertools.pairwise(reached)]
    for shard, end in reached[-1].items():
        own = [each for batch in batches for each in batch if each.shard == shard]
        assert [each.start for each in own] == [1, *(each.end for each in own)][: len(own)]
        assert (own[-1].end if own else 1) == end


@given(st.integers(1, 10_000), RANGES)
def test_about_as_many_parts_are_made_as_were_asked_for(count: int, ranges: list[Range]) -> None:
    parts = apportioned(count, ranges)
    assert all(1 <= part <= each.block_count for part, each in zip(parts, ranges, strict=True))
    assert min(count, sum(each.block_count for each in ranges)) <= sum(parts) < count + len(ranges)


@given(RANGES, st.integers(1, 1_000_000), st.one_of(st.none(), st.integers(1, 100_000_000)))
def test_a_batch_keeps_within_its_limits_but_for_a_block_of_each_shard(
    ranges: list[Range], rows_max: int, bytes_max: int | None
) -> None:
    def take(each: Range, rows: int, size: int | None) -> Taken:
        count = rows // BLOCK_ROWS if size is None else min(rows // BLOCK_ROWS, size // BLOCK_BYTES)
        count = max(1, min(count, each.block_count))
        return Taken(each.shard, each.start + count, BLOCK_ROWS * count, BLOCK_BYTES * count)

    taken = taken_of(ranges, rows_max, bytes_max, take)
    assert sorted(one.shard for one in taken) == sorted(each.shard for each in ranges)
    rows, size = sum(one.rows for one in taken), sum(one.bytes for one in taken)
    assert rows <= rows_max + BLOCK_ROWS * len(ranges)
    assert bytes_max is None or size <= bytes_max + BLOCK_BYTES * len(ranges)
    ends = {each.shard: each.end for each in ranges}
    if rows + BLOCK_ROWS * len(ranges) <= rows_max and bytes_max is None:
        assert {one.shard: one.end for one in taken} == ends


# -- a query ----------------------------------------------------------------------------------------------------------


class Query(RuleBasedStateMachine):
    """A streaming query over logs that grow and shards that are added; Spark keeps its offsets as JSON."""

    @initialize(shards=st.dictionaries(SHARDS, st.integers(1, 9), min_size=1, max_size=4), latest=st.booleans())
    def begin(self, shards: dict[int, int], latest: bool) -> None:
        self.logs = MadeLogs({shard: MadeLog(1, end, str(shard)) for shard, end in shards.items()})
        self.options = {"startingOffsets": "latest" if latest else "earliest"}
        self.began_at: dict[int, int] = {}
        self.offsets: list[dict[str, Any]] = []
        self.read: list[tuple[int, int]] = []
        self.restart(rows=30, size=None, partitions=2)

    @rule(data=st.data(), count=st.integers(1, 30))
    def grow(self, data: st.DataObject, count: int) -> None:
        self.logs.by_shard[data.draw(st.sampled_from(sorted(self.logs.by_shard)))].next += count

    @precondition(lambda self: self.offsets)
    @rule(shard=SHARDS, end=st.integers(1, 9))
    def add(self, shard: int, end: int) -> None:
        if shard not in self.logs.by_shard:
            self.logs.by_shard[shard] = MadeLog(1, end, str(shard))

    @rule(
        rows=st.integers(1, 500),
        size=st.one_of(st.none(), st.integers(1, 50_000)),
        partitions=st.integers(1, 8),
    )
    def restart(self, rows: int, size: int | None, partitions: int) -> None:
        limits = {"maxRowsPerTrigger": str(rows), "minPartitions": str(partitions)}
        if size is not None:
            limits["maxBytesPerTrigger"] = str(size)
        self.query = reader(self.logs, **self.options, **limits)
        self.query.prepareForTriggerAvailableNow()

    @rule(is_all=st.booleans())
    def take(self, is_all: bool) -> None:
        self.query.prepareForTriggerAvailableNow()
        start = self.offsets[-1] if self.offsets else self.query.initialOffset()
        if not self.offsets and self.options["startingOffsets"] == "latest":
            self.began_at = {shard: log.next for shard, log in self.logs.by_shard.items()}
        limit = ReadAllAvailable() if is_all else ReadMaxRows(1)
        end = json.loads(json.dumps(self.query.latestOffset(start, limit)))
        if end != start:
            self.read += blocks(self.query, start, end)
            self.offsets.append(end)

    @precondition(lambda self: self.offsets)
    @rule()
    def repeat(self) -> None:
        """After a crash the last batch is read again, by a process that knows its two offsets and nothing else."""
        start = self.offsets[-2] if len(self.offsets) > 1 else self.query.initialOffset()
        again = blocks(reader(self.logs, **self.options), start, self.offsets[-1])
        assert sorted(again) == sorted(self.read[len(self.read) - len(again) :])

    @invariant()
    def each_block_is_read_once_and_in_order(self) -> None:
        if not self.offsets:
            return
        reached = self.offsets[-1]["positions"]
        for shard in self.logs.by_shard:
            positions = [position for each, position in self.read if each == shard]
            begin = self.began_at.get(shard, 1)
            assert positions == list(range(begin, reached.get(str(shard), begin)))


TestQuery = Query.TestCase
TestQuery.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)
