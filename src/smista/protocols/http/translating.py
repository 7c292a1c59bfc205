"""A large value of MessagePack as JSON, a step at a time.

The value is walked over, token by token, and what lies behind is translated by the fast codecs whenever it is
`STEP_BYTES` long:

    [ 1, 2, { "a": 3, ...          open: `[` and `{` have been written, what is behind them too
      └── behind ──┘ ▲             behind: whole members that wait for being translated together
                     here
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

import msgspec

from smista.protocols.http.formats import MESSAGE_PACK, NESTING_MAX
from smista.protocols.turns import SLICE_S
from smista.service.plain_values import Untranslatable, check_plain

STEP_BYTES = 1 << 10
"""Some 3 ms where each byte is a container."""
_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.json.Encoder().encode
_FIXED = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 1),
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1, 0xD4), 3),
    0xD5: 4,
    **dict.fromkeys((0xCA, 0xCE, 0xD2), 5),
    0xD6: 6,
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 9),
    0xD7: 10,
    0xD8: 18,
}
"""How many bytes a token takes, by its first one."""
_LONG = {0xC4: 1, 0xD9: 1, 0xC7: 1, 0xC5: 2, 0xDA: 2, 0xC8: 2, 0xC6: 4, 0xDB: 4, 0xC9: 4}
"""How many bytes say how long the rest is."""
_EXTENSIONS = (0xC7, 0xC8, 0xC9)


class TooLong(Exception):
    """The text is longer than it may be."""


async def json_in_steps(data: bytes, turn: Callable[[], Awaitable[None]], bytes_max: int | None = None) -> bytes:
    """The JSON text of `data`, one valid value of MessagePack; others have a turn after each slice of time. Raises
    `Untranslatable`, and `TooLong` where there are more than `bytes_max` before all of it is made."""
    if not _is_container(data[0]):
        return MESSAGE_PACK.body_from_value(msgspec.Raw(data))
    steps = _steps(data)
    slice_ends_s = time.perf_counter() + SLICE_S
    while True:
        try:
            made_bytes = next(steps)
        except StopIteration as done:
            body: bytes = done.value
            return body
        if bytes_max is not None and made_bytes > bytes_max:
            raise TooLong
        if time.perf_counter() > slice_ends_s:
            await turn()
            slice_ends_s = time.perf_counter() + SLICE_S


class _Container:
    """A list or a map that is being walked through."""

    __slots__ = ("behind", "behind_at", "has_written", "is_map", "is_open", "member_at", "names", "rest", "value_at")

    def __init__(self, *, is_map: bool, count: int, place: int) -> None:
        self.is_map = is_map
        self.rest = count
        self.is_open = False
        self.has_written = False
        self.behind = 0
        """How many members wait for being translated, from `behind_at` on."""
        self.behind_at = self.member_at = place
        self.value_at = -1
        """Of a map's member: where its value begins; before that its name is still to come."""
        self.names: set[str] = set()
        """Of the members that have been written."""


def _steps(data: bytes) -> Generator[int, None, bytes]:
    out = bytearray()
    stack: list[_Container] = []
    place = step_at = 0
    while True:
        first = data[place]
        if _is_container(first):
            is_map, count, place = _header(data, place)
            if len(stack) == NESTING_MAX:
                raise Untranslatable("nested too deeply")
            if stack and stack[-1].is_map and stack[-1].value_at < 0:
                raise Untranslatable("a name that is not text")
            stack.append(_Container(is_map=is_map, count=count, place=place))
        else:
            place = _end_of_token(data, place, first)
            _pass_token(stack[-1], place)
        while stack and not stack[-1].rest:
            done = stack.pop()
            if not stack:
                if not done.is_open:
                    _open(out, done)
                _write_behind(out, data, done, 1)
                out += b"}" if done.is_map else b"]"
                return bytes(out)
            if done.is_open:
                _write_behind(out, data, done, len(stack) + 1)
                out += b"}" if done.is_map else b"]"
            _end_member(stack[-1], place, is_written=done.is_open)
        if place - step_at >= STEP_BYTES:
            _write_all(out, data, stack)
            step_at = place
            yield len(out)


