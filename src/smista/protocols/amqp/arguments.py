"""A queue's arguments and its settings: two spellings of the same, and what RabbitMQ says where they are wrong.

The arguments of a declaration are kept in the queue's annotations as they came, types and all, so that another
declaration can be compared with them one by one, after a restart too. Settings that another protocol changes later do
not count there, as a policy does not in RabbitMQ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from smista.caches import cached_if_small
from smista.protocols.amqp.wire.replies import PRECONDITION_FAILED, ChannelClosing
from smista.protocols.amqp.wire.values import Arguments
from smista.service import queue_annotations
from smista.service.values import FOREVER_MS, DeadLetterMode, Overflow, QueueSettings

AUTO_DELETE = "amqp.auto-delete"
DECLARED = "amqp.arguments"
CONSUMER_TIMEOUT = "amqp.consumer-timeout"
PREFETCH_MAX = 1 << 20
EXPIRY_MAX_MS = 10 * 365 * 86_400_000
LENGTH_MAX = 1 << 62

_CLASSIC = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-master-locator",
    "x-fair",
)
_QUORUM = (
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-type",
    "x-quorum-initial-group-size",
    "x-delivery-limit",
    "x-message-ttl",
    "x-queue-leader-locator",
    "x-fair",
)
_STREAM = ("x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size")
_OF_TYPE = {"classic": _CLASSIC, "quorum": _QUORUM}
"""What each type of queue knows, in the order in which RabbitMQ compares it, and `x-fair`, which is ours. What no type
knows is not looked at."""
_NOT_CONSUMED_BY = {"classic": ("x-stream-offset",), "quorum": ("x-cancel-on-ha-failover", "x-stream-offset")}
"""What consumers of other types of queues may ask for."""
_KNOWN = {*_CLASSIC, *_QUORUM, *_STREAM}
_INTEGERS = {"byte", "unsignedbyte", "short", "unsignedshort", "signedint", "unsignedint", "long"}
_FLOATS = {"float", "double"}

Typed = dict[str, tuple[str, Any]]
"""By name: the type's name, and the value."""


def lease_ms(settings: QueueSettings) -> int:
    """As long as the channel lives, unless the queue asks for less."""
    return queue_annotations.number(settings, CONSUMER_TIMEOUT, 1, FOREVER_MS) or FOREVER_MS


def annotation(settings: QueueSettings, name: str) -> str | None:
    return queue_annotations.find(settings, name)


def is_auto_delete(settings: QueueSettings) -> bool:
    return annotation(settings, AUTO_DELETE) == "true"


def is_quorum(settings: QueueSettings) -> bool:
    return _type_of(_declared(settings)) == "quorum"


def _declared(settings: QueueSettings) -> Typed:
    """What a queue was declared with; nothing where another protocol made it."""
    text = annotation(settings, DECLARED)
    return {} if text is None else _read_declared(text)


@cached_if_small(len)
def _read_declared(text: str) -> Typed:
    typed = queue_annotations.decoded(text, Typed) or {}
    return typed if _type_of(typed) in _OF_TYPE else {}


def _with_types(arguments: Arguments) -> Typed:
    return {name: (arguments.types[name], _plain(value)) for name, value in arguments.items()}


