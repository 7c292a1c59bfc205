"""One answer to one reader: HTTP written straight to its connection, from the thread that serves it.

Blocks are read a chunk at a time, and nothing is held while the reader takes its time: no transaction, no lock, one
batch. What goes wrong before the first byte is answered as an error. After that there is no way to say it in HTTP, so
the connection is closed without the last chunk, and the reader knows that its answer is not whole.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import chain

import msgspec
import pyarrow as pa

from smista.bulk.batch import BODY_BYTES, ROWS, Builder
from smista.bulk.decoder import Decoder, Wanted
from smista.bulk.errors import error_answer
from smista.bulk.names import Names
from smista.log import LogView
from smista.log.errors import LogError
from smista.service.arrow import CONTENT_TYPE, END_OF_STREAM
from smista.service.log_reading import Read

SENT_AT_ONCE = 1 << 18
LINGER_S = 2.0
"""How long a reader that has everything may take to close."""
_CHUNKED = "transfer-encoding: chunked\r\n"
_MORE = getattr(socket, "MSG_MORE", 0)


class ReaderGone(Exception):
    """The reader closed its connection, or took nothing for too long."""


class Answer:
    def __init__(
        self, request: Read, connection: socket.socket, log: LogView, names: Names, *, broker: int, timeout_s: float
    ) -> None:
        self.rows = 0
        self.bytes = 0
        self._request = request
        self._connection = connection
        self._log = log
        self._wanted = Wanted(frozenset(request.columns), frozenset(request.kinds), request.bodies, self._accepts)
        self._decoder = Decoder(self._wanted, names.find)
        self._builder = Builder(self._wanted.columns, broker=broker, shard=request.shard)
        self._connection.settimeout(timeout_s)
        self._arrival = select.poll()
        self._arrival.register(connection, select.POLLIN)
        with contextlib.suppress(OSError):
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self) -> None:
        """The whole answer. Raises what kept it from being whole."""
        request = self._request
        blocks = self._log.blocks(request.start, request.end)
        try:
            first = [next(blocks)] if request.start < request.end else []
        except LogError as error:
            self._refuse(error)
            raise
        self._send_head("200 OK", CONTENT_TYPE.decode(), _CHUNKED if request.is_chunked else "")
        self._send_piece(self._builder.schema.serialize())
        for row_count, batch in self._batches(chain(first, blocks)):
            self._send_piece(batch)
            self.rows += row_count
        self._send_piece(END_OF_STREAM)
        if request.is_chunked:
            self._send(b"0\r\n\r\n")
        self._close()

    def _batches(self, blocks: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, pa.Buffer]]:
        """Batches as they are sent, each with its count of rows."""
        rows = self._decoder
        for position, block in blocks:
            rows.add(position, block)
            if rows.row_count >= ROWS or rows.body_bytes >= BODY_BYTES:
                yield from self._finished()
            elif not rows.row_count:
                self._check_reader()
        yield from self._finished()

    def _finished(self) -> list[tuple[int, pa.Buffer]]:
        """What was collected, written out. Nothing else of it is kept while the reader takes its time."""
        batches = [(len(batch), batch.serialize()) for batch in self._builder.build(self._decoder)]
        self._decoder.clear()
        return batches

    def _accepts(self, namespace: str, name: str) -> bool:
        request = self._request
        if not _matches(namespace, request.namespace):
            return False
        return not request.queues or any(_matches(name, pattern) for pattern in request.queues)

    # -- the connection -----------------------------------------------------------------------------------------------

    def _send_head(self, status: str, content_type: str, length: str) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\n{length}{self._request.head_lines}"
        self._send(f"{head}connection: close\r\n\r\n".encode("latin-1"))

    def _send_piece(self, data: bytes | pa.Buffer) -> None:
        if self._request.is_chunked:
            self._send(b"%x\r\n" % len(data), _MORE)
            self._send(data, _MORE)
            self._send(b"\r\n")
        else:
            self._send(data)
        self.bytes += len(data)

    def _send(self, data: bytes | pa.Buffer, flags: int = 0) -> None:
        """Send all of it. The time-out is for each piece: a slow reader may take as long as it wants, as long as it
        reads."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._connection.send(view[:SENT_AT_ONCE], flags) :]
        except TimeoutError:
            raise ReaderGone("the reader took nothing for too long") from None
        except OSError as error:
            raise ReaderGone(f"the reader has gone ({error.strerror or error})") from None

    def _check_reader(self) -> None:
        """While there is nothing to send, nothing else tells that the reader has gone."""
        if not self._arrival.poll(0):
            return
        try:
            is_gone = not self._connection.recv(1, socket.MSG_PEEK)
        except OSError:
            is_gone = True
        if is_gone:
            raise ReaderGone("the reader has gone")

    def _refuse(self, error: LogError) -> None:
        status, code, text = error_answer(error)
        body = msgspec.json.encode({"error": {"code": code, "message": text}})
        self._send_head(status, "application/json", f"content-length: {len(body)}\r\n")
        self._send(body)
        self._close()

    def _close(self) -> None:
        """Close so that what was sent arrives, though the reader may have sent more meanwhile."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(LINGER_S)
            while self._connection.recv(SENT_AT_ONCE):
                pass


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
