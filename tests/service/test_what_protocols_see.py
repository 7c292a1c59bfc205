"""What protocols see of the broker: a service, sessions and what these hand out, so many names, and nothing below."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from smista.engine import Broker
from smista.log import MemoryLog
from smista.service.principal import anyone
from smista.service.service import Service
from smista.service.session import Session
from smista.service.values import Route, SharedCredit, Subscription, Ticket, Unanswered

PROTOCOLS = Path(__file__).parents[2] / "src/smista/protocols"
BELOW = ("smista.core", "smista.engine", "smista.log", "smista.records")
SEEN = (Service, Session, Subscription, SharedCredit, Route, Ticket, Unanswered)
MEMBER_COUNTS = {
    "Service": 21,
    "Session": 46,
    "Subscription": 7,
    "SharedCredit": 5,
    "Route": 3,
    "Ticket": 5,
    "Unanswered": 2,
}
"""Before there is one more: is it the protocol's to decide, or the engine's?"""


def members(kind: type) -> set[str]:
    """The public methods, properties and attributes of a class."""
    return {name for name in (*vars(kind), *getattr(kind, "__slots__", ())) if not name.startswith("_")}


def below(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where something reaches below the service: by an import, or by the broker of something else."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith(BELOW):
                yield node.lineno, module
            case ast.Import(names=names) if any(each.name.startswith(BELOW) for each in names):
                yield node.lineno, ast.unparse(node)
            case ast.Attribute(attr="broker" | "_broker" | "_engine"):
                yield node.lineno, ast.unparse(node)


async def test_protocols_see_so_many_members() -> None:
    async with await Broker.open(MemoryLog()) as broker:
        service = Service(broker)
        seen = {kind.__name__: members(kind) for kind in SEEN}
        seen["Service"] |= {name for name in vars(service) if not name.startswith("_")}
        assert {kind: len(names) for kind, names in seen.items()} == MEMBER_COUNTS
        for one in (service, service.session(anyone("http"))):
            assert not [name for name in seen[type(one).__name__] if getattr(one, name) is broker]


def test_protocols_reach_nothing_below_the_service() -> None:
    sources = list(PROTOCOLS.rglob("*.py"))
    assert len(sources) > 120
    found = [(str(path), *place) for path in sources for place in below(ast.parse(path.read_text()))]
    assert found == []


def test_what_reaches_below_is_found() -> None:
    source = """
from smista.engine import Broker
import smista.core.message
from smista.service.values import Receipt

async def close(call):
    await call.broker.durable()
"""
    assert list(below(ast.parse(source))) == [
        (2, "smista.engine"),
        (3, "import smista.core.message"),
        (7, "call.broker"),
    ]
