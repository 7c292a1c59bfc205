"""What each method of a session needs: its rule, which stands at the head of the method.

    @needs(Permission.WRITE.on("queue"))
    def publish(self, queue: str, ...) -> ...: ...

    @needs_nothing("a receipt is sealed, and proves that its holder may")
    def acknowledge(self, receipts: Sequence[Receipt]) -> ...: ...

Neither changes the method: it is noted on it, and whoever may do everything pays nothing for it. For the others
`asking_first` derives a class whose methods ask before anything is done. A public method without a rule is an error as
soon as the module is imported.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from smista.service.permission import Need

F = TypeVar("F", bound=Callable[..., Any])


class Rule(NamedTuple):
    needs: tuple[Need, ...]
    why_none: str = ""
    """Why a method needs no permission; empty where it needs one."""


_RULES: dict[Callable[..., Any], Rule] = {}


def needs(*needed: Need) -> Callable[[F], F]:
    """The method needs these permissions, for what its arguments of these names name."""
    assert needed
    return _noting(Rule(needed))


def needs_nothing(why: str) -> Callable[[F], F]:
    """The method needs no permission, because of this."""
    assert why
    return _noting(Rule((), why))


def _noting(rule: Rule) -> Callable[[F], F]:
    def note(method: F) -> F:
        _RULES[method] = rule
        return method

    return note


def rules_of(kind: type) -> Iterator[tuple[str, Callable[..., Any], Rule]]:
    """The public methods of a class and their rules; raises `TypeError` for one that has none."""
    for name, method in vars(kind).items():
        if name.startswith("_") or inspect.ismemberdescriptor(method):  # the latter is an attribute
            continue
        if not inspect.isfunction(method) or method not in _RULES:
            raise TypeError(f"{kind.__name__}.{name} does not say what permission it needs")
        yield name, method, _RULES[method]


def asking_first(kind: type[Any], ask: Callable[[Any, Need, Any], None]) -> dict[str, Any]:
    """What a derived class has in place of the methods that need a permission: they call `ask` first, with the session,
    the need, and what a field of it names (None where it has no fields)."""
    return {name: _asking_first(method, rule, ask) for name, method, rule in rules_of(kind) if rule.needs}


def _asking_first(method: Callable[..., Any], rule: Rule, ask: Callable[[Any, Need, Any], None]) -> Callable[..., Any]:
    places = list(inspect.signature(method).parameters)
    plain = [need for need in rule.needs if not need.only_with and not any("." in field for field in need.fields)]
    asked = [(need, field, places.index(field)) for need in plain for field in need.fields]
    whole = [need for need in plain if not need.fields]
    others = [need for need in rule.needs if need not in plain]

    @functools.wraps(method)
    def asking(*arguments: Any, **named: Any) -> Any:
        for need in whole:
            ask(arguments[0], need, None)
        for need, field, place in asked:
            ask(arguments[0], need, arguments[place] if place < len(arguments) else named[field])
        for need in others:
            for name in need.names(SimpleNamespace(**dict(zip(places, arguments, strict=False)), **named)):
                ask(arguments[0], need, name)
        return method(*arguments, **named)

    return asking
