"""Annotations: what a protocol keeps with a queue for itself, beside the settings that all of them know.

A name belongs to the protocol that it begins with: `amqp.arguments`, `sqs.Policy`. No other sets those: over HTTP they
are shown, and left as they are. And nobody relies on them: they may come from a program that has the broker in its own
process, so what cannot be read counts as not there, and no protocol fails for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from smista.core.settings import QueueSettings
from smista.errors import InvalidSettings

T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]
PREFIXES: dict[str, tuple[str, ...]] = {"amqp": ("amqp.",), "sqs": ("sqs.", "sqs-")}
"""By protocol how the names begin that belong to it."""
DIGITS_MAX = 18


def find(settings: QueueSettings, name: str) -> str | None:
    return next((value for key, value in settings.annotations if key == name), None)


def read(settings: QueueSettings, name: str, kind: type[T]) -> T | None:
    """What is kept as JSON; None where there is none of this kind."""
    text = find(settings, name)
    return None if text is None else decoded(text, kind)


def decoded(text: str, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def number(settings: QueueSettings, name: str, least: int, most: int) -> int | None:
    """What is kept as a number from `least` to `most`; None where there is none."""
    text = find(settings, name) or ""
    if not text.isdecimal() or not text.isascii() or len(text) > DIGITS_MAX:
        return None
    return int(text) if least <= int(text) <= most else None


def merged(given: Iterable[tuple[str, str]], present: Pairs, protocol: str) -> Pairs:
    """The annotations of a queue that has `present` ones, when these are given over a protocol: those that belong to
    another one stay. Raises where they are given and not as they are."""
    others = tuple(prefix for owner, prefixes in PREFIXES.items() if owner != protocol for prefix in prefixes)
    kept = {name: value for name, value in present if name.startswith(others)}
    free = {}
    for name, value in given:
        if not name.startswith(others):
            free[name] = value
        elif kept.get(name) != value:
            raise InvalidSettings(
                f"Annotation {name[:80]!r} belongs to the protocol it begins with, which keeps it with the queue and "
                "sets it alone; leave it out."
            )
    return tuple(sorted({**kept, **free}.items()))
