"""Cuts of the log at which replaying once could have given something else, each as a small story."""

from __future__ import annotations

import pytest

from smista import records
from smista.core import declaring, publishing, receiving, settling
from smista.core.entering import Placed
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Envelope, Message, Publication, Receipt
from smista.core.queue import Queue
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.records import Kind
from tests.engine.world import World

PARK = QueueSettings(dead_letter=DeadLetterMode.PARK, max_retries=0)


@pytest.fixture
def world() -> World:
    return World()


def declare(world: World, name: str, settings: QueueSettings | None = None) -> Queue:
    queue = declaring.declare_queue(world.state, name, settings or QueueSettings(), now_ms=world.now_ms)
    world.seal()
    return queue


def publish(world: World, queue: Queue, *bodies: bytes, envelope: Envelope | None = None) -> None:
    """One block for each."""
    for body in bodies:
        publication = Publication(body, envelope or Envelope())
        publishing.publish(world.state, queue, [publication], now_ms=world.now_ms)
        world.seal()


def receive(world: World, queue: Queue, limit: int = 1) -> list[Message]:
    messages = receiving.receive(world.state, queue, limit, now_ms=world.now_ms)
    world.seal()
    return messages


def receipt_of(world: World, message: Message) -> Receipt:
    return settling.receipt_for(world.state.queues[message.queue], message.sequence)


def acknowledge(world: World, message: Message) -> None:
    assert settling.acknowledge(world.state, [receipt_of(world, message)], now_ms=world.now_ms) == [None]
    world.seal()


def reject(world: World, message: Message) -> None:
    settling.nack(world.state, receipt_of(world, message), requeue=False, error="no", now_ms=world.now_ms)
    world.seal()


def fanout(world: World, name: str, *, durable: bool = True) -> None:
    declaring.declare_exchange(world.state, name, ExchangeSettings(ExchangeKind.FANOUT, durable=durable))
    world.seal()


def bind(world: World, binding: Binding) -> None:
    declaring.bind(world.state, world.state.namespace("/"), binding)
    world.seal()


def delete(world: World, queue: Queue) -> None:
    declaring.delete_queue(world.state, queue, now_ms=world.now_ms)
    world.seal()


def reclaim_through(world: World, position: int) -> None:
    while world.front <= position:
        assert world.reclaim()


def test_a_death_keeps_the_name_of_its_queue_when_the_declaration_was_relocated(world: World) -> None:
    queue = declare(world, "orders", PARK)
    declared_in = queue.position
    publish(world, queue, b"poison")
    [message] = receive(world, queue)
    reject(world, message)
    reclaim_through(world, declared_in)
    world.check()


def test_a_dead_letter_keeps_the_name_of_its_source_when_the_declaration_was_relocated(world: World) -> None:
    queue = declare(world, "orders")
    declared_in = queue.position
    publish(world, queue, b"poison")
    [message] = receive(world, queue)
    reject(world, message)
    reclaim_through(world, declared_in)
    world.check()


def test_an_acknowledgement_is_counted_when_its_message_lies_in_a_dropped_block(world: World) -> None:
    queue = declare(world, "orders")
    declared_in = queue.position
    publish(world, queue, b"x")
    published_in = world.journal.position - 1
    reclaim_through(world, declared_in)
    [message] = receive(world, queue)
    acknowledge(world, message)
    reclaim_through(world, published_in)
    world.check()


def test_a_delivery_is_counted_when_its_message_is_relocated_afterwards(world: World) -> None:
    queue = declare(world, "orders")
    declared_in = queue.position
    publish(world, queue, b"x")
    published_in = world.journal.position - 1
    reclaim_through(world, declared_in)
    receive(world, queue)
    reclaim_through(world, published_in)
    world.check()


def test_purged_messages_may_lie_in_a_block_that_is_reclaimed_before_they_are_buried(world: World) -> None:
    queue = declare(world, "orders")
    publish(world, queue, b"x")
    declaring.purge(world.state, queue, now_ms=world.now_ms)
    world.seal()
    reclaim_through(world, world.journal.position - 1)
    world.check()


def test_purged_dead_letters_stay_away_when_reclaimed_before_they_are_buried(world: World) -> None:
    queue = declare(world, "orders")
    publish(world, queue, b"poison")
    [message] = receive(world, queue)
    reject(world, message)
    declaring.purge(world.state, world.state.queue("orders_dlq"), now_ms=world.now_ms)
    world.seal()
    reclaim_through(world, world.journal.position - 1)
    world.check()


def test_messages_of_a_deleted_queue_may_be_reclaimed_before_they_are_buried(world: World) -> None:
    queue = declare(world, "orders")
    publish(world, queue, b"x")
    delete(world, queue)
    reclaim_through(world, world.journal.position - 1)
    world.check()


def test_a_queue_declared_again_has_no_bindings_of_its_predecessor(world: World) -> None:
    queue = declare(world, "orders")
    declared_in = queue.position
    fanout(world, "all")
    bind(world, Binding.to_queue("all", "orders"))
    delete(world, queue)
    declare(world, "orders")
    reclaim_through(world, declared_in)
    world.check()


def test_a_durable_queue_has_no_bindings_of_a_fleeting_one_of_its_name(world: World) -> None:
    fanout(world, "all")
    queue = declare(world, "orders", QueueSettings(durable=False))
    bind(world, Binding.to_queue("all", "orders"))
    delete(world, queue)
    declare(world, "orders")
    world.check()


def test_bindings_of_a_fleeting_queue_do_not_come_back_after_two_restarts(world: World) -> None:
    fanout(world, "all")
    declare(world, "orders", QueueSettings(durable=False))
    bind(world, Binding.to_queue("all", "orders"))
    world.restart()
    declare(world, "orders")
    world.check()


