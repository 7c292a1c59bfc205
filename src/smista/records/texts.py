"""Texts in records: UTF-8. What is no proper text is written all the same, with something in its place."""

from __future__ import annotations

from smista.records.layout import check_fits

TEXT = "text"
ERROR_BYTES_MAX = 65_535
"""A longer error is cut."""


def pack_error(error: str) -> bytes:
    return error.encode("utf-8", "replace")[:ERROR_BYTES_MAX]


def pack_name(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def read(data: memoryview | bytes, offset: int, end: int | None = None) -> str:
    """The text up to `end`, or up to the end of the record."""
    if end is not None:
        check_fits(data, end)
    return str(data[offset:end], "utf-8", "replace")
