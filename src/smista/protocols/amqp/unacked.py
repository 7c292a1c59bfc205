"""What a channel has delivered and nobody has settled, by delivery tag and in the order of delivery."""

from __future__ import annotations

import enum

from smista.engine import Receipt
from smista.protocols.amqp.replies import PRECONDITION_FAILED, ChannelClosing


class Settlement(enum.Enum):
    ACK = enum.auto()
    REQUEUE = enum.auto()
    REJECT = enum.auto()


class Unacked:
    __slots__ = ("last_tag", "receipts")

    def __init__(self) -> None:
        self.receipts: dict[int, Receipt] = {}
        self.last_tag = 0
        """Of all that was delivered, also to those who acknowledge nothing."""

    def take(self, tag: int, multiple: bool) -> dict[int, Receipt]:
        """Out of what is unacknowledged: one, or all up to it. Raises what closes the channel."""
        receipts = self.receipts
        if not multiple:
            held = receipts.pop(tag, None)
            if held is None:
                raise _unknown(tag)
            return {tag: held}
        if tag == 0 or tag == self.last_tag in receipts:
            return self.take_all()
        if tag not in receipts:
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


def _unknown(tag: int) -> ChannelClosing:
    return ChannelClosing(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
