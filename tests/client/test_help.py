"""`help(Client.publish)` and its like explain a call completely: what it does, takes and returns."""

import inspect
import pydoc

import pytest

from smista import AsyncClient, Client, Worker
from smista.client import Subscription, SyncDelivery, SyncSubscription
from smista.client.sync_subscription import SyncPages

INSIDE = {"broken", "failed", "opened", "pushed", "put_batch", "receive_as", "subscribe_as"}
"""What one part of the client calls of another."""


def public(kind: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(kind) if not name.startswith("_") and name not in INSIDE]


CALLS = [name for name in public(Client) if callable(getattr(Client, name))]


def shown(member: object) -> str:
    return pydoc.plain(pydoc.render_doc(member))


@pytest.mark.parametrize("name", CALLS)
def test_help_shows_what_a_call_does(name: str) -> None:
    call, original = getattr(Client, name), getattr(AsyncClient, name)
    explained = inspect.getdoc(call)
    assert explained is not None
    assert explained.split("\n\n")[0].endswith((".", ":"))
    assert "AsyncClient" not in explained, "it sends its reader elsewhere"
    text = shown(call)
    assert all(line.strip() in text for line in explained.splitlines())
    # Both clients have the same docstrings; one may have more text.
    other = inspect.getdoc(original)
    assert other is not None
    first = other.split("\n\n")[0].replace("an async iterator", "an iterator")
    assert explained.startswith(first)


@pytest.mark.parametrize("name", CALLS)
def test_help_shows_what_a_call_takes_and_gives(name: str) -> None:
    signature, original = (inspect.signature(getattr(kind, name)) for kind in (Client, AsyncClient))
    assert list(signature.parameters) == list(original.parameters)
    text = shown(getattr(Client, name))
    for parameter in signature.parameters.values():
        assert str(parameter) in text
        assert parameter.kind is not inspect.Parameter.VAR_POSITIONAL, "it hides what it takes"
    assert signature.return_annotation is not inspect.Signature.empty
    assert f"-> {signature.return_annotation!r}" in text or f"-> {signature.return_annotation}" in text
    assert not str(signature.return_annotation).startswith(("Pages", "Coroutine", "list[Delivery", "Subscription"))


@pytest.mark.parametrize("kind", [AsyncClient, Client, Subscription, SyncDelivery, SyncPages, SyncSubscription, Worker])
def test_everything_public_is_explained(kind: type) -> None:
    assert inspect.getdoc(kind)
    assert [name for name in public(kind) if is_call(kind, name) and not inspect.getdoc(getattr(kind, name))] == []


def is_call(kind: type, name: str) -> bool:
    member = inspect.getattr_static(kind, name)
    return isinstance(member, property) or callable(member)
