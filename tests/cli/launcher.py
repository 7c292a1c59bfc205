"""Runs `smista` commands, each in a process of its own, without starting Python anew for each of them.

A launcher has everything loaded and forks for every command it is asked to run: 30 ms rather than 700. The commands get
pipes and files of their own as standard input, output and error, as from a shell.

    parent ──(arguments, environment, directory; three file descriptors)──▶ launcher ──fork──▶ smista ...
           ◀────────────────────────── exit code ──────────────────────────
"""

import contextlib
import gc
import io
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

TIMEOUT_S = 600.0
PIPE_BYTES = 60_000
"""What a pipe holds without anybody reading."""
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object it printed."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The objects it printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Launcher:
    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(TIMEOUT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )

    def run(self, *arguments: str, stdin: bytes | None, environment: dict[str, str], directory: Path) -> Done:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            reading = _pipe_with(stdin)
            try:
                request = json.dumps([arguments, environment, str(directory)]).encode()
                socket.send_fds(
                    self._channel, [_LENGTH.pack(len(request)) + request], [reading, out.fileno(), err.fileno()]
                )
            finally:
                os.close(reading)
            [code] = struct.unpack("<i", self._channel.recv(4))
            out.seek(0)
            err.seek(0)
            return Done(code, out.read().decode(), err.read().decode())

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._channel.close()
        self._process.wait(TIMEOUT_S)


def _pipe_with(content: bytes | None) -> int:
    """The reading end of a pipe with `content` in it; without any, what is never anything."""
    if content is None:
        return os.open(os.devnull, os.O_RDONLY)
    assert len(content) <= PIPE_BYTES
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as stream:
        stream.write(content)
    return reading


def _main(channel: socket.socket) -> None:
    from smista.__main__ import main
    from smista.cli.app import run

    # Once in vain, so that whatever is loaded when it is needed is loaded by now.
    with contextlib.redirect_stderr(io.StringIO()):
        run(["--url", "http://127.0.0.1:1", "declare", "x"])
    gc.collect()
    gc.freeze()
    while True:
        head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, 3)
        if not head:
            return
        arguments, environment, directory = json.loads(_received(channel, *_LENGTH.unpack(head)))
        child = os.fork()
        if not child:
            channel.close()
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(directory)
            sys.argv = ["smista", *arguments]
            _exit_after(main)
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(child, 0)
        channel.sendall(struct.pack("<i", os.waitstatus_to_exitcode(status)))


def _exit_after(main: Callable[[], int]) -> None:
    """End this process as the interpreter would, but without taking it apart, which costs more than the command."""
    try:
        code = main()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _received(channel: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        received += channel.recv(length - len(received))
    return received


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as mine:
        _main(mine)
