"""Every field of a command can be given through the client; one that the client lacks is found."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import pytest

from smista import AsyncClient, Client
from smista.protocols.http.commands import COMMANDS

CALLS = {
    "broker.info": ["info"],
    "dlq.list": ["dead_letters"],
    "dlq.purge": ["purge_dead_letters"],
    "dlq.retry": ["redrive"],
    "redrive.start": ["start_redrive"],
    "redrive.list": ["redrives"],
    "redrive.cancel": ["cancel_redrive"],
    "exchange.bind": ["bind"],
    "exchange.bindings": ["bindings"],
    "exchange.declare": ["declare_exchange"],
    "exchange.delete": ["delete_exchange"],
    "exchange.list": ["exchanges"],
    "exchange.publish": ["publish_to_exchange"],
    "exchange.route": ["route"],
    "exchange.unbind": ["unbind"],
    "policy.delete": ["delete_policy"],
    "policy.list": ["policies"],
    "policy.set": ["set_policy"],
    "queue.ack": ["ack", "acknowledge_message"],
    "queue.alter": ["alter_queue"],
    "queue.browse": ["browse"],
    "queue.consume": ["receive"],
    "queue.create": ["create_queue"],
    "queue.declare": ["declare_queue"],
    "queue.delete": ["delete_queue"],
    "queue.delete_message": ["delete_message"],
    "queue.extend": ["extend", "extend_message"],
    "queue.get": ["get"],
    "queue.list": ["queues", "all_stats"],
    "queue.nack": ["nack", "nack_message"],
    "queue.pause": ["pause"],
    "queue.peek": ["peek"],
    "queue.publish": ["publish"],
    "queue.publish_batch": ["put_many"],
    "queue.purge": ["purge"],
    "queue.receive": ["receive"],
    "queue.release": ["release", "release_message"],
    "queue.resume": ["resume"],
    "queue.settings": ["queue_settings", "explain_settings"],
    "queue.stats": ["stats"],
    "scheduled.cancel": ["cancel_scheduled"],
    "scheduled.change": ["reschedule"],
    "scheduled.list": ["scheduled"],
}
"""Command: the calls that send it."""

NOT_OF_THE_CLIENT = ("claim.", "staged.")
"""For readers and writers of bulk, such as Spark."""

NAMED_OTHERWISE = {
    "ack_deadline": "lease_ms",
    "config": "given",
    "exchange": "name",
    "limit": "page_size",
    "message_id": "message_ids",
    "policy": "name",
    "prefetch": "limit",
    "queue": "name",
    "queue_name": "name",
    "settings": "given",
    "timeout": "wait_ms",
    "ttl": "ttl_ms",
}
OF_THE_CLIENT_ITSELF = {"namespace", "raw", "after", "receipts", "details", "batch_id"}
"""Given once for all calls, or decided by the client: it asks for bytes, turns the pages, gathers receipts, and names
what it may have to send again."""
OF_BATCHES = {"bodies", "brief", "content_type", "partial"}
OF_THE_LIST = {"limit"}


def parameters(name: str) -> set[str]:
    """What a call can be given; of a TypedDict its keys too."""
    call = getattr(AsyncClient, name)
    found = set()
    for parameter in inspect.signature(call).parameters.values():
        found.add(parameter.name)
        if parameter.kind is parameter.VAR_KEYWORD:
            [kind] = typing.get_args(typing.get_type_hints(call)[parameter.name])
            found |= kind.__annotations__.keys()
    return found


def test_every_command_has_its_calls() -> None:
    ours = {name for name in COMMANDS if not name.startswith(NOT_OF_THE_CLIENT)}
    assert ours == CALLS.keys()
    for calls in CALLS.values():
        for name in calls:
            assert hasattr(Client, name)


@pytest.mark.parametrize("command", CALLS)
def test_every_field_of_a_command_can_be_given_to_a_call(command: str) -> None:
    offered = set().union(*map(parameters, CALLS[command]))
    kind: Any = COMMANDS[command]
    fields = set(kind.__struct_fields__) - OF_THE_CLIENT_ITSELF
    if command == "queue.publish_batch":
        fields -= OF_BATCHES
    if command in ("queue.list", "exchange.list", "exchange.bindings", "redrive.list"):
        fields -= OF_THE_LIST
    missing = {field for field in fields if field not in offered and NAMED_OTHERWISE.get(field) not in offered}
    assert not missing
