"""Answers as they are sent: long lists member by member, everybody else in between.

an answer ─▶ short ──────────────────────────────▶ encoded
          └▶ a long list in it ─▶ its members encoded, some in each turn ─▶ put together as they stand
"""

from __future__ import annotations

import copy
import typing
from functools import cache
from typing import Any

import msgspec

from smista.engine.lane import Lane
from smista.protocols.http.formats import Format

ENCODED_AT_ONCE = 500
"""So many members of a list are encoded in one turn of the loop, at most."""


async def encoded(answer: Any, spoken: Format, lane: Lane) -> bytes:
    """The text of an answer."""
    kind: Any = type(answer)
    for name in _lists(kind):
        members = getattr(answer, name)
        if isinstance(members, list) and len(members) > ENCODED_AT_ONCE:
            answer = copy.copy(answer)
            texts = [msgspec.Raw(spoken.encode(one)) async for one in lane.in_turns(members, ENCODED_AT_ONCE)]
            setattr(answer, name, texts)
    return spoken.encode(answer)


def has_long_list(answer: Any) -> bool:
    kind: Any = type(answer)
    return any(
        isinstance(members := getattr(answer, name), list) and len(members) > ENCODED_AT_ONCE for name in _lists(kind)
    )


@cache
def _lists(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a structure that may be lists."""
    if not issubclass(kind, msgspec.Struct):
        return ()
    return tuple(field.name for field in msgspec.structs.fields(kind) if list in _origins(field.type))


def _origins(kind: Any) -> set[Any]:
    origin = typing.get_origin(kind)
    if origin is None or origin is list:
        return {origin or kind}
    return {found for one in typing.get_args(kind) for found in _origins(one)}
