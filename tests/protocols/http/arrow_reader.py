"""Reading and writing Arrow over a real socket."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.protocols.http.caller import Answer, Caller

STREAM = "application/vnd.apache.arrow.stream"


def table(answer: Answer) -> Any:
    """What an answer holds. That it is whole is checked on the way: an end mark is not asked for by pyarrow."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == STREAM
    assert answer.body.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    return pa.ipc.open_stream(answer.body).read_all()


def stream(*batches: Any, compression: str | None = None) -> bytes:
    """Batches as one stream."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def rows_of(http: Caller, queue: str, number: int, consumer: str = "spark", **query: Any) -> Any:
    return table(http.rest("GET", "queues", queue, "claims", consumer, str(number), **query))
