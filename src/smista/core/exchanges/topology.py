"""All exchanges and bindings of one namespace.

Two halves, as everywhere in the core: *checks* decide and raise, *primitives* change and never refuse. Live
traffic checks, notes a record and calls the primitive; recovery calls the primitive alone. To call one for
what its check would have refused is our own mistake; where that is cheap to see, an assert says so.

- The default exchange "" and the `amq.*` ones exist in every namespace. They are made when first asked for,
  so that a namespace nobody uses costs two empty dicts. They have number 0: the log need not number what is
  always there. The default exchange has no bindings; the router asks whether the queue of that name exists.
- Bindings are kept three times: in the exchange they lead from (in order, for listing), in its matcher (for
  routing), and here by where they lead to, so that deleting a queue or an exchange costs what it is bound by
  and no more.
- An auto-delete exchange goes with the last binding from it. The primitives only *report* this
  (`Removed.unused`): the caller notes a record for each such exchange and deletes it, which may report
  further ones.
- Exchanges form no circle. The steps are bindings between exchanges and alternates. Steps go by name, so an
  alternate that does not exist yet counts too, and the circle is refused whenever its last step comes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from smista.core.exchanges.arguments import thaw
from smista.core.exchanges.exchange import (
    Binding,
    Destination,
    Exchange,
    ExchangeKind,
    ExchangeSettings,
    ExchangeTarget,
)
from smista.core.exchanges.headers import X_MATCH_VALUES, x_match
from smista.core.exchanges.topic import HASHES_MAX, count_hashes
from smista.exchange_errors import (
    BindingTargetNotFound,
    ExchangeCycle,
    ExchangeDiffers,
    ExchangeInternal,
    ExchangeInUse,
    ExchangeNotFound,
    ExchangeReserved,
    InvalidBinding,
    InvalidExchange,
    ReachTooWide,
)
from smista.wording import explained

DEFAULT_EXCHANGE: Final = ""
RESERVED_PREFIX: Final = "amq."
PREDECLARED: Final = {
    DEFAULT_EXCHANGE: ExchangeSettings(ExchangeKind.DIRECT),
    "amq.direct": ExchangeSettings(ExchangeKind.DIRECT),
    "amq.fanout": ExchangeSettings(ExchangeKind.FANOUT),
    "amq.topic": ExchangeSettings(ExchangeKind.TOPIC),
    "amq.headers": ExchangeSettings(ExchangeKind.HEADERS),
    "amq.match": ExchangeSettings(ExchangeKind.HEADERS),
    "amq.rabbitmq.trace": ExchangeSettings(ExchangeKind.TOPIC, internal=True),
}
# AMQP writes names and keys as short strings.
NAME_BYTES_MAX: Final = 255
ARGUMENTS_BYTES_MAX: Final = 64 << 10
"""Of a binding, as they are kept: there may be very many bindings."""
STEPS_MAX: Final = 10_000
"""How many exchanges are looked at in one step, for what follows from a binding: some 10 ms."""


class Removed(msgspec.Struct, frozen=True):
    """What went, and the auto-delete exchanges it left without a binding, which the caller now deletes."""

    bindings: tuple[Binding, ...] = ()
    unused: tuple[str, ...] = ()


class Topology:
    __slots__ = ("_bindings_to", "_exchanges", "namespace", "version")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._exchanges: dict[str, Exchange] = {}
        self._bindings_to: dict[Destination, dict[Binding, None]] = {}
        self.version = 0
        """Counts changes, so that whoever remembers a route knows when to ask again."""

    # Reading

    def find(self, name: str) -> Exchange | None:
        exchange = self._exchanges.get(name)
        if exchange is None and name in PREDECLARED:
            exchange = self._exchanges[name] = Exchange(name, 0, self.namespace, PREDECLARED[name])
        return exchange

    def exchange(self, name: str) -> Exchange:
        exchange = self.find(name)
        if exchange is None:
            raise ExchangeNotFound(name, self.namespace)
        return exchange

    def exchanges(self) -> list[Exchange]:
        """Every exchange by name, the predeclared ones too."""
        return [self.exchange(name) for name in sorted(PREDECLARED.keys() | self._exchanges.keys())]

    def names(self) -> set[str]:
        """Of all exchanges, the predeclared ones too."""
        return PREDECLARED.keys() | self._exchanges.keys()

    def some_bindings(self, exchange: str | None, after: int, limit: int) -> list[Binding]:
        """Those from an exchange, or all, behind the first `after` of them. Those are passed over quickly."""
        found: list[Binding] = []
        for source in self._exchanges.values() if exchange is None else (self.exchange(exchange),):
            if after >= len(source.bindings):
                after -= len(source.bindings)
                continue
            found += islice(source.bindings, after, after + limit - len(found))
            after = 0
            if len(found) >= limit:
                break
        return found

    def bindings(self) -> Iterator[Binding]:
        for exchange in self._exchanges.values():
            yield from exchange.bindings

    def bindings_of_queue(self, queue: str) -> tuple[Binding, ...]:
        """In the order they were made. The default exchange's implied one is not among them."""
        return tuple(self._bindings_to.get(queue, ()))

    def bindings_of_exchange(self, exchange: str) -> tuple[Binding, ...]:
        """Those that lead *to* an exchange."""
        return tuple(self._bindings_to.get(ExchangeTarget(exchange), ()))

    def has_binding(self, binding: Binding) -> bool:
        return binding in self._bindings_to.get(binding.target, ())

    # Checks

    def check_declare(self, name: str, settings: ExchangeSettings) -> Exchange | None:
        """The exchange if it exists with these very settings; None if it may be declared; else an error."""
        if name == DEFAULT_EXCHANGE:
            raise ExchangeReserved(name, "declared", "it is always there, publish to it")
        exchange = self.find(name)
        if exchange is not None:
            self._check_same(exchange, settings)
            return exchange
        if name.startswith(RESERVED_PREFIX):
            raise ExchangeReserved(name, "declared", f"choose a name that does not start with {RESERVED_PREFIX!r}")
        if not _fits(name):
            raise InvalidExchange(name, f"its name is over {NAME_BYTES_MAX} bytes or not text", "shorten it")
        try:
            msgspec.convert(msgspec.to_builtins(settings), ExchangeSettings)
        except (msgspec.ValidationError, TypeError) as error:
            why = explained(error, ExchangeSettings, place="the exchange's settings").removesuffix(".")
            raise InvalidExchange(name, f"a setting is not valid ({why})", "give each its type") from None
        if type(settings.kind) is not ExchangeKind:
            kinds = ", ".join(f"{kind.name} ({kind.value})" for kind in ExchangeKind)
            raise InvalidExchange(name, f"its kind is {settings.kind!a:.80}", f"give it one of ExchangeKind: {kinds}")
        if settings.alternate is not None:
            if not _fits(settings.alternate):
                raise InvalidExchange(name, "its alternate has no name that an exchange can have", "name another")
            self._check_no_circle(name, settings.alternate, "alternate")
        return None

    def check_delete(self, name: str, *, if_unused: bool = False) -> Exchange:
        if name in PREDECLARED or name.startswith(RESERVED_PREFIX):
            raise ExchangeReserved(name, "deleted", "unbind your queues from it instead")
        exchange = self.exchange(name)
        if if_unused and exchange.bindings:
            raise ExchangeInUse(name, self.namespace, len(exchange.bindings))
        return exchange

    def check_bind(self, binding: Binding, queue_exists: Callable[[str], bool]) -> bool:
        """True if the binding is to be made, False if it is there already; else an error."""
        _check_not_default(binding, "bound", "each queue is bound to it by its name already")
        source = self.exchange(binding.source)
        if binding.destination_kind == "queue":
            is_there = queue_exists(binding.destination)
        else:
            is_there = self.find(binding.destination) is not None
        if not is_there:
            raise BindingTargetNotFound(binding.destination_kind, binding.destination, self.namespace, binding.source)
        _check_rule(source, binding)
        if self.has_binding(binding):
            return False
        if binding.destination_kind == "exchange":
            self._check_no_circle(binding.source, binding.destination, "binding")
        return True

    def check_unbind(self, binding: Binding) -> bool:
        """True if there is such a binding. None is no error: whoever wants it gone has what they want."""
        _check_not_default(binding, "unbound", "delete the queue instead")
        return self.has_binding(binding)

    def check_publish(self, name: str) -> Exchange:
        exchange = self.exchange(name)
        if exchange.settings.internal:
            raise ExchangeInternal(name, self.namespace)
        return exchange

    # Primitives

    def declare(self, name: str, number: int, settings: ExchangeSettings) -> Exchange:
        self.version += 1
        assert name not in PREDECLARED, name
        assert name not in self._exchanges, name
        exchange = self._exchanges[name] = Exchange(name, number, self.namespace, settings)
        return exchange

    def delete(self, name: str) -> Removed:
        """Delete an exchange and all bindings from and to it."""
        self.version += 1
        assert name not in PREDECLARED, name
        exchange = self._exchanges.pop(name)
        for binding in exchange.bindings:
            self._forget(binding)
        arriving = self._remove_arriving(ExchangeTarget(name))
        return Removed((*exchange.bindings, *arriving.bindings), arriving.unused)

    def bind(self, binding: Binding) -> None:
        """Make a binding; one that is there already stays as it is."""
        self.version += 1
        source = self.exchange(binding.source)
        assert source.name != DEFAULT_EXCHANGE
        if binding in source.bindings:
            return
        source.bindings[binding] = None
        source.matcher.bind(binding.target, binding.key, binding.arguments)
        self._bindings_to.setdefault(binding.target, {})[binding] = None
        if binding.destination_kind == "exchange":
            counts = source.target_counts
            counts[binding.destination] = counts.get(binding.destination, 0) + 1

    def unbind(self, binding: Binding) -> Removed:
        """Remove a binding; nothing if there is none."""
        self.version += 1
        if not self.has_binding(binding):
            return Removed()
        self._forget(binding)
        return Removed((binding,), self._leave_sources((binding,)))

    def remove_queue(self, queue: str) -> Removed:
        """Remove all bindings of a queue that is being deleted."""
        self.version += 1
        return self._remove_arriving(queue)

    # Below the primitives

    def _remove_arriving(self, destination: Destination) -> Removed:
        bindings = tuple(self._bindings_to.pop(destination, ()))
        return Removed(bindings, self._leave_sources(bindings))

    def _forget(self, binding: Binding) -> None:
        """Take a binding out of the index by destination."""
        bindings = self._bindings_to[binding.target]
        del bindings[binding]
        if not bindings:
            del self._bindings_to[binding.target]

    def _leave_sources(self, bindings: Iterable[Binding]) -> tuple[str, ...]:
        """Take bindings out of the exchanges they lead from; the names of those that are unused now."""
        unused = []
        for binding in bindings:
            source = self._exchanges[binding.source]
            del source.bindings[binding]
            source.matcher.unbind(binding.target, binding.key, binding.arguments)
            if binding.destination_kind == "exchange":
                source.target_counts[binding.destination] -= 1
                if not source.target_counts[binding.destination]:
                    del source.target_counts[binding.destination]
            if source.settings.auto_delete and not source.bindings:
                unused.append(source.name)
        return tuple(unused)

    def _check_same(self, exchange: Exchange, settings: ExchangeSettings) -> None:
        for setting in ExchangeSettings.__struct_fields__:
            present, asked = getattr(exchange.settings, setting), getattr(settings, setting)
            if present != asked:
                raise ExchangeDiffers(exchange.name, self.namespace, setting=setting, present=present, asked=asked)

    def _check_no_circle(self, source: str, destination: str, step: str) -> None:
        came_from = {destination: source}
        waiting = deque([destination])
        while waiting:
            name = waiting.popleft()
            if name == source:
                break
            if len(came_from) > STEPS_MAX:
                raise ReachTooWide(destination, "exchanges", STEPS_MAX)
            for following in self._steps(name):
                if following not in came_from:
                    came_from[following] = name
                    waiting.append(following)
        else:
            return
        path = [source]
        while len(path) == 1 or path[-1] != source:
            path.append(came_from[path[-1]])
        raise ExchangeCycle(path[::-1], step)

    def looks_at_headers(self, name: str) -> bool:
        """Whether a headers exchange can be reached from this one, itself included; or so many exchanges that nobody
        should look for one."""
        found, pending = {name}, [name]
        while pending:
            if len(found) > STEPS_MAX:
                return True
            exchange = self.find(pending.pop())
            if exchange is not None:
                if exchange.settings.kind is ExchangeKind.HEADERS:
                    return True
                following = set(self._steps(exchange.name)) - found
                found |= following
                pending += following
        return False

    def _steps(self, name: str) -> Iterator[str]:
        exchange = self._exchanges.get(name)
        if exchange is not None:
            yield from exchange.target_counts
            if exchange.settings.alternate is not None:
                yield exchange.settings.alternate


