"""The fanout exchange: a message goes to every destination, whatever its key."""

from typing import ClassVar, Generic, cast

from smista.core.exchanges.arguments import Arguments
from smista.core.exchanges.matcher import D, Headers, Held, Match, Work, counted, hold, labels, let_go


class FanoutMatcher(Generic[D]):
    """All destinations; the key only tells two bindings of one destination apart."""

    __slots__ = ("_held",)
    looks_at_keys: ClassVar[bool] = False

    def __init__(self) -> None:
        self._held: Held[D] = {}

    def bind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        return hold(self._held, destination, (key, arguments))

    def unbind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        return let_go(self._held, destination, (key, arguments))

    def match(self, routing_key: str, headers: Headers = None, work: Work | None = None) -> tuple[D, ...]:
        return tuple(self._held)

    def explain(self, routing_key: str, headers: Headers = None, work: Work | None = None) -> list[Match[D]]:
        found = (
            Match(destination, *cast("tuple[str, Arguments]", label))
            for destination, held in self._held.items()
            for label in labels(held)
        )
        return counted(found, work)
