"""What somebody may be allowed to do, and what a command or a method of a session needs of it."""

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
    """See that it is there, with its settings and statistics. Who may do any of the above with it may see that too,
    since what they do depends on it; and so may who may monitor its namespace."""
    ADMINISTER = "administer"
    """Decide for everybody: policies."""

    def on(self, *fields: str, or_all: bool = False) -> Need:
        """This permission for what these fields of a command, or arguments of a method, name; with `or_all` for the
        whole namespace where they name nothing."""
        return Need(self, fields, or_all)

    def everywhere(self) -> Need:
        """This permission for the broker as a whole."""
        return Need(self, is_everywhere=True)


IMPLY_MONITOR = (Permission.CONFIGURE, Permission.WRITE, Permission.READ)
"""Each of them allows to see what it is for."""


class Need(NamedTuple):
    """A permission that a command or a method needs: for each name that one of the fields has, or, with no fields, for
    the whole namespace."""

    permission: Permission
    fields: tuple[str, ...] = ()
    or_all: bool = True
    is_everywhere: bool = False
    """Whether it is needed for all namespaces, those to come too: what is done concerns them all."""

    def names(self, command: object) -> Iterator[str | None]:
        """What the permission is needed for; None stands for the whole namespace."""
        named = [name for field in self.fields if (name := getattr(command, field)) is not None]
        if self.or_all and not named:
            yield None
        yield from named
