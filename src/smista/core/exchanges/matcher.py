"""What the four kinds of exchange have in common: bindings in, destinations out.

A destination is held by its bindings and stays until the last of them goes. `Held` keeps, for each
destination, the labels (what tells its bindings apart) under which it is held. Nearly always that is one
label, so one is kept bare and only two or more cost a dict, of about 200 bytes.

Dicts stand where sets would do: what a message reaches must come in the same order in every process.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from smista.core.exchanges.arguments import Arguments

D = TypeVar("D", bound=Hashable)

Headers: TypeAlias = Mapping[str, object] | None
Label: TypeAlias = Hashable
Labels: TypeAlias = Label | dict[Label, None]
Held: TypeAlias = dict[D, Labels]


class Match(NamedTuple, Generic[D]):
    """One binding that a message met."""

    destination: D
    key: str
    arguments: Arguments


class Matcher(Protocol[D]):
    """The bindings of one exchange, and the rule by which a message meets them."""

    def bind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        """Add a binding; False if this very binding is there already."""

    def unbind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        """Remove a binding; False if there is none."""

    def match(self, routing_key: str, headers: Headers = None) -> tuple[D, ...]:
        """Where a message goes: each destination once, in the same order each time."""

    def explain(self, routing_key: str, headers: Headers = None) -> list[Match[D]]:
        """The bindings that `match` goes by, each of them."""

    @property
    def is_empty(self) -> bool: ...


def hold(held: Held[D], destination: D, label: Label) -> bool:
    """Hold a destination under one more label; False if it is held under this one already."""
    present = held.get(destination)
    if present is None:
        held[destination] = label
    elif isinstance(present, dict):
        if label in present:
            return False
        present[label] = None
    elif present == label:
        return False
    else:
        held[destination] = {present: None, label: None}
    return True


def let_go(held: Held[D], destination: D, label: Label) -> bool:
    """Take one label away, and the destination with its last; False if it was not held under it."""
    present = held.get(destination)
    if isinstance(present, dict):
        if label not in present:
            return False
        del present[label]
        if len(present) == 1:
            held[destination] = next(iter(present))
        return True
    if present is None or present != label:
        return False
    del held[destination]
    return True


def labels(held: Labels) -> Iterable[Label]:
    return held if isinstance(held, dict) else (held,)
