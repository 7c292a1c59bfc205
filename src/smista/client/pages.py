"""Results that are fetched in pages and read by item or by page."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar

import msgspec

from smista.client.message import Message

T = TypeVar("T")


class Page(msgspec.Struct):
    messages: list[Message]
    after: int | str | None = None
    """Where the next page starts; None after the last."""


class Pages(Generic[T]):
    """An async iterator that fetches a page at a time; changes made meanwhile may or may not be seen."""

    def __init__(self, fetch: Callable[[int | str | None], Awaitable[tuple[list[T], int | str | None]]]) -> None:
        """`fetch` takes the start of a page, and returns its items and the start of the next one."""
        self._fetch = fetch
        self._after: int | str | None = None
        self._is_over = False
        self._page: deque[T] = deque()

    async def next_page(self) -> list[T]:
        """The next items, at least one; an empty list at the end."""
        while not self._page and not self._is_over:
            found, self._after = await self._fetch(self._after)
            self._is_over = self._after is None
            self._page.extend(found)
        page = list(self._page)
        self._page.clear()
        return page

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not self._page:
            self._page.extend(await self.next_page())
            if not self._page:
                raise StopAsyncIteration
        return self._page.popleft()
