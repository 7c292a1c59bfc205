"""What a publisher says of a message, looked at once: `Prepared`, made of the bytes of its properties.

Most of what they say is nobody's business here: the bytes are kept with the message and handed out as they are. What
publishing needs is taken out: priority, expiration, and the few headers that mean something. It is the same for all
messages of one form, see `wire.forms`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from smista.protocols.amqp import routing
from smista.protocols.amqp.arguments import EXPIRY_MAX_MS
from smista.protocols.amqp.reply_to import REPLY_PREFIX, REPLY_TO
from smista.protocols.amqp.wire import content
from smista.protocols.amqp.wire.content import BasicProperties
from smista.protocols.amqp.wire.forms import Form
from smista.protocols.amqp.wire.replies import PRECONDITION_FAILED, ChannelClosing
from smista.protocols.amqp.wire.values import TYPE_NAMES, VALUES_MAX, TooManyValues
from smista.service.values import ID_LENGTH_MAX, Envelope, Publication

VALUE_BYTES = 256
"""What a value of a table takes in memory at most, with its name ..."""
TEXT_BYTES_PER_BYTE = 4
"""... but for long names and texts: so much of each byte, where one sign of a text is beyond the first 65,536."""

MEANT_HEADERS = frozenset(("CC", "BCC", "x-group", "x-deduplication-header", "x-delay"))
"""Those that publishing looks at."""

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class Terms:
    """What queues read of messages. Messages of one target that say the same have the same object."""

    __slots__ = ("delay_ms", "envelope", "like", "priority")

    def __init__(self, envelope: Envelope, priority: int | None, delay_ms: int | None) -> None:
        self.envelope = envelope
        """Without properties."""
        self.priority = priority
        self.delay_ms = delay_ms
        self.like = self.publication(b"", envelope)
        """All that the messages have in common."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Terms) and self.like == other.like

    __hash__ = None  # type: ignore[assignment]  # nobody looks one up

    def publication(self, body: bytes, envelope: Envelope) -> Publication:
        return Publication(body, envelope, self.priority, self.delay_ms)


class Prepared:
    """Properties that were looked at once, and all that have their form."""

    __slots__ = (
        "__weakref__",
        "_last",
        "_last_raw",
        "_routed_by",
        "extra_keys",
        "form",
        "headers",
        "is_changed",
        "kept_bytes",
        "terms",
    )

    def __init__(
        self,
        terms: Terms,
        raw: bytes,
        kept: bytes,
        is_changed: bool,
        extra_keys: tuple[str, ...],
        headers: Mapping[str, Any] | None,
        value_count: int,
    ) -> None:
        """`kept` are the properties as they are kept with the message, of what came as `raw`; `headers` are None where
        no exchange looks at them."""
        self.terms = terms
        self.is_changed = is_changed
        """Whether they are kept as something else than what came."""
        self.form: Form | None = None
        """Of properties for which all of this holds; None where nobody has learned it."""
        self.headers = headers
        self.extra_keys = extra_keys
        self._last_raw = raw
        self._last: Envelope | None = self._envelope(kept) if is_changed else None
        self._routed_by: dict[str, Any] | None = None
        self.kept_bytes = len(raw) + is_changed * len(kept) + value_count * VALUE_BYTES
        """What it takes in memory, or more."""
        if value_count:
            self.kept_bytes += len(raw) * TEXT_BYTES_PER_BYTE

    @property
    def remembered_bytes(self) -> int:
        """What it takes for as long as it is remembered: with its form, and the last envelope."""
        return self.kept_bytes + len(self._last_raw) + (0 if self.form is None else self.form.kept_bytes)

    @property
    def routed_by(self) -> dict[str, Any]:
        """The headers, for an exchange that looks at them."""
        if self._routed_by is None:
            assert self.headers is not None
            self._routed_by = routing.routable(self.headers)
        return self._routed_by

    def envelopes(self, several: Sequence[bytes]) -> list[Envelope]:
        """Of messages whose properties came as these, in the form that was looked at. Messages whose properties are the
        same share one, also with the last that came before."""
        first = several[0]
        if len(several) > 1 and several.count(first) != len(several):
            return list(map(self._envelope, several))
        if self._last is None or first != self._last_raw:
            self._last_raw, self._last = first, self._envelope(first)
        return [self._last] * len(several)

    def _envelope(self, kept: bytes) -> Envelope:
        like = self.terms.envelope
        return Envelope(
            content.TAG + kept, like.exchange, like.routing_key, like.group, like.deduplication_id, like.ttl_ms
        )


def prepare(
    exchange: str,
    routing_key: str,
    raw: bytes,
    user: str,
    reply_token: str | None,
    before: Terms | None,
    *,
    keeps_headers: bool,
) -> Prepared:
    """Of a message that `user` publishes to that exchange and key; `before` are the terms of another one. Headers take
    many times the memory that they came in, so they are kept for an exchange that looks at them only. Raises what
    closes the channel."""
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
        b"", exchange, routing_key, _id(headers, "x-group"), _id(headers, "x-deduplication-header"), ttl_ms
    )
    terms = Terms(envelope, basic.priority, _delay(headers))
    if terms == before:
        terms = before
    if not keeps_headers:
        return Prepared(terms, raw, kept, is_changed, extra_keys, None, 0)
    return Prepared(terms, raw, kept, is_changed, extra_keys, headers, basic.value_count)


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
