"""Caches keyed by what clients send: bounded in bytes as well as in entries.

What repeats is small: the properties and addresses that one program sends again and again. What is large is not kept,
so a client that sends something large and new each time costs no memory, only what the function costs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SMALL_BYTES = 1024
ENTRIES_MAX = 4096


def cached_if_small(size: Callable[..., int]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `lru_cache`, for calls whose arguments are small; `size` is called with them and tells how large they are."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = functools.lru_cache(maxsize=ENTRIES_MAX)(function)

        @functools.wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            is_small = size(*arguments, **named) <= SMALL_BYTES
            # mypy does not see that they can be hashed.
            return known(*arguments, **named) if is_small else function(*arguments, **named)  # type: ignore[arg-type]

        return call

    return decorate