def _plain(value: Any) -> Any:
    """A value as JSON has it, so that it is the same when it is read again."""
    match value:
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {_plain(name.encode("utf-8", "surrogateescape")): _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
    return str(value)


def _type_of(typed: Typed) -> str:
    return str(typed.get("x-queue-type", ("", "classic"))[1])


# -- what a declaration asks for --------------------------------------------------------------------------------------


def read(
    queue: str,
    vhost: str,
    *,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    arguments: Arguments,
    body_bytes_max: int | None = None,
) -> QueueSettings:
    """The settings that a declaration over AMQP stands for. Raises what RabbitMQ would close the channel with."""
    where = f"queue '{queue}' in vhost '{vhost}'"
    typed = _with_types(arguments)
    _check_values(typed, where)
    kind = _type_of(typed)
    if kind == "quorum":
        _check_quorum(where, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
    kept = {name: typed[name] for name in _OF_TYPE[kind] if name in typed}
    noted = {DECLARED: msgspec.json.encode(kept).decode()}
    if auto_delete:
        noted[AUTO_DELETE] = "true"
    timeout = arguments.get("x-consumer-timeout")
    if isinstance(timeout, int) and not isinstance(timeout, bool) and timeout > 0:
        noted[CONSUMER_TIMEOUT] = str(timeout)
    exchange = arguments.get("x-dead-letter-exchange")
    return QueueSettings(
        max_retries=_delivery_limit(arguments) if kind == "quorum" else None,
        dead_letter=DeadLetterMode.DROP if exchange is None else DeadLetterMode.MOVE_OR_DROP,
        dead_letter_exchange=exchange,
        dead_letter_routing_key=arguments.get("x-dead-letter-routing-key"),
        max_depth=_capped(arguments.get("x-max-length")),
        max_bytes=_capped(arguments.get("x-max-length-bytes")),
        limit_ready_only=True,
        overflow=_overflow(arguments.get("x-overflow", "drop-head"), has_dead_letters=exchange is not None),
        message_ttl_ms=arguments.get("x-message-ttl"),
        retention_ms=None,
        body_bytes_max=body_bytes_max,
        durable=durable,
        fair=arguments.get("x-fair", False),
        prefetch=1000,
        max_prefetch=PREFETCH_MAX,
        max_priority=arguments.get("x-max-priority", 0),
        clamp_priority=True,
        single_active_consumer=arguments.get("x-single-active-consumer", False),
        expires_ms=arguments.get("x-expires"),
        annotations=tuple(sorted(noted.items())),
    )


def _capped(limit: int | None) -> int | None:
    return None if limit is None else min(limit, LENGTH_MAX)


def _delivery_limit(arguments: Mapping[str, Any]) -> int | None:
    limit = arguments.get("x-delivery-limit")
    return min(limit, 1 << 31) if isinstance(limit, int) and limit >= 0 else None


def _overflow(name: str, *, has_dead_letters: bool) -> Overflow:
    match name:
        case "reject-publish":
            return Overflow.REJECT
        case "reject-publish-dlx":
            return Overflow.DEAD_LETTER_NEWEST if has_dead_letters else Overflow.REJECT
    return Overflow.DEAD_LETTER_OLDEST if has_dead_letters else Overflow.DROP_OLDEST


def _check_values(typed: Typed, where: str) -> None:
    """Raise for the first argument that is of the wrong type, out of range or not for this type of queue."""
    exchange = typed.get("x-dead-letter-exchange")
    if exchange is not None:
        check_exchange_name("x-dead-letter-exchange", exchange[0], where)
    _check_one_of("x-queue-type", typed, where, ("classic", "quorum"), "queue type")
    kind = _type_of(typed)
    for name in typed:
        if name in _KNOWN and name not in _OF_TYPE[kind]:
            raise ChannelClosing(
                PRECONDITION_FAILED, f"invalid arg '{name}' for {where} of queue type rabbit_{kind}_queue"
            )
    _check_number("x-expires", typed, where, least=1, most=EXPIRY_MAX_MS)
    _check_number("x-message-ttl", typed, where, most=EXPIRY_MAX_MS)
    if "x-dead-letter-routing-key" in typed:
        _check_text("x-dead-letter-routing-key", typed, where)
        if exchange is None:
            raise _invalid("x-dead-letter-routing-key", where, "routing_key_but_no_dlx_defined")
    for name in ("x-max-length", "x-max-length-bytes", "x-max-in-memory-length", "x-max-in-memory-bytes"):
        _check_number(name, typed, where)
    _check_number("x-max-priority", typed, where, most=255, beyond="max_value_exceeded")
    _check_text("x-overflow", typed, where)
    if typed.get("x-overflow", ("", "drop-head"))[1] not in ("drop-head", "reject-publish", "reject-publish-dlx"):
        raise _invalid("x-overflow", where, "invalid_overflow")
    _check_one_of("x-queue-mode", typed, where, ("default", "lazy"), "queue mode")
    _check_number("x-queue-version", typed, where, least=-LENGTH_MAX)
    if typed.get("x-queue-version", ("", 1))[1] not in (1, 2):
        raise _invalid("x-queue-version", where, f"\"unsupported queue version '{typed['x-queue-version'][1]}'\"")
    for name in ("x-single-active-consumer", "x-fair"):
        if typed.get(name, ("bool",))[0] != "bool":
            raise _unacceptable(name, typed, where)
    _check_number("x-quorum-initial-group-size", typed, where, least=1)
    _check_number("x-delivery-limit", typed, where, least=-LENGTH_MAX)


def check_consumed(typed: Mapping[str, Any], settings: QueueSettings, queue: str, vhost: str) -> None:
    """Raise where a consumer asks for what this type of queue cannot do. What no type knows is not looked at."""
    kind = "quorum" if is_quorum(settings) else "classic"
    for name in _NOT_CONSUMED_BY[kind]:
        if name in typed:
            raise ChannelClosing(
                PRECONDITION_FAILED,
                f"invalid arg '{name}' for queue '{queue}' in vhost '{vhost}' of queue type rabbit_{kind}_queue",
            )


def _check_quorum(where: str, *, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    for is_wrong, name in ((auto_delete, "auto-delete"), (exclusive, "exclusive-owner"), (not durable, "non-durable")):
        if is_wrong:
            raise ChannelClosing(PRECONDITION_FAILED, f"invalid property '{name}' for {where}")


def check_exchange_name(name: str, type_name: str, where: str) -> None:
    """An argument that names an exchange has to be text."""
    if type_name != "longstr":
        raise ChannelClosing(PRECONDITION_FAILED, f"invalid type '{type_name}' for arg '{name}' in {where}")


def check_integer(name: str, type_name: str, where: str) -> None:
    if type_name not in _INTEGERS:
        raise _invalid(name, where, f'"expected integer, got {type_name}"')


def _check_number(
    name: str, typed: Typed, where: str, *, least: int = 0, most: int = 1 << 64, beyond: str = "value_too_large"
) -> None:
    if name not in typed:
        return
    type_name, value = typed[name]
    check_integer(name, type_name, where)
    if value < least:
        raise _invalid(name, where, f"{{value_{'zero' if value == 0 else 'negative'},{value}}}")
    if value > most:
        raise _invalid(name, where, f"{{{beyond},{value}}}")


def _check_text(name: str, typed: Typed, where: str) -> None:
    if typed.get(name, ("longstr",))[0] != "longstr":
        raise _unacceptable(name, typed, where)


def _check_one_of(name: str, typed: Typed, where: str, values: tuple[str, ...], what: str) -> None:
    _check_text(name, typed, where)
    if name in typed and typed[name][1] not in values:
        raise _invalid(name, where, f"\"unsupported {what} '{typed[name][1]}'\"")


def _unacceptable(name: str, typed: Typed, where: str) -> ChannelClosing:
    return _invalid(name, where, f"{{unacceptable_type,{typed[name][0]}}}")


def _invalid(name: str, where: str, why: str) -> ChannelClosing:
    return ChannelClosing(PRECONDITION_FAILED, f"invalid arg '{name}' for {where}: {why}")


# -- two declarations -------------------------------------------------------------------------------------------------


def check_equivalent(
    queue: str, vhost: str, present: QueueSettings, *, durable: bool, auto_delete: bool, arguments: Arguments
) -> None:
    """Raise where a queue is declared again differently, naming the first difference."""
    where = f"queue '{queue}' in vhost '{vhost}'"
    check_same("durable", where, durable, present.durable)
    if annotation(present, DECLARED) is None:
        # Made over another protocol: AMQP has no words for most of its settings, so nothing else is compared.
        return
    check_same("auto_delete", where, auto_delete, is_auto_delete(present))
    typed, again = _declared(present), _with_types(arguments)
    for name in _OF_TYPE[_type_of(typed)]:
        asked, current = again.get(name), typed.get(name)
        if not _is_same(name, asked, current):
            raise inequivalent(name, where, asked, current)


def check_same(name: str, where: str, asked: object, current: object) -> None:
    """A property of a queue or an exchange that is no argument."""
    if asked != current:
        raise ChannelClosing(
            PRECONDITION_FAILED,
            f"inequivalent arg '{name}' for {where}: received '{_shown(asked)}' but current is '{_shown(current)}'",
        )


def inequivalent(
    name: str, where: str, asked: tuple[str, Any] | None, current: tuple[str, Any] | None
) -> ChannelClosing:
    if asked is not None and current is not None:
        difference = f"received '{_shown(asked[1])}' but current is '{_shown(current[1])}'"
    else:
        difference = f"received {_with_type(asked)} but current is {_with_type(current)}"
    return ChannelClosing(PRECONDITION_FAILED, f"inequivalent arg '{name}' for {where}: {difference}")


def _is_same(name: str, asked: tuple[str, Any] | None, current: tuple[str, Any] | None) -> bool:
    if name == "x-queue-type":
        asked, current = asked or ("longstr", "classic"), current or ("longstr", "classic")
    if asked is None or current is None:
        return asked is current
    return _class_of(asked[0]) == _class_of(current[0]) and bool(asked[1] == current[1])


def _class_of(type_name: str) -> str:
    if type_name == "binary":
        # Bytes that a client marks as such: the same as text to RabbitMQ, once a queue is there.
        return "longstr"
    return "integer" if type_name in _INTEGERS else "float" if type_name in _FLOATS else type_name


def _with_type(typed: tuple[str, Any] | None) -> str:
    return "none" if typed is None else f"the value '{_shown(typed[1])}' of type '{typed[0]}'"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
