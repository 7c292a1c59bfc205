"""Faults that can be planted in the broker, to see whether the simulator finds them.

Four of them were found in use and mended; here their mending is undone. The others are small and of the kinds that
slip in: a record that is not noted, an account that is not kept, somebody who is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from smista.core import due, fan_out, jobs, settling
from smista.core.calendar import Entry
from smista.core.claims import Claim
from smista.core.declaring import look_after
from smista.core.entering import Placed, Result, make_message, placed, refuse
from smista.core.exchanges import route
from smista.core.governing import Governing
from smista.core.jobs import Job
from smista.core.limits import drops_first
from smista.core.message import Deliveries, Message, Publication, Receipt
from smista.core.queue import Queue
from smista.core.ready import Bucket
from smista.core.state import BrokerState, Namespace
from smista.core.trimming import make_room
from smista.engine.broker import Broker
from smista.engine.consumers import Consumers
from smista.engine.declaring import Declaring
from smista.engine.dispatcher import Dispatcher
from smista.engine.journal import EngineJournal
from smista.engine.keeper import Keeper
from smista.engine.paging import Paging
from smista.engine.recorder import Recorder
from smista.engine.running import Running
from smista.engine.subscribing import Subscribing
from smista.engine.subscription import Subscription
from smista.errors import BrokerError

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


# -- undone ----------------------------------------------------------------------------------------------------------


def serve_inside_commands(patch: Patch) -> None:
    """Whoever waits is served, and limits are kept, as soon as something enters or comes back: inside the command."""
    make = Running.__init__
    mark = BrokerState.mark_over_limit
    brokers: dict[BrokerState, Running] = {}

    def made(self: Running, *arguments: Any) -> None:
        make(self, *arguments)
        brokers.clear()
        brokers[self.state] = self

    def mark_and_serve(self: BrokerState, queue: Queue) -> None:
        mark(self, queue)
        broker = brokers.get(self)
        if broker is not None:
            broker.keep_limits(broker.clock.now_ms())

    patch.setattr(Running, "__init__", made)
    patch.setattr(BrokerState, "mark_over_limit", mark_and_serve)


def note_readiness_last(patch: Patch) -> None:
    """b21: what became ready is noted after everything else that was due, and served before that."""
    serve_inside_commands(patch)

    def run_due(state: BrokerState, *, now_ms: int, limit: int = 500, chance: float = 0.0) -> list[Entry]:
        foreign: list[Entry] = []
        readied: dict[Queue, list[Message]] = {}
        for entry in state.calendar.pop_due(now_ms, limit):
            if type(entry) is not Message:
                if type(entry) is Queue:
                    due._queue_due(state, entry, now_ms)
                elif type(entry) is Claim:
                    due._claim_due(state, entry, now_ms, chance)
                else:
                    foreign.append(entry)
                continue
            queue = state.queues.get(entry.queue)
            if queue is not None and queue.scheduled.get(entry.sequence) is entry:
                queue.become_ready(entry, now_ms)
                readied.setdefault(queue, []).append(entry)
            elif entry.deadline_ms is not None and entry.deadline_ms <= now_ms:
                due._message_due(state, entry, now_ms, chance)
        for queue, messages in readied.items():
            state.journal.became_ready(queue, messages, now_ms)
            if drops_first(queue):
                state.mark_over_limit(queue)
        return foreign

    patch.setattr("smista.engine.deadlines.run_due", run_due)


def refuse_before_noting(patch: Patch) -> None:
    """b08: of several queues one is full and sends the newcomer on to another, before the copy there is noted."""
    serve_inside_commands(patch)

    def publish_to_queues(
        state: BrokerState, queues: Sequence[Queue], publication: Publication, *, is_use: bool = True, now_ms: int
    ) -> list[Result]:
        results: list[Result] = []
        copies: list[tuple[Queue, Message]] = []
        for queue in queues:
            try:
                _, _, duplicate = fan_out._decide(state, queue, publication, {}, state.work, now_ms)
            except BrokerError as refusal:
                refuse(state, queue, publication, refusal, now_ms)
                results.append(refusal)
                continue
            if duplicate is not None:
                results.append(duplicate)
                continue
            make_room(state, queue, len(publication.body), now_ms)
            message = make_message(queue, publication, state.next_sequence, now_ms)
            state.next_sequence += 1
            queue.counters.published += 1
            queue.insert(message, now_ms)
            results.append(placed(queue, message, now_ms))
            copies.append((queue, message))
        if copies:
            state.journal.fanned_out(copies, now_ms)
        for queue, message in copies:
            state.entered(queue, message, now_ms)
            look_after(queue, now_ms)
        return results

    patch.setattr(fan_out, "publish_to_queues", publish_to_queues)


def enter_one_after_the_other(patch: Patch) -> None:
    """What an exchange routes enters each queue as soon as that one takes it: a refusal comes too late for others."""
    decide, store = fan_out._decide, fan_out._store

    def publish_to_exchange(
        state: BrokerState, namespace: Namespace, exchange: str, publication: Publication, *, now_ms: int, **rest: Any
    ) -> list[Placed]:
        found = route(
            namespace.topology, exchange, publication.envelope.routing_key, None, namespace.queues.__contains__
        )
        results: list[Placed] = []
        for name in found.queues:
            decided = decide(state, namespace.queues[name], publication, {}, state.work, now_ms)
            results += store(state, [decided], publication, now_ms)
        return results

    patch.setattr(fan_out, "publish_to_exchange", publish_to_exchange)


def give_back_before_leaving(patch: Patch) -> None:
    """b16: a consumer that leaves gives back what it holds while it still stands in line."""
    serve_inside_commands(patch)

    def cancel(
        self: Subscribing, subscription: Subscription, *, is_vanished: bool = False, keeps_held: bool = False
    ) -> None:
        self._running.enter()
        subscription.is_cancelled = True
        if not keeps_held:
            (self._settling.vanish_now if is_vanished else self._running.release)(list(subscription.held.values()))
        subscription.is_cancelled = False
        self._consumers.leave([subscription])
        self._running.after()

    patch.setattr(Subscribing, "cancel", cancel)


# -- small ones -------------------------------------------------------------------------------------------------------


def skip_a_record(patch: Patch) -> None:
    """That a lease was extended is not noted."""
    patch.setattr(Recorder, "extended", lambda self, queue, messages, deadline_ms, at_ms: None)


def forget_how_far_a_job_is(patch: Patch) -> None:
    """What a job has moved is not noted."""
    patch.setattr(Recorder, "job_advanced", lambda self, queue, job: None)


def forget_to_resume(patch: Patch) -> None:
    """A start leaves jobs where they are."""
    patch.setattr(jobs, "resume", lambda state, now_ms: None)


def count_moves_later(patch: Patch) -> None:
    """A block may end between a move and its count."""
    note = EngineJournal.job_advanced

    def noted(self: EngineJournal, queue: Queue, job: Job) -> None:
        self.between()
        note(self, queue, job)

    patch.setattr(EngineJournal, "job_advanced", noted)


def forget_who_holds(patch: Patch) -> None:
    """What a subscription holds is not known."""
    hold = Dispatcher._hold

    def held(self: Dispatcher, *arguments: Any) -> list[Receipt]:
        receipts = hold(self, *arguments)
        for receipt in receipts[1:]:
            self.keeper.journal.holders.by_sequence.pop(receipt.sequence, None)
        return receipts

    patch.setattr(Dispatcher, "_hold", held)


def drop_what_cannot_be_read(patch: Patch) -> None:
    """A block that cannot be read is given up when its space is wanted."""

    async def give_up(self: Keeper, position: int, damage: object) -> bool:
        return True

    patch.setattr(Keeper, "_save_unread", give_up)


def fold_too_far(patch: Patch) -> None:
    """The next start is to fold from behind a block before what lives in it has been written again."""
    relocated = Keeper._relocate

    async def relocate(self: Keeper, position: int) -> bool:
        self.committer.fold_from(position + 1)
        return await relocated(self, position)

    patch.setattr(Keeper, "_relocate", relocate)


def confirm_too_early(patch: Patch) -> None:
    """Everything counts as durable as soon as it is noted."""

    def durable(self: Keeper) -> asyncio.Future[None]:
        if self.journal.parts:
            self._is_awaited = True
            self._write_soon()
        return self.committer.wait_for(0)

    patch.setattr(Keeper, "durable", durable)


def keep_what_nobody_wants(patch: Patch) -> None:
    """What was about to be handed to somebody who is gone is not given back."""
    patch.setattr(Running, "give_back", lambda self, receipts: None)


def forget_to_wake(patch: Patch) -> None:
    """A consumer that has credit again is not put back into the line."""
    patch.setattr(Consumers, "settled", lambda self, subscription: None)


def count_bytes_wrongly(patch: Patch) -> None:
    """A body that is let go still counts as being in memory."""
    let_go = Paging.let_go

    def let_go_and_forget(self: Paging, message: Message) -> None:
        before = self._accounts.resident_bytes
        let_go(self, message)
        self._accounts.resident_bytes = before

    patch.setattr(Paging, "let_go", let_go_and_forget)


def keep_old_histories(patch: Patch) -> None:
    """What a message's history was before it died once more still counts as being in memory."""
    patch.setattr(EngineJournal, "dying", lambda self, message: None)


