"""The process that reads the log beside the broker, one thread per reader.

It ends when the broker does, however that ends: the kernel closes the broker's side of the channel, and the process
reads the end of it. Nothing has to be saved.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import socket
import sys
import threading
from typing import NoReturn

from smista.bulk.answering import Answer, ReaderGone
from smista.bulk.errors import error_answer
from smista.bulk.frames import (
    Begin,
    Done,
    Inbox,
    Learn,
    Planned,
    Refused,
    Reply,
    Taken,
    frame,
)
from smista.bulk.names import Names
from smista.bulk.plans import Planner
from smista.log import LogLocation
from smista.log.errors import LogError
from smista.service.log_reading import MakePlan, Read

NICENESS = 10
"""Who publishes and consumes goes first where cores are few."""


class Process:
    def __init__(self, channel: socket.socket, inbox: Inbox, begin: Begin) -> None:
        self._channel = channel
        self._inbox = inbox
        self._broker = begin.broker
        self._timeout_s = begin.timeout_s
        for name in begin.property_modules:
            importlib.import_module(name)
        location: LogLocation = pickle.loads(begin.log)
        self._log = location.open()
        self._names = Names(self._log)
        self._planner = Planner(self._log)
        self._replying = threading.Lock()
        self._planning = threading.Lock()

    def run(self) -> None:
        """Serve until the broker is gone."""
        while (received := self._inbox.receive()) is not None:
            request, connection = received
            if isinstance(request, Learn):
                self._names.learn(request.queues)
            elif isinstance(request, Read):
                assert connection is not None
                self._reply(Taken(request.id))
                threading.Thread(target=self._answer, args=(request, connection), daemon=True).start()
            elif isinstance(request, MakePlan):
                threading.Thread(target=self._plan, args=(request,), daemon=True).start()

    def _answer(self, request: Read, connection: socket.socket) -> None:
        problem = ""
        answer = Answer(request, connection, self._log, self._names, broker=self._broker, timeout_s=self._timeout_s)
        try:
            answer.write()
        except (LogError, ReaderGone) as error:
            problem = str(error)
        finally:
            connection.close()
            self._reply(Done(request.id, answer.rows, answer.bytes, problem))

    def _plan(self, request: MakePlan) -> None:
        try:
            with self._planning:
                plan = self._planner.plan(
                    request.start,
                    request.end,
                    max_rows=request.max_rows,
                    max_bytes=request.max_bytes,
                    min_partitions=request.min_partitions,
                )
        except LogError as error:
            _, code, problem = error_answer(error)
            self._reply(Refused(request.id, code, problem))
        else:
            self._reply(Planned(request.id, plan))

    def _reply(self, reply: Reply) -> None:
        with self._replying:
            self._channel.sendall(frame(reply))


def main() -> NoReturn:
    """Argument: the descriptor of the channel."""
    [descriptor] = sys.argv[1:]
    # Whoever ends the broker from a terminal means the broker, which lets requests finish first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    channel = socket.socket(fileno=int(descriptor))
    threading.excepthook = _end
    inbox = Inbox(channel)
    received = inbox.receive()
    if received is not None:
        begin, _ = received
        assert isinstance(begin, Begin)
        Process(channel, inbox, begin).run()
    # Readers may be under way; nobody is there any more to whom it matters.
    os._exit(0)


def _end(failure: threading.ExceptHookArgs) -> NoReturn:
    """A mistake of ours in one thread: the process ends with it, and the broker starts another."""
    sys.excepthook(failure.exc_type, failure.exc_value or failure.exc_type(), failure.exc_traceback)
    os._exit(1)
