"""The recorder by itself records and does nothing else; what has to follow outside waits for the end of the step."""

import pytest

from smista.core import settling
from smista.core.declaring import declare_queue
from smista.core.message import Message, Publication
from smista.core.publishing import publish
from smista.core.queue import Queue
from smista.core.receiving import receive
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.core.state import BrokerState
from smista.engine.delivery import receipt_of
from smista.engine.effects import Effects
from smista.engine.fold import Fold
from smista.engine.journal import EngineJournal
from smista.engine.recorder import FullBlock, Recorder
from smista.engine.subscription import Subscription
from smista.log.errors import LogDamaged
from tests import snapshot

NOW_MS = 1_700_000_000_000
EVERYTHING = 1 << 40


def declared(state: BrokerState, **settings: object) -> Queue:
    return declare_queue(state, "orders", QueueSettings(**settings), now_ms=NOW_MS)  # type: ignore[arg-type] # by name


def folded(blocks: list[FullBlock]) -> BrokerState:
    fold = Fold(BrokerState(), resident_bytes_max=EVERYTHING)
    for full in blocks:
        fold.add(full.position, full.seal(NOW_MS))
    fold.finish(fold.state.journal, NOW_MS)
    return fold.state


def no_body(message: Message) -> bool:
    raise AssertionError("nothing is paged out")


@pytest.fixture
def effects() -> Effects:
    return Effects()


@pytest.fixture
def state(effects: Effects) -> BrokerState:
    return BrokerState(
        EngineJournal(1, effects, block_bytes_max=1_000, resident_bytes_max=EVERYTHING, read_body=no_body)
    )


def test_a_recorder_is_a_journal_by_itself() -> None:
    recorder = Recorder(1, block_bytes_max=EVERYTHING)
    state = BrokerState(recorder)
    queue = declared(state)
    publish(state, queue, [Publication(b"%d" % number) for number in range(5)], now_ms=NOW_MS)
    first, second = receive(state, queue, 2, now_ms=NOW_MS)
    settling.acknowledge(state, [receipt_of(first)], now_ms=NOW_MS)
    settling.nack(state, receipt_of(second), requeue=False, now_ms=NOW_MS)
    recorder.cut()
    again = folded(recorder.take_full())
    live, replayed = (snapshot.take(each, NOW_MS, with_bodies=True) for each in (state, again))
    assert not snapshot.difference(live, replayed)


def test_a_recorder_changes_nothing_but_its_block() -> None:
    recorder = Recorder(7, block_bytes_max=EVERYTHING)
    state = BrokerState(recorder)
    queue = declared(state)
    publish(state, queue, [Publication(b"x")], now_ms=NOW_MS)
    assert queue.position == 0
    assert [message.position for message in queue.messages()] == [0]


def test_a_block_ends_between_transitions_only_and_is_not_written_there(state: BrokerState) -> None:
    queue = declared(state)
    journal = state.journal
    assert isinstance(journal, EngineJournal)
    publish(state, queue, [Publication(b"x" * 5_000)], now_ms=NOW_MS)
    assert not journal.full
    journal.between()
    assert [full.position for full in journal.full] == [1]
    publish(state, queue, [Publication(b"y")], now_ms=NOW_MS)
    assert [message.position for message in queue.messages()] == [1, 2]
    assert journal.unwritten_bytes > 5_000


def test_credit_is_given_when_the_step_is_over(state: BrokerState, effects: Effects) -> None:
    queue = declared(state)
    journal = state.journal
    assert isinstance(journal, EngineJournal)
    publish(state, queue, [Publication(b"x")], now_ms=NOW_MS)
    [message] = receive(state, queue, 1, now_ms=NOW_MS)
    holder = Subscription(queue, "", print, print, prefetch=1, priority=0, lease_ms=None)
    holder.hold([message.sequence], [receipt_of(message)])
    journal.holders.hold(holder, [message.sequence])
    settling.acknowledge(state, [receipt_of(message)], now_ms=NOW_MS)
    assert holder.credit == 0
    assert effects.take_freed() == {holder: [message.sequence]}
    assert not effects.freed


def test_dead_letters_and_damage_are_told_when_the_step_is_over(state: BrokerState, effects: Effects) -> None:
    queue = declared(state, dead_letter=DeadLetterMode.PARK)
    publish(state, queue, [Publication(b"x")], now_ms=NOW_MS)
    [message] = receive(state, queue, 1, now_ms=NOW_MS)
    settling.nack(state, receipt_of(message), requeue=False, now_ms=NOW_MS)
    [(where, _)] = effects.take_dead_letters()
    assert where is queue
    damage = LogDamaged("x", position=1, what="it cannot be read")
    effects.damage.append((1, damage, 1))
    assert effects.take_damage() == [(1, damage, 1)]
    assert not effects.take_dead_letters()
