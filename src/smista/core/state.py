"""All that a broker knows: namespaces with their queues and exchanges, the calendar, the next numbers.

Commands live in modules of their own (`publishing`, `receiving`, `settling`, `dead_letters`, `declaring`,
`governing`, `due`, `browsing`, `claims`, `staging`, `jobs`) as functions over this state. None of them waits, reads a
clock or draws a number: each is one atomic step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from smista.core.calendar import Calendar
from smista.core.dedup import Tally
from smista.core.exchanges import Topology
from smista.core.journal import Journal
from smista.core.limits import is_over
from smista.core.message import Message, State
from smista.core.policies import Policies
from smista.core.queue import Messages, Queue
from smista.core.settings import QueueSettings, check_text
from smista.errors import NamespaceNotFound, QueueNotFound

if TYPE_CHECKING:
    from smista.core.browsing import Wanted
    from smista.core.claims import Claimant
    from smista.core.jobs import Job
    from smista.core.staging import Commit

ReadRouting = Callable[[bytes], tuple[Mapping[str, object] | None, Sequence[str]]]
BODY_BYTES_MAX = 1 << 20
DEFAULT_NAMESPACE = "/"


class Namespace:
    """A world of its own: AMQP's virtual host, SQS's account."""

    __slots__ = ("name", "policies", "queues", "topology")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[str, Queue] = {}
        self.topology = Topology(name)
        self.policies = Policies()

    def govern(self, queue: Queue) -> None:
        """Give a queue of this namespace what its declaration and the policies say. One that is in use takes it up
        then, see `declaring.govern`."""
        queue.settings, queue.policy = self.policies.govern(queue.name, queue.declared)


class BrokerState:
    __slots__ = (
        "_instant_ms",
        "beyond",
        "body_bytes_max",
        "calendar",
        "claimants",
        "commits",
        "fleeting",
        "jobs",
        "journal",
        "looked_at",
        "namespaces",
        "next_exchange",
        "next_queue",
        "next_sequence",
        "over_limit",
        "purged",
        "queues",
        "read_routing",
        "remembered",
        "run",
        "searched",
        "woken",
    )

    def __init__(self, journal: Journal | None = None, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self.journal = journal or Journal()
        self.body_bytes_max = body_bytes_max
        self.calendar = Calendar()
        self.namespaces: dict[str, Namespace] = {DEFAULT_NAMESPACE: Namespace(DEFAULT_NAMESPACE)}
        self.queues: dict[int, Queue] = {}
        self.claimants: dict[int, dict[str, Claimant]] = {}
        """By the number of the queue and by name, who claims batches of it, see `claims`."""
        self.commits: dict[tuple[str, str], Commit] = {}
        """By job and batch, what staged batches were published, oldest first, see `staging`."""
        self.jobs: dict[int, dict[int, Job]] = {}
        """By the number of the queue and by sequence, what goes on by itself, or has ended lately, see `jobs`."""
        self.searched: dict[int, list[tuple[Job, Wanted]]] = {}
        """By the number of a queue, the running jobs that search it, and for what."""
        self._instant_ms = 0
        self.read_routing: ReadRouting = lambda properties: (None, ())
        """How to find in a message's properties, which belong to the protocols, what a dead letter is routed by beside
        its key: headers, and further keys."""
        self.over_limit: dict[Queue, int] = {}
        """Queues that may hold too much, and how much entered since they were last looked at; see `trimming`."""
        self.fleeting: dict[Queue, list[Message]] = {}
        """Messages of theirs whose time to live was over as they entered: for those who wait already, or for nobody."""
        self.beyond: dict[Queue, list[Message]] = {}
        """What entered beyond the limits of queues that refuse what does not fit: dead letters, for those who wait
        already, or refused after all; and what was refused and is to be set aside, in a step that was long enough."""
        self.remembered = Tally()
        """How much memory the deduplication memory of all queues takes."""
        self.run = 0
        """How many times the log has been opened before; part of every receipt."""
        self.next_queue = 1
        self.next_exchange = 1
        self.next_sequence = 1
        self.looked_at = 0
        """How many queues were looked at for dead letters that did not enter them, what it took to find them, and how
        many messages left to make room for others."""
        self.woken: dict[Queue, None] = {}
        """Queues in which something became ready while somebody was waiting; the engine empties it."""
        self.purged: list[Messages] = []
        """Tables of purged messages whose memory is still to be freed, see `free_purged`."""

    @property
    def work(self) -> int:
        """How much was done so far: what entered queues, and what was tried."""
        return self.next_sequence + self.looked_at

    def body_limit(self, queue: Queue) -> int:
        """The largest body that a queue takes."""
        return queue.settings.body_bytes_max or self.body_bytes_max

    def by_policy(self, queue: Queue, setting: str) -> str:
        """For errors: the policy that gives a queue a limit, so that nobody alters the queue's own in vain."""
        policy = None if queue.policy is None else self.namespaces[queue.namespace].policies.find(queue.policy)
        if policy is None or setting not in policy.gives(queue.declared, queue.settings):
            return ""
        return f" ({setting} of policy {policy.name!r})"

    def namespace(self, name: str) -> Namespace:
        # What no dict takes as a key is no name either.
        namespace = self.namespaces.get(name) if type(name) is str else None
        if namespace is None:
            check_text("namespace", name)
            raise NamespaceNotFound(f"There is no namespace {name!r}; declare a queue in it first.")
        return namespace

    def queue(self, name: str, namespace: str = DEFAULT_NAMESPACE) -> Queue:
        try:
            space = self.namespaces.get(namespace)
            queue = None if space is None else space.queues.get(name)
        except TypeError:
            # What no dict takes as a key is no name either.
            queue = None
        if queue is None:
            check_text("queue", name)
            check_text("namespace", namespace)
            raise queue_not_found(name, namespace)
        return queue

    def shared_instant(self, at_ms: int) -> int:
        """The same int object for the same instant while it is asked for again and again: each message holds one."""
        if at_ms != self._instant_ms:
            self._instant_ms = at_ms
        return self._instant_ms

    # -- primitives ---------------------------------------------------------------------------------------------------

    def open_namespace(self, name: str) -> Namespace:
        namespace = self.namespaces.get(name)
        if namespace is None:
            namespace = self.namespaces[name] = Namespace(name)
        return namespace

    def add_queue(self, number: int, namespace: str, name: str, settings: QueueSettings, created_at_ms: int) -> Queue:
        queue = Queue(
            number=number,
            namespace=namespace,
            name=name,
            settings=settings,
            created_at_ms=created_at_ms,
            calendar=self.calendar,
            woken=self.woken,
        )
        self.queues[number] = queue
        self.next_queue = max(self.next_queue, number + 1)
        space = self.open_namespace(namespace)
        space.govern(queue)
        space.queues[name] = queue
        space.topology.version += 1
        return queue

    def drop_queue(self, queue: Queue) -> None:
        queue.is_deleted = True
        del self.queues[queue.number]
        queues = self.namespaces[queue.namespace].queues
        if queues.get(queue.name) is queue:
            del queues[queue.name]
        self.empty(queue, ready_only=False)
        self.calendar.remove(queue)
        for claimant in self.claimants.pop(queue.number, {}).values():
            for claim in claimant.claims.values():
                self.calendar.remove(claim)
        for job in self.jobs.pop(queue.number, {}).values():
            self.calendar.remove(job)

    def empty(self, queue: Queue, *, ready_only: bool) -> None:
        """Empty a queue at once and leave the freeing of its memory to `free_purged`."""
        self.purged += queue.take_all(ready_only=ready_only)

    def free_purged(self, limit: int) -> bool:
        """Free up to `limit` purged messages; True while more are left."""
        while self.purged and limit > 0:
            table = self.purged[-1]
            freed = []
            while table and limit > 0:
                _, message = table.popitem()
                if message.deadline_ms is not None:
                    self.calendar.remove(message)
                freed.append(message)
                limit -= 1
            self.journal.forgotten(freed)
            if not table:
                self.purged.pop()
        return bool(self.purged)

    def mark_over_limit(self, queue: Queue) -> None:
        """A queue may hold more than its limits say."""
        self.over_limit[queue] = self.over_limit.get(queue, 0) + 1

    def entered(self, queue: Queue, message: Message, now_ms: int) -> None:
        """A message entered a queue, or became ready in it, and has been noted: does something have to go for it?"""
        is_fleeting = message.expires_at_ms is not None and message.expires_at_ms <= now_ms
        if is_fleeting and message.state is State.READY:
            self.fleeting.setdefault(queue, []).append(message)
        if is_fleeting or (queue.settings.is_limited and (queue.settings.limit_ready_only or is_over(queue))):
            self.mark_over_limit(queue)


def queue_not_found(name: str, namespace: str) -> QueueNotFound:
    return QueueNotFound(f"There is no queue {name!r} in namespace {namespace!r}; declare it first, or check its name.")
