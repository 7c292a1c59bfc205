import enum
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from smista import AsyncClient
from smista.client.queues import SettingsGiven
from smista.core.settings import Backoff, QueueSettings
from smista.errors import InvalidSettings, QueueDiffers, QueueNotEmpty, QueueNotFound


def test_every_setting_of_a_queue_can_be_given_by_name() -> None:
    assert set(SettingsGiven.__annotations__) == set(QueueSettings.__struct_fields__)


def test_every_word_that_a_setting_takes_can_be_given() -> None:
    for name, kind in get_type_hints(SettingsGiven).items():
        parts = get_args(kind)
        words = {word for part in parts if get_origin(part) is Literal for word in get_args(part)}
        enums = [part for part in parts if isinstance(part, type) and issubclass(part, enum.StrEnum)]
        assert words == {each.value for known in enums for each in known}, name


async def test_declaring_says_whether_the_queue_is_new(client: AsyncClient, queue: str) -> None:
    assert await client.declare_queue(queue, max_retries=5) is True
    assert await client.declare_queue(queue, max_retries=5) is False
    with pytest.raises(QueueDiffers, match="max_retries"):
        await client.declare_queue(queue, max_retries=6)


async def test_settings_come_as_a_structure_with_names_over_it(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, QueueSettings(max_retries=5, prefetch=7), prefetch=8)
    settings = await client.queue_settings(queue)
    assert (settings.max_retries, settings.prefetch) == (5, 8)


async def test_altering_sends_what_is_named_even_where_it_is_the_default(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, max_retries=5, retry_backoff=Backoff.LINEAR)
    settings = await client.alter_queue(queue, max_retries=QueueSettings().max_retries)
    assert settings.max_retries == QueueSettings().max_retries
    assert settings.retry_backoff is Backoff.LINEAR
    assert await client.queue_settings(queue) == settings
    with pytest.raises(InvalidSettings, match="lease_ms"):
        await client.alter_queue(queue, lease_ms=-1)


async def test_creating_has_the_defaults_of_synap(client: AsyncClient, queue: str) -> None:
    assert await client.create_queue(queue) is True
    settings = await client.queue_settings(queue)
    assert (settings.default_priority, settings.max_depth) == (5, 100_000)
    assert await client.create_queue(f"{queue}-deep", max_depth=None) is True
    assert (await client.queue_settings(f"{queue}-deep")).max_depth is None


async def test_queues_are_listed_by_name_and_with_statistics(client: AsyncClient, queue: str) -> None:
    names = [f"{queue}-{letter}" for letter in "abc"]
    for name in names:
        await client.declare_queue(name)
    await client.publish(names[1], b"x")
    assert await client.queues(prefix=f"{queue}-") == names
    assert set(names) <= set(await client.queues())
    found = await client.all_stats(prefix=f"{queue}-")
    assert [(stats.queue, stats.ready) for stats in found] == [(names[0], 0), (names[1], 1), (names[2], 0)]
    assert (await client.stats(names[1])).published_total == 1


async def test_more_queues_than_a_page_are_all_listed(client: AsyncClient, queue: str) -> None:
    names = [f"{queue}-{number:04}" for number in range(1_001)]
    for name in names:
        await client.declare_queue(name)
    assert await client.queues(prefix=f"{queue}-") == names
    assert len(await client.all_stats(prefix=f"{queue}-")) == len(names)


async def test_purging_and_deleting_say_how_many_messages_went(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, [b"x"] * 3)
    assert await client.purge(orders, ready_only=True) == 3
    await client.put_many(orders, [b"x"] * 2)
    with pytest.raises(QueueNotEmpty):
        await client.delete_queue(orders, if_empty=True)
    assert await client.delete_queue(orders) == 2
    with pytest.raises(QueueNotFound, match=orders):
        await client.stats(orders)


async def test_a_paused_queue_hands_out_nothing(client: AsyncClient, orders: str) -> None:
    await client.pause(orders)
    await client.publish(orders, b"x")
    assert await client.receive(orders) == []
    assert (await client.stats(orders)).is_paused is True
    await client.resume(orders)
    assert len(await client.receive(orders)) == 1


async def test_the_broker_tells_what_it_is(client: AsyncClient, orders: str) -> None:
    info = await client.info()
    assert info.queues >= 1
    assert info.refusal is None


async def test_a_namespace_has_queues_of_its_own(broker_url: str, client: AsyncClient, orders: str) -> None:
    async with AsyncClient(broker_url, namespace=f"tenant-{orders}") as tenant:
        await tenant.declare_queue(orders, max_retries=9)
        await tenant.publish(orders, b"theirs")
        await tenant.put_many(orders, [b"theirs"])
        await tenant.declare_exchange("events")
        await tenant.bind("events", orders, key="new")
        assert len(await tenant.publish_to_exchange("events", "new", b"theirs")) == 1
        assert await tenant.queues() == [orders]
        assert (await tenant.stats(orders)).ready == 3
        async with tenant.subscribe(orders) as subscription:
            assert (await anext(subscription)).body == b"theirs"
    assert (await client.stats(orders)).ready == 0


async def test_declaring_may_take_what_an_operator_has_altered(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, max_retries=5)
    await client.alter_queue(queue, max_retries=7)
    assert await client.declare_queue(queue, if_exists="keep", max_retries=5) is False
    assert await client.create_queue(queue, if_exists="keep") is False
    assert (await client.queue_settings(queue)).max_retries == 7
    with pytest.raises(QueueDiffers, match="if_exists keep"):
        await client.declare_queue(queue, if_exists="same", max_retries=5)
