"""What a publisher says of a message, looked at once: `Prepared`, made of the bytes of its properties.

Most of what they say is nobody's business here: the bytes are kept with the message and handed out as they are. What
publishing needs is taken out: priority, expiration, and the few headers that mean something.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from smista.protocols.amqp import routing
from smista.protocols.amqp.arguments import EXPIRY_MAX_MS
from smista.protocols.amqp.reply_to import REPLY_PREFIX, REPLY_TO
from smista.protocols.amqp.wire import content
from smista.protocols.amqp.wire.content import BasicProperties
from smista.protocols.amqp.wire.replies import PRECONDITION_FAILED, ChannelClosing
from smista.protocols.amqp.wire.values import TYPE_NAMES, VALUES_MAX, TooManyValues
from smista.service.values import ID_LENGTH_MAX, Envelope, Publication

VALUE_BYTES = 256
"""What a value of a table takes in memory at most, with its name ..."""
TEXT_BYTES_PER_BYTE = 4
"""... but for long names and texts: so much of each byte, where one sign of a text is beyond the first 65,536."""

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class Prepared:
    """Properties that were looked at once."""

    __slots__ = (
        "__weakref__",
        "_routed",
        "_routed_by",
        "delay_ms",
        "envelope",
        "extra_keys",
        "headers",
        "kept_bytes",
        "priority",
    )

    def __init__(
        self,
        envelope: Envelope,
        priority: int | None,
        delay_ms: int | None,
        headers: Mapping[str, Any] | None,
        extra_keys: tuple[str, ...],
        value_count: int = 0,
    ) -> None:
        self.envelope = envelope
        self.priority = priority
        self.delay_ms = delay_ms
        self.headers = headers
        self.extra_keys = extra_keys
        self.kept_bytes = len(envelope.properties) + value_count * VALUE_BYTES
        """What it takes in memory, or more."""
        if value_count:
            self.kept_bytes += len(envelope.properties) * TEXT_BYTES_PER_BYTE
        self._routed_by: dict[str, Any] | None = None
        self._routed: Prepared | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing it says makes a queue look at the messages one by one."""
        envelope = self.envelope
        return (
            self.priority is None
            and self.delay_ms is None
            and envelope.ttl_ms is None
            and envelope.deduplication_id is None
        )

    @property
    def properties(self) -> bytes:
        """As they came."""
        return self.envelope.properties[1:]

    def publication(self, body: bytes) -> Publication:
        return Publication(body, self.envelope, self.priority, self.delay_ms)

    @property
    def routed_by(self) -> dict[str, Any]:
        """The headers, for an exchange that looks at them."""
        if self._routed_by is None:
            self._routed_by = routing.routable(self.headers or {})
        return self._routed_by

    @property
    def routed(self) -> Prepared:
        """Without what is for routing only, the same one each time: headers take many times the memory they came in."""
        if self.headers is None and not self.extra_keys:
            return self
        if self._routed is None:
            self._routed = Prepared(self.envelope, self.priority, self.delay_ms, None, ())
        return self._routed


def prepare(exchange: str, routing_key: str, raw: bytes, user: str, reply_token: str | None) -> Prepared:
    """Of a message that `user` publishes to that exchange and key. Raises what closes the channel."""
    try:
        basic = content.read_properties(raw, VALUES_MAX)
    except TooManyValues as fault:
        raise ChannelClosing(PRECONDITION_FAILED, f"invalid message: {fault}") from None
    headers = basic.headers or {}
    is_changed = False
    if basic.user_id is not None and basic.user_id != user:
        raise ChannelClosing(
            PRECONDITION_FAILED,
            f"user_id property set to '{basic.user_id}' but authenticated user was '{user}'",
            is_quoting=True,
        )
    if basic.reply_to == REPLY_TO:
        if reply_token is None:
            raise ChannelClosing(PRECONDITION_FAILED, "fast reply consumer does not exist")
        basic.reply_to = REPLY_PREFIX + reply_token
        is_changed = True
    extra_keys = (*_keys(basic, "CC"), *_keys(basic, "BCC"))
    if "BCC" in headers:
        basic.headers = headers = {name: value for name, value in headers.items() if name != "BCC"}
        is_changed = True
    kept = content.write_properties(basic) if is_changed else raw
    ttl_ms = _expiration(basic.expiration)
    if basic.delivery_mode not in (None, 1, 2):
        raise ChannelClosing(PRECONDITION_FAILED, f"invalid message: {{delivery_mode_unknown,{basic.delivery_mode}}}")
    envelope = Envelope(
        content.TAG + kept,
        exchange,
        routing_key,
        _id(headers, "x-group"),
        _id(headers, "x-deduplication-header"),
        ttl_ms,
    )
    return Prepared(envelope, basic.priority, _delay(headers), headers or None, extra_keys, basic.value_count)


def _id(headers: Mapping[str, Any], name: str) -> str | None:
    """A header that names something, as text; one that is empty names nothing. AMQP has no limit for its length and we
    have one: of what is longer the end is replaced by a hash of all of it, so that no two become one."""
    value = headers.get(name)
    if value in (None, ""):
        return None
    text = str(value)
    if len(text) <= ID_LENGTH_MAX:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return text[: ID_LENGTH_MAX - len(digest)] + digest


def _keys(basic: BasicProperties, name: str) -> tuple[str, ...]:
    if basic.headers is None or name not in basic.headers:
        return ()
    keys = basic.headers[name]
    if not isinstance(keys, list):
        assert basic.came is not None
        type_name = TYPE_NAMES[chr(basic.came[1][name][0])]
        raise ChannelClosing(
            PRECONDITION_FAILED, f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name}}}'
        )
    return tuple(key for key in keys if isinstance(key, str))


def _expiration(text: str | None) -> int | None:
    if text is None:
        return None
    found = _INTEGER.match(text)
    if found is None:
        why = "no_integer"
    elif found.end() < len(text):
        why = f'{{leftover_string,"{text[found.end() :]}"}}'
    elif int(text) < 0:
        why = f"{{value_negative,{int(text)}}}"
    elif int(text) > EXPIRY_MAX_MS:
        why = f"{{value_too_large,{int(text)}}}"
    else:
        return int(text)
    raise ChannelClosing(PRECONDITION_FAILED, f"invalid expiration '{text}': {why}", is_quoting=True)


def _delay(headers: Mapping[str, Any]) -> int | None:
    value = headers.get("x-delay")
    return value if type(value) is int and 0 < value < 1 << 52 else None