def _pass_token(container: _Container, place: int) -> None:
    if container.is_map and container.value_at < 0:
        container.value_at = place
    else:
        _end_member(container, place, is_written=False)


def _end_member(container: _Container, place: int, *, is_written: bool) -> None:
    container.rest -= 1
    container.member_at = place
    container.value_at = -1
    if is_written:
        container.behind_at = place
    else:
        container.behind += 1


# -- writing ----------------------------------------------------------------------------------------------------------


def _write_all(out: bytearray, data: bytes, stack: list[_Container]) -> None:
    """All that lies behind, from the outermost container to the innermost; they are open then."""
    for depth, container in enumerate(stack, 1):
        if not container.is_open:
            _open(out, container)
        _write_behind(out, data, container, depth)
        if depth < len(stack) and not stack[depth].is_open:
            if container.has_written:
                out += b","
            container.has_written = True
            if container.is_map:
                name = _translatable(data[container.member_at : container.value_at])
                check_plain({name: None}, nesting_max=1)
                _note_names(container, {name: None})
                out += _encode(name) + b":"


def _open(out: bytearray, container: _Container) -> None:
    out += b"{" if container.is_map else b"["
    container.is_open = True


def _write_behind(out: bytearray, data: bytes, container: _Container, depth: int) -> None:
    if not container.behind:
        return
    head = struct.pack(">BI", 0xDF if container.is_map else 0xDD, container.behind)
    members = _translatable(head + data[container.behind_at : container.member_at])
    check_plain(members, nesting_max=NESTING_MAX - depth + 1)
    if container.is_map:
        _note_names(container, members)
    if container.has_written:
        out += b","
    out += _encode(members)[1:-1]
    container.has_written = True
    container.behind = 0
    container.behind_at = container.member_at


def _translatable(data: bytes) -> Any:
    try:
        return _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Untranslatable(str(error)) from None


def _note_names(container: _Container, members: dict[str, Any]) -> None:
    if not container.names.isdisjoint(members):
        raise Untranslatable("an object in which a name comes twice")
    container.names.update(members)


# -- counting ---------------------------------------------------------------------------------------------------------

_SHORT = re.compile(rb"[\x00-\x9f\xc0\xc2\xc3\xe0-\xff]+")
"""Tokens of one byte, as many as follow each other."""
COUNTED_AT_ONCE = 5_000
RUN_BYTES = 1 << 20


def token_counts(data: bytes) -> Iterator[int]:
    """How many tokens MessagePack has up to here, after every few thousand, and at the end. What is no MessagePack is
    counted as far as it is."""
    place = count = since = 0
    while place < len(data):
        first = data[place]
        run = _SHORT.match(data, place, place + RUN_BYTES)
        if run is not None:
            place = run.end()
            count += run.end() - run.start()
            since += 1 + (run.end() - run.start()) // 100
        elif first == 0xC1:
            break
        else:
            place = _header(data, place)[2] if _is_container(first) else _end_of_token(data, place, first)
            count += 1
            since += 1
        if since >= COUNTED_AT_ONCE:
            since = 0
            yield count
    yield count


# -- tokens -----------------------------------------------------------------------------------------------------------


def _is_container(first: int) -> bool:
    return 0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF


def _header(data: bytes, place: int) -> tuple[bool, int, int]:
    """Of a container: whether it is a map, how many members it has, and where they begin."""
    first = data[place]
    if first < 0xA0:
        return first < 0x90, first & 0x0F, place + 1
    size = 2 if first in (0xDC, 0xDE) else 4
    return first >= 0xDE, int.from_bytes(data[place + 1 : place + 1 + size]), place + 1 + size


def _end_of_token(data: bytes, place: int, first: int) -> int:
    if first < 0x80 or first >= 0xE0:
        return place + 1
    if first <= 0xBF:
        return place + 1 + (first & 0x1F)
    fixed = _FIXED.get(first)
    if fixed is not None:
        return place + fixed
    size = _LONG[first]
    length = int.from_bytes(data[place + 1 : place + 1 + size])
    return place + 1 + size + length + (first in _EXTENSIONS)
