"""What a channel has delivered and nobody has settled, by delivery tag and in the order of delivery.

A delivery may be over without a word of the client: its time was up (`x-consumer-timeout`) and the message went to
somebody else, its queue was deleted or purged, another protocol settled it. The channel lives on, so such tags have to
go some time: as messages are delivered, as many and a few more of the older tags are looked at, round and round. Which
tags were forgotten is remembered, in ranges: to settle one of them is late, and no error, while to settle a tag twice
is one. Where the ranges become too many the oldest grow together, and with them what is forgiven.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import islice

from smista.engine import Receipt
from smista.protocols.amqp.replies import PRECONDITION_FAILED, ChannelClosing

STALE_MAX = 1_000
"""Tags are looked at when there are so many more than twice what was left the last time."""
LOOKED_AT_MORE = 100
RANGES_MAX = 1_000


class Settlement(enum.Enum):
    ACK = enum.auto()
    REQUEUE = enum.auto()
    REJECT = enum.auto()


class Unacked:
    __slots__ = ("_can_be_settled", "_look_above", "_looking", "forgotten", "last_tag", "receipts")

    def __init__(self, can_be_settled: Callable[[Receipt], bool]) -> None:
        self._can_be_settled = can_be_settled
        self._look_above = STALE_MAX
        self._looking: Iterator[int] | None = None
        """Through the tags there were when it began."""
        self.forgotten = Ranges()
        self.receipts: dict[int, Receipt] = {}
        self.last_tag = 0
        """Of all that was delivered, also to those who acknowledge nothing."""

    def delivered(self, count: int) -> None:
        """So many more were delivered: forget some of those that are over, if there may be any."""
        receipts = self.receipts
        if self._looking is None:
            if len(receipts) <= self._look_above:
                return
            self._looking = iter(list(receipts))
        limit = 2 * count + LOOKED_AT_MORE
        looked_at = 0
        for tag in islice(self._looking, limit):
            looked_at += 1
            receipt = receipts.get(tag)
            if receipt is not None and not self._can_be_settled(receipt):
                del receipts[tag]
                self.forgotten.add(tag)
        if looked_at < limit:
            self._looking = None
            self._look_above = 2 * len(receipts) + STALE_MAX

    def take(self, tag: int, multiple: bool) -> dict[int, Receipt]:
        """Out of what is unacknowledged: one, or all up to it. Raises what closes the channel."""
        receipts = self.receipts
        if not multiple:
            held = receipts.pop(tag, None)
            if held is not None:
                return {tag: held}
            if tag in self.forgotten:
                return {}
            raise _unknown(tag)
        if tag == 0 or tag == self.last_tag in receipts:
            return self.take_all()
        if tag not in receipts and tag not in self.forgotten:
            raise _unknown(tag)
        taken = []
        for each in receipts:
            if each > tag:
                break
            taken.append(each)
        return {each: receipts.pop(each) for each in taken}

    def take_all(self) -> dict[int, Receipt]:
        receipts, self.receipts = self.receipts, {}
        return receipts

    def put_back(self, taken: dict[int, Receipt]) -> None:
        """They were taken, and not settled after all."""
        self.receipts = dict(sorted((self.receipts | taken).items()))


class Ranges:
    """A set of numbers in ranges, at most `RANGES_MAX` of them: beyond that the lowest two become one."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._firsts, number)
        return place > 0 and number <= self._lasts[place - 1]

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, number: int) -> None:
        if number in self:
            return
        firsts, lasts = self._firsts, self._lasts
        place = bisect_right(firsts, number)
        is_next = place > 0 and lasts[place - 1] == number - 1
        is_before = place < len(firsts) and firsts[place] == number + 1
        if is_next and is_before:
            lasts[place - 1] = lasts.pop(place)
            del firsts[place]
        elif is_next:
            lasts[place - 1] = number
        elif is_before:
            firsts[place] = number
        else:
            firsts.insert(place, number)
            lasts.insert(place, number)
            if len(firsts) > RANGES_MAX:
                del firsts[1], lasts[0]


def _unknown(tag: int) -> ChannelClosing:
    return ChannelClosing(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