def keep_what_has_left(patch: Patch) -> None:
    """A line keeps the slots of messages that are gone until they come to the front."""
    patch.setattr(Bucket, "sweep", lambda self: None)


def trust_old_receipts(patch: Patch) -> None:
    """A receipt is good for whoever holds the message now."""
    patch.setattr(Deliveries, "is_named_by", lambda deliveries, receipt: True)


def keep_after_restart(patch: Patch) -> None:
    """What was held without a deadline stays in flight over a restart."""
    patch.setattr(Broker, "_release_unending", lambda self: None)


def forget_the_rest(patch: Patch) -> None:
    """A policy holds for those queues that took it up at once."""

    async def nothing(self: Declaring, left: Governing) -> None:
        return

    patch.setattr(Declaring, "_govern_rest", nothing)


def govern_what_is_matched(patch: Patch) -> None:
    """A policy that changes does not leave the queues that it matches no longer."""
    patch.setattr(Governing, "_concerns", lambda self, queue: self._now is not None and self._now.matches(queue.name))


def acknowledge_neighbours(patch: Patch) -> None:
    """An acknowledgement takes along another message of the same queue."""
    acknowledge = settling.acknowledge

    def too_many(state: BrokerState, receipts: Iterable[Receipt], *, now_ms: int) -> list[settling.Outcome]:
        receipts = list(receipts)
        queue = state.queues.get(receipts[0].queue) if receipts else None
        others = [settling.receipt_for(queue, sequence) for sequence in queue.in_flight] if queue is not None else []
        return acknowledge(state, [*receipts, *others[:1]], now_ms=now_ms)[: len(receipts)]

    patch.setattr(settling, "acknowledge", too_many)
