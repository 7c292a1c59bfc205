"""No cache that is keyed by what a client sends grows with the size of what it sends."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sized
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from smista import records
from smista.caches import ENTRIES_MAX
from smista.core import policies
from smista.core.message import Envelope
from smista.core.policies import Policy
from smista.core.settings import QueueSettings
from smista.core.state import BrokerState
from smista.engine.fold import Fold
from smista.protocols.amqp.channel.target import FORMS_MAX, Target, Targets
from smista.protocols.amqp.client import Client
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.content import BasicProperties, write_properties
from smista.protocols.http.access import KNOWN_HOSTS_MAX, Access
from smista.service.staging.rows import _Maker
from smista.service.values import Route

SOURCES = Path(__file__).parents[2] / "src" / "smista"
FIXED = {
    ("protocols/http/app.py", "_openapi"): "has no arguments",
    ("protocols/http/rest.py", "_kinds"): "the commands that there are",
    ("protocols/http/rest.py", "_outline"): "the same, and the formats",
    ("protocols/http/answering.py", "_lists"): "the types of answers",
    ("protocols/http/bounded.py", "_members"): "the lengths that lists in requests may have",
    ("protocols/http/bounded.py", "_outline"): "the types of requests",
    ("client/calls.py", "decoder"): "the types of answers",
    ("cli/app.py", "built"): "has no arguments",
}


def test_lru_caches_are_for_what_clients_cannot_choose() -> None:
    found = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                names = {ast.unparse(each).split("(")[0] for each in node.decorator_list}
                if names & {"lru_cache", "functools.lru_cache", "cache", "functools.cache"}:
                    found.add((str(path.relative_to(SOURCES)), node.name))
    assert found == set(FIXED)


# -- caches written by hand -------------------------------------------------------------------------------------------

Fill = Callable[[pytest.MonkeyPatch, int], Sized]
"""Asks a cache for so many different things; what it keeps."""


def fill_known_hosts(patch: pytest.MonkeyPatch, count: int) -> Sized:
    access = Access(hosts=["*"])
    for number in range(count):
        access.check({"type": "http", "headers": [(b"host", b"host-%d" % number)]})
    return access._known_hosts


def fill_recovered_envelopes(patch: pytest.MonkeyPatch, count: int) -> Sized:
    fold = Fold(BrokerState(), resident_bytes_max=0)
    for number in range(count):
        fold._envelope((b"", b"%d" % number))
    return fold._envelopes


def fill_recovered_addresses(patch: pytest.MonkeyPatch, count: int) -> Sized:
    fold = Fold(BrokerState(), resident_bytes_max=0)
    for number in range(count):
        fold._envelope((records.envelope.encode(Envelope(routing_key=f"{number}")), b""))
    return fold._addresses


def fill_staged_envelopes(patch: pytest.MonkeyPatch, count: int) -> Sized:
    maker = _Maker("events")
    for number in range(count):
        maker._envelope(None, None, None, None, f"key-{number}", None, None, None)
    return maker._envelopes


def fill_prepared(patch: pytest.MonkeyPatch, count: int) -> Sized:
    targets = Targets(cast(Client, SimpleNamespace(user="guest")))
    target = Target(
        methods.BasicPublish(0, "", "q", False, False), cast(Route, SimpleNamespace(looks_at_headers=False))
    )
    for number in range(count):
        for _ in range(2):  # at the second time it is worth it
            targets.prepare(target, write_properties(BasicProperties(headers={"a": "x" * number})), None)
    assert target.form_count == sum(map(len, target.prepared.values()))
    return [each for some in target.prepared.values() for each in some]


def fill_fitted(patch: pytest.MonkeyPatch, count: int) -> Sized:
    policy = Policy("p", "*", 0, {"lease_ms": 1})
    for number in range(count):
        policy.fit("q", msgspec.structs.replace(QueueSettings(), max_depth=1 + number))
    return policy._fitted


BY_HAND: dict[str, tuple[Fill, int]] = {
    "Access._known_hosts": (fill_known_hosts, KNOWN_HOSTS_MAX),
    "Fold._envelopes": (fill_recovered_envelopes, ENTRIES_MAX),
    "Fold._addresses": (fill_recovered_addresses, ENTRIES_MAX),
    "_Maker._envelopes": (fill_staged_envelopes, ENTRIES_MAX),
    "Target.prepared": (fill_prepared, FORMS_MAX),
    "Policy._fitted": (fill_fitted, policies._FITTED_MAX),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_cache_written_by_hand_keeps_only_so_much(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill, entries_max = BY_HAND[name]
    assert len(fill(monkeypatch, entries_max)) > entries_max // 2, "it keeps nothing: what does this test?"
    assert len(fill(monkeypatch, 2 * entries_max + 1)) <= entries_max
