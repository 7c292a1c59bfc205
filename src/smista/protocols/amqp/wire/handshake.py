"""The handshake: who is there, what both sides can, and where to.

    starting ── start-ok: logged in ──▶ tuning ── tune-ok: limits agreed ──▶ opening ── open ──▶ running

Before it is logged in, a client that does something wrong is cut off without a word, as RabbitMQ does it. After that it
hears why.
"""

from __future__ import annotations

from typing import Any

from smista import __version__
from smista.protocols.amqp.settings import AmqpSettings
from smista.protocols.amqp.wire import frames, methods, sasl
from smista.protocols.amqp.wire.events import Events
from smista.protocols.amqp.wire.methods import Method
from smista.protocols.amqp.wire.replies import CHANNEL_ERROR, NOT_ALLOWED, ConnectionClosing, LoginRefused

_CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
START = methods.ConnectionStart(
    0,
    9,
    {
        "capabilities": dict.fromkeys(_CAPABILITIES, True),
        "cluster_name": "smista",
        "copyright": "The Smista authors",
        "information": "Licensed under Apache-2.0",
        "platform": "Python",
        "product": "Smista",
        "version": __version__,
    },
    sasl.MECHANISMS,
    b"en_US",
)


class Handshake:
    """What is agreed with one client; `take` gets its methods and returns the answers."""

    __slots__ = (
        "_capabilities",
        "_events",
        "_settings",
        "channel_max",
        "frame_max",
        "heartbeat_s",
        "state",
        "user",
        "vhost",
    )

    def __init__(self, settings: AmqpSettings, events: Events) -> None:
        self._settings = settings
        self._events = events
        self._capabilities: dict[str, Any] = {}
        self.state = "starting"
        self.user = ""
        self.vhost = ""
        self.frame_max = settings.frame_max
        self.channel_max = settings.channel_max
        self.heartbeat_s = 0

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def explains_errors(self) -> bool:
        """Whether an error is worth a connection.close."""
        return self.state != "starting"

    def has_capability(self, name: str) -> bool:
        return self._capabilities.get(name) is True

    def take(self, method: Method) -> Method | None:
        """The next step. Raises `ConnectionClosing`."""
        if self.state == "starting" and isinstance(method, methods.ConnectionStartOk):
            return self._log_in(method)
        if self.state == "tuning" and isinstance(method, methods.ConnectionTuneOk):
            self._tune(method)
            return None
        if self.state == "opening" and isinstance(method, methods.ConnectionOpen):
            return self._open(method)
        raise ConnectionClosing(CHANNEL_ERROR, f"unexpected method in connection state {self.state}")

    def _log_in(self, method: methods.ConnectionStartOk) -> Method:
        capabilities = method.client_properties.get("capabilities")
        self._capabilities = capabilities if isinstance(capabilities, dict) else {}
        credentials = sasl.read_credentials(method.mechanism, method.response)
        if credentials is None:
            ours = sasl.MECHANISMS.decode().replace(" ", " or ")
            raise self._refused(method, f"{method.mechanism[:20]!a} cannot be read; log in by {ours}")
        self.user, password = credentials
        why = self._events.why_refused(self.user, password)
        if why is not None:
            raise self._refused(method, f"user {self.user[:40]!a}, {why}")
        self.state = "tuning"
        settings = self._settings
        return methods.ConnectionTune(settings.channel_max, settings.frame_max, settings.heartbeat_s)

    def _refused(self, method: methods.ConnectionStartOk, why: str) -> LoginRefused:
        if self.has_capability("authentication_failure_close"):
            self.state = "refused"
        return LoginRefused(method.mechanism, why)

    def _tune(self, method: methods.ConnectionTuneOk) -> None:
        settings = self._settings
        self.frame_max = _agreed("frame_max", method.frame_max, frames.FRAME_MIN, settings.frame_max)
        self.channel_max = _agreed("channel_max", method.channel_max, 1, settings.channel_max)
        self.heartbeat_s = method.heartbeat
        self.state = "opening"

    def _open(self, method: methods.ConnectionOpen) -> Method:
        if not self._events.has_vhost(method.virtual_host):
            raise ConnectionClosing(NOT_ALLOWED, f"vhost {method.virtual_host} not found")
        self.vhost = method.virtual_host
        self.state = "running"
        return methods.ConnectionOpenOk()


def _agreed(name: str, value: int, least: int, most: int) -> int:
    """What a client asks for within what we offer; 0 leaves it to us."""
    if value == 0:
        return most
    if value < least:
        raise ConnectionClosing(
            NOT_ALLOWED, f"negotiated {name} = {value} is lower than the minimum allowed value ({least})"
        )
    if value > most:
        raise ConnectionClosing(
            NOT_ALLOWED, f"negotiated {name} = {value} is higher than the maximum allowed value ({most})"
        )
    return value
