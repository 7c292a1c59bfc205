"""The process that reads the log beside the broker, one thread per reader.

It ends when the broker does, however that ends: the kernel closes the broker's side of the channel, and the process
reads the end of it. Nothing has to be saved.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import NoReturn

from smista.log.errors import LogError
from smista.protocols.bulk.answering import Answer, ReaderGone
from smista.protocols.bulk.errors import error_answer
from smista.protocols.bulk.frames import Done, Inbox, Learn, MakePlan, Planned, Read, Refused, Taken, Told, frame
from smista.protocols.bulk.log_file import LogFile
from smista.protocols.bulk.names import Names
from smista.protocols.bulk.plans import Planner

NICENESS = 10
"""Who publishes and consumes goes first where cores are few."""


class Process:
    def __init__(self, channel: socket.socket, directory: Path, *, broker: int, timeout_s: float) -> None:
        self._channel = channel
        self._broker = broker
        self._timeout_s = timeout_s
        self._log = LogFile(directory)
        self._names = Names(self._log)
        self._planner = Planner(self._log)
        self._telling = threading.Lock()
        self._planning = threading.Lock()

    def run(self) -> None:
        """Serve until the broker is gone."""
        inbox = Inbox(self._channel)
        while (received := inbox.receive()) is not None:
            asked, connection = received
            if isinstance(asked, Learn):
                self._names.learn(asked.queues)
            elif isinstance(asked, Read):
                assert connection is not None
                self._tell(Taken(asked.id))
                threading.Thread(target=self._answer, args=(asked, connection), daemon=True).start()
            else:
                threading.Thread(target=self._plan, args=(asked,), daemon=True).start()

    def _answer(self, request: Read, connection: socket.socket) -> None:
        problem = ""
        answer = Answer(request, connection, self._log, self._names, broker=self._broker, timeout_s=self._timeout_s)
        try:
            answer.write()
        except (LogError, ReaderGone) as error:
            problem = str(error)
        finally:
            connection.close()
            self._tell(Done(request.id, answer.rows, answer.bytes, problem))

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
            self._tell(Refused(request.id, code, problem))
        else:
            self._tell(Planned(request.id, plan))

    def _tell(self, told: Told) -> None:
        with self._telling:
            self._channel.sendall(frame(told))


def main() -> NoReturn:
    """Arguments: the descriptor of the channel, the log's directory, the broker's number, the time-out in seconds."""
    descriptor, directory, broker, timeout_s = sys.argv[1:]
    # Whoever ends the broker from a terminal means the broker, which lets requests finish first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    channel = socket.socket(fileno=int(descriptor))
    threading.excepthook = _end
    Process(channel, Path(directory), broker=int(broker), timeout_s=float(timeout_s)).run()
    # Readers may be under way; nobody is there any more to whom it matters.
    os._exit(0)


def _end(failure: threading.ExceptHookArgs) -> NoReturn:
    """A mistake of ours in one thread: the broker hears of it by the end of the process, and starts another."""
    sys.excepthook(failure.exc_type, failure.exc_value or failure.exc_type(), failure.exc_traceback)
    os._exit(1)
