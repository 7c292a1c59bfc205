"""What all commands share: a structure that is both the request's schema and its meaning.

A command is one structure per name. Its fields are decoded straight from JSON or MessagePack, `run` does it, and the
class says what it answers. `/v1/command`, REST, the stream and `/openapi.json` are all made from the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from smista.core.state import DEFAULT_NAMESPACE
from smista.engine import Broker
from smista.protocols.http.bounded import BoundedDecoder
from smista.protocols.http.errors import InvalidRequest
from smista.protocols.http.formats import JSON, MESSAGE_PACK, Decoder, Format
from smista.protocols.places import Places

if TYPE_CHECKING:
    from smista.protocols.http.staging import Staging

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 52)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
PAGE_MAX = 10_000
PageSize = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
After = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Where a page starts: behind what is on those before it."""
SHOWN_AT_ONCE = 250
"""So many messages, or queues with their statistics, are shown in one turn of the loop."""


class Choice(msgspec.Struct, frozen=True):
    """Fields of which one may be given; `is_required` where it must be."""

    fields: tuple[str, ...]
    is_required: bool = True

    def check(self, command: object) -> None:
        given = [name for name in self.fields if not _is_absent(getattr(command, name))]
        if len(given) > 1:
            raise InvalidRequest(f"Both `{given[0]}` and `{given[1]}` are given; give one of them.")
        if self.is_required and not given:
            raise InvalidRequest(f"A required field is missing; give one of {', '.join(self._names)}.")

    @property
    def _names(self) -> list[str]:
        return [f"`{name}`" for name in self.fields]


def _is_absent(value: object) -> bool:
    return value is None or value is UNSET


class Door:
    """Where a command came from: the broker it is for, what is staged, the formats it came in and is answered in, and
    how many connections there may be."""

    __slots__ = ("answer_format", "begun", "broker", "places", "request_format", "staging")

    def __init__(
        self,
        broker: Broker,
        staging: Staging,
        request_format: Format,
        answer_format: Format,
        places: Places | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """`begun` is called by whoever read something long in turns, right before it does what was asked for: what was
        asked for later may be begun then."""
        self.begun = begun
        self.broker = broker
        self.staging = staging
        self.places = places or Places()
        self.request_format = request_format
        self.answer_format = answer_format


class Runnable(Protocol):
    """One thing to be done."""

    name: ClassVar[str]
    answer: ClassVar[Any]
    """The type of what `run` returns, or several."""
    choices: ClassVar[tuple[Choice, ...]]
    """What the types of the fields leave open; `run` checks it."""

    async def run(self, door: Door) -> object: ...


class Command(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What nearly all commands are made from."""

    name: ClassVar[str]
    answer: ClassVar[Any]
    choices: ClassVar[tuple[Choice, ...]] = ()

    namespace: Name = DEFAULT_NAMESPACE

    async def run(self, door: Door) -> object:
        raise NotImplementedError

    def check_choices(self) -> None:
        for choice in self.choices:
            choice.check(self)


COMMANDS: dict[str, type[Runnable]] = {}
DECODERS: dict[Format, dict[str, Decoder[Runnable]]] = {JSON: {}, MESSAGE_PACK: {}}

C = TypeVar("C", bound=type[Runnable])


def command(kind: C) -> C:
    """Enter a command into the table."""
    COMMANDS[kind.name] = kind
    for each, decoders in DECODERS.items():
        decoders[kind.name] = BoundedDecoder(kind, each, place="payload")
    return kind


class Success(msgspec.Struct):
    success: bool = True
