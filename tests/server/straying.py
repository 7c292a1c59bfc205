"""`smista` in which all goes wrong that Python itself writes to standard error, once it listens."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import warnings
from typing import Any
from unittest import mock

from smista.cli.app import run
from smista.server.serve import Server

_serve = Server._until_stopped


class Unruly:
    def __del__(self) -> None:
        raise LookupError("in a destructor")


async def fail_as_a_task() -> None:
    raise LookupError("in a task")


async def until_told(server: Server, *others: object) -> int:
    warnings.warn("a warning\nof two lines", UserWarning, stacklevel=1)
    threading.Thread(target=lambda: 1 / 0, name="divider").start()
    Unruly()
    # Neither awaited nor kept: asyncio logs it when it goes.
    asyncio.create_task(fail_as_a_task())  # noqa: RUF006
    fail_as_a_task().close  # noqa: B018 (a coroutine that is never awaited)
    asyncio.get_running_loop().call_soon(lambda: [][0])
    logging.getLogger("smista.server").warning("%d of them", "some")
    return await _serve(server, *others)  # type: ignore[arg-type]


if __name__ == "__main__":
    if "--raise" in sys.argv:
        sys.argv.remove("--raise")
        planted: Any = mock.AsyncMock(side_effect=LookupError("serving"))
    else:
        planted = until_told
    warnings.simplefilter("always")
    with mock.patch.object(Server, "_until_stopped", planted):
        sys.exit(run())
