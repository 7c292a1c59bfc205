"""What becomes of what a channel publishes, as its mode has it.

plain          nobody hears of it
confirming     ack when it is on disk, nack where it was refused: `Outcomes.confirm_up_to`
transactional  the commit says it: whether all of it was taken (see `transaction`)
"""

from __future__ import annotations

from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.channel import ChannelState
from smista.protocols.amqp.wire.replies import PRECONDITION_FAILED, ChannelClosing


class Outcomes:
    __slots__ = (
        "_confirmed_tag",
        "_nacked",
        "channel",
        "is_confirming",
        "is_partial",
        "is_refused",
        "is_transactional",
        "publish_tag",
    )

    def __init__(self, channel: ChannelState) -> None:
        self.channel = channel
        self.is_confirming = False
        self.publish_tag = 0
        """Of the last message; 0 where the channel does not confirm."""
        self._confirmed_tag = 0
        self._nacked: list[int] = []
        """Tags of messages that were refused and are not answered yet."""
        self.is_transactional = False
        self.is_partial = False
        """Whether a queue was too full for a publish since the last commit began."""
        self.is_refused = False
        """Whether a publish was refused for good since then: what follows it is not done. Known here, since the channel
        that is closed for it may be gone already."""

    @property
    def is_over(self) -> bool:
        """Whether what follows is not published any more. It is where the channel has just gone: that was sent
        before."""
        return self.channel.is_closing or self.is_refused

    def begin_commit(self) -> None:
        self.is_partial = self.is_refused = False

    def select(self, method: methods.ConfirmSelect) -> None:
        """confirm.select"""
        if self.is_transactional:
            raise ChannelClosing(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        self.is_confirming = True
        if not method.no_wait:
            self.channel.send(methods.ConfirmSelectOk())

    def select_transactions(self) -> None:
        """tx.select"""
        if self.is_confirming:
            raise ChannelClosing(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
        self.is_transactional = True

    def refuse(self, tag: int) -> None:
        """A message of this tag was not taken, or one of no tag."""
        self.is_partial = True
        if tag:
            self._nacked.append(tag)

    def confirm_up_to(self, tag: int) -> None:
        """Answer what was published up to `tag`, each tag once."""
        if not self.channel.is_open:
            return
        if self._nacked:
            nacked, self._nacked = self._nacked, [each for each in self._nacked if each > tag]
            for each in sorted(nacked):
                if each <= tag:
                    self._ack_up_to(each - 1)
                    self.channel.send(methods.BasicNack(each, False, False))
                    self._confirmed_tag = each
        self._ack_up_to(tag)

    def _ack_up_to(self, tag: int) -> None:
        count = tag - self._confirmed_tag
        if count > 0:
            self.channel.send(methods.BasicAck(tag, count > 1))
            self._confirmed_tag = tag
