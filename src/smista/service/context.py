"""What a command works with while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from smista.engine.interface import Engine
from smista.service.principal import Principal

if TYPE_CHECKING:
    from smista.service.service import Service


class Context(NamedTuple):
    broker: Engine
    namespace: str
    """Whatever a command names is in this one."""
    principal: Principal
    """Who asks. Whether it may was found out before."""
    service: Service
    """For what is not the broker's: staged batches, connections."""
