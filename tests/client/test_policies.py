import pytest

from smista import AsyncClient
from smista.errors import PolicyNotFound


async def test_an_operator_gives_settings_to_queues_of_a_pattern(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, max_retries=5)
    assert await client.set_policy(queue, f"{queue}*", priority=3, max_retries=7, overflow="drop-oldest") == 1
    [policy] = [one for one in await client.policies() if one.name == queue]
    assert (policy.pattern, policy.priority) == (f"{queue}*", 3)
    assert policy.settings == {"max_retries": 7, "overflow": "drop-oldest"}
    assert (await client.queue_settings(queue)).max_retries == 7
    assert (await client.stats(queue)).policy == queue
    assert await client.declare_queue(queue, max_retries=5) is False
    await client.delete_policy(queue)
    assert (await client.queue_settings(queue)).max_retries == 5
    with pytest.raises(PolicyNotFound):
        await client.delete_policy(queue)
