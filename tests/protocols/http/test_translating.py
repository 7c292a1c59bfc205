"""Large values of MessagePack become JSON in steps, and the same JSON as at once."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgspec
import pytest

from smista.protocols.http import translating
from smista.protocols.http.formats import MESSAGE_PACK, NESTING_MAX
from smista.protocols.http.translating import STEP_BYTES, json_in_steps
from smista.service.plain_values import Untranslatable


class Turns:
    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1


def at_once(data: bytes) -> bytes:
    return MESSAGE_PACK.body_from_value(msgspec.Raw(data))


def some_value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(10 if depth else 7)
    match kind:
        case 0:
            return chance.choice([None, True, False])
        case 1:
            return chance.choice([0, -1, 127, 128, 255, 65_535, 1 << 31, (1 << 64) - 1, -(1 << 63), -33, -40_000])
        case 2:
            return chance.random()
        case 3 | 4:
            return 'é\n"' * chance.choice([0, 1, 9, 80, 5_000 if depth < 3 else 1])
        case 5:
            return []
        case 6:
            return {}
        case 7 | 8:
            return [some_value(chance, depth - 1) for _ in range(chance.choice([1, 3, 20]))]
        case _:
            return {f"name {number}": some_value(chance, depth - 1) for number in range(chance.choice([1, 3, 20]))}


@pytest.mark.parametrize("seed", range(6))
async def test_steps_and_one_step_make_the_same(seed: int) -> None:
    chance = random.Random(seed)
    value = [some_value(chance, 5) for _ in range(20)]
    for each in (value, {str(place): one for place, one in enumerate(value)}):
        data = msgspec.msgpack.encode(each)
        assert await json_in_steps(data, Turns()) == at_once(data)


@pytest.mark.parametrize("member", [b"\x80", b"\x90", b"\x01", b"\x81\xa1a\x91\x01"])
async def test_no_step_unfolds_much(member: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def watched(data: bytes) -> object:
        sizes.append(len(data))
        return msgspec.msgpack.decode(data)

    monkeypatch.setattr(translating, "_decode", watched)
    monkeypatch.setattr(translating, "SLICE_S", -1.0)
    count = 20_000
    data = b"\xdd" + struct.pack(">I", count) + member * count
    turns = Turns()
    assert await json_in_steps(data, turns) == at_once(data)
    assert max(sizes) < STEP_BYTES + 100
    assert turns.count >= len(data) // (STEP_BYTES + 100)


@pytest.mark.parametrize("bad", [b"", b"x", float("nan"), float("inf"), msgspec.msgpack.Ext(1, b"x"), {1: 2}])
@pytest.mark.parametrize("place", [0, 5_000, 9_999])
async def test_what_json_cannot_say_is_refused_wherever_it_stands(bad: object, place: int) -> None:
    values: list[object] = ["text"] * 10_000
    values[place] = bad
    with pytest.raises(Untranslatable):
        await json_in_steps(msgspec.msgpack.encode(values), Turns())


@pytest.mark.parametrize("inner", [b"\x90", b"\x81\xa1a\xc0"])
async def test_nesting_is_limited_as_at_once(inner: bytes) -> None:
    for is_long in (False, True):
        head = b"\x92" + msgspec.msgpack.encode("x" * (STEP_BYTES if is_long else 1))
        deepest = head * (NESTING_MAX - 1) + inner
        assert await json_in_steps(deepest, Turns()) == at_once(deepest)
        with pytest.raises(Untranslatable, match="nested too deeply"):
            await json_in_steps(head + deepest, Turns())


async def test_a_name_that_comes_twice_in_a_large_object_is_refused() -> None:
    member = msgspec.msgpack.encode("name") + msgspec.msgpack.encode("x" * STEP_BYTES)
    with pytest.raises(Untranslatable, match="twice"):
        await json_in_steps(b"\x82" + member * 2, Turns())
