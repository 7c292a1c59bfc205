"""A broker in this process: the whole server, on a loop of its own in a thread, reached over real sockets.

It is there in a few milliseconds, so a protocol can be tested with it in `make check`. What is about a process, as
signals, kills and memory are, needs a `ServerProcess`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self, TypeVarTuple, Unpack

import uvloop

from smista.server.collecting import Collecting
from smista.server.logs import TextFormatter
from smista.server.serve import Server
from smista.server.settings import load
from tests.served import Served
from tests.server_process import AMQP_LISTENING, HTTP_LISTENING
from tests.waiting import PATIENCE_S

Ts = TypeVarTuple("Ts")


class _Loop(uvloop.Loop):
    """Signals reach the main thread alone, which is that of the tests; who would send one calls its handler."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers: dict[int, Callable[[], object]] = {}

    def add_signal_handler(self, sig: int, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        self.handlers[sig] = functools.partial(callback, *args)


class _NoCollecting(Collecting):
    """Garbage is collected as in any Python: the tests of this process may be waiting for some."""

    def __enter__(self) -> Collecting:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def look(self) -> None:
        pass


class _Server(Server):
    collecting = _NoCollecting


class ServerThread(Served):
    """With settings by their names: `with ServerThread(tmp_path, sqs_relaxed=True) as server`. Without a folder it
    keeps everything in memory."""

    def __init__(self, data: Path | None = None, **settings: object) -> None:
        super().__init__()
        place = {"memory": True} if data is None else {"data": str(data)}
        self._settings = load({"http_port": 0, "amqp_port": 0, **place, **settings}, {}, None)
        self._loop = _Loop()
        self._is_listening = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="server", daemon=True)
        self._ended: BaseException | int | None = None

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                self._ended = runner.run(_Server(self._settings, self._listening).run())
        except BaseException as error:
            self._ended = error
        finally:
            self._is_listening.set()

    def _listening(self, line: str) -> None:
        if found := HTTP_LISTENING.search(line):
            self.url = found[1]
        elif found := AMQP_LISTENING.search(line):
            self.amqp_port = int(found[1])
            self._is_listening.set()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ending:
            ending.enter_context(_lines_of_the_log(self.lines))
            self._thread.start()
            assert self._is_listening.wait(PATIENCE_S)
            assert self._ended is None, self._ended
            self._ending = ending.pop_all()
        return self

    def stop(self) -> None:
        """As SIGTERM stops it."""
        with contextlib.suppress(RuntimeError):  # it has ended, and its loop is closed
            self._loop.call_soon_threadsafe(self._loop.handlers[signal.SIGTERM])
        self._thread.join(PATIENCE_S)
        assert self._ended == 0, self._ended

    def __exit__(self, *_: object) -> None:
        with self._ending:
            self.stop()


@contextlib.contextmanager
def _lines_of_the_log(lines: list[str]) -> Iterator[None]:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.extend(self.format(record).splitlines())

    handler, logger = Handler(), logging.getLogger("smista")
    handler.setFormatter(TextFormatter())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
