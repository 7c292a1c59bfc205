"""What a connection makes of the bytes that came: events, as calls, in the order in which things came.

    Events           of the connection: who wants to come in, that a channel was opened, that it is over
    ChannelEvents    of one channel: messages, acknowledgements, every other method; see `channel`

An event is over before the next frame is looked at. So whoever is called may answer at once, may set `is_paused` of the
connection until something is done, and raises `ChannelClosing` or `ConnectionClosing` where the client has done
something wrong: the one or the other is closed then.

Calls and not objects: thousands of messages and acknowledgements come in one read, and an object for each would cost
more than it does to read it.
"""

from __future__ import annotations

from typing import Protocol

from smista.protocols.amqp.wire.channel import ChannelEvents, ChannelState


class Events(Protocol):
    def why_refused(self, user: str, password: str) -> str | None:
        """Why somebody may not come in, for our own log; None where they may."""

    def has_vhost(self, name: str) -> bool:
        """Whether there is such a virtual host."""

    def opened(self, user: str, vhost: str) -> None:
        """The handshake is over."""

    def channel_opened(self, channel: ChannelState) -> ChannelEvents:
        """A channel was opened. Returns who hears of what comes on it."""

    def flush(self) -> bool:
        """Something else comes next: what was published and acknowledged before it has to take effect before it.
        Returns whether it has; if not, this is asked again once the connection goes on."""

    def is_turn_over(self) -> bool:
        """Asked now and then, by the work that is done: whether the rest of what came has to wait."""

    def closed(self) -> None:
        """The client closes the connection: nothing of it may be left."""
