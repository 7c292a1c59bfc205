"""What the groups of calls share: a session, a namespace, and a way to send a command."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from smista.client.session import Session

T = TypeVar("T")


@cache
def decoder(kind: Any) -> Callable[[msgspec.Raw], Any]:
    decode: Callable[[msgspec.Raw], Any] = msgspec.msgpack.Decoder(kind).decode
    return decode


class Calls:
    _session: Session
    _namespace: str | None
    """None for the default one."""

    async def _ask(self, command: str, answer: type[T], *, is_repeatable: bool = False, **fields: Any) -> T:
        """Carry out a command; fields that are None are not sent.

        With `is_repeatable`, for commands that do no harm when done twice, it is sent again after a break.
        """
        payload = {name: value for name, value in fields.items() if value is not None}
        if self._namespace is not None:
            payload["namespace"] = self._namespace
        decode: Callable[[msgspec.Raw], T] = decoder(cast(Any, answer))
        return await self._session.call(command, payload, decode, is_repeatable=is_repeatable)

    async def _all(self, command: str, answer: type[Any], field: str, **fields: Any) -> list[Any]:
        """What the pages of a list have in this field, all of them."""
        found: list[Any] = []
        after = None
        while True:
            page = await self._ask(command, answer, is_repeatable=True, after=after, **fields)
            found += getattr(page, field)
            after = page.after
            if after is None:
                return found
