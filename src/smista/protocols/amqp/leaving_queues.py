"""Queues that go by themselves: exclusive ones with their connection, auto-delete ones with their last consumer.

Known only here, since only AMQP has them: which queue belongs to which connection, and which consumer wants a queue for
itself. By number, not by name: another protocol may have deleted such a queue, and its name is another's by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smista.protocols.amqp import arguments
from smista.protocols.amqp.leaving import Leaving
from smista.service.service import Service
from smista.service.values import Subscription

DELETED_PER_TURN = 200
"""So many queues go in one turn of the loop, of all connections together: some 4 ms."""

LeavingQueue = tuple[int, bool]
"""The number of a queue, and whether it goes only where nobody else subscribes to it."""


class LeavingQueues:
    def __init__(self, service: Service) -> None:
        self._service = service
        self.owners: dict[int, object] = {}
        """By number, whose an exclusive queue is."""
        self.exclusive_consumers: dict[int, Subscription] = {}
        """By number, the consumer that wants a queue for itself."""
        self._leaving = Leaving(service, self._delete)

    def delete_all(self, leaving: Sequence[LeavingQueue]) -> None:
        """Delete the queues of connections and consumers that are gone, those that are still there: at once, or, where
        they are very many in one turn of the loop, in slices."""
        self._leaving.go(leaving, DELETED_PER_TURN)

    def _delete(self, leaving: LeavingQueue) -> None:
        number, if_no_subscriptions = leaving
        if not if_no_subscriptions:
            self.owners.pop(number, None)
        self._service.delete_queue(number, if_no_subscriptions=if_no_subscriptions)

    def consumer_left(self, subscription: Subscription) -> None:
        """An auto-delete queue goes with its last consumer: at once, before anybody else can subscribe to it."""
        self.forget_exclusive(subscription)
        if arguments.is_auto_delete(subscription.settings):
            self._delete((subscription.queue_number, True))

    def consumers_left(self, subscriptions: Iterable[Subscription]) -> None:
        """Those of a connection or channel that is gone: where they are very many, their queues go in slices."""
        leaving: dict[int, bool] = {}
        for subscription in subscriptions:
            self.forget_exclusive(subscription)
            if arguments.is_auto_delete(subscription.settings):
                leaving[subscription.queue_number] = True
        self.delete_all(list(leaving.items()))

    def forget_exclusive(self, subscription: Subscription) -> None:
        number = subscription.queue_number
        if self.exclusive_consumers.get(number) is subscription:
            del self.exclusive_consumers[number]
