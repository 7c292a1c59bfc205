"""Deduplication: within its window an id that was already published is accepted and not stored again.

The memory outlives the message, a restart and the reclaiming of log blocks, so each entry knows the block it is noted
in. Entries are forgotten in the order in which their windows end.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import msgspec

from smista.core.message import Publication
from smista.core.settings import DeduplicationScope, QueueSettings

_SEEN_BYTES = 300
"""What an entry takes in memory beside its key."""


class Seen(msgspec.Struct, gc=False):
    number: int
    """The message that was stored under the id."""
    created_at_ms: int
    expires_at_ms: int
    position: int = 0
    """The log block this memory is noted in."""


class Tally:
    """How much memory all that is remembered takes."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class DedupMemory:
    __slots__ = ("_seen", "_tally", "bytes")

    def __init__(self, tally: Tally) -> None:
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._tally = tally
        self.bytes = 0

    def get(self, key: str, now_ms: int) -> Seen | None:
        seen = self._seen.get(key)
        return None if seen is None or seen.expires_at_ms <= now_ms else seen

    def remember(self, key: str, seen: Seen) -> None:
        if key not in self._seen:
            self._count(_SEEN_BYTES + len(key))
        self._seen[key] = seen
        self._seen.move_to_end(key)

    def clear(self) -> None:
        self._count(-self.bytes)
        self._seen = OrderedDict()

    def _count(self, more_bytes: int) -> None:
        self.bytes += more_bytes
        self._tally.bytes += more_bytes

    def forget_expired(self, now_ms: int) -> None:
        """Forget up to two entries: called on every publish, so that forgetting keeps pace with learning."""
        for _ in range(2):
            if not self._seen:
                return
            key = next(iter(self._seen))
            if self._seen[key].expires_at_ms > now_ms:
                return
            del self._seen[key]
            self._count(-_SEEN_BYTES - len(key))

    def items(self) -> list[tuple[str, Seen]]:
        return list(self._seen.items())

    def __len__(self) -> int:
        return len(self._seen)


def dedup_key(settings: QueueSettings, publication: Publication) -> str | None:
    """Under which key the queue remembers this publication; None when it does not."""
    envelope = publication.envelope
    key = envelope.deduplication_id
    if key is None:
        if not settings.dedup_by_body:
            return None
        key = "sha256:" + hashlib.sha256(publication.body).hexdigest()
    if settings.dedup_scope is DeduplicationScope.GROUP:
        group = envelope.group or ""
        return f"group {len(group)} {group} {key}"
    return f"id {key}"


def sent_key(batch_id: str, place: int) -> str:
    """Under which key it is remembered that the message in this place of a batch was stored."""
    return f"sent {place} {batch_id}"


def batch_key(batch_id: str) -> str:
    """Under which key a whole batch is remembered; no message's is the same."""
    return f"batch {batch_id}"