def test_an_exchange_declared_again_has_no_bindings_to_its_predecessor(world: World) -> None:
    fanout(world, "second")
    declared_in = world.journal.position - 1
    fanout(world, "first")
    bind(world, Binding.to_exchange("first", "second"))
    declaring.delete_exchange(world.state, world.state.namespace("/"), "second")
    world.seal()
    fanout(world, "second")
    reclaim_through(world, declared_in)
    world.check()


def test_a_binding_to_an_exchange_whose_declaration_was_relocated_stays(world: World) -> None:
    fanout(world, "second")
    declared_in = world.journal.position - 1
    fanout(world, "first")
    bind(world, Binding.to_exchange("first", "second"))
    reclaim_through(world, declared_in)
    world.check()


def test_a_durable_exchange_has_no_bindings_of_a_fleeting_one_of_its_name(world: World) -> None:
    declare(world, "orders")
    fanout(world, "all", durable=False)
    bind(world, Binding.to_queue("all", "orders"))
    declaring.delete_exchange(world.state, world.state.namespace("/"), "all")
    fanout(world, "all")
    world.check()


def test_bindings_of_predeclared_exchanges_survive_relocation(world: World) -> None:
    declare(world, "orders")
    bind(world, Binding.to_queue("amq.topic", "orders", "a.#"))
    reclaim_through(world, world.journal.position - 1)
    world.check()


def test_an_exchange_of_many_bindings_is_written_again_in_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.engine.reclaim.BINDINGS_MAX", 3)
    monkeypatch.setattr("smista.engine.reclaim.RELOCATED_AT_ONCE", 2)
    keys = [f"key.{number}" for number in range(20)]
    declare(world, "orders")
    declare(world, "fleeting")
    declaring.declare_exchange(world.state, "wide", ExchangeSettings(ExchangeKind.DIRECT))
    declared_in = world.journal.position
    world.seal()
    for key in keys:
        bind(world, Binding.to_queue("wide", "orders", key))
    bind(world, Binding.to_queue("wide", "fleeting", "a"))
    namespace = world.state.namespace("/")
    turns = 0

    def unbind_one() -> None:
        nonlocal turns
        turns += 1
        declaring.unbind(world.state, namespace, Binding.to_queue("wide", "orders", keys.pop()))
        if turns == 5:
            declaring.delete_queue(world.state, namespace.queues["fleeting"], now_ms=world.now_ms)
            declaring.declare_queue(world.state, "fleeting", QueueSettings(durable=False), now_ms=world.now_ms)
            declaring.bind(world.state, namespace, Binding.to_queue("wide", "fleeting", "a"))
        # Wherever the log ends, it says the same.
        world.check()

    monkeypatch.setattr(world, "between_turns", unbind_one)
    reclaim_through(world, declared_in)
    assert turns > 5
    records_of = [record for block in world.blocks.values() for record in records.blocks.records(block)]
    found = [records.exchange_declared.decode(one.data) for one in records_of if one.kind is Kind.EXCHANGE_DECLARED]
    assert max(len(one.bindings) for one in found) == 3
    delete(world, namespace.queues["fleeting"])
    declare(world, "fleeting")
    world.check()


def test_no_number_is_given_out_twice_though_fleeting_queues_leave_no_record(world: World) -> None:
    queue = declare(world, "fleeting", QueueSettings(durable=False))
    publish(world, queue, b"x")
    [message] = receive(world, queue)
    old = receipt_of(world, message)
    world.restart()
    queue = declare(world, "orders")
    publish(world, queue, b"y")
    [message] = receive(world, queue)
    assert receipt_of(world, message) != old


def test_deduplication_memory_survives_relocation_and_a_purge_forgets_it(world: World) -> None:
    queue = declare(world, "orders")
    publish(world, queue, b"x", envelope=Envelope(deduplication_id="1"))
    [message] = receive(world, queue)
    acknowledge(world, message)
    reclaim_through(world, world.journal.position - 1)
    world.check()
    world.restart()
    [again] = publishing.publish(
        world.state,
        world.state.queue("orders"),
        [Publication(b"x", Envelope(deduplication_id="1"))],
        now_ms=world.now_ms,
    )
    assert isinstance(again, Placed)
    assert again.is_duplicate
    declaring.purge(world.state, world.state.queue("orders"), now_ms=world.now_ms)
    reclaim_through(world, world.journal.position - 1)
    world.check()


def test_a_message_that_moved_from_a_fleeting_queue_is_found_again(world: World) -> None:
    queue = declare(world, "fleeting", QueueSettings(durable=False, dead_letter_queue="lasting"))
    declare(world, "lasting")
    publish(world, queue, b"x")
    [message] = receive(world, queue)
    reject(world, message)
    world.check()
    reclaim_through(world, world.journal.position - 1)
    world.check()


def test_a_message_that_moves_to_a_fleeting_queue_leaves_its_counters_as_they_are(world: World) -> None:
    queue = declare(world, "lasting", QueueSettings(dead_letter_queue="fleeting"))
    declare(world, "fleeting", QueueSettings(durable=False))
    publish(world, queue, b"x")
    [message] = receive(world, queue)
    reject(world, message)
    world.check()


def test_a_drop_that_a_crash_undoes_brings_nothing_back(world: World) -> None:
    queue = declare(world, "orders")
    publish(world, queue, b"a", b"b", b"c")
    first, second, _ = receive(world, queue, 3)
    acknowledge(world, first)
    reject(world, second)
    reclaim_through(world, world.journal.position - 1)
    for front in range(1, world.front + 1):
        world.check(front=front)
