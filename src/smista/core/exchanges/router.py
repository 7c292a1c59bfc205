"""Where a message goes, from the exchange it was published to down to queues.

Breadth first: the queues an exchange matches, then the exchanges it matches, each exchange once, each queue
once, in the order first found. An exchange that matches nothing hands the message to its alternate, which may
do the same; one that does not exist (yet) is passed over. An exchange that matched something does not, even
if nothing came of it.

Each exchange on the way costs a microsecond or two, in one step: beyond `EXCHANGES_MAX` of them it is refused. So it is
beyond `QUEUES_MAX` queues, where the message enters all of them in one step.

`route` is for publishing and `explain` for the dry run; both walk the same way. Almost every publish meets
one exchange that leads to queues only, and for that `route` is one lookup, one match and one small object.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, cast

import msgspec

from smista.core.errors import ReachTooWide
from smista.core.exchanges.arguments import Arguments
from smista.core.exchanges.exchange import Destination, DestinationKind, Exchange, ExchangeTarget
from smista.core.exchanges.matcher import Headers
from smista.core.exchanges.topology import DEFAULT_EXCHANGE, Topology

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
) -> Route:
    """Raises `ExchangeNotFound` and `ReachTooWide`. Only the default exchange asks `queue_exists`; bindings go with
    their queue. Without `queues_max` it may be any number of them: for who looks, or places it some at a time.

    `headers` is read by headers exchanges only, so it may be a mapping that decodes itself when first read.
    """
    if not extra_keys:
        if exchange == DEFAULT_EXCHANGE:
            return Route((routing_key,)) if queue_exists(routing_key) else _NOWHERE
        start = topology.find(exchange)
        if start is not None and not start.target_counts:
            queues = start.matcher.match(routing_key, headers)
            if queues:
                return Route(_checked(start, cast("tuple[str, ...]", queues), queues_max))
            if start.settings.alternate is None:
                return _NOWHERE
    keys = (routing_key, *extra_keys)

    def look(at: Exchange) -> Iterable[Destination]:
        if at.name == DEFAULT_EXCHANGE:
            return [key for key in keys if queue_exists(key)]
        return [destination for key in keys for destination in at.matcher.match(key, headers)]

    at = topology.exchange(exchange)
    return Route(_checked(at, _walk(topology, at, look, None), queues_max))


def _checked(start: Exchange, queues: tuple[str, ...], queues_max: int | None) -> tuple[str, ...]:
    if queues_max is not None and len(queues) > queues_max:
        raise ReachTooWide(start.name, "queues", queues_max)
    return queues


def explain(
    topology: Topology,
    exchange: str,
    routing_key: str,
    headers: Headers,
    queue_exists: QueueExists,
    extra_keys: Sequence[str] = (),
) -> Route:
    """The same route, with each step that leads to it. Changes nothing."""
    keys = (routing_key, *extra_keys)
    trace: list[Step] = []

    def look(at: Exchange) -> Iterable[Destination]:
        if at.name == DEFAULT_EXCHANGE:
            steps = [Step(at.name, "default", "queue", key, is_missing=not queue_exists(key)) for key in keys]
        else:
            met = dict.fromkeys(binding for key in keys for binding in at.matcher.explain(key, headers))
            steps = [
                Step(at.name, "binding", *_described(destination), key, arguments)
                for destination, key, arguments in met
            ]
        trace.extend(steps)
        return [_destination(step) for step in steps if not step.is_missing]

    return Route(_walk(topology, topology.exchange(exchange), look, trace), tuple(trace))


def _walk(
    topology: Topology,
    start: Exchange,
    look: Callable[[Exchange], Iterable[Destination]],
    trace: list[Step] | None,
) -> tuple[str, ...]:
    queues: dict[str, None] = {}
    seen = {start.name}
    waiting = deque([start])
    while waiting:
        exchange = waiting.popleft()
        destinations = look(exchange)
        alternate = exchange.settings.alternate
        if not destinations and alternate is not None:
            destinations = (ExchangeTarget(alternate),)
            if trace is not None:
                is_missing = topology.find(alternate) is None
                trace.append(Step(exchange.name, "alternate", "exchange", alternate, is_missing=is_missing))
        for destination in destinations:
            if isinstance(destination, str):
                queues[destination] = None
            elif destination.name not in seen:
                seen.add(destination.name)
                if len(seen) > EXCHANGES_MAX:
                    raise ReachTooWide(start.name, "exchanges", EXCHANGES_MAX)
                following = topology.find(destination.name)
                if following is not None:
                    waiting.append(following)
    return tuple(queues)


def _described(destination: Destination) -> tuple[DestinationKind, str]:
    return ("queue", destination) if isinstance(destination, str) else ("exchange", destination.name)


def _destination(step: Step) -> Destination:
    return step.destination if step.destination_kind == "queue" else ExchangeTarget(step.destination)
