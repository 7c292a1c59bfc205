"""What is drawn: settings of brokers, queues and exchanges, publications.

Few values of each kind, and the same ones for delays, leases and passing time, so that things fall together: what is
due in one tick of the calendar, what just fits and what just does not.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from smista.core.settings import check_settings
from smista.engine import (
    FOREVER_MS,
    Backoff,
    BrokerSettings,
    DeadLetterMode,
    DeduplicationScope,
    Envelope,
    ExchangeKind,
    ExchangeSettings,
    Overflow,
    PriorityPolicy,
    Publication,
    QueueSettings,
)
from smista.engine.accounts import LARGE_BYTES
from smista.errors import InvalidSettings
from tests.simulation.world import EXCHANGES, KEYS, QUEUES, World

TIMES_MS = (16, 16, 32, 48, 48, 160)
LEASES_MS = (16, 32, 48, 160, 1_000, FOREVER_MS, FOREVER_MS)
"""A consumer that is given no time at all gets its messages again and again, and simulated time does not move on."""


THEMES: dict[str, tuple[str, ...]] = {
    "": (),
    "claims": ("claim", "read_claim", "acknowledge_claims", "release_claims", "renew_claims", "publish"),
    "paging": ("publish_large", "receive", "cancel_call", "pull", "purge", "browse", "go_on", "acknowledge"),
    "limits": ("publish", "subscribe", "cancel_subscription", "nack", "publish_to_queues", "pass_time"),
    "alone": ("publish", "subscribe", "cancel_subscription", "disconnect", "alter_queue", "acknowledge"),
    "reclaiming": ("publish_large", "acknowledge", "receive", "read_errors", "crash", "acknowledge_now", "pull"),
    "dead letters": ("publish", "receive", "nack", "redrive", "delete_queue", "bind", "pass_time"),
    "exchanges": ("publish_to_exchange", "bind", "nack", "receive", "pass_time", "stage", "crash", "declare_exchange"),
    "batches": ("publish_batch", "alter_queue", "restart", "crash"),
    "staging": ("stage", "go_on_with_staged", "subscribe", "crash", "acknowledge", "cancel_call"),
}
"""Half of all lives are about something: they are fond of these steps, and their settings go with it."""


def broker_settings(draw: random.Random, theme: str) -> BrokerSettings:
    is_tight = draw.random() < 0.6 or theme == "reclaiming"
    is_paging = draw.random() < 0.3 or theme == "paging" or (theme == "reclaiming" and draw.random() < 0.5)
    return BrokerSettings(
        body_bytes_max=200,
        resident_bytes_max=draw.choice((0, 60, 120)) if is_paging else 1 << 30,
        log_retention_ms=0 if is_tight else 3_600_000,
        log_retention_bytes=0 if is_tight else 1 << 30,
        log_slack_bytes=draw.choice((0, 0, 500)) if is_tight else 1 << 30,
        block_bytes_max=draw.choice((60, 250, 1_000, 1 << 18)),
        waiting_bytes_max=draw.choice((200, 1 << 25)),
        claim_session_ms=160,
        watch_interval_s=100.0,
        disk_free_bytes_min=0,
    )


def with_readers(settings: BrokerSettings, seed: int) -> BrokerSettings:
    """Some keep blocks for readers of the log, though they fold as little as possible. By chances of its own: what else
    there is to a life stays as it was."""
    draw = random.Random(f"readers {seed}")
    if settings.log_retention_bytes or draw.random() < 0.6:
        return settings
    return msgspec.structs.replace(
        settings, log_retention_ms=3_600_000, log_retention_bytes=draw.choice((500, 5_000, 1 << 30))
    )


def queue_settings(world: World, draw: random.Random) -> QueueSettings:
    """Any mixture that is allowed; a third of them like those that AMQP makes."""
    while True:
        chosen = _settings(draw)
        if world.theme == "alone":
            chosen["single_active_consumer"] = draw.random() < 0.8
        elif world.theme == "limits":
            chosen["limit_ready_only"] = draw.random() < 0.8
            chosen["max_depth"] = draw.choice((0, 1, 2))
            chosen["overflow"] = draw.choice(list(Overflow))
        elif world.theme == "exchanges":
            chosen.pop("dead_letter_queue", None)
            chosen["dead_letter"] = draw.choice((DeadLetterMode.MOVE, DeadLetterMode.MOVE_OR_DROP))
            chosen["dead_letter_exchange"] = draw.choice(EXCHANGES)
            chosen["max_retries"] = draw.choice((0, 1))
        elif world.theme == "dead letters":
            chosen["durable"] = draw.random() < 0.5
            chosen["max_retries"] = draw.choice((0, 1))
        elif world.theme == "batches" and draw.random() < 0.7:
            chosen = {"body_bytes_max": draw.choice((10, 200)), "max_prefetch": 6, "prefetch": 5}
        elif world.theme in ("paging", "reclaiming", "claims") and draw.random() < 0.7:
            chosen = {"max_retries": None, "lease_ms": draw.choice(LEASES_MS), "max_prefetch": 6, "prefetch": 5}
        settings = QueueSettings(**chosen)
        try:
            check_settings(settings)
        except InvalidSettings:
            continue
        return settings


def _settings(draw: random.Random) -> dict[str, Any]:
    chance = draw.random
    chosen: dict[str, Any] = {
        "lease_ms": draw.choice(LEASES_MS),
        "max_retries": draw.choice((None, None, 0, 1, 2)),
        "retry_backoff": draw.choice(list(Backoff)),
        "retry_base_ms": draw.choice((0, *TIMES_MS)),
        "retry_jitter": draw.choice((0.0, 0.0, 0.5)),
        "backoff_on_timeout": chance() < 0.2,
        "dead_letter": draw.choice(list(DeadLetterMode)),
        "dead_letter_max_depth": draw.choice((1, 2, 10)),
        "max_prefetch": 6,
        "prefetch": draw.choice((1, 2, 5)),
        "durable": chance() < 0.88,
    }
    if chance() < 0.5:
        chosen["dead_letter_queue"] = draw.choice(QUEUES)
        chosen["own_dead_letters"] = chosen["prefetch"] != 2
    elif chance() < 0.5:
        chosen["dead_letter_exchange"] = draw.choice((*EXCHANGES, ""))
        if chance() < 0.5:
            chosen["dead_letter_routing_key"] = draw.choice(KEYS)
    if chance() < 0.5:
        if chance() < 0.7:
            chosen["max_depth"] = draw.choice((1, 1, 2, 4))
        if chance() < 0.4:
            chosen["max_bytes"] = draw.choice((10, 30, 80))
        chosen["limit_ready_only"] = chance() < 0.6
        chosen["overflow"] = draw.choice(list(Overflow))
    if chance() < 0.2:
        chosen["message_ttl_ms"] = draw.choice((0, *TIMES_MS, 1_000))
    if chance() < 0.1:
        chosen["retention_ms"] = draw.choice((48, 1_000))
    if chance() < 0.15:
        chosen["delay_ms"] = draw.choice(TIMES_MS)
    if chance() < 0.15:
        chosen["dedup_by_body"] = chance() < 0.5
        chosen["dedup_window_ms"] = draw.choice((0, 160, 1_000))
        chosen["dedup_scope"] = draw.choice(list(DeduplicationScope))
    if chance() < 0.1:
        chosen["rate_limit"] = draw.choice((1.0, 20.0, 100.0))
    if chance() < 0.3:
        chosen[draw.choice(("ordered", "fair"))] = True
        # Not drawn, so that the lives of the other queues stay what they were.
        chosen["group_turns"] = "ordered" in chosen and chosen["prefetch"] != 2
    if chance() < 0.3:
        chosen["max_priority"] = draw.choice((0, 2))
        chosen["clamp_priority"] = chance() < 0.7
        chosen["priority_policy"] = draw.choice(list(PriorityPolicy))
    if chance() < 0.15:
        chosen["single_active_consumer"] = True
    if chance() < 0.08:
        chosen["expires_ms"] = draw.choice((48, 160, 1_000))
    if chance() < 0.3:
        # As the queues of AMQP are: they let in what comes, and their first goes instead.
        chosen |= {"limit_ready_only": True, "max_retries": None, "dead_letter": DeadLetterMode.MOVE_OR_DROP}
    return chosen


def altered(world: World, draw: random.Random, present: QueueSettings) -> QueueSettings:
    """Present settings with some of others."""
    other = queue_settings(world, draw)
    fields = draw.sample(QueueSettings.__struct_fields__, draw.choice((1, 3, 12)))
    changes = {field: getattr(other, field) for field in fields if field != "durable"}
    return msgspec.structs.replace(present, **changes)


def exchange_settings(world: World, draw: random.Random) -> ExchangeSettings:
    is_simple = world.theme == "exchanges" and draw.random() < 0.7
    return ExchangeSettings(
        ExchangeKind.FANOUT if is_simple else draw.choice(list(ExchangeKind)),
        durable=draw.random() < 0.85,
        auto_delete=draw.random() < 0.2,
        internal=draw.random() < 0.05,
        alternate=draw.choice(EXCHANGES) if draw.random() < 0.15 else None,
    )


def publication(world: World, draw: random.Random, *, exchange: str = "") -> Publication:
    chance = draw.random
    world.token += 1
    body = b"m%d" % world.token
    if chance() < 0.3:
        body = body.ljust(draw.choice((10, 25, 60)), b".")
    if chance() < 0.02:
        body = body.ljust(250, b".")
    fields: dict[str, Any] = {}
    if exchange or chance() < 0.3:
        fields["routing_key"] = draw.choice(KEYS)
        fields["exchange"] = exchange
    if chance() < 0.4:
        fields["group"] = draw.choice(("g", "g", "h"))
    if chance() < 0.15:
        fields["deduplication_id"] = draw.choice(("1", "2"))
    if chance() < 0.15:
        fields["ttl_ms"] = draw.choice((0, *TIMES_MS))
    if chance() < 0.1:
        fields["max_retries"] = draw.choice((0, 1))
    if world.token % 8 < 2:
        fields["properties"] = b"\x01" * (LARGE_BYTES if world.token % 8 else 20)
    return Publication(
        body,
        Envelope(**fields) if fields else Envelope(),
        priority=draw.choice((0, 1, 2)) if chance() < 0.2 else None,
        delay_ms=draw.choice(TIMES_MS) if chance() < 0.2 else None,
        deliver_at_ms=_tick(world.now_ms, draw) if chance() < 0.1 else None,
    )


def _tick(now_ms: int, draw: random.Random) -> int:
    """An instant at which a tick of the calendar begins."""
    at_ms = now_ms + draw.choice(TIMES_MS)
    return at_ms + -at_ms % 16
