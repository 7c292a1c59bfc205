"""Message ids as a column of Arrow: what `Ids.message_id` makes, for many messages at once. Needs numpy, which a broker
that serves no Arrow may lack."""

from __future__ import annotations

from typing import Any

import numpy as np

from smista.engine.ids import DASHES, ID_LENGTH, TIME_SHIFT, VARIANT, VERSION

_DIGIT_PLACES = np.array([place for place in range(ID_LENGTH) if place not in DASHES])

Numbers = np.ndarray[Any, np.dtype[np.int64]]


def id_characters(broker: int, numbers: Numbers, created_at_ms: Numbers) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The ids of messages as ASCII, one row of `ID_LENGTH` for each; `broker` is that of `Ids`."""
    halves = np.empty((len(numbers), 2), ">u8")
    halves[:, 0] = created_at_ms << TIME_SHIFT | (VERSION | broker)
    halves[:, 1] = numbers.astype(np.uint64) | np.uint64(VARIANT)
    digits = np.frombuffer(halves.tobytes().hex().encode(), "u1").reshape(len(numbers), 32)
    characters = np.full((len(numbers), ID_LENGTH), ord("-"), "u1")
    characters[:, _DIGIT_PLACES] = digits
    return characters
