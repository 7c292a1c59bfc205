"""Explains the size of the broker's log in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smista.durations import shown_duration
from smista.text import shown_bytes

if TYPE_CHECKING:
    from smista.client.answers import LogSpace


def why_kept(space: LogSpace, now_ms: int) -> str:
    needed = f"{shown_bytes(space.needed_bytes)} of it are needed: messages, claims, declarations, deduplication ids"
    match space.kept_for:
        case "need" | "last_block":
            return f"{needed}. The rest is removed when it is more than {shown_bytes(space.spare_bytes)}."
        case "retention":
            age = "" if space.oldest_at_ms is None else f", {shown_duration(max(0, now_ms - space.oldest_at_ms))} old,"
            return (
                f"Its oldest part{age} is kept for readers of the log: until it is "
                f"{shown_duration(space.retention_ms)} old (log_retention_ms), or the log is larger than "
                f"{shown_bytes(space.retention_bytes)} (log_retention_bytes). {needed}."
            )
        case "damage":
            return (
                "Its oldest block cannot be read, and has the only copy of some messages' bodies; the server's log "
                "names it. The block is removed after those messages, which are dead, have been deleted."
            )
        case "reclaiming":
            return f"Space is being reclaimed. {needed}."
    return f"The broker gives as the reason: {space.kept_for or 'none'}."
