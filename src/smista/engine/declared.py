"""What a log declares: queues, exchanges, bindings and policies, as a fold comes upon them.

A queue may be named before its declaration comes, since a declaration that lay in dropped blocks was written again
later. Its messages collect in a *shell*; the declaration gives the shell its name, a deletion discards it.
"""

from __future__ import annotations

from smista import records
from smista.core.declaring import apply_queue_deleted
from smista.core.exchanges import Binding, Topology
from smista.core.journal import Journal
from smista.core.policies import Policy
from smista.core.queue import Queue
from smista.core.settings import DEFAULT, QueueSettings
from smista.core.state import DEFAULT_NAMESPACE, BrokerState
from smista.engine.claim_records import ClaimRecovery
from smista.records.bound import BindingFields


class Declared:
    def __init__(self, state: BrokerState, claims: ClaimRecovery) -> None:
        self.position = 0
        """The block that is being read."""
        self._state = state
        self._claims = claims
        self._recovered: list[Queue] = []
        self._superseded: list[Queue] = []
        self._unbindings: list[tuple[Topology, Binding]] = []
        self._shells: dict[int, Queue] = {}
        self._deleted: set[int] = set()
        self._settings: dict[QueueSettings, QueueSettings] = {}

    @property
    def nameless(self) -> list[int]:
        """Numbers of the queues that records name and whose declarations have not come."""
        return sorted(self._shells)

    def name_shells(self, now_ms: int) -> None:
        """No declarations will come any more: give these queues names of ours and default settings."""
        for number, shell in self._shells.items():
            queue = self._state.add_queue(number, DEFAULT_NAMESPACE, f"recovered-{number}", DEFAULT, now_ms)
            self._name(shell, queue)
            self._recovered.append(queue)
        self._shells.clear()

    def govern(self) -> None:
        """Give the queues what policies say: once, when all that there is of both has been read."""
        for queue in self._state.queues.values():
            self._state.namespaces[queue.namespace].govern(queue)

    def finish(self, journal: Journal, now_ms: int) -> None:
        """All has been read. What is made up for blocks that are left out is noted, as the next start need not come to
        the same."""
        state = self._state
        for queue in self._recovered:
            journal.queue_declared(queue)
            journal.between()
        for queue in self._superseded:
            journal.queue_deleted(queue, now_ms)
            journal.between()
        for namespace in state.namespaces.values():
            for binding in list(namespace.topology.bindings()):
                if binding.destination_kind == "queue" and binding.destination not in namespace.queues:
                    namespace.topology.unbind(binding)
                    self._unbindings.append((namespace.topology, binding))
        for topology, binding in self._unbindings:
            if topology.find(binding.source) is not None and not topology.has_binding(binding):
                journal.unbound(topology.namespace, binding)
                journal.between()
        self.govern()

    # -- records ------------------------------------------------------------------------------------------------------

    def queue_declared(self, data: memoryview) -> None:
        record = records.queue_declared.decode(data)
        queue = self._state.queues.get(record.number)
        if queue is None:
            shell = self._shells.pop(record.number, None)
            self._supersede(record.namespace, record.name, record.number)
            # Queues declared alike share one settings object.
            settings = self._settings.setdefault(record.settings, record.settings)
            queue = self._state.add_queue(record.number, record.namespace, record.name, settings, record.created_at_ms)
            if shell is not None:
                self._name(shell, queue)
        queue.declared = queue.settings = self._settings.setdefault(record.settings, record.settings)
        queue.is_paused = record.is_paused
        queue.used_at_ms = record.used_at_ms
        queue.counters = record.counters
        queue.position = self.position

    def _supersede(self, namespace: str, name: str, number: int) -> None:
        """A queue of this name and number was declared. Where there is an earlier one, the record of its deletion was
        lost."""
        queue = self._state.open_namespace(namespace).queues.get(name)
        if queue is not None and queue.number < number:
            self._deleted.add(queue.number)
            self._claims.queue_deleted(queue.number)
            self._state.drop_queue(queue)
            topology = self._state.namespaces[namespace].topology
            self._unbindings += [(topology, binding) for binding in topology.remove_queue(name).bindings]
            self._superseded.append(queue)

    @staticmethod
    def _name(shell: Queue, queue: Queue) -> None:
        """Give a declared queue what collected in its shell."""
        queue.ready, queue.scheduled = shell.ready, shell.scheduled
        queue.in_flight, queue.dead = shell.in_flight, shell.dead
        queue.body_bytes, queue.dedup = shell.body_bytes, shell.dedup
        queue.ready_bytes, queue.dead_bytes = shell.ready_bytes, shell.dead_bytes

    def queue_deleted(self, data: memoryview) -> None:
        record = records.queue_deleted.decode(data)
        self._deleted.add(record.number)
        self._claims.queue_deleted(record.number)
        self._shells.pop(record.number, None)
        queue = self._state.queues.get(record.number)
        if queue is not None:
            apply_queue_deleted(self._state, queue)
            return
        self._supersede(record.namespace, record.name, record.number)
        namespace = self._state.open_namespace(record.namespace)
        if record.name not in namespace.queues:
            namespace.topology.remove_queue(record.name)

    def queue(self, number: int, name: str = "") -> Queue:
        """The queue of this number, or a shell for it, which may learn its name from a record."""
        queue = self._state.queues.get(number) or self._shells.get(number)
        if queue is None:
            queue = Queue(
                number=number,
                namespace="",
                name="",
                settings=DEFAULT,
                created_at_ms=0,
                calendar=self._state.calendar,
                woken=self._state.woken,
            )
            if number not in self._deleted:
                self._shells[number] = queue
        queue.name = queue.name or name
        return queue

    def exchange_declared(self, data: memoryview) -> None:
        record = records.exchange_declared.decode(data)
        state = self._state
        topology = state.open_namespace(record.namespace).topology
        found = topology.find(record.name)
        if found is not None and found.number < record.number:
            # The record of its deletion was lost.
            self._unbindings += [(topology, binding) for binding in topology.delete(record.name).bindings]
            found = None
        if found is None:
            topology.declare(record.name, record.number, record.settings)
        state.next_exchange = max(state.next_exchange, record.number + 1)
        for binding in record.bindings:
            self._bind(binding)

    def exchange_deleted(self, data: memoryview) -> None:
        record = records.exchange_deleted.decode(data)
        topology = self._state.open_namespace(record.namespace).topology
        if topology.find(record.name) is not None:
            topology.delete(record.name)
        else:
            for binding in topology.bindings_of_exchange(record.name):
                topology.unbind(binding)

    def bound(self, data: memoryview) -> None:
        self._bind(records.bound.decode(data))

    def _bind(self, record: BindingFields) -> None:
        topology = self._state.open_namespace(record.namespace).topology
        binding = read_binding(record)
        if topology.find(record.source) is not None and not topology.has_binding(binding):
            topology.bind(binding)

    def unbound(self, data: memoryview) -> None:
        record = records.unbound.decode(data)
        topology = self._state.open_namespace(record.namespace).topology
        binding = read_binding(record)
        if topology.find(record.source) is not None and topology.has_binding(binding):
            topology.unbind(binding)

    def policy_set(self, data: memoryview) -> None:
        record = records.policy_set.decode(data)
        policy = Policy(record.name, record.pattern, record.priority, record.settings)
        policy.position = self.position
        self._state.open_namespace(record.namespace).policies.put(policy)

    def policy_deleted(self, data: memoryview) -> None:
        record = records.policy_deleted.decode(data)
        self._state.open_namespace(record.namespace).policies.drop(record.name)


def read_binding(record: BindingFields) -> Binding:
    make = Binding.to_queue if record.destination_kind == "queue" else Binding.to_exchange
    return make(record.source, record.destination, record.key, record.arguments)
