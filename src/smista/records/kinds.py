"""The kinds of records, by the number that stands before each of them."""

from __future__ import annotations

import enum


class Kind(enum.IntEnum):
    """The numbers stand in the log: never use one again. Each kind has a module of its name."""

    OPENED = 1
    QUEUE_DECLARED = 2
    QUEUE_DELETED = 3
    EXCHANGE_DECLARED = 4
    EXCHANGE_DELETED = 5
    BOUND = 6
    UNBOUND = 7
    POLICY_SET = 8
    POLICY_DELETED = 9
    ENQUEUED = 16
    FANNED_OUT = 17
    PLACED = 18
    REMEMBERED = 19
    CLAIMED = 20
    CLAIMANT = 21
    COMMITTED = 22
    JOB = 23
    JOB_ADVANCED = 24
    DELIVERED = 32
    EXTENDED = 33
    GIVEN_BACK = 34
    RESCHEDULED = 35
    ACKNOWLEDGED = 36
    REMOVED = 37
    PARKED = 38
    MOVED = 39
    PURGED = 40
    BECAME_READY = 41
    READDRESSED = 42
