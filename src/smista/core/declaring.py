"""Declaring, changing and deleting queues, exchanges and bindings; purging and pausing. Policies are in `governing`.

Declaring again what is there already, with the same settings, is fine and changes nothing; with others it is an error
that names the difference. Whoever does not mind how a queue is set, since an operator may have altered it, says so
(`IfExists.KEEP`) and takes what is there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from smista.core import jobs
from smista.core.attaching import attach, take_up_settings
from smista.core.exchanges import Binding, Exchange, ExchangeSettings
from smista.core.limits import is_over
from smista.core.queue import Queue
from smista.core.settings import DEFAULT, IfExists, QueueSettings, check_name, check_settings, differences, no_choice
from smista.core.state import DEFAULT_NAMESPACE, BrokerState, Namespace
from smista.errors import DeadLetterCycle, InvalidArgument, QueueDiffers, QueueInUse, QueueNotEmpty


def declare_queue(
    state: BrokerState,
    name: str,
    settings: QueueSettings = DEFAULT,
    *,
    if_exists: IfExists = IfExists.SAME,
    namespace: str = DEFAULT_NAMESPACE,
    now_ms: int,
) -> Queue:
    check_name("queue", name)
    check_name("namespace", namespace)
    if type(settings) is not QueueSettings:
        raise InvalidArgument(f"Settings are QueueSettings, not {type(settings).__name__}.")
    if if_exists not in tuple(IfExists):
        raise InvalidArgument(no_choice("if_exists", if_exists, IfExists))
    space = state.namespaces.get(namespace)
    present = None if space is None else space.queues.get(name)
    if present is not None:
        if if_exists == IfExists.KEEP:
            # A mistake is one, though nothing would come of it here.
            check_settings(settings)
        elif not is_same(present.declared, settings):
            raise QueueDiffers(
                f"Queue {name!r} is declared already, with other settings ({'; '.join(_named(present, settings))}); "
                "declare it with the present ones, take it as it is (if_exists keep), alter it, or delete it first."
            )
        present.used_at_ms = now_ms
        return present
    check_settings(settings)
    _check_dead_letter_cycle(state, name, settings, namespace)
    # Queues declared alike share one settings object, as their dead-letter queues do.
    queue = state.add_queue(state.next_queue, namespace, name, settings, now_ms)
    attach(queue, now_ms)
    schedule_check(queue, now_ms)
    state.journal.queue_declared(queue)
    return queue


def is_same(present: QueueSettings, wanted: QueueSettings) -> bool:
    """Whether two settings make the same queue: what protocols keep with it does not count."""
    return present == msgspec.structs.replace(wanted, annotations=present.annotations)


_LINED_UP_BY = ("fair", "group_turns", "ordered")
"""Settings on which the order of a queue's ready messages is built. To change any other costs the same however deep the
queue is."""
LINED_UP_ANEW_MAX = 10_000


def alter_queue(state: BrokerState, queue: Queue, settings: QueueSettings, *, now_ms: int) -> None:
    """Declare a queue otherwise. That holds for what happens from now on; a message keeps the TTL it has. Where a
    policy names a setting, the policy's holds as before."""
    check_settings(settings)
    if settings.durable != queue.settings.durable:
        raise QueueDiffers(f"Queue {queue.name!r} cannot change between durable and not; declare another one.")
    _check_dead_letter_cycle(state, queue.name, settings, queue.namespace)
    changed = [name for name in _LINED_UP_BY if getattr(settings, name) != getattr(queue.declared, name)]
    if changed and queue.message_count > LINED_UP_ANEW_MAX:
        raise QueueNotEmpty(
            f"Queue {queue.name!r} holds {queue.message_count} messages; {' and '.join(changed)} can be changed while "
            f"it holds {LINED_UP_ANEW_MAX} at most. Consume or purge it first, or declare another queue."
        )
    queue.declared = settings
    govern(state, queue, is_lined_up_anew=bool(changed), now_ms=now_ms)
    state.journal.queue_declared(queue)


def govern(state: BrokerState, queue: Queue, *, is_lined_up_anew: bool = False, now_ms: int) -> bool:
    """Have a queue go on with what its declaration and the policies say now; False where that is what it has."""
    before = queue.settings
    state.namespaces[queue.namespace].govern(queue)
    if queue.settings == before and not is_lined_up_anew:
        return False
    take_up_settings(queue, before, now_ms, is_lined_up_anew=is_lined_up_anew)
    if queue.settings.expires_ms != before.expires_ms:
        # A queue that was long idle has its whole time from now on, and is not deleted by the change itself.
        queue.used_at_ms = now_ms
    schedule_check(queue, now_ms)
    if queue.is_watched:
        # A limit may be gone that held those who wait.
        state.woken[queue] = None
    if is_over(queue):
        state.mark_over_limit(queue)
    return True


def delete_queue(
    state: BrokerState,
    queue: Queue,
    *,
    if_empty: bool = False,
    if_unused: bool = False,
    waiting_only: bool = False,
    now_ms: int,
) -> int:
    """Delete a queue with all its messages and bindings; returns how many messages went with it. With `waiting_only`
    one that holds nothing but messages in flight and dead ones counts as empty."""
    held = len(queue.ready) + len(queue.scheduled) if waiting_only else queue.message_count
    if if_empty and held:
        raise QueueNotEmpty(f"Queue {queue.name!r} holds {held} messages; purge it or delete it regardless.")
    if if_unused and queue.is_watched:
        raise QueueInUse(f"Queue {queue.name!r} has consumers; cancel them or delete it regardless.")
    count = queue.message_count
    jobs.queue_going(state, queue, now_ms=now_ms)
    state.journal.queue_deleted(queue, now_ms)
    unused = apply_queue_deleted(state, queue)
    _delete_unused(state, state.namespaces[queue.namespace], unused)
    return count


