"""What the four kinds of exchange have in common: bindings in, destinations out.

A destination is held by its bindings and stays until the last of them goes. `Held` keeps, for each
destination, the labels (what tells its bindings apart) under which it is held. Nearly always that is one
label, so one is kept bare and only two or more cost a dict, of about 200 bytes.

Dicts stand where sets would do: what a message reaches must come in the same order in every process.

To find out where a message goes is one step, and it may be held against very many bindings, by very many keys. So
what it costs is counted on the way in a `Work`, which ends what would take too long.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from smista.core.exchanges.arguments import Arguments

D = TypeVar("D", bound=Hashable)

Headers: TypeAlias = Mapping[str, object] | None
Label: TypeAlias = Hashable
Labels: TypeAlias = Label | dict[Label, None]
Held: TypeAlias = dict[D, Labels]


WORK_MAX = 100_000
"""How much may be done to find out where one message goes: some 30 ms. Holding it against one binding, or against one
node of a topic exchange's trie, counts as 1, and so does looking a key up."""
DESTINATIONS_PER_WORK = 4
"""Of what was found, so many are put together at the cost of 1."""
PASSED = 4
"""What it counts to come to another exchange."""
EXPLAINED = 5
"""What it counts to tell of one binding in a dry run."""


class TooMuchWork(Exception):
    """It would take more than it may."""


class Work:
    """What has been done for one message so far, and what may be: `WORK_MAX`, or less."""

    __slots__ = ("done", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self.done = 0
        self.limit = WORK_MAX if limit is None else limit

    def spend(self, count: int) -> None:
        """Raises `TooMuchWork`, before the work is done where that is known."""
        self.done += count
        if self.done > self.limit:
            raise TooMuchWork


class Match(NamedTuple, Generic[D]):
    """One binding that a message met."""

    destination: D
    key: str
    arguments: Arguments


class Matcher(Protocol[D]):
    """The bindings of one exchange, and the rule by which a message meets them."""

    looks_at_keys: ClassVar[bool]
    """Whether another key may lead elsewhere."""

    def bind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        """Add a binding; False if this very binding is there already."""

    def unbind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        """Remove a binding; False if there is none."""

    def match(self, routing_key: str, headers: Headers = None, work: Work | None = None) -> tuple[D, ...]:
        """Where a message goes: each destination once, in the same order each time. Raises `TooMuchWork`."""

    def explain(self, routing_key: str, headers: Headers = None, work: Work | None = None) -> list[Match[D]]:
        """The bindings that `match` goes by, each of them. Raises `TooMuchWork`."""


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


def counted(found: Iterable[Match[D]], work: Work | None) -> list[Match[D]]:
    """What a dry run tells, as long as that is not too much."""
    matches = []
    for match in found:
        if work is not None:
            work.spend(EXPLAINED)
        matches.append(match)
    return matches
