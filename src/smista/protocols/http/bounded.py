"""What of a request is decoded, and how large it may be, is checked before it is unfolded.

A few MB of `[],[],[],...` become a million lists, and nobody else is served meanwhile. So a long request is skimmed
first: its lists are counted, and stop at the first member too many; its objects are measured as they stand, unread.

    data ─▶ short ────────────────────────────────────▶ decoded
         └▶ long ─▶ skimmed: lists counted, objects measured ─▶ decoded
                              └▶ too many, or too large: refused
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from smista.errors import BrokerError, InvalidRequest, RequestTooLarge
from smista.protocols.http.formats import JSON, Decoder, Format, Turn
from smista.protocols.http.translating import token_counts
from smista.service.values import FairTurns
from smista.wording import too_many

T = TypeVar("T")

AT_ONCE_BYTES = 64 << 10
"""What is no longer is decoded as it is: it cannot unfold to much."""
OBJECT_BYTES_MAX = 64 << 10
"""Of an object whose names are free, as `headers` and `arguments`, as it is sent. Where a structure has
`is_measured_as_kept`, it is measured again as it is kept, and may be as much longer as its format needs to say it."""
COUNTED_MAX = 10_000
"""Lists that may have more members are lists of lists, and are counted by their brackets."""
VALUES_MAX = 4_000_000
"""Of one request: some 20 ms to go through."""
STEP_BYTES = 1 << 20
"""What is longer is gone through once in each turn of the loop: some 3 ms for each of these."""


def byte_count(data: bytes | memoryview | Raw) -> int:
    return memoryview(data).nbytes


async def check_values(data: bytes, spoken: Format, fair_turns: FairTurns) -> None:
    """Refuse what holds so many values that it would take long to go through it even once, which is one step. Commas
    and brackets in texts count too."""
    if len(data) <= VALUES_MAX:
        return
    for count in _value_counts(data) if spoken is JSON else token_counts(data):
        if count > VALUES_MAX:
            raise RequestTooLarge(f"The request holds more than {VALUES_MAX} values; send fewer at a time.")
        await fair_turns.turn()


def _value_counts(data: bytes) -> Iterator[int]:
    """How many values JSON has up to here, after every `STEP_BYTES`."""
    count = 0
    for start in range(0, len(data), STEP_BYTES):
        some = data[start : start + STEP_BYTES]
        count += len(some) - len(some.translate(None, b",[{"))
        yield count


async def in_steps(decode: Decoder[T], data: bytes | memoryview | Raw, fair_turns: FairTurns) -> T:
    """What a decoder reads, with turns for everybody else in between where it goes through very much more than once."""
    size = byte_count(data)
    if size <= STEP_BYTES:
        return decode(data)

    async def turns() -> None:
        # To go through it once is one step, however long it is; others need several turns to be done with theirs.
        for _ in range(size // STEP_BYTES):
            await fair_turns.turn()

    await turns()
    return await decode.in_steps(data, turns)


class BoundedDecoder(Decoder[T]):
    """Reads one type of structure, once it is known to be bounded."""

    def __init__(self, kind: type[T], spoken: Format, place: str = "the request") -> None:
        self._whole = spoken.decoder(kind, place)
        self.skim = Skim(kind, spoken, place)

    def __call__(self, data: bytes | memoryview | Raw) -> T:
        if byte_count(data) > AT_ONCE_BYTES:
            self.skim(data)
        return self._whole(data)

    async def in_steps(self, data: bytes | memoryview | Raw, turn: Turn) -> T:
        await self.skim.in_steps(data, turn)
        await turn()
        return self._whole(data)


class Skim:
    """The fields of a structure as they stand in a request; raises what is too much."""

    def __init__(self, kind: type[Any], spoken: Format, place: str) -> None:
        outline = _outline(typing.cast(Any, kind))
        self._decode = spoken.decoder(outline, place)
        self._spoken = spoken
        self._lists = {
            name: spoken.decoder(typing.cast(type[Members], _members(most) | None))
            for name, most in outline.lists.items()
            if most <= COUNTED_MAX
        }
        self._too_large: type[BrokerError] = getattr(kind, "too_large", InvalidRequest)
        widest = spoken.widest if getattr(kind, "is_measured_as_kept", False) else 1
        self._object_bytes_max = OBJECT_BYTES_MAX * widest

    def __call__(self, data: bytes | memoryview | Raw) -> Outline:
        found = self._decode(data)
        for name in found.lists:
            self._count(found, name)
        self._check_objects(found)
        return found

    async def in_steps(self, data: bytes | memoryview | Raw, turn: Turn) -> Outline:
        found = self._decode(data)
        for name in found.lists:
            if getattr(found, name) is not UNSET:
                await turn()
                self._count(found, name)
        self._check_objects(found)
        return found

    def _count(self, found: Outline, name: str) -> None:
        raw, most = getattr(found, name), found.lists[name]
        if raw is UNSET:
            return
        if name not in self._lists:
            if self._member_count(raw) > most:
                raise _too_long(name, most)
            return
        try:
            setattr(found, name, self._lists[name].plain(raw))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            if "at most length" in str(error):
                raise _too_long(name, most) from None
            # Else it is no list, and decoding the whole finds that.

    def _member_count(self, raw: Raw) -> int:
        """Of a list of lists, as it stands; what is none is counted as anything."""
        if self._spoken is JSON:
            return bytes(raw).count(b"[") - 1
        first, *size = bytes(memoryview(raw)[:5])
        return int.from_bytes(size[:2] if first == 0xDC else size) if first in (0xDC, 0xDD) else 0

    def _check_objects(self, found: Outline) -> None:
        for name in found.__struct_fields__:
            value = getattr(found, name)
            if isinstance(value, Outline):
                self._check_objects(value)
            elif name in found.objects and isinstance(value, Raw) and byte_count(value) > self._object_bytes_max:
                raise self._too_large(
                    f"`{name}` takes {byte_count(value)} bytes, over the limit of {self._object_bytes_max}."
                )


class Outline(msgspec.Struct):
    """Of a structure: its fields by name, lists counted, all else unread."""

    objects: typing.ClassVar[frozenset[str]] = frozenset()
    """The fields that are objects with names of any kind, or lists of pairs."""
    lists: typing.ClassVar[dict[str, int]] = {}
    """The fields that are lists, and how many members they may have."""


class Members(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A list, unread. The one way to have a list of JSON end where it gets too long is to give each member a field."""

    def given(self) -> Iterator[Raw]:
        for name in self.__struct_fields__:
            member = getattr(self, name)
            if not byte_count(member):
                break
            yield member


