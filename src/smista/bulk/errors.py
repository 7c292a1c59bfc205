"""What a bulk reader is answered when something goes wrong with the log. The classes, which clients raise too, are in
`smista.errors`."""

from __future__ import annotations

from smista.errors import BulkReaderFailed, LogPositionDropped
from smista.log.errors import LogDropped, LogError


def error_answer(error: LogError) -> tuple[str, str, str]:
    """Status, code and sentence for what can go wrong while blocks are read."""
    if isinstance(error, LogDropped):
        return "410 Gone", LogPositionDropped.code, dropped(error.position, error.first_position)
    return "503 Service Unavailable", BulkReaderFailed.code, str(error)


def dropped(position: int, first: int) -> str:
    """The sentence for a position below what is kept."""
    return (
        f"Block {position} of the log has been dropped; the first that is kept is {first}. Read on from there, and "
        "raise --log-retention-ms and --log-retention-bytes to keep more."
    )
