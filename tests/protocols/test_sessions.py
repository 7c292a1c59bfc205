"""Sessions of callers who come with one request after the other."""

from __future__ import annotations

import pytest

from smista.engine import Broker
from smista.log import MemoryLog
from smista.protocols.web import sessions
from smista.protocols.web.sessions import Sessions
from smista.service.principal import Principal, anyone
from smista.service.service import Service


async def test_a_caller_that_comes_again_has_the_same_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 3)
    async with await Broker.open(MemoryLog()) as broker:
        service = Service(broker)
        recent = Sessions(lambda: service, "sqs")
        first = recent.get("/", "127.0.0.1")
        assert (first.principal, first.namespace) == (anyone("sqs", "127.0.0.1"), "/")
        named = recent.get("other", "127.0.0.1", "123456789012")
        assert (named.principal, named.namespace) == (Principal("123456789012", "sqs", "127.0.0.1"), "other")
        recent.get("/", "127.0.0.2")
        assert recent.get("/", "127.0.0.1") is first
        recent.get("/", "127.0.0.3")
        assert recent.get("/", "127.0.0.1") is not first, "their number is bounded"
