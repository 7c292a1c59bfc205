"""What a queue counts over its life, and the statistics made of it."""

from __future__ import annotations

import msgspec

from smista.core.message import Reason


class Counters(msgspec.Struct, gc=False, array_like=True):
    """Kept in the log with the queue, so they go on after a restart. All but the last two follow from records."""

    published: int = 0
    delivered: int = 0
    first_delivered: int = 0
    wait_ms_total: int = 0
    acknowledged: int = 0
    nacked: int = 0
    timed_out: int = 0
    released: int = 0
    dead_lettered: int = 0
    redriven: int = 0
    expired: int = 0
    dropped: int = 0
    purged: int = 0
    duplicates: int = 0
    rejected: int = 0

    def count_failure(self, reason: Reason) -> None:
        """A delivery ended without success."""
        match reason:
            case Reason.TIMED_OUT:
                self.timed_out += 1
            case Reason.RELEASED:
                self.released += 1
            case _:
                self.nacked += 1

    def count_death(self, reason: Reason) -> None:
        """A message was set aside."""
        self.dead_lettered += 1
        if reason is Reason.EXPIRED:
            self.expired += 1

    def count_removal(self, reason: Reason) -> None:
        """A message went without having been acknowledged."""
        match reason:
            case Reason.EXPIRED | Reason.RETIRED:
                self.expired += 1
            case Reason.CANCELLED:
                self.purged += 1
            case _:
                self.dropped += 1


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """One queue at one moment; docs/queues.md explains each."""

    queue: str
    namespace: str
    ready: int
    scheduled: int
    in_flight: int
    dead: int
    depth: int
    """Ready, scheduled and in flight together: what `max_depth` is held against."""
    body_bytes: int
    consumers: int
    claims: int
    """Open ones ..."""
    claimed: int
    """... and how many messages they hold."""
    is_paused: bool
    published_total: int
    delivered_total: int
    acknowledged_total: int
    nacked_total: int
    timed_out_total: int
    released_total: int
    dead_lettered_total: int
    redriven_total: int
    expired_total: int
    dropped_total: int
    purged_total: int
    duplicates_total: int
    rejected_total: int
    acknowledged_late_total: int
    """Rows of claims that had expired when they were acknowledged."""
    wait_ms_average: float
    """From ready to first delivery."""
    oldest_age_ms: int
    """Age of the oldest ready message, 0 when there is none."""
    policy: str | None = None
    """The operator's policy that applies to it."""
