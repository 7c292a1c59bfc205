"""Settling: what the holder of a delivery may do with it. Everything here takes a receipt.

A receipt is good while its delivery is the message's last and has not been settled. One exception is made on purpose:
when a lease ran out and nobody else has received the message since, a late acknowledgement still counts, except in an
ordered queue, whose order it could break. Nothing else works after the lease: the failure has been counted already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smista.core.dead_letters import dead_letter, discard, expire
from smista.core.limits import drops_first
from smista.core.message import FOREVER_MS, Deliveries, Fate, Message, Reason, Receipt, State
from smista.core.queue import Queue, error_text
from smista.core.receiving import check_lease
from smista.core.retry import backoff_ms, has_retries_left
from smista.core.state import BrokerState
from smista.errors import BrokerError, InvalidArgument, LeaseExpired, MessageNotFound, StaleReceipt

Outcome = BrokerError | None


def held(state: BrokerState, receipt: Receipt) -> tuple[Queue, Message]:
    """The queue and message of a delivery that is in flight under this receipt, or raise."""
    found = find_held(state, receipt)
    if found is None:
        raise _stale(state.queues.get(receipt.queue), receipt)
    return found


def find_held(state: BrokerState, receipt: Receipt) -> tuple[Queue, Message] | None:
    """The queue and message of the delivery that a receipt names; None where it is not in flight."""
    queue = state.queues.get(receipt.queue)
    message = None if queue is None else queue.in_flight.get(receipt.sequence)
    if queue is None or message is None or message.deliveries is None or not message.deliveries.is_named_by(receipt):
        return None
    return queue, message


def acknowledge(state: BrokerState, receipts: Iterable[Receipt], *, now_ms: int) -> list[Outcome]:
    """Each delivery was a success: its message is gone. One outcome per receipt: None, or why not."""
    outcomes: list[Outcome] = []
    batch: list[Message] = []
    queue: Queue | None = None
    for receipt in receipts:
        if queue is None or receipt.queue != queue.number:
            _acknowledge_all(state, queue, batch, now_ms)
            queue, batch = state.queues.get(receipt.queue), []
        message = None if queue is None else queue.in_flight.get(receipt.sequence)
        deliveries = None if message is None else message.deliveries
        if (
            message is None
            or deliveries is None
            or deliveries.count != receipt.delivery
            or deliveries.run != receipt.run
            or not deliveries.is_open
        ):
            # Not held, or not by this receipt; or a second time in this very batch.
            _acknowledge_all(state, queue, batch, now_ms)
            batch = []
            try:
                queue, message = _acknowledgeable(state, receipt)
            except BrokerError as error:
                outcomes.append(error)
                continue
            queue.remove(message)
            queue.counters.acknowledged += 1
            state.journal.acknowledged(queue, (message,), now_ms)
        else:
            # Settled by its holder: what keeps a receipt from counting twice before the batch is done.
            deliveries.is_open = False
            batch.append(message)
        outcomes.append(None)
    _acknowledge_all(state, queue, batch, now_ms)
    return outcomes


def _acknowledge_all(state: BrokerState, queue: Queue | None, messages: list[Message], now_ms: int) -> None:
    if queue is not None and messages:
        queue.counters.acknowledged += len(messages)
        queue.remove_held(messages)
        state.journal.acknowledged(queue, messages, now_ms)


def nack(
    state: BrokerState,
    receipt: Receipt,
    *,
    requeue: bool = True,
    delay_ms: int | None = None,
    error: str = "",
    chance: float = 0.0,
    now_ms: int,
) -> bool:
    """A delivery failed. Returns True if the message will be retried, False if it is dead.

    With `requeue` it is retried after the queue's back-off, or after `delay_ms`, as long as it has retries left.
    """
    if delay_ms is not None and (type(delay_ms) is not int or not 0 <= delay_ms <= FOREVER_MS):
        raise InvalidArgument(f"delay_ms is {delay_ms!r}; give a whole number of milliseconds, 0 or more.")
    queue, message = held(state, receipt)
    if not requeue:
        dead_letter(state, queue, message, Fate(Reason.REJECTED, Reason.NACKED, error_text(error), now_ms))
        return False
    return fail(state, queue, message, Reason.NACKED, delay_ms=delay_ms, error=error, chance=chance, now_ms=now_ms)


def fail(
    state: BrokerState,
    queue: Queue,
    message: Message,
    reason: Reason,
    *,
    delay_ms: int | None = None,
    error: str = "",
    chance: float = 0.0,
    now_ms: int,
) -> bool:
    """End a delivery that failed, whoever says so: the consumer, the clock, or its vanished connection."""
    settings = queue.settings
    error = error_text(error)
    failure_count = message.failure_count + 1
    max_retries = settings.max_retries if message.envelope.max_retries is None else message.envelope.max_retries
    if not has_retries_left(max_retries, failure_count):
        dead_letter(state, queue, message, Fate(Reason.MAX_RETRIES, reason, error, now_ms))
        return False
    if message.expires_at_ms is not None and message.expires_at_ms <= now_ms:
        expire(state, queue, message, failed_by=reason, error=error, now_ms=now_ms)
        return False
    if delay_ms is None:
        has_backoff = reason is Reason.NACKED or settings.backoff_on_timeout
        delay_ms = backoff_ms(settings, failure_count, chance) if has_backoff else 0
    _give_back(state, queue, message, reason, now_ms + delay_ms, error, now_ms)
    return True


def release(state: BrokerState, receipt: Receipt, *, now_ms: int) -> None:
    """Back to its old place at once, not counted as a failure."""
    queue, message = held(state, receipt)
    if message.expires_at_ms is not None and message.expires_at_ms <= now_ms:
        expire(state, queue, message, now_ms=now_ms)
    else:
        _give_back(state, queue, message, Reason.RELEASED, now_ms, "", now_ms)


def extend(state: BrokerState, receipts: Sequence[Receipt], lease_ms: int, *, now_ms: int) -> list[Outcome]:
    """The leases now end `lease_ms` from now."""
    check_lease(lease_ms)
    deadline_ms = None if lease_ms >= FOREVER_MS else now_ms + lease_ms
    outcomes: list[Outcome] = []
    for receipt in receipts:
        try:
            queue, message = held(state, receipt)
        except BrokerError as error:
            outcomes.append(error)
            continue
        queue.extend(message, deadline_ms, now_ms)
        state.journal.extended(queue, (message,), deadline_ms, now_ms)
        outcomes.append(None)
    return outcomes


def receipt_for(queue: Queue, sequence: int) -> Receipt:
    """The receipt of whoever holds this message now: for commands that name a message by its id."""
    message = queue.in_flight.get(sequence)
    if message is None or message.deliveries is None:
        raise MessageNotFound(f"Nobody holds such a message of queue {queue.name!r}; it may have been settled.")
    return Receipt(queue.number, sequence, message.deliveries.count, message.deliveries.run)


def _give_back(
    state: BrokerState, queue: Queue, message: Message, reason: Reason, due_at_ms: int, error: str, now_ms: int
) -> None:
    state.journal.given_back(queue, message, reason, due_at_ms, error, now_ms)
    queue.give_back(message, reason, due_at_ms, error, now_ms)
    if drops_first(queue):
        state.mark_over_limit(queue)


def _acknowledgeable(state: BrokerState, receipt: Receipt) -> tuple[Queue, Message]:
    queue = state.queues.get(receipt.queue)
    if queue is not None:
        message = queue.in_flight.get(receipt.sequence)
        if message is None and not queue.settings.ordered:
            message = queue.ready.get(receipt.sequence) or queue.scheduled.get(receipt.sequence)
        if message is not None:
            deliveries = message.deliveries
            if deliveries is not None and deliveries.is_named_by(receipt) and deliveries.is_open:
                return queue, message
    return held(state, receipt)


def _stale(queue: Queue | None, receipt: Receipt) -> StaleReceipt:
    if queue is None:
        return StaleReceipt(
            "The receipt's queue has been deleted, and its messages with it. There is nothing left to settle.",
            is_gone=True,
        )
    message = queue.find(receipt.sequence)
    if message is None:
        return StaleReceipt(
            f"The message is no longer in queue {queue.name!r}: it was settled before, by this receipt or by whoever "
            "had it after you, or it became a dead letter, expired or was purged. There is nothing left to settle. "
            "Extend the lease of slow work, or ask for a longer one.",
            is_gone=True,
        )
    if message.state is State.DEAD:
        return StaleReceipt(
            f"The message has been set aside as a dead letter in queue {queue.name!r}; redrive it to have it delivered "
            "again."
        )
    deliveries = message.deliveries
    if deliveries is not None and deliveries.is_open and deliveries.is_named_by(receipt):
        return LeaseExpired(
            f"The lease ran out before this was settled; queue {queue.name!r} will deliver the message again. "
            "Extend the lease of slow work, or ask for a longer one."
        )
    count = 0 if deliveries is None else deliveries.count
    if message.state is State.IN_FLIGHT and count > receipt.delivery:
        since = f"It was handed out again since, as delivery {count}, and whoever has it settles it."
    else:
        since = f"It waits in queue {queue.name!r} and will be delivered again."
    return StaleReceipt(
        f"Delivery {receipt.delivery} of the message is over: {_how_it_ended(deliveries, receipt)}. {since} Extend the "
        "lease of slow work, or ask for a longer one."
    )


_ENDS = {
    Reason.TIMED_OUT: "its lease ran out",
    Reason.NACKED: "it was nacked",
    Reason.VANISHED: "its consumer went away",
}


def _how_it_ended(deliveries: Deliveries | None, receipt: Receipt) -> str:
    """What ended the delivery that a receipt names. Only failures are kept, and not all of them."""
    failures = () if deliveries is None else deliveries.failures
    reasons = [failure.reason for failure in failures if failure.delivery == receipt.delivery]
    if reasons:
        return _ENDS.get(reasons[-1], "it failed")
    if failures and receipt.delivery < failures[0].delivery:
        return "its lease ran out, or it was nacked or released"
    return "it was released, or the broker was started again and has forgotten it"


def reschedule(state: BrokerState, queue: Queue, sequence: int, due_at_ms: int, *, now_ms: int) -> None:
    """Give a scheduled message another due time."""
    if type(due_at_ms) is not int or not 0 <= due_at_ms <= FOREVER_MS:
        raise InvalidArgument(f"due_at_ms is {due_at_ms!r}; give an instant in milliseconds.")
    message = _scheduled(queue, sequence)
    due_at_ms = max(due_at_ms, now_ms)
    state.journal.rescheduled(queue, message, due_at_ms, now_ms)
    queue.reschedule(message, due_at_ms, now_ms)


def cancel(state: BrokerState, queue: Queue, sequence: int, *, now_ms: int) -> None:
    """Remove a message that has not become ready yet."""
    discard(state, queue, _scheduled(queue, sequence), Reason.CANCELLED, now_ms=now_ms)


def delete(state: BrokerState, queue: Queue, message: Message, *, now_ms: int) -> None:
    """Remove a message, in whatever state it is. Whoever holds it finds its receipt to be stale."""
    discard(state, queue, message, Reason.CANCELLED, now_ms=now_ms)


def _scheduled(queue: Queue, sequence: int) -> Message:
    message = queue.scheduled.get(sequence)
    if message is None:
        raise MessageNotFound(f"Queue {queue.name!r} has no such scheduled message; it may be ready by now.")
    return message
