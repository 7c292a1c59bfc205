"""What somebody may be allowed to do, and what a command or a method of a session needs of it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET


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

    only_with: tuple[str, ...] = ()
    """If there are any: it is needed only where one of these fields names something."""

    def with_any(self, *fields: str) -> Need:
        """The same, but only where one of these fields names something."""
        return self._replace(only_with=fields)

    def names(self, command: object) -> Iterator[str | None]:
        """What the permission is needed for; None stands for the whole namespace."""
        if self.only_with and next(_named(command, self.only_with), None) is None:
            return
        named = list(_named(command, self.fields))
        if self.or_all and not named:
            yield None
        yield from named


def _named(command: object, fields: Sequence[str]) -> Iterator[str]:
    """What the fields name, those that name anything; `settings.dead_letter_queue` is a field of a field."""
    for field in fields:
        found: Any = command
        for name in field.split("."):
            found = None if found is None or found is UNSET else getattr(found, name)
        if found is not None and found is not UNSET:
            yield found


DEAD_LETTER_TARGETS = ("settings.dead_letter_queue", "settings.dead_letter_exchange")
NEEDED_TO_DECLARE = (
    Permission.CONFIGURE.on("queue"),
    # Whoever says where dead letters go takes messages out of the one and puts them into the other, as in RabbitMQ.
    Permission.READ.on("queue").with_any(*DEAD_LETTER_TARGETS),
    Permission.WRITE.on(*DEAD_LETTER_TARGETS),
)
"""To make a queue, or to change it, with these `settings`."""
