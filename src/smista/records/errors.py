"""What can be wrong with a record."""

from __future__ import annotations

from smista.log.errors import LogError


class RecordError(LogError):
    """A block passed its checksum and still does not read as records: a mistake of the program that wrote it."""

    code = "log_record_invalid"
