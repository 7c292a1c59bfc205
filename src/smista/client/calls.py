"""What the groups of calls share: a session, a namespace, and a way to ask."""

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

        `is_repeatable` says that doing it twice does no harm, so that it may be sent again after a break.
        """
        payload = {name: value for name, value in fields.items() if value is not None}
        if self._namespace is not None:
            payload["namespace"] = self._namespace
        decode: Callable[[msgspec.Raw], T] = decoder(cast(Any, answer))
        return await self._session.call(command, payload, decode, is_repeatable=is_repeatable)
