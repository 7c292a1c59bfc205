"""Requests to the broker: JSON, and Arrow as it streams in. The standard library's client, one connection a request.

Everything asked for here may be asked again: reading, claiming after a number, acknowledging up to one, staging under
a key, committing a batch. So while a broker restarts, a request is repeated for `patience_s` before it fails, and a
stream that breaks off goes on behind the last row that arrived. A stream that ends without Arrow's mark of the end has
broken off: it must never pass for a short one.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from smista.spark.errors import BrokerRefused, BrokerUnreachable
from smista.spark.options import Server

T = TypeVar("T")
Query = Mapping[str, Any]
ARROW = "application/vnd.apache.arrow.stream"
PATIENCE_S = 60.0
"""For a query that runs: long enough for a broker to restart and recover."""
PLANNING_PATIENCE_S = 5.0
"""For a query that is about to start: whoever mistyped the endpoint is waiting."""
TIMEOUT_S = 60.0
_PAUSE_S = 0.25
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_LATER = frozenset({"broker_closed", "broker_stopped", "bulk_reader_failed", "stage_busy", "too_many_readers"})
"""Codes of a broker that is about to stop, or has too much to do just now."""


class Unfinished(Exception):
    """An Arrow stream broke off."""


_BREAKS = (OSError, http.client.HTTPException, Unfinished, pa.ArrowInvalid)


class Wire:
    """Holds no connection, so it can be pickled to executors."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def get(self, *path: str, query: Query | None = None, patience_s: float = PATIENCE_S) -> Any:
        return self._json("GET", path, query, None, patience_s)

    def post(self, *path: str, content: Mapping[str, Any], patience_s: float = PATIENCE_S) -> Any:
        return self._json("POST", path, None, content, patience_s)

    def delete(self, *path: str) -> Any:
        return self._json("DELETE", path, None, None, PATIENCE_S)

    @property
    def place(self) -> dict[str, str]:
        """What names the namespace, where that is not the usual one."""
        return {} if self._server.namespace is None else {"namespace": self._server.namespace}

    def put_arrow(self, *path: str, file: IO[bytes]) -> Any:
        """Send a file from its beginning to its end."""

        def attempt() -> Any:
            size = file.seek(0, 2)
            file.seek(0)
            headers = {"Content-Type": ARROW, "Content-Length": str(size)}
            with self._request("PUT", self._target(path, None), file, headers) as response:
                return json.loads(response.read())

        return self._patiently(attempt, PATIENCE_S)

    def batches(self, *path: str, query: Query) -> Iterator[pa.RecordBatch]:
        """Record batches of a stream that gives the same rows whenever it is asked for."""
        target = self._target(path, query)
        arrived = 0
        gives_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                passed = 0
                for batch in self._stream(target):
                    is_new = passed + batch.num_rows > arrived
                    if is_new:
                        new = batch.slice(max(0, arrived - passed))
                        arrived += new.num_rows
                        yield new
                        gives_up_at = time.monotonic() + PATIENCE_S  # whoever takes the rows may take their time
                    passed += batch.num_rows
            except BrokerRefused as refusal:
                self._wait_unless_over(refusal, gives_up_at)
            except _BREAKS as error:
                self._wait_unless_over(error, gives_up_at)
            else:
                return

    # -- one request --------------------------------------------------------------------------------------------------

    def _json(self, method: str, path: tuple[str, ...], query: Query | None, content: Any, patience_s: float) -> Any:
        body = None if content is None else json.dumps(content).encode()
        headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})

        def attempt() -> Any:
            with self._request(method, self._target(path, query), body, headers) as response:
                text = response.read()
                return json.loads(text) if text else None

        return self._patiently(attempt, patience_s)

    def _stream(self, target: str) -> Iterator[pa.RecordBatch]:
        with self._request("GET", target, None, {"Accept": ARROW}) as response:
            source = _Source(response)
            with pa.ipc.open_stream(pa.PythonFile(source, mode="r")) as reader:
                yield from reader
            if source.tail != _END:
                raise Unfinished("the broker's answer broke off")

    @contextmanager
    def _request(
        self, method: str, target: str, body: bytes | IO[bytes] | None, headers: Mapping[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        parts = urlsplit(self._server.endpoint)
        assert parts.hostname is not None
        is_secure = parts.scheme == "https"
        connect = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        connection = connect(parts.hostname, parts.port, timeout=TIMEOUT_S, blocksize=1 << 20)
        token = {} if self._server.token is None else {"Authorization": f"Bearer {self._server.token}"}
        try:
            try:
                connection.request(method, target, body, {**headers, **token})
            except (BrokenPipeError, ConnectionResetError):
                # A broker that refuses a body need not have read it to its end; why it does is there to be read.
                if connection.sock is None:
                    raise
            response = connection.getresponse()
            if response.status >= 400:
                raise _refusal(response)
            yield response
        finally:
            connection.close()

    def _target(self, path: tuple[str, ...], query: Query | None) -> str:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = urlsplit(self._server.endpoint).path + "/v1/" + "/".join(quote(part, safe="") for part in path)
        return target + ("?" + urlencode(given, doseq=True) if given else "")

    # -- again --------------------------------------------------------------------------------------------------------

    def _patiently(self, attempt: Callable[[], T], patience_s: float) -> T:
        gives_up_at = time.monotonic() + patience_s
        while True:
            try:
                return attempt()
            except BrokerRefused as refusal:
                self._wait_unless_over(refusal, gives_up_at)
            except _BREAKS as error:
                self._wait_unless_over(error, gives_up_at)

    def _wait_unless_over(self, error: Exception, gives_up_at: float) -> None:
        if isinstance(error, BrokerRefused) and error.code not in _LATER:
            raise error
        if time.monotonic() >= gives_up_at:
            raise BrokerUnreachable(
                f"No broker answers at {self._server.endpoint} ({str(error) or type(error).__name__}). Is it running, "
                "and is that where this machine reaches it? Set option endpoint, or the variable SMISTA_URL."
            ) from error
        time.sleep(_PAUSE_S)


class _Source:
    """A response as Arrow reads files, which remembers how it ended."""

    closed = False

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.tail = b""

    def read(self, size: int = -1) -> bytes:
        data = self._response.read(size)
        self.tail = (self.tail + data[-8:])[-8:]
        return data

    def close(self) -> None:
        self.closed = True


def _refusal(response: http.client.HTTPResponse) -> BrokerRefused:
    text = response.read()
    try:
        error = json.loads(text)["error"]
        return BrokerRefused(error["code"], error["message"])
    except (ValueError, KeyError, TypeError):
        what = f"HTTP {response.status}: {text[:200].decode('utf-8', 'replace')}"
        return BrokerRefused("server_error", f"This is not how a broker answers ({what}). Is the endpoint right?")