def apply_queue_deleted(state: BrokerState, queue: Queue) -> Sequence[str]:
    """Returns the auto-delete exchanges that lead nowhere now. Their deletions are records of their own, and recovery,
    which does not know of bindings to queues that are not durable, must not conclude them."""
    state.drop_queue(queue)
    return state.namespaces[queue.namespace].topology.remove_queue(queue.name).unused


def purge(state: BrokerState, queue: Queue, *, ready_only: bool = False, now_ms: int) -> int:
    """Remove exactly what is in the queue now (or what is ready in it); returns how many that was."""
    count = len(queue.ready) if ready_only else queue.message_count
    queue.used_at_ms = now_ms
    state.journal.purged(queue, state.next_sequence, count, ready_only=ready_only, at_ms=now_ms)
    state.empty(queue, ready_only=ready_only)
    return count


def pause(state: BrokerState, queue: Queue, *, is_paused: bool) -> None:
    """A paused queue takes messages and hands none out."""
    if queue.is_paused == is_paused:
        return
    queue.is_paused = is_paused
    state.journal.queue_declared(queue)
    if not is_paused and queue.is_watched:
        state.woken[queue] = None


def look_after(queue: Queue, now_ms: int) -> None:
    """Messages came in: see to it that the queue is in the calendar."""
    if queue.deadline_ms is None:
        schedule_check(queue, now_ms)


def schedule_check(queue: Queue, now_ms: int) -> None:
    """Put the queue itself into the calendar where it must be looked at: idle expiry, retention of old messages."""
    waits = []
    if queue.settings.expires_ms is not None:
        waits.append(max(queue.used_at_ms + queue.settings.expires_ms, now_ms + 1))
    if queue.settings.retention_ms is not None and queue.message_count:
        # A hundredth of the retention late at worst, a day at most; receiving checks exactly.
        waits.append(now_ms + min(max(queue.settings.retention_ms // 100, 1000), 86_400_000))
    queue.calendar.remove(queue)
    if waits:
        queue.calendar.add(queue, min(waits), now_ms)


# -- exchanges --------------------------------------------------------------------------------------------------------


def declare_exchange(
    state: BrokerState, name: str, settings: ExchangeSettings, *, namespace: str = DEFAULT_NAMESPACE
) -> Exchange:
    check_name("namespace", namespace)
    space = state.namespaces.get(namespace) or Namespace(namespace)
    present = space.topology.check_declare(name, settings)
    if present is not None:
        return present
    space = state.open_namespace(namespace)
    exchange = space.topology.declare(name, state.next_exchange, settings)
    state.next_exchange += 1
    state.journal.exchange_declared(exchange, ())
    return exchange


def delete_exchange(state: BrokerState, namespace: Namespace, name: str, *, if_unused: bool = False) -> None:
    exchange = namespace.topology.check_delete(name, if_unused=if_unused)
    state.journal.exchange_deleted(exchange)
    removed = namespace.topology.delete(name)
    _delete_unused(state, namespace, removed.unused)


def bind(state: BrokerState, namespace: Namespace, binding: Binding) -> None:
    if namespace.topology.check_bind(binding, namespace.queues.__contains__):
        namespace.topology.bind(binding)
        if is_lasting(namespace, binding):
            state.journal.bound(namespace.name, binding)


def unbind(state: BrokerState, namespace: Namespace, binding: Binding) -> None:
    if namespace.topology.check_unbind(binding):
        if is_lasting(namespace, binding):
            state.journal.unbound(namespace.name, binding)
        removed = namespace.topology.unbind(binding)
        _delete_unused(state, namespace, removed.unused)


def is_lasting(namespace: Namespace, binding: Binding) -> bool:
    """Whether a binding outlives a restart: both its ends must."""
    source = namespace.topology.find(binding.source)
    if source is None or not source.settings.durable:
        return False
    if binding.destination_kind == "queue":
        queue = namespace.queues.get(binding.destination)
        return queue is not None and queue.settings.durable
    target = namespace.topology.find(binding.destination)
    return target is not None and target.settings.durable


def lasting_bindings(state: BrokerState, exchange: Exchange) -> list[Binding]:
    namespace = state.namespaces[exchange.namespace]
    return [binding for binding in exchange.bindings if is_lasting(namespace, binding)]


def _delete_unused(state: BrokerState, namespace: Namespace, names: Sequence[str]) -> None:
    """Auto-delete exchanges go with the last binding from them, and may take others along."""
    pending = list(names)
    while pending:
        exchange = namespace.topology.find(pending.pop())
        if exchange is not None:
            state.journal.exchange_deleted(exchange)
            pending += namespace.topology.delete(exchange.name).unused


def _named(present: Queue, asked: QueueSettings) -> list[str]:
    return differences(present.declared, asked)


def _check_dead_letter_cycle(state: BrokerState, name: str, settings: QueueSettings, namespace: str) -> None:
    """Follow the named dead-letter queues; coming back to where we started is refused, but for a queue that names
    itself and whose settings say that it may."""
    if settings.dead_letter_queue == name and settings.own_dead_letters:
        return
    queues = state.namespaces[namespace].queues if namespace in state.namespaces else {}
    # In the order they are met, and found at once: a chain may have thousands.
    path = {name: None}
    target = settings.dead_letter_queue
    while target is not None:
        if target in path:
            raise DeadLetterCycle(
                f"Dead letters would go round in a circle: {' -> '.join([*path, target])}; give one of them another "
                "target."
            )
        path[target] = None
        following = queues.get(target)
        after = None if following is None else following.declared.dead_letter_queue
        target = None if after == target else after
