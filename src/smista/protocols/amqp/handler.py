"""What the events of a connection do: who may come in, the channels that are opened, and the end of all of them."""

from __future__ import annotations

from typing import cast

from smista.protocols.amqp import users
from smista.protocols.amqp.channel.channel import Channel
from smista.protocols.amqp.channel.publisher import Publisher
from smista.protocols.amqp.client import Client
from smista.protocols.amqp.wire.channel import ChannelEvents, ChannelState

CHANNELS_PER_TURN = 1_000
"""So many channels end in one turn of the loop, of all connections together: some 1 ms."""


class Handler:
    """The `Events` of one connection; see `wire.events`."""

    __slots__ = ("_client", "_publisher")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._publisher = Publisher(client)

    def why_refused(self, user: str, password: str) -> str | None:
        return users.why_refused(user, password, self._client.address)

    def has_vhost(self, name: str) -> bool:
        return self._client.service.has_namespace(name)

    def opened(self, user: str, vhost: str) -> None:
        client = self._client
        shared = client.shared
        client.user = user
        client.session = shared.service.session(shared.principal_of(user, client.peer), vhost)

    def channel_opened(self, channel: ChannelState) -> ChannelEvents:
        return Channel(self._client, self._publisher, channel)

    def flush(self) -> bool:
        client = self._client
        self._publisher.flush()
        client.flush_acknowledged()
        if client.has_under_way:
            client.driver.hold_until_done()
            return False
        return True

    def is_turn_over(self) -> bool:
        # What was published so far counts in.
        self.flush()
        return self._client.driver.is_turn_over()

    def closed(self) -> None:
        self._client.driver.flush()
        self.end()

    # -- for whoever runs the connection ------------------------------------------------------------------------------

    @property
    def _channels(self) -> list[Channel]:
        return [cast("Channel", state.events) for state in self._client.connection.channels.values()]

    def flush_publishes(self) -> None:
        self._publisher.flush()

    def hold_back(self, is_held_back: bool) -> None:
        """Deliver nothing for now, or again."""
        if not self._client.service.is_over:
            for channel in self._channels:
                channel.consuming.hold_back(is_held_back)

    def end(self) -> None:
        """All that the client has at the broker goes back, or goes. It may be called again: for what was made since.

        All of that in this step. Channels without any of it, which may be very many, go in slices."""
        client = self._client
        client.flush_acknowledged()
        channels = list(client.connection.channels.values())
        client.connection.channels.clear()
        client.leave_all()
        client.end()
        if not client.service.is_over:
            client.shared.leaving_channels.go(channels, CHANNELS_PER_TURN)