def _check_not_default(binding: Binding, action: str, cure: str) -> None:
    if binding.source == DEFAULT_EXCHANGE or binding.target == ExchangeTarget(DEFAULT_EXCHANGE):
        raise ExchangeReserved(DEFAULT_EXCHANGE, action, cure)


def _check_rule(source: Exchange, binding: Binding) -> None:
    if not _fits(binding.key):
        raise InvalidBinding(
            source.name,
            binding.destination,
            f"its key is over {NAME_BYTES_MAX} bytes or not text",
            "shorten it",
        )
    try:
        written = msgspec.msgpack.encode(thaw(binding.arguments))
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise InvalidBinding(
            source.name, binding.destination, f"an argument cannot be written ({error})", "give it another value"
        ) from None
    if len(written) > ARGUMENTS_BYTES_MAX:
        raise InvalidBinding(
            source.name,
            binding.destination,
            f"its arguments take {len(written)} bytes, and {ARGUMENTS_BYTES_MAX} is the most",
            "leave some out",
        )
    if source.settings.kind is ExchangeKind.TOPIC and (count := count_hashes(binding.key)) > HASHES_MAX:
        raise InvalidBinding(
            source.name,
            binding.destination,
            f"its key has {count} times # between words, and {HASHES_MAX} is the most",
            "bind several keys, or choose a simpler one",
        )
    if source.settings.kind is ExchangeKind.HEADERS and (how := x_match(binding.arguments)) not in X_MATCH_VALUES:
        raise InvalidBinding(
            source.name, binding.destination, f"x-match is {how!r}", f"use one of {', '.join(X_MATCH_VALUES)}"
        )


def _fits(text: object) -> bool:
    """Whether it is text that UTF-8 can write (half a surrogate pair it cannot) within the limit."""
    if not isinstance(text, str):
        return False
    try:
        return len(text.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False
