"""Encodes a value as the JSON that is stored.

Values that JSON cannot represent are refused rather than stored as something else: NaN and infinity, which msgspec
would write as `null`, and bytes inside a value, which it would write as base64 text. Types with a usual form in JSON
are written in that form: `Decimal`, `UUID`, dates and times as text, tuples and sets as arrays, dataclasses and
`msgspec.Struct`s as objects, a member of an enum as its value, numeric keys as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_PLAIN = frozenset({str, int, bool, type(None), msgspec.Raw})
_BYTES = (bytes, bytearray, memoryview)


def encode_json(value: object) -> bytes:
    """Raises `ValueError`, which names the place and the problem."""
    try:
        text = _encode(value)
        if not _is_plain(value):
            for place, problem in _problems(value, ""):
                raise ValueError(f"{place or 'it'} is {problem}, which JSON cannot represent")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (TypeError, OverflowError, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from None
    return text


def _is_plain(value: Any) -> bool:
    """Whether the value certainly has no problem. Every JSON message passes here, so it allocates nothing."""
    kind = type(value)
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str or not (type(item) in _PLAIN or _is_plain(item)):
                return False
        return True
    if kind is list or kind is tuple:
        return all(type(item) in _PLAIN or _is_plain(item) for item in value)
    return kind in _PLAIN or (kind is float and math.isfinite(value))


def _problems(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Each problem, with its place."""
    if type(value) in _PLAIN:
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            yield place, f"the number {value}"
    elif isinstance(value, _BYTES):
        yield place, "bytes"
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _problems(name, f"a name in {place or 'it'}")
            yield from _problems(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield from _problems(item, f"{place}[{index}]")
    else:
        plain = msgspec.to_builtins(value, builtin_types=_BYTES)
        if type(plain) is not type(value):
            yield from _problems(plain, place)
