"""Positions in the logs of several shards, and how a batch is shared out among them. Nothing here asks the broker.

A query is at one position in each shard's log: `{shard: position}`. Between two such places lies a range of blocks of
each shard. A shard that the first place does not name has been added since, so all of its log is new.

    from {0: 5, 1: 9}  to {0: 8, 1: 9, 2: 4}        blocks 5 to 7 of shard 0, none of shard 1, 1 to 3 of shard 2
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from smista.spark.errors import WrongOption

EARLIEST, LATEST = "earliest", "latest"
FIRST = 1
"""The position of the first block of every log."""
POSITION_MAX = 1 << 62

Positions = Mapping[int, int]
Place = str | int | Positions
"""Where a query shall begin or end: `earliest`, `latest`, a position in the only log, or one for each shard."""


class ShardLog(NamedTuple):
    """A shard's log, as the broker describes it."""

    log_id: str
    first: int
    """The oldest block that is kept."""
    next: int
    """The block that will be written next."""
    position: int | None = None
    """The first block since the instant that was asked about."""


Logs = Mapping[int, ShardLog]


class Range(NamedTuple):
    """Blocks of one shard's log, `end` left out."""

    shard: int
    start: int
    end: int

    @property
    def block_count(self) -> int:
        return self.end - self.start


def logs_of(answer: Mapping[str, Any]) -> dict[int, ShardLog]:
    """What the broker answers about its logs, by shard."""
    names = ShardLog._fields
    return {one["shard"]: ShardLog(**{name: one.get(name) for name in names}) for one in answer["shards"]}


def read_place(text: str, name: str) -> Place:
    """The place that somebody wrote for the option `name`."""
    if text in (EARLIEST, LATEST):
        return text
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            return {int(shard): _position(position) for shard, position in found.items()}
        return _position(found)
    except ValueError:
        raise WrongOption(
            f"{name} is {text!r}; it is earliest, latest, a position of the log, or one for each shard, as in "
            '{"0": 123}.'
        ) from None


def _position(found: object) -> int:
    if type(found) is not int or not 0 <= found <= POSITION_MAX:
        raise ValueError(found)
    return found


def place_in(logs: Logs, place: Place, *, default: str) -> dict[int, int]:
    """The position in each log that a place means. A shard it does not name is at `default`."""
    named: Positions = {}
    if isinstance(place, str):
        default = place
    elif isinstance(place, int):
        if len(logs) != 1:
            raise WrongOption(
                f"The broker has {len(logs)} shards, and {place} could be a position in each of them: write one for "
                'each shard, as in {"0": 123, "1": 45}.'
            )
        named = dict.fromkeys(logs, place)
    else:
        named = place
    unknown = sorted(set(named) - set(logs))
    if unknown:
        raise WrongOption(f"The broker has no shard {unknown[0]}; it has {', '.join(map(str, sorted(logs)))}.")
    return {shard: log.first if default == EARLIEST else log.next for shard, log in logs.items()} | dict(named)


def between(start: Positions, end: Positions) -> list[Range]:
    """The blocks of each shard between two places; without those shards that have none there."""
    ranges = [Range(shard, start.get(shard, FIRST), position) for shard, position in sorted(end.items())]
    return [each for each in ranges if each.start < each.end]


def apportioned(count: int, ranges: Sequence[Range]) -> list[int]:
    """How many of `count` parts each range gets, by its blocks: about `count` together, and no range more than it has
    blocks or less than one."""
    left, blocks_left = count, sum(each.block_count for each in ranges)
    parts = []
    for each in ranges:
        share = max(1, min(each.block_count, round(left * each.block_count / blocks_left)))
        parts.append(share)
        left, blocks_left = max(0, left - share), blocks_left - each.block_count
    return parts


class Taken(NamedTuple):
    """What a batch takes of one shard's log, from where the range of that shard begins."""

    shard: int
    end: int
    rows: int
    bytes: int


def taken_of(
    ranges: Sequence[Range], rows_max: int, bytes_max: int | None, take: Callable[[Range, int, int | None], Taken]
) -> list[Taken]:
    """What a batch takes of each range; `take(range, rows_max, bytes_max)` keeps within the share it is given.

    The shortest range comes first, and what it leaves of its share is for the others: so a shard with a long backlog
    uses what is free, and holds up no other shard. Each gives a block at least.
    """
    taken: list[Taken] = []
    for each in sorted(ranges, key=lambda each: each.block_count):
        waiting = len(ranges) - len(taken)
        rows = rows_max - sum(one.rows for one in taken)
        size = None if bytes_max is None else bytes_max - sum(one.bytes for one in taken)
        taken.append(take(each, max(1, rows // waiting), None if size is None else max(1, size // waiting)))
    return taken
