"""What the commands of HTTP share.

Most are the service's own (`smista.service.commands`), with a field for the namespace. Where HTTP takes or shows
something in another way, a module here has a structure for it: a class derived from the service's, or one of its own.
`/v1/command`, REST, the stream and `/openapi.json` are all made from the table of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar, cast

import msgspec

from smista.protocols.http.bounded import BoundedDecoder
from smista.protocols.http.formats import JSON, MESSAGE_PACK, Decoder, Format
from smista.service.command import Command, Operation, OperationMeta
from smista.service.fields import Choice, Name
from smista.service.session import Session
from smista.service.values import DEFAULT_NAMESPACE

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
SHOWN_AT_ONCE = 250
"""So many messages, or queues with their statistics, are shown in one turn of the loop."""


class Call:
    """One request, as a command needs to know it: whose it is, and the formats it came in and is answered in."""

    __slots__ = ("answer_format", "begun", "fair_turns", "request_format", "session")

    def __init__(
        self,
        session: Session,
        request_format: Format,
        answer_format: Format,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """`begun` is called by whoever read something long in turns, right before it does what was asked for: what was
        asked for later may be begun then."""
        self.session = session
        self.request_format = request_format
        self.answer_format = answer_format
        self.begun = begun
        self.fair_turns = session.service.fair_turns


class HttpCommand(Protocol):
    """What stands in the table: an operation of the service or of HTTP, in a namespace."""

    name: ClassVar[str]
    answer: ClassVar[tuple[Any, ...]]
    choices: ClassVar[tuple[Choice, ...]]
    changes: ClassVar[bool]
    at_once: ClassVar[bool]
    waits: ClassVar[str | None]
    namespace: str

    @property
    def is_waiting(self) -> bool: ...

    async def carry_out(self, call: Call) -> object:
        """Do it; what to answer."""
        ...


R = TypeVar("R")


class OwnCommand(Operation, Generic[R]):
    """A command that HTTP puts together itself, of what a session can do."""

    async def carry_out(self, call: Call) -> R:
        raise NotImplementedError


COMMANDS: dict[str, type[HttpCommand]] = {}
DECODERS: dict[Format, dict[str, Decoder[HttpCommand]]] = {JSON: {}, MESSAGE_PACK: {}}

C = TypeVar("C", bound=type[Operation])


def command(kind: C) -> C:
    """Enter a command into the table."""
    entered = _in_namespace(kind)
    COMMANDS[kind.name] = entered
    for each, decoders in DECODERS.items():
        decoders[kind.name] = BoundedDecoder(entered, each, place="payload")
    return kind


def _in_namespace(kind: type[Operation]) -> type[HttpCommand]:
    """The class with a field for the namespace; it is what requests are decoded to."""
    fields: dict[str, object] = {"__annotations__": {"namespace": Name}, "namespace": DEFAULT_NAMESPACE}
    copied = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    if not hasattr(kind, "carry_out"):
        copied["carry_out"] = _run
    made = OperationMeta(kind.__name__, (kind,), fields | copied, kw_only=True)
    return cast(type[HttpCommand], made)


async def _run(self: Command[Any], call: Call) -> object:
    """A command of the service that is taken and answered as it is."""
    return await call.session.run(self)
