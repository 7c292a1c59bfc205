"""The headers exchange: a binding's arguments are compared with a message's headers; keys mean nothing.

`x-match` among the arguments says how: `all` (the default) wants every other argument met, `any` wants one.
Both pass over arguments whose names start with `x-`; `all-with-x` and `any-with-x` count those too, except
`x-match` itself. An argument without a value (None) is met by the header being there. So `all` with nothing
to compare takes every message and `any` with nothing to compare takes none, as in RabbitMQ.

RabbitMQ tries every binding with every message. Here a binding that wants all is filed under one of its pairs
(name, value), the one with the fewest bindings so far, and only those whose pair the message has are tried. A
binding that wants any is filed under each of its pairs, and being found is enough. So 10,000 bindings on
`customer` = 1, 2, ... cost a lookup per header and one check.
"""

from collections.abc import Iterator
from typing import ClassVar, Final, Generic

from smista.core.exchanges.arguments import Arguments, Frozen, Unfreezable, freeze_value
from smista.core.exchanges.matcher import D, Headers, Match, Work, counted

TRIED: Final = 3
"""What it counts to hold a message against one binding: several headers may have to be looked at."""
X_MATCH: Final = "x-match"
X_MATCH_VALUES: Final = ("all", "any", "all-with-x", "any-with-x")


def x_match(arguments: Arguments) -> Frozen:
    """What the arguments say of how to match: one of `X_MATCH_VALUES` if they are valid."""
    for name, value in arguments:
        if name == X_MATCH:
            return value
    return "all"


class _Rule(Generic[D]):
    """One binding, taken apart."""

    __slots__ = ("binding", "filed_under", "is_met_when_found", "pairs", "wants_any")

    def __init__(self, binding: Match[D]) -> None:
        how = x_match(binding.arguments)
        assert how in X_MATCH_VALUES, how
        with_x = how in ("all-with-x", "any-with-x")
        self.binding = binding
        self.wants_any = how in ("any", "any-with-x")
        self.pairs: Arguments = tuple(
            pair for pair in binding.arguments if pair[0] != X_MATCH and (with_x or not pair[0].startswith("x-"))
        )
        self.is_met_when_found = self.wants_any or len(self.pairs) == 1
        self.filed_under: Arguments = ()

    def is_met_by(self, headers: dict[str, Frozen]) -> bool:
        for name, wanted in self.pairs:
            if name not in headers or (wanted is not None and headers[name] != wanted):
                return False
        return True


class HeadersMatcher(Generic[D]):
    """Bindings filed by header name and value; the value None files those that only want the header there."""

    __slots__ = ("_filed", "_name_counts", "_rules", "_takes_all")
    looks_at_keys: ClassVar[bool] = False

    def __init__(self) -> None:
        self._rules: dict[Match[D], _Rule[D]] = {}
        self._filed: dict[str, dict[Frozen, dict[_Rule[D], None]]] = {}
        self._takes_all: dict[_Rule[D], None] = {}
        # Headers that no binding names are not even looked at: an x-death list is long.
        self._name_counts: dict[str, int] = {}

    def bind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        binding = Match(destination, key, arguments)
        if binding in self._rules:
            return False
        rule = self._rules[binding] = _Rule(binding)
        for name, _ in rule.pairs:
            self._name_counts[name] = self._name_counts.get(name, 0) + 1
        if rule.wants_any:
            rule.filed_under = rule.pairs
        elif rule.pairs:
            rule.filed_under = (min(rule.pairs, key=self._filed_count),)
        else:
            self._takes_all[rule] = None
        for name, value in rule.filed_under:
            self._filed.setdefault(name, {}).setdefault(value, {})[rule] = None
        return True

    def unbind(self, destination: D, key: str, arguments: Arguments = ()) -> bool:
        rule = self._rules.pop(Match(destination, key, arguments), None)
        if rule is None:
            return False
        for name, _ in rule.pairs:
            self._name_counts[name] -= 1
            if not self._name_counts[name]:
                del self._name_counts[name]
        self._takes_all.pop(rule, None)
        for name, value in rule.filed_under:
            by_value = self._filed[name]
            del by_value[value][rule]
            if not by_value[value]:
                del by_value[value]
            if not by_value:
                del self._filed[name]
        return True

    def match(self, routing_key: str, headers: Headers = None, work: Work | None = None) -> tuple[D, ...]:
        return tuple(dict.fromkeys(rule.binding.destination for rule in self._met(headers, work)))

    def explain(self, routing_key: str, headers: Headers = None, work: Work | None = None) -> list[Match[D]]:
        return counted((rule.binding for rule in dict.fromkeys(self._met(headers, work))), work)

    def _met(self, headers: Headers, work: Work | None) -> Iterator[_Rule[D]]:
        """The bindings a message meets; one that wants any may come more than once."""
        if work is not None:
            work.spend(TRIED * len(self._takes_all))
        yield from self._takes_all
        if not headers or not self._name_counts:
            return
        named = {name: _header(value) for name, value in headers.items() if name in self._name_counts}
        for name, value in named.items():
            by_value = self._filed.get(name)
            if by_value is None:
                continue
            for filed in (value, None) if value is not None else (None,):
                rules = by_value.get(filed)
                if rules is None:
                    continue
                if work is not None:
                    work.spend(TRIED * len(rules))
                for rule in rules:
                    if rule.is_met_when_found or rule.is_met_by(named):
                        yield rule

    def _filed_count(self, pair: tuple[str, Frozen]) -> int:
        name, value = pair
        return len(self._filed.get(name, {}).get(value, ()))


def _header(value: object) -> Frozen:
    try:
        return freeze_value(value)
    except Unfreezable:
        return object()  # it is there, and equals nothing
