"""Where a message goes, from the exchange it was published to down to queues.

Breadth first: the queues an exchange matches, then the exchanges it matches, each exchange once, each queue
once, in the order first found. An exchange that matches nothing hands the message to its alternate, which may
do the same; one that does not exist (yet) is passed over. An exchange that matched something does not, even
if nothing came of it.

Each exchange on the way costs a microsecond or two, in one step: beyond `EXCHANGES_MAX` of them it is refused. So it is
beyond `QUEUES_MAX` queues, where the message enters all of them in one step. And to find out where a message goes may
take `WORK_MAX` at most, over all its keys and all exchanges: each key is looked up once, where keys are looked at.

`route` is for publishing and `explain` for the dry run; both walk the same way. Almost every publish meets
one exchange that leads to queues only, and for that `route` is one lookup, one match and one small object.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias, cast

import msgspec

from smista.core.exchanges.arguments import Arguments
from smista.core.exchanges.exchange import Destination, DestinationKind, Exchange, ExchangeTarget
from smista.core.exchanges.matcher import (
    DESTINATIONS_PER_WORK,
    EXPLAINED,
    PASSED,
    WORK_MAX,
    Headers,
    TooMuchWork,
    Work,
)
from smista.core.exchanges.topology import DEFAULT_EXCHANGE, Topology
from smista.exchange_errors import ReachTooWide

QueueExists: TypeAlias = Callable[[str], bool]


class Step(msgspec.Struct, frozen=True):
    """One reason in a dry run: this exchange sends the message there, because of this."""

    exchange: str
    via: Literal["binding", "alternate", "default"]
    destination_kind: DestinationKind
    destination: str
    key: str = ""  # of the binding
    arguments: Arguments = ()  # of the binding
    is_missing: bool = False  # an alternate, or a queue named to the default exchange, that does not exist


class Route(msgspec.Struct, frozen=True, gc=False):
    """The queues a message goes to. Empty: unroutable. `trace` is filled by `explain` only."""

    queues: tuple[str, ...] = ()
    trace: tuple[Step, ...] = ()


_NOWHERE = Route()
QUEUES_MAX = 5_000
"""How many queues one message may reach in one step: some 30 ms."""


class Reach(NamedTuple):
    """How far a message may go; more is refused."""

    queues: int
    work: int


EXCHANGES_MAX = 5_000
"""How many exchanges it may pass: that many are walked in some 10 ms."""


def route(
    topology: Topology,
    exchange: str,
    routing_key: str,
    headers: Headers,
    queue_exists: QueueExists,
    extra_keys: Sequence[str] = (),
    *,
    queues_max: int | None = QUEUES_MAX,
    work: Work | None = None,
) -> Route:
    """Raises `ExchangeNotFound` and `ReachTooWide`. Only the default exchange asks `queue_exists`; bindings go with
    their queue. Without `queues_max` it may be any number of them: for who looks, or places it some at a time. `work`
    says afterwards what it took.

    `headers` is read by headers exchanges only, so it may be a mapping that decodes itself when first read.
    """
    work = Work() if work is None else work
    try:
        if not extra_keys:
            if exchange == DEFAULT_EXCHANGE:
                return Route((routing_key,)) if queue_exists(routing_key) else _NOWHERE
            start = topology.find(exchange)
            if start is not None and not start.target_counts:
                queues = cast("tuple[str, ...]", start.matcher.match(routing_key, headers, work))
                if queues:
                    if queues_max is not None and len(queues) > queues_max:
                        work.done += len(queues) // DESTINATIONS_PER_WORK
                        raise ReachTooWide(start.name, "queues", queues_max)
                    return Route(queues)
                if start.settings.alternate is None:
                    return _NOWHERE
        keys = tuple(dict.fromkeys((routing_key, *extra_keys)))

        def look(at: Exchange) -> Iterable[Destination]:
            if at.name == DEFAULT_EXCHANGE:
                work.spend(len(keys))
                return filter(queue_exists, keys)
            return _matched(at, keys if at.matcher.looks_at_keys else keys[:1], headers, work)

        return Route(_walk(topology, topology.exchange(exchange), look, None, queues_max))
    except TooMuchWork:
        raise ReachTooWide(exchange, "steps to find its queues", work.limit, "take") from None


def _matched(at: Exchange, keys: Sequence[str], headers: Headers, work: Work) -> Iterator[Destination]:
    """What the keys lead to, one after the other: whoever has enough looks no further."""
    work.spend(PASSED)
    for key in keys:
        found = at.matcher.match(key, headers, work)
        work.spend(1 + len(found) // DESTINATIONS_PER_WORK)
        yield from found


def explain(
    topology: Topology,
    exchange: str,
    routing_key: str,
    headers: Headers,
    queue_exists: QueueExists,
    extra_keys: Sequence[str] = (),
) -> Route:
    """The same route, with each step that leads to it. Changes nothing. Telling of a binding counts more than meeting
    it: some are refused here that are published."""
    keys = tuple(dict.fromkeys((routing_key, *extra_keys)))
    trace: list[Step] = []
    work = Work()

    def look(at: Exchange) -> Iterable[Destination]:
        if at.name == DEFAULT_EXCHANGE:
            work.spend(EXPLAINED * len(keys))
            steps = [Step(at.name, "default", "queue", key, is_missing=not queue_exists(key)) for key in keys]
        else:
            looked_up = keys if at.matcher.looks_at_keys else keys[:1]
            work.spend(PASSED + len(looked_up))
            met = dict.fromkeys(binding for key in looked_up for binding in at.matcher.explain(key, headers, work))
            steps = [
                Step(at.name, "binding", *_described(destination), key, arguments)
                for destination, key, arguments in met
            ]
        trace.extend(steps)
        return [_destination(step) for step in steps if not step.is_missing]

    try:
        return Route(_walk(topology, topology.exchange(exchange), look, trace, None), tuple(trace))
    except TooMuchWork:
        raise ReachTooWide(exchange, "steps to find its queues", WORK_MAX, "take") from None


def _walk(
    topology: Topology,
    start: Exchange,
    look: Callable[[Exchange], Iterable[Destination]],
    trace: list[Step] | None,
    queues_max: int | None,
) -> tuple[str, ...]:
    queues: dict[str, None] = {}
    seen = {start.name}
    waiting = deque([start])
    while waiting:
        exchange = waiting.popleft()
        is_matched = False
        for destination in look(exchange):
            is_matched = True
            if isinstance(destination, str):
                queues[destination] = None
                if queues_max is not None and len(queues) > queues_max:
                    raise ReachTooWide(start.name, "queues", queues_max)
            elif destination.name not in seen:
                _pass_on(topology, destination.name, start, seen, waiting)
        alternate = exchange.settings.alternate
        if not is_matched and alternate is not None:
            if trace is not None:
                is_missing = topology.find(alternate) is None
                trace.append(Step(exchange.name, "alternate", "exchange", alternate, is_missing=is_missing))
            if alternate not in seen:
                _pass_on(topology, alternate, start, seen, waiting)
    return tuple(queues)


def _pass_on(topology: Topology, name: str, start: Exchange, seen: set[str], waiting: deque[Exchange]) -> None:
    seen.add(name)
    if len(seen) > EXCHANGES_MAX:
        raise ReachTooWide(start.name, "exchanges", EXCHANGES_MAX)
    following = topology.find(name)
    if following is not None:
        waiting.append(following)


def _described(destination: Destination) -> tuple[DestinationKind, str]:
    return ("queue", destination) if isinstance(destination, str) else ("exchange", destination.name)


def _destination(step: Step) -> Destination:
    return step.destination if step.destination_kind == "queue" else ExchangeTarget(step.destination)
