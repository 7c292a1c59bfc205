"""What a protocol keeps with a queue stays its own."""

from __future__ import annotations

import pytest

from smista.engine import Broker
from smista.errors import InvalidSettings
from smista.service.commands.queues import AlterQueue, DeclareQueue
from smista.service.principal import anyone
from smista.service.queue_annotations import PREFIXES, merged
from smista.service.queue_settings import GivenSettings
from smista.service.service import Service

PRESENT = (("amqp.arguments", "{}"), ("sqs.Policy", "{}"), ("team", "blue"))


def test_what_belongs_to_others_stays_and_the_rest_is_what_is_given() -> None:
    assert merged([("team", "red")], PRESENT, "http") == (
        ("amqp.arguments", "{}"),
        ("sqs.Policy", "{}"),
        ("team", "red"),
    )
    assert merged([], PRESENT, "sqs") == (("amqp.arguments", "{}"),)
    assert merged([("sqs-tag:a", "1")], PRESENT, "sqs") == (("amqp.arguments", "{}"), ("sqs-tag:a", "1"))


def test_whoever_gives_back_all_that_it_was_shown_changes_nothing() -> None:
    for protocol in ("http", *PREFIXES):
        assert merged(PRESENT, PRESENT, protocol) == PRESENT


@pytest.mark.parametrize("protocol", ["http", "amqp"])
def test_nobody_sets_what_belongs_to_another_protocol(protocol: str) -> None:
    for value in ("{}", "[]"):
        with pytest.raises(InvalidSettings, match="belongs to the protocol it begins with"):
            merged([("sqs.New", value)], PRESENT, protocol)
    with pytest.raises(InvalidSettings):
        merged([("sqs.Policy", "[]")], PRESENT, protocol)


async def test_declaring_and_altering_keep_to_it(service: Service, broker: Broker) -> None:
    await service.session(anyone("sqs")).run(DeclareQueue("orders", GivenSettings(annotations=(("sqs.Policy", "{}"),))))
    http = service.session(anyone("http"))
    await http.run(AlterQueue("orders", GivenSettings(annotations=(("team", "blue"),))))
    assert broker.catalog.queue_settings("orders").annotations == (("sqs.Policy", "{}"), ("team", "blue"))
    with pytest.raises(InvalidSettings):
        await http.run(DeclareQueue("other", GivenSettings(annotations=(("sqs.Policy", "{}"),))))
    assert not broker.catalog.has_queue("other")
