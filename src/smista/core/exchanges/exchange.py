"""An exchange, its settings, and the bindings that lead from it.

Nothing here points at a queue or at another exchange: destinations are names, looked up by the caller in
tables of its own, so that no reference cycles arise.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from smista.core.exchanges.arguments import Arguments, Unfreezable, freeze
from smista.core.exchanges.direct import DirectMatcher
from smista.core.exchanges.fanout import FanoutMatcher
from smista.core.exchanges.headers import HeadersMatcher
from smista.core.exchanges.matcher import Matcher
from smista.core.exchanges.topic import TopicMatcher
from smista.exchange_errors import InvalidBinding

DestinationKind: TypeAlias = Literal["queue", "exchange"]


class ExchangeTarget(NamedTuple):
    """An exchange as a destination. A queue is plain `str`: a queue and an exchange may have one name."""

    name: str


Destination: TypeAlias = str | ExchangeTarget


class ExchangeKind(StrEnum):
    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"


class ExchangeSettings(msgspec.Struct, frozen=True):
    kind: ExchangeKind
    durable: bool = True
    auto_delete: bool = False  # delete it when the last binding from it goes
    internal: bool = False  # only other exchanges may send to it
    alternate: str | None = None  # the exchange that gets what matches no binding here


class Binding(msgspec.Struct, frozen=True, gc=False):
    """One binding; two with equal fields are the same one. Build it by `to_queue` or `to_exchange`."""

    source: str
    destination_kind: DestinationKind
    destination: str
    key: str = ""
    arguments: Arguments = ()

    @classmethod
    def to_queue(
        cls, source: str, queue: str, key: str = "", arguments: Mapping[str, object] | None = None
    ) -> "Binding":
        """Raises `InvalidBinding` for arguments that cannot be compared."""
        return cls(source, "queue", queue, key, _freeze(source, queue, arguments))

    @classmethod
    def to_exchange(
        cls, source: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None
    ) -> "Binding":
        """Raises `InvalidBinding` for arguments that cannot be compared."""
        return cls(source, "exchange", exchange, key, _freeze(source, exchange, arguments))

    @property
    def target(self) -> Destination:
        return self.destination if self.destination_kind == "queue" else ExchangeTarget(self.destination)


class Exchange:
    """One exchange with the bindings from it. Only `Topology` changes it."""

    __slots__ = ("bindings", "matcher", "name", "namespace", "number", "settings", "target_counts")

    def __init__(self, name: str, number: int, namespace: str, settings: ExchangeSettings) -> None:
        self.name = name
        self.number = number
        self.namespace = namespace
        self.settings = settings
        self.matcher: Matcher[Destination] = _MATCHERS[settings.kind]()
        self.bindings: dict[Binding, None] = {}  # those from here; in order
        self.target_counts: dict[str, int] = {}  # exchanges bound to this one: how many bindings lead to each

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} ({self.settings.kind}) in {self.namespace!r}>"


_MATCHERS: dict[ExchangeKind, Callable[[], Matcher[Destination]]] = {
    ExchangeKind.DIRECT: DirectMatcher,
    ExchangeKind.FANOUT: FanoutMatcher,
    ExchangeKind.TOPIC: TopicMatcher,
    ExchangeKind.HEADERS: HeadersMatcher,
}


def _freeze(source: str, destination: str, arguments: Mapping[str, object] | None) -> Arguments:
    try:
        return freeze(arguments)
    except Unfreezable as problem:
        raise InvalidBinding(
            source,
            destination,
            f"an argument is {problem}",
            "use strings, numbers, booleans, lists and tables",
        ) from None
