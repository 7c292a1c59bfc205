"""What a channel has delivered and nobody has settled, by delivery tag and in the order of delivery.

A delivery may be over without a word of the client: its time was up (`x-consumer-timeout`) and the message went to
somebody else, its queue was deleted or purged, another protocol settled it. The channel lives on, so such tags have to
go some time: as messages are delivered, as many and a few more of the older tags are looked at, round and round. Which
tags were forgotten is remembered, in ranges: to settle one of them is late, and no error, while to settle a tag twice
is one. Where the ranges become too many the oldest grow together, and with them what is forgiven.

To take all up to a tag is to walk the tags from the lowest. They stand in a line of their own for that, and those that
are put back, after a rollback, in a heap beside it. Tags that were settled stay in both until somebody passes them, or
until they are more than the others: so each costs once, however many are unacked and in whatever order they go.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice

from smista.protocols.amqp.wire.replies import PRECONDITION_FAILED, ChannelClosing
from smista.service.values import Receipt

STALE_MAX = 1_000
"""Tags are looked at when there are so many more than twice what was left the last time."""
LOOKED_AT_MORE = 100
RANGES_MAX = 1_000


class Settlement(enum.Enum):
    ACK = enum.auto()
    REQUEUE = enum.auto()
    REJECT = enum.auto()


class Unacked:
    __slots__ = (
        "_look_above",
        "_look_at",
        "_put_back",
        "_tags",
        "_unchecked",
        "forgotten",
        "last_tag",
        "receipts",
    )

    def __init__(self, look_at: Callable[[dict[int, Receipt]], None]) -> None:
        """`look_at` is to find out which of these are over, and to call `forget` with their tags, at once or later."""
        self._look_at = look_at
        self._look_above = STALE_MAX
        self._unchecked: Iterator[int] | None = None
        """Through the tags there were when it began."""
        self.forgotten = Ranges()
        self.receipts: dict[int, Receipt] = {}
        """In the order of delivery, but for those that were put back."""
        self._tags: deque[int] | tuple[()] = ()
        # An empty line would take more memory than all else of a channel: there is one only while anything is in it.
        self._put_back: list[int] = []
        self.last_tag = 0
        """Of all that was delivered, also to those who acknowledge nothing."""

    def add(self, first_tag: int, receipts: Sequence[Receipt]) -> None:
        """These were delivered under the tags from `first_tag` on."""
        tags = range(first_tag, first_tag + len(receipts))
        self.receipts.update(zip(tags, receipts, strict=True))
        if self._tags:
            self._tags += tags
        else:
            self._tags = deque(tags)
        self._drop_settled()
        self.delivered(len(receipts))

    def delivered(self, count: int) -> None:
        """So many more were delivered: look for some that are over, if there may be any."""
        receipts = self.receipts
        if self._unchecked is None:
            if len(receipts) <= self._look_above:
                return
            self._unchecked = iter(list(receipts))
        limit = 2 * count + LOOKED_AT_MORE
        looked_at = list(islice(self._unchecked, limit))
        if len(looked_at) < limit:
            self._unchecked = None
            self._look_again()
        self._look_at({tag: receipts[tag] for tag in looked_at if tag in receipts})

    def forget(self, tags: Iterable[int]) -> None:
        """The deliveries of these tags are over. Some may have been settled since they were looked at."""
        for tag in tags:
            if self.receipts.pop(tag, None) is not None:
                self.forgotten.add(tag)
        if self._unchecked is None:
            self._look_again()

    def _look_again(self) -> None:
        """All have been looked at: when to begin anew."""
        self._look_above = 2 * len(self.receipts) + STALE_MAX

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
        taken = {}
        for each in self._lowest(tag):
            held = receipts.pop(each, None)
            if held is not None:
                taken[each] = held
        return taken

    def _lowest(self, tag: int) -> list[int]:
        """The tags up to this one out of the line and the heap, in order; also some that were settled before."""
        tags, put_back = self._tags, self._put_back
        found = []
        while tags and tags[0] <= tag:
            found.append(tags.popleft())
        if put_back and put_back[0] <= tag:
            while put_back and put_back[0] <= tag:
                found.append(heappop(put_back))
            found.sort()
        return found

    def take_all(self) -> dict[int, Receipt]:
        taken = self._in_order() if self._put_back else self.receipts
        self.receipts, self._tags, self._put_back = {}, (), []
        return taken

    def put_back(self, taken: Iterable[tuple[int, Receipt]]) -> None:
        """They were taken, and not settled after all. Costs what they are, not what else is unacked."""
        for tag, receipt in taken:
            self.receipts[tag] = receipt
            heappush(self._put_back, tag)
        self._drop_settled()

    def _drop_settled(self) -> None:
        if len(self._tags) + len(self._put_back) > 2 * len(self.receipts) + STALE_MAX:
            self.receipts = self._in_order()
            self._tags, self._put_back = deque(self.receipts), []

    def _in_order(self) -> dict[int, Receipt]:
        # By the tag alone: they are nearly in order, and then it costs little.
        return {tag: self.receipts[tag] for tag in sorted(self.receipts)}


class Ranges:
    """A set of numbers in ranges, at most `RANGES_MAX` of them: beyond that the lowest two become one."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._firsts, number)
        return index > 0 and number <= self._lasts[index - 1]

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, number: int) -> None:
        if number in self:
            return
        firsts, lasts = self._firsts, self._lasts
        index = bisect_right(firsts, number)
        is_next = index > 0 and lasts[index - 1] == number - 1
        is_before = index < len(firsts) and firsts[index] == number + 1
        if is_next and is_before:
            lasts[index - 1] = lasts.pop(index)
            del firsts[index]
        elif is_next:
            lasts[index - 1] = number
        elif is_before:
            firsts[index] = number
        else:
            firsts.insert(index, number)
            lasts.insert(index, number)
            if len(firsts) > RANGES_MAX:
                del firsts[1], lasts[0]


def _unknown(tag: int) -> ChannelClosing:
    return ChannelClosing(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