class CountingDecoder:
    """Reads nothing of a list but how many members it has, and refuses what has too many, or is no list."""

    def __init__(self, most: int, spoken: Format) -> None:
        self._decode = spoken.decoder(_members(most))
        self._most = most

    def __call__(self, data: bytes) -> None:
        try:
            self._decode.plain(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            if "at most length" in str(error):
                raise InvalidRequest(
                    f"The request is too long; give a list of at most {self._most:,} members."
                ) from None
            # Else decoding it finds what is wrong.


def _too_long(name: str, most: int) -> InvalidRequest:
    return InvalidRequest(too_many(name, most))


@cache
def _members(most: int) -> type[Members]:
    # 40 ms for 10,000, so each length is made once.
    fields = [(f"member_{number}", Raw, Raw()) for number in range(most)]
    return typing.cast(
        type[Members],
        msgspec.defstruct(f"Members{most}", fields, bases=(Members,), array_like=True, forbid_unknown_fields=True),
    )


@cache
def _outline(kind: type[Any]) -> type[Outline]:
    objects: set[str] = set()
    lists: dict[str, int] = {}
    fields: list[tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(kind):
        outline: Any = Raw | UnsetType
        for choice, most in _choices(field.type, None):
            origin = typing.get_origin(choice) or choice
            if origin is list and most is not None:
                lists[field.encode_name] = most
            elif origin in (dict, tuple):
                objects.add(field.encode_name)
            elif isinstance(origin, type) and issubclass(origin, msgspec.Struct):
                outline = _outline(origin) | None | UnsetType
        fields.append((field.encode_name, outline, UNSET))
    made = msgspec.defstruct(
        f"{kind.__name__}Outline",
        fields,
        bases=(Outline,),
        namespace={"objects": frozenset(objects), "lists": lists},
        forbid_unknown_fields=True,
    )
    return typing.cast(type[Outline], made)


def _choices(kind: Any, most: int | None) -> list[tuple[Any, int | None]]:
    """The types that a field may have, each with the length that it may have."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [choice for one in typing.get_args(kind) for choice in _choices(one, most)]
    if typing.get_origin(kind) is typing.Annotated:
        inner, *extras = typing.get_args(kind)
        lengths = [one.max_length for one in extras if isinstance(one, msgspec.Meta) and one.max_length is not None]
        return _choices(inner, lengths[0] if lengths else most)
    return [(kind, most)]
