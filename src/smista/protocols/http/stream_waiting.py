"""Requests of one stream that wait for something to happen: long polls above all.

They are bounded by themselves, so that reading never has to wait for them. One ends in one of four ways: with its
result, taken back by whoever sent it (`cancel`), because the stream ends in order (`end`), or with the connection. Only
in the last case something may have come that nobody will get, and that is given back.
"""

from __future__ import annotations

import asyncio
from functools import partial

from smista.errors import BrokerClosed, RequestCancelled, TooManyRequests
from smista.protocols.http.commands import Call, HttpCommand
from smista.protocols.http.commands.receiving import give_back
from smista.protocols.http.stream_frames import Cancel, Cancelled, RequestId

WAITING_MAX = 1_000
"""One more is refused."""


class Waiting:
    def __init__(self) -> None:
        self.requests: set[asyncio.Future[object]] = set()
        self._cancellable: dict[RequestId, asyncio.Future[object]] = {}
        """Of those, the ones that can be taken back, by the number of their request ..."""
        self._taken_back: set[asyncio.Future[object]] = set()
        """... and the ones that were."""
        self._has_ended = False

    async def wait_for(self, command: HttpCommand, call: Call, request_id: RequestId) -> object:
        """The result of a command; raises why there will be none."""
        waiting = asyncio.ensure_future(command.carry_out(call))
        try:
            if len(self.requests) >= WAITING_MAX:
                raise TooManyRequests(f"{WAITING_MAX} requests wait on this connection; let one of them end first.")
            self.requests.add(waiting)
            if request_id is not None:
                self._cancellable.setdefault(request_id, waiting)
            return await waiting
        except asyncio.CancelledError:
            if waiting in self._taken_back:
                raise RequestCancelled(
                    "This request was taken back by whoever sent it; it has taken nothing."
                ) from None
            if self._has_ended:
                raise BrokerClosed("The broker is stopping; ask again in a moment.") from None
            # The peer is gone, and would not get what has just come for it.
            waiting.add_done_callback(partial(_give_back, call))
            raise
        finally:
            waiting.cancel()
            self.requests.discard(waiting)
            self._taken_back.discard(waiting)
            if self._cancellable.get(request_id) is waiting:
                del self._cancellable[request_id]

    def cancel(self, command: Cancel) -> Cancelled:
        waiting = self._cancellable.get(command.request)
        # One that has its result is answered with it, and whoever asked can give it back.
        if waiting is None or not waiting.cancel():
            return Cancelled(False)
        self._taken_back.add(waiting)
        return Cancelled(True)

    def end(self) -> None:
        """The stream ends in order: refuse all of them."""
        self._has_ended = True
        for waiting in self.requests:
            waiting.cancel()


def _give_back(call: Call, done: asyncio.Future[object]) -> None:
    if not done.cancelled() and done.exception() is None:
        give_back(done.result(), call)
