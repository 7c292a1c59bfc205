"""Whom a request is carried out for, and that it does what its caller may and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from smista.engine import Broker
from smista.log import MemoryLog
from smista.protocols.sqs import json_protocol
from smista.protocols.sqs.app import SqsApp
from smista.service.permission import Permission
from smista.service.principal import Principal, anyone
from smista.service.service import Service
from smista.service.session import Session
from smista.service.values import DEFAULT_NAMESPACE, QueueSettings
from tests.protocols.sqs.clients import make_client
from tests.protocols.sqs.test_bounded_work import answer_to, app_of, exchange
from tests.served import Served


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        yield broker


# -- who asks ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def callers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Principal, str]]:
    """Who has had sessions, and for which namespaces."""
    found: list[tuple[Principal, str]] = []
    make_session = Service.session

    def noted(service: Service, principal: Principal, namespace: str = DEFAULT_NAMESPACE) -> Session:
        found.append((principal, namespace))
        return make_session(service, principal, namespace)

    monkeypatch.setattr(Service, "session", noted)
    return found


def test_the_account_of_the_access_key_is_the_principal(
    locked_server: Served, callers: list[tuple[Principal, str]]
) -> None:
    make_client(locked_server.url, key="123456789012", secret="another").list_queues()
    assert callers == [(Principal("123456789012", "sqs", "127.0.0.1"), "123456789012/us-east-1")]


def test_without_access_keys_an_account_is_a_namespace_and_proves_nothing(
    server: Served, callers: list[tuple[Principal, str]]
) -> None:
    make_client(server.url, key="123456789012").list_queues()
    assert callers == [(anyone("sqs", "127.0.0.1"), "123456789012/us-east-1")]


# -- what it may ------------------------------------------------------------------------------------------------------

URL = {"QueueUrl": "/000000000000/q"}
NEEDS: dict[str, tuple[dict[str, Any], Permission, str | None]] = {
    "AddPermission": (
        URL | {"Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]},
        Permission.CONFIGURE,
        "q",
    ),
    "CreateQueue": ({"QueueName": "new"}, Permission.CONFIGURE, "new"),
    "DeleteQueue": (URL, Permission.CONFIGURE, "q"),
    "GetQueueAttributes": (URL | {"AttributeNames": ["All"]}, Permission.MONITOR, "q"),
    "GetQueueUrl": ({"QueueName": "q"}, Permission.MONITOR, "q"),
    "ListDeadLetterSourceQueues": (URL, Permission.MONITOR, None),
    "ListQueueTags": (URL, Permission.MONITOR, "q"),
    "ListQueues": ({}, Permission.MONITOR, None),
    "PurgeQueue": (URL, Permission.CONFIGURE, "q"),
    "ReceiveMessage": (URL, Permission.READ, "q"),
    "SendMessage": (URL | {"MessageBody": "x"}, Permission.WRITE, "q"),
    "SendMessageBatch": (URL | {"Entries": [{"Id": "a", "MessageBody": "x"}]}, Permission.WRITE, "q"),
    "SetQueueAttributes": (URL | {"Attributes": {"DelaySeconds": "1"}}, Permission.CONFIGURE, "q"),
    "TagQueue": (URL | {"Tags": {"a": "b"}}, Permission.CONFIGURE, "q"),
    "UntagQueue": (URL | {"TagKeys": ["a"]}, Permission.CONFIGURE, "q"),
}
"""By action its parameters, and what it needs for which name; None is the whole namespace. Settling needs a receipt."""


class Limited(Service):
    """Everybody who has a session may do this, and nothing else."""

    granted: frozenset[tuple[Permission, str | None]] = frozenset()

    def session(self, principal: Principal, namespace: str = DEFAULT_NAMESPACE) -> Session:
        return super().session(principal._replace(grants=self), namespace)

    def allow(self, permission: Permission, namespace: str | None, name: str | None) -> bool:
        return (permission, name) in self.granted


@pytest.mark.parametrize("action", NEEDS)
async def test_an_action_asks_for_the_permission_it_needs(broker: Broker, action: str) -> None:
    parameters, permission, name = NEEDS[action]
    await broker.declaring.declare_queue("q")
    app = app_of(broker)
    app.service = service = Limited(broker)
    assert "'anyone' has no permission" in await refusal(app, action, parameters)
    sees = frozenset([(Permission.MONITOR, "q")])
    if (permission, name) not in sees:
        service.granted = sees
        assert f"'anyone' has no permission to {permission.value}" in await refusal(app, action, parameters)
    service.granted = frozenset([(permission, name)])
    await answer_to(app, action, **parameters)


async def test_what_does_not_name_a_dead_letter_queue_needs_nothing_of_it(broker: Broker) -> None:
    await broker.declaring.declare_queue("q", QueueSettings(dead_letter_queue="dead"))
    await broker.declaring.declare_queue("dead")
    app = app_of(broker)
    app.service = service = Limited(broker)
    service.granted = frozenset([(Permission.CONFIGURE, "q")])
    for action, parameters in (
        ("SetQueueAttributes", URL | {"Attributes": {"DelaySeconds": "1"}}),
        ("TagQueue", URL | {"Tags": {"a": "b"}}),
        ("TagQueue", URL | {"Tags": {"a": "b"}}),
    ):
        head = (b"content-type", json_protocol.CONTENT_TYPE), (b"x-amz-target", f"AmazonSQS.{action}".encode())
        start, _ = await exchange(app, msgspec.json.encode(parameters), *head)
        assert start["status"] == 200
    assert broker.catalog.queue_settings("q").dead_letter_queue == "dead"


async def refusal(app: SqsApp, action: str, parameters: dict[str, Any]) -> str:
    head = (b"content-type", json_protocol.CONTENT_TYPE), (b"x-amz-target", f"AmazonSQS.{action}".encode())
    start, answer = await exchange(app, msgspec.json.encode(parameters), *head)
    assert start["status"] == 403
    error = msgspec.json.decode(answer["body"])
    assert error["__type"].endswith("#AccessDeniedException")
    return str(error["message"])
