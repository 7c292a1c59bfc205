"""File descriptors: as many as the system lets us have, and how many of them are for connections."""

from __future__ import annotations

import logging
import resource

from smista.protocols.places import ANY_NUMBER, Places
from smista.server.logs import fields

RESERVED = 512
"""For the log, those who read it, staged files, and connections that linger until they have read why they go."""

logger = logging.getLogger("smista.server")


def raise_limit() -> int:
    """Raise the limit of open files as far as we may; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            # Some systems say that there is no limit and have one.
            pass
    return ANY_NUMBER if soft == resource.RLIM_INFINITY else soft


def places(limit: int, connections_max: int) -> Places:
    """Room for connections under a limit of open files; says so where it is less than was asked for."""
    most = limit - min(RESERVED, limit // 2)
    if most < connections_max:
        logger.warning(
            "connections_max is more than the limit of open files leaves: raise that limit (ulimit -n)",
            extra=fields(connections_max=connections_max, connections_possible=most, open_files_max=limit),
        )
    return Places(most, connections_max)
