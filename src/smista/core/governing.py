"""Setting and deleting policies: the policy at once, the queues that it concerns some at a time.

    set, delete ──▶ noted and in force ──▶ the queues that are there, slice by slice ──▶ done, durable
                          └▶ queues that are declared or altered from now on have it

There may be very many queues, and each may have to be held against a thousand policies. So a command is not over when
its step is: it leaves a `Governing` that is gone on with until it is done. What makes it safe to do other things in
between:

- What a queue has follows from its declaration and the policies there are when it is looked at, not from the command
  that has it looked at. So it makes no difference in which order, how often or by which of several commands that is
  done; each of them brings every queue that it concerns to where it belongs.
- Only queues that the policy matches, or the one before it of its name, or that have one of its name, can have anything
  else by it. The last are those to which an earlier command of that name has not come yet.
- The queues are those that were there at the beginning: those declared since have what they shall have, and those
  deleted since are passed over, also where another queue has their name.
- The log holds the policy and nothing of what follows from it. Who starts again has it everywhere.
"""

from __future__ import annotations

from smista.core.declaring import govern
from smista.core.policies import Policy
from smista.core.queue import Queue
from smista.core.settings import check_name
from smista.core.state import BrokerState, Namespace

GOVERNED = 10
"""How much more work it is to give a queue its settings than to hold its name against one policy: some 4 us."""


class Governing:
    """What is left to do for a policy that was set or deleted."""

    __slots__ = ("_before", "_name", "_now", "_place", "_queues", "_space", "_state", "count")

    def __init__(
        self, state: BrokerState, space: Namespace, name: str, *, before: Policy | None, now: Policy | None
    ) -> None:
        self._state = state
        self._space = space
        self._name = name
        self._before = before
        self._now = now
        self._queues = list(space.queues.values())
        self._place = 0
        self.count = 0
        """For how many of the queues looked at so far the policy of this name holds."""

    @property
    def is_done(self) -> bool:
        return self._place == len(self._queues)

    def go_on(self, work_max: int, *, now_ms: int) -> list[Queue]:
        """Look at more queues, at one at least, until that was so much work; returns those that have other settings
        now. A name held against a policy counts as 1."""
        changed = []
        work = 0
        while work < work_max and not self.is_done:
            queue = self._queues[self._place]
            self._place += 1
            work += 1
            if queue.is_deleted or not self._concerns(queue):
                continue
            work += GOVERNED + len(self._space.policies)
            if govern(self._state, queue, now_ms=now_ms):
                changed.append(queue)
            self.count += queue.policy == self._name
        return changed

    def _concerns(self, queue: Queue) -> bool:
        name = queue.name
        return (
            (self._now is not None and self._now.matches(name))
            or (self._before is not None and self._before.matches(name))
            or queue.policy == self._name
        )


def set_policy(state: BrokerState, namespace: str, policy: Policy) -> Governing:
    """Put a policy in force, in the place of one of its name."""
    check_name("namespace", namespace)
    space = state.open_namespace(namespace)
    space.policies.check_room(policy.name)
    before = space.policies.find(policy.name)
    state.journal.policy_set(namespace, policy)
    space.policies.put(policy)
    return Governing(state, space, policy.name, before=before, now=policy)


def delete_policy(state: BrokerState, namespace: str, name: str) -> Governing:
    """The queues for which it holds are to have another one's settings, or what they were declared with."""
    space = state.namespace(namespace)
    before = space.policies.get(name)
    state.journal.policy_deleted(namespace, name)
    space.policies.drop(name)
    return Governing(state, space, name, before=before, now=None)
