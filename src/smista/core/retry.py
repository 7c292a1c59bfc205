"""How long a failed message waits before it may be received again."""

from __future__ import annotations

from smista.core.settings import Backoff, QueueSettings

_DOUBLINGS_MAX = 50


def backoff_ms(settings: QueueSettings, failure_count: int, chance: float) -> int:
    """The wait after the `failure_count`-th failure; `chance` (0 to 1) is the random number that jitter takes.

    Exponential doubles from the base: 2, 4, 8 ... times `retry_base_ms`. Jitter only ever shortens, down to
    `1 - retry_jitter` of the full wait, so that the cap holds.
    """
    match settings.retry_backoff:
        case Backoff.NONE:
            return 0
        case Backoff.LINEAR:
            wait_ms = settings.retry_base_ms * failure_count
        case Backoff.EXPONENTIAL:
            wait_ms = settings.retry_base_ms << min(failure_count, _DOUBLINGS_MAX)
    wait_ms = min(wait_ms, settings.retry_cap_ms)
    return int(wait_ms * (1.0 - settings.retry_jitter * chance))


def has_retries_left(max_retries: int | None, failure_count: int) -> bool:
    """`max_retries` counts redeliveries after the first delivery: 3 allows 4 deliveries in all."""
    return max_retries is None or failure_count <= max_retries


def spread(chance: float, sequence: int) -> float:
    """One random number made into one per message, where many fail at the same instant."""
    return (chance + sequence * 0.6180339887498949) % 1.0
