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

from smista.protocols.http.commands import HttpCommand
from smista.protocols.http.formats import Format
from smista.protocols.http.messages import MessageView
from smista.service.commands.exchanges import BindingView
from smista.service.values import FairTurns

ENCODED_AT_ONCE = 500
"""So many members of a list are encoded in one turn of the loop, at most ..."""
ENCODED_BYTES_AT_ONCE = 256 << 10
"""... and no more after so many bytes: a page of messages may be 16 MiB."""
_LONG = (MessageView, BindingView)
"""What may be long by itself, as few as there are."""


async def encoded(answer: Any, spoken: Format, fair_turns: FairTurns) -> bytes:
    """The text of an answer."""
    kind: Any = type(answer)
    for name in _lists(kind):
        members = getattr(answer, name)
        if _takes_turns(members):
            answer = copy.copy(answer)
            setattr(answer, name, await _texts(members, spoken, fair_turns))
    return spoken.encode(answer)


async def _texts(members: list[Any], spoken: Format, fair_turns: FairTurns) -> list[msgspec.Raw]:
    texts: list[msgspec.Raw] = []
    count = size = 0
    for member in members:
        if count >= ENCODED_AT_ONCE or size >= ENCODED_BYTES_AT_ONCE:
            count = size = 0
            await fair_turns.turn()
        text = spoken.encode(member)
        texts.append(msgspec.Raw(text))
        count += 1
        size += len(text)
    return texts


def takes_turns(answer: Any) -> bool:
    """Whether it is better encoded by `encoded`."""
    kind: Any = type(answer)
    return any(_takes_turns(getattr(answer, name)) for name in _lists(kind))


def _takes_turns(members: object) -> bool:
    if not isinstance(members, list) or len(members) < 2:
        return False
    return len(members) > ENCODED_AT_ONCE or isinstance(members[0], _LONG)


def may_be_long(kind: type[HttpCommand]) -> bool:
    """Whether a command's answer may be much longer than the request: what is read, or messages that are taken."""
    return (not kind.changes or kind.waits is not None) and any(_lists(each) for each in kind.answer)


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
