"""Who asks: the name a caller goes by, and where it comes from."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from smista.service.permission import Permission

ANYONE = "anyone"
"""The name of a caller that has not given one."""


class Grants(Protocol):
    """What a principal may do."""

    def allow(self, permission: Permission, namespace: str | None, name: str | None) -> bool:
        """Whether it may do this to what has the name. With None as the name it is about the whole namespace, and with
        None as the namespace about the whole broker. What is implied by another permission is not asked here."""
        ...


class Principal(NamedTuple):
    name: str
    protocol: str
    """The one it came by: `amqp`, `http`, `sqs`."""
    address: str = ""
    """Where from, as far as anybody knows."""
    grants: Grants | None = None
    """None: everything. There are no users yet, so everybody is `ANYONE` and may do everything."""


def anyone(protocol: str, address: str = "") -> Principal:
    return Principal(ANYONE, protocol, address)
