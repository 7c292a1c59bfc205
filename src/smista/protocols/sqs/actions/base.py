"""What all actions have: parameters as a structure, named as on the wire, and a method that runs them.

No parameter is required when a request is decoded: what is missing is refused by the action, in SQS's words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeVar

import msgspec

from smista.errors import BrokerError
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.errors import (
    EMPTY_BATCH,
    IDS_NOT_DISTINCT,
    INVALID_ENTRY_ID,
    TOO_MANY_ENTRIES,
    SqsError,
    from_broker,
    invalid_value,
    missing,
)
from smista.protocols.sqs.limits import Limits


class Answer(msgspec.Struct, rename="pascal", omit_defaults=True):
    has_result: ClassVar[bool] = True


class Nothing(Answer):
    """Success, without a result."""

    has_result: ClassVar[bool] = False


NOTHING = Nothing()


class Action(Protocol):
    is_reading: ClassVar[bool]
    """Whether it changes nothing, so that anybody may ask for it by GET."""

    async def run(self, call: Call) -> Answer: ...


class Parameters(msgspec.Struct, rename="pascal", kw_only=True):
    """Of an action that has no QueueUrl."""

    is_reading: ClassVar[bool] = False


class QueueParameters(msgspec.Struct, rename="pascal", kw_only=True):
    is_reading: ClassVar[bool] = False

    queue_url: str | None = None


# -- batches ----------------------------------------------------------------------------------------------------------


class Failed(msgspec.Struct, rename="pascal"):
    """An entry that had no effect."""

    id: str
    code: str
    message: str
    sender_fault: bool


class Entry(Protocol):
    @property
    def id(self) -> str | None: ...


_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
E = TypeVar("E", bound=Entry)


def check_entries(entries: Sequence[E] | None, limits: Limits, kind: str) -> list[tuple[str, E]]:
    """The entries with their ids, or raise what is wrong with the batch as a whole."""
    if not entries:
        raise SqsError(EMPTY_BATCH, f"There should be at least one {kind} in the request.")
    if len(entries) > limits.batch_entries:
        raise SqsError(
            TOO_MANY_ENTRIES,
            f"Maximum number of entries per request are {limits.batch_entries}. You have sent {len(entries)}.",
        )
    seen = set()
    for entry in entries:
        if entry.id is None:
            raise missing(f"{kind}.1.Id")
        if _ENTRY_ID.fullmatch(entry.id) is None:
            raise SqsError(
                INVALID_ENTRY_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if entry.id in seen:
            raise SqsError(IDS_NOT_DISTINCT, f"Id {entry.id} repeated.")
        seen.add(entry.id)
    return [(entry.id, entry) for entry in entries if entry.id is not None]


def failed(id: str, error: SqsError | BrokerError) -> Failed:
    if isinstance(error, BrokerError):
        error = from_broker(error)
    return Failed(id, error.kind.code, error.message, error.kind.status < 500)


# -- values -----------------------------------------------------------------------------------------------------------


def check_range(value: int, parameter: str, least: int, most: int, reason: str) -> int:
    if not least <= value <= most:
        raise invalid_value(value, parameter, reason)
    return value
