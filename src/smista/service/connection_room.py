"""How many connections there are, and may be."""

from __future__ import annotations

import msgspec


class ConnectionRoom(msgspec.Struct):
    """How many connections there are, and may be."""

    open: int
    connections_max: int | None
    """For each listener; null for any number."""
    possible: int | None
    """For all together: what the limit of open files leaves for them."""
