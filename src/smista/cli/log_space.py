"""Why the broker's log is as large as it is, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smista.cli.durations import shown_duration
from smista.cli.text import shown_bytes

if TYPE_CHECKING:
    from smista.client.answers import LogSpace


def why_kept(space: LogSpace, now_ms: int) -> str:
    needed = f"{shown_bytes(space.needed_bytes)} of it are needed: messages, claims, declarations, remembered ids"
    match space.kept_for:
        case "need" | "last_block":
            return f"{needed}. The rest goes when it is more than {shown_bytes(space.spare_bytes)}."
        case "retention":
            age = "" if space.oldest_at_ms is None else f", {shown_duration(max(0, now_ms - space.oldest_at_ms))} old,"
            return (
                f"Its oldest part{age} is kept for readers of the log: until it is "
                f"{shown_duration(space.retention_ms)} old (log_retention_ms), or the log is larger than "
                f"{shown_bytes(space.retention_bytes)} (log_retention_bytes). {needed}."
            )
        case "damage":
            return (
                "Its oldest block cannot be read, and bodies of messages are in it that are nowhere else; the broker's "
                "log says which. It goes when those messages, which are set aside, have been removed."
            )
        case "reclaiming":
            return f"It is being made smaller. {needed}."
    return f"The broker says: {space.kept_for or 'nothing'}."
