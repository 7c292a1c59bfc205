"""What a dead letter carries over AMQP: the `x-death` headers as RabbitMQ writes them, made when it is delivered.

One entry per queue and reason, newest first; dying there again counts it up and leaves the rest of it as it was. A
message may bring entries of its own, because somebody published it again with the headers it had: they count on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smista.protocols.amqp.routing import copied_to
from smista.protocols.amqp.wire.content import BasicProperties
from smista.protocols.amqp.wire.values import LongInteger, Timestamp
from smista.service.values import Death, Reason

_REASONS = {
    Reason.REJECTED: "rejected",
    Reason.NACKED: "rejected",
    Reason.EXPIRED: "expired",
    Reason.RETIRED: "expired",
    Reason.OVERFLOW: "maxlen",
    Reason.MAX_RETRIES: "delivery_limit",
}


def add_deaths(basic: BasicProperties, deaths: tuple[Death, ...], routing_key: str) -> BasicProperties:
    """The properties with the deaths in their headers. Their expiration stands there from now on.

    `routing_key` is the message's present one.
    """
    headers: dict[str, Any] = dict(basic.headers or {})
    brought = headers.get("x-death")
    entries = [entry for entry in brought if isinstance(entry, dict)] if isinstance(brought, list) else []
    first = next((death for death in deaths if death.is_first), deaths[0])
    keys = copied_to(headers)
    for death in deaths:
        _add(entries, death, keys, basic.expiration if death is first else None)
    # RabbitMQ sorts an entry by its names whenever it touches the list again.
    headers["x-death"] = [
        entry if entry["count"] == 1 and entry is entries[-1] and brought is None else dict(sorted(entry.items()))
        for entry in entries
    ]
    if brought is None:
        headers["x-first-death-exchange"] = first.exchange
        headers["x-first-death-queue"] = first.queue
        headers["x-first-death-reason"] = _reason(first)
    if any(key != first.routing_key for key in (routing_key, *(death.routing_key for death in deaths))):
        # It was sent on under a key of its queue's, which then is its only one.
        headers.pop("CC", None)
    basic.headers = dict(sorted(headers.items()))
    basic.expiration = None
    return basic


def _add(entries: list[dict[str, Any]], death: Death, keys: Sequence[str], expiration: str | None) -> None:
    """Put a death in front, counting up what was brought of the same."""
    same = next(
        (each for each in entries if (each.get("queue"), each.get("reason")) == (death.queue, _reason(death))), None
    )
    if same is None:
        entries.insert(0, _entry(death, keys if death.is_first else (), expiration))
        return
    entries.remove(same)
    count = same.get("count")
    before = count if isinstance(count, int) else 0
    entries.insert(0, {**same, "count": LongInteger(before + death.count)})


def _entry(death: Death, keys: Sequence[str], expiration: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "count": LongInteger(death.count),
        "reason": _reason(death),
        "queue": death.queue,
        "time": Timestamp((death.first_at_ms or death.at_ms) // 1000),
        "exchange": death.exchange,
        # What another protocol put into a queue by its name came by that name.
        "routing-keys": [death.routing_key if death.routing_key or death.exchange else death.queue, *keys],
    }
    if expiration is not None:
        entry["original-expiration"] = expiration
    return entry


def _reason(death: Death) -> str:
    return _REASONS.get(death.reason, death.reason.name.lower())
