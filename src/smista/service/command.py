"""A command: one thing that a caller can have done, whatever protocol it speaks.

    class PurgeQueue(Command[Purged], needs=Permission.CONFIGURE.on("queue"), changes=True):
        \"\"\"Remove exactly what is in a queue now.\"\"\"

        name = "queue.purge"

        queue: Name
        ready_only: bool = False

        async def run(self, context: Context) -> Purged: ...

The class holds all that there is to know: its name, its fields with their types and bounds, what it results in, what a
caller needs to be allowed, and how it runs. Protocols, `/openapi.json`, the pages and the checks are made from it.
Where a protocol shows a command otherwise it derives a class with fields of its own, which has neither `name` nor
`needs`.
"""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from smista.service.fields import Choice
from smista.service.permission import Need, Permission

if TYPE_CHECKING:
    from smista.service.context import Context

R = TypeVar("R")
Needs = Permission | Need | tuple[Need, ...]

COMMANDS: dict[str, type[Command[Any]]] = {}
"""All commands, by name."""


class OperationMeta(msgspec.StructMeta):
    """Makes class attributes of the keywords in which a command says of itself what its fields cannot."""

    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        needs: Needs | None = None,
        changes: bool | None = None,
        at_once: bool | None = None,
        waits: str | None = None,
        **options: Any,
    ) -> Any:
        made: Any = super().__new__(cls, name, bases, namespace, **options)
        for keyword, value in (("changes", changes), ("at_once", at_once), ("waits", waits)):
            if value is not None:
                setattr(made, keyword, value)
        if (answer := _answer(namespace)) is not None:
            made.answer = answer
        if needs is None and "name" in namespace and issubclass(made, Command):
            raise TypeError(f"command {made.name} does not say what permission it needs")
        if needs is not None:
            made.needs = _several(needs)
            assert made.name not in COMMANDS, f"there are two commands {made.name}"
            COMMANDS[made.name] = made
        return made


def _several(needs: Needs) -> tuple[Need, ...]:
    if isinstance(needs, Permission):
        return (Need(needs),)
    return (needs,) if isinstance(needs, Need) else needs


def _answer(namespace: dict[str, Any]) -> tuple[Any, ...] | None:
    """The types in brackets behind the name of the base class."""
    for base in namespace.get("__orig_bases__", ()):
        origin, given = typing.get_origin(base), typing.get_args(base)
        if isinstance(origin, OperationMeta) and not isinstance(given[0], TypeVar):
            [kind] = given
            return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return None


class Operation(msgspec.Struct, forbid_unknown_fields=True, metaclass=OperationMeta):
    """What a caller can ask for by name."""

    name: ClassVar[str]
    answer: ClassVar[tuple[Any, ...]]
    """The types of what it results in."""
    choices: ClassVar[tuple[Choice, ...]] = ()
    """What the types of the fields leave open; `check_choices` checks it."""
    changes: ClassVar[bool] = False
    """Whether anything is otherwise afterwards."""
    at_once: ClassVar[bool] = True
    """Whether all that it does is done in its first step. Where several requests are started together, those behind one
    that takes more steps wait for its end, so that they keep their order."""
    waits: ClassVar[str | None] = None
    """The field by which it waits for something to happen, if it has one."""

    if TYPE_CHECKING:
        # What the metaclass takes, in the form in which type checkers look for it.
        def __init_subclass__(
            cls,
            *,
            needs: Needs | None = None,
            changes: bool = False,
            at_once: bool = True,
            waits: str | None = None,
            kw_only: bool = False,
        ) -> None: ...

    @property
    def is_waiting(self) -> bool:
        """Whether it may wait for something to happen, rather than only for its turn and for the disk."""
        return self.waits is not None and bool(getattr(self, self.waits))

    def check_choices(self) -> None:
        for choice in self.choices:
            choice.check(self)


class Command(Operation, Generic[R]):
    """See the module."""

    needs: ClassVar[tuple[Need, ...]]
    """What a caller has to be allowed."""

    async def run(self, context: Context) -> R:
        """Do it. Only `Session.run` calls this, which asks first whether the caller may."""
        raise NotImplementedError
