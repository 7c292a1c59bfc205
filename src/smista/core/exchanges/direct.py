"""The direct exchange: a message goes where its routing key is a binding's key."""

from typing import ClassVar, Generic, cast

from smista.core.exchanges.arguments import Arguments
from smista.core.exchanges.matcher import D, Headers, Held, Match, Work, counted, hold, labels, let_go


class DirectMatcher(Generic[D]):
    """Bindings by key. A match costs one lookup and the copy of what it finds."""

    __slots__ = ("_by_key",)
    looks_at_keys: ClassVar[bool] = True

    def __init__(self) -> None:
        self._by_key: dict[str, Held[D]] = {}

    def bind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        held = self._by_key.get(key)
        if held is None:
            held = self._by_key[key] = {}
        return hold(held, destination, arguments)

    def unbind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        held = self._by_key.get(key)
        if held is None or not let_go(held, destination, arguments):
            return False
        if not held:
            del self._by_key[key]
        return True

    def match(self, routing_key: str, headers: Headers = None, work: Work | None = None) -> tuple[D, ...]:
        held = self._by_key.get(routing_key)
        return () if held is None else tuple(held)

    def explain(self, routing_key: str, headers: Headers = None, work: Work | None = None) -> list[Match[D]]:
        found = (
            Match(destination, routing_key, cast("Arguments", label))
            for destination, held in self._by_key.get(routing_key, {}).items()
            for label in labels(held)
        )
        return counted(found, work)
