"""Queues whose answers are late: what is submitted to them is done at once, and answered when a test says so.

As in another process that has told what came of it, before that is on its disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from smista.core.message import Alike, Publication, Receipt
from smista.engine import Broker
from smista.engine.tickets import PendingTicket, Ticket


class LateQueues:
    """Some queues of a broker, by name; the others are in this process."""

    def __init__(self, broker: Broker, patch: pytest.MonkeyPatch, *names: str) -> None:
        self._names = set(names)
        self._numbers = {broker.catalog.queue_number(name) for name in names}
        self.waiting: list[PendingTicket[Any]] = []
        """What is known and not answered, in the order of submission."""
        self._done: dict[PendingTicket[Any], Ticket[Any]] = {}
        self.bodies: dict[PendingTicket[Any], list[bytes]] = {}
        """What each of them is the answer to; none of what was settled."""
        publishing, settling = broker.publishing, broker.settling
        for name in ("submit", "submit_alike", "submit_to_queues"):
            patch.setattr(publishing, name, self._of_queues(getattr(publishing, name)))
        for name in ("acknowledge", "nack"):
            patch.setattr(settling, name, self._of_receipts(getattr(settling, name)))

    def _of_queues(self, submit: Callable[..., Ticket[Any]]) -> Callable[..., Ticket[Any]]:
        def late(
            queues: str | Sequence[str], some: Publication | Sequence[Publication] | Alike, **options: Any
        ) -> Ticket[Any]:
            done = submit(queues, some, **options)
            if not {queues, *queues} & self._names:
                return done
            if isinstance(some, Alike):
                return self._late(done, list(some.bodies))
            each = [some] if isinstance(some, Publication) else some
            return self._late(done, [one.body for one in each])

        return late

    def _of_receipts(self, submit: Callable[..., Ticket[Any]]) -> Callable[..., Ticket[Any]]:
        def late(receipts: Sequence[Receipt], **options: Any) -> Ticket[Any]:
            done = submit(receipts, **options)
            return self._late(done, []) if {receipt.queue for receipt in receipts} & self._numbers else done

        return late

    def _late(self, done: Ticket[Any], bodies: list[bytes]) -> Ticket[Any]:
        ticket: PendingTicket[Any] = PendingTicket()
        ticket.know(done.result())
        self.waiting.append(ticket)
        self._done[ticket] = done
        self.bodies[ticket] = bodies
        return ticket

    def answer(self, place: int = 0) -> None:
        """When it is on disk."""
        ticket = self.waiting.pop(place)
        self._done.pop(ticket).when_done(lambda done: ticket.answer(done.result()))

    def answer_all(self) -> None:
        while self.waiting:
            self.answer()

    def fail(self, error: BaseException, place: int = 0) -> None:
        self.waiting.pop(place).fail(error)
