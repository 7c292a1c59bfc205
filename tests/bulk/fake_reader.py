"""A reader of the log that never reads."""

from __future__ import annotations

import contextlib
import socket
from contextlib import AbstractContextManager

from smista.service.log_reading import BulkMeasures, MakePlan, Place, Plan, Read


class FakeReader:
    def __init__(self) -> None:
        self.measures = BulkMeasures()

    def check(self) -> None:
        """It could."""

    def place(self) -> AbstractContextManager[Place]:
        return contextlib.nullcontext(Place())

    async def read(self, request: Read, connection: socket.socket, place: Place) -> None:
        raise NotImplementedError

    async def plan(self, request: MakePlan) -> Plan:
        return Plan(request.start, request.end, partitions=[])
