"""What somebody may be allowed to do, and what a command needs of it."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple


class Permission(enum.Enum):
    """The first three are those of AMQP's brokers, and about names; the others are about a whole namespace too."""

    CONFIGURE = "configure"
    """Make, change, pause, empty or remove what has this name."""
    WRITE = "write"
    """Put messages into it, by a publish or by a binding."""
    READ = "read"
    """Take messages out of it or browse them, and settle them; bind from it."""
    MONITOR = "monitor"
    """See that it is there, with its settings and statistics."""
    ADMINISTER = "administer"
    """Decide for everybody: policies."""

    def on(self, *fields: str, or_all: bool = False) -> Need:
        """This permission for what these fields of a command name; with `or_all` for the whole namespace where they
        name nothing."""
        return Need(self, fields, or_all)


class Need(NamedTuple):
    """A permission that a command needs: for each name that one of the fields has, or, with no fields, for the whole
    namespace."""

    permission: Permission
    fields: tuple[str, ...] = ()
    or_all: bool = True

    def names(self, command: object) -> Iterator[str | None]:
        """What the permission is needed for; None stands for the whole namespace."""
        named = [name for field in self.fields if (name := getattr(command, field)) is not None]
        if self.or_all and not named:
            yield None
        yield from named
