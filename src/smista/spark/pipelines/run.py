"""One run of a pipeline: which broker, which Spark, and whether it ends by itself.

A pipeline is a function of a `Run` and its own options that returns a `Summary`:

    summary = archive(Run(endpoint="http://127.0.0.1:9324"), to="./archive")

The Spark session is started when it is first asked for, so that wrong options are answered before the ten seconds that
takes. A pipeline that follows the log hands its stream to `follow`; one that looks at what there is hands its work to
`repeat`. Both do it once, or with an interval again and again until SIGTERM or Ctrl-C, after which the summary is that
of what was done.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from smista.spark import errors
from smista.spark.pipelines.errors import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from smista.client import Client

T = TypeVar("T")
STARTS = 6
TOO_SLOW = "Python worker failed to connect back"
"""How Spark says that a Python process has not answered within 10 s, which it lets nobody change. Where it reads a
stream, it gives up the whole query for that; the query goes on from its checkpoint when it is started again."""
POLL_S = 0.2
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "static",
}
"""What the pipelines rely on, whoever made the session."""


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Run:
    def __init__(
        self,
        *,
        endpoint: str | None = None,
        namespace: str | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        interval_ms: int | None = None,
        spark: SparkSession | None = None,
        on_progress: Callable[[str], None] = to_stderr,
    ) -> None:
        """Without an interval it ends when it has done what there is to do. A session that is handed in stays open."""
        self.endpoint = endpoint
        self.namespace = namespace
        self.interval_ms = interval_ms
        self.on_progress = on_progress
        self._master = master
        self._conf = dict(conf or {})
        self._spark = spark
        self._is_ours = spark is None
        self._stopping = threading.Event()
        if spark is not None:
            _prepare(spark)

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            from smista.spark.session import is_classic, register, session

            self.on_progress("Starting Spark ...")
            self._spark = session("smista pipeline", master=self._master, conf={**self._local(), **self._conf})
            if is_classic(self._spark):
                self._spark.sparkContext.setLogLevel("OFF")  # what fails is reported once, by us
                _silence_pyspark()
            _prepare(self._spark)
            register(self._spark)  # found by itself where Smista is installed, but not where it came by --py-files
        return self._spark

    def _local(self) -> dict[str, str]:
        """Without a cluster, Spark's 200 parts of every shuffle take longer than what is in them."""
        if self._master is not None and not self._master.startswith("local"):
            return {}
        return {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}

    def client(self, namespace: str | None = None) -> Client:
        """A client of the broker, not connected yet; in the run's namespace unless another is named."""
        from smista.client import Client

        return Client(self.endpoint, namespace=namespace or self.namespace, retry_for_ms=10_000)

    def must_reach_broker(self) -> None:
        """Raises `ConnectionFailed` at once where nobody is, rather than after Spark has been started and has tried."""
        with self.client():
            pass

    def must_find(self, target: Mapping[str, str], namespace: str | None = None) -> None:
        """Raises `WrongOption` where there is no such queue, or exchange, to publish to; before anything is done."""
        with self.client(namespace) as client:
            for kind, name in target.items():
                known = client.queues(prefix=name) if kind == "queue" else [each.name for each in client.exchanges()]
                if name and name not in known:
                    cure = f"smista declare {name}" if kind == "queue" else f"smista exchange declare {name}"
                    raise errors.WrongOption(f"There is no {kind} {name!r} at the broker; make it first: {cure}")

    @property
    def broker_options(self) -> dict[str, str]:
        """How the data source finds the broker."""
        named = {"endpoint": self.endpoint, "namespace": self.namespace}
        return {name: value for name, value in named.items() if value is not None}

    def close(self) -> None:
        if self._is_ours and self._spark is not None:
            self._spark.stop()
            self._spark = None

    def stop(self) -> None:
        """Have `follow` and `repeat` return soon; from any thread."""
        self._stopping.set()

    # -- once, or on and on --------------------------------------------------------------------------------------------

    def repeat(self, work: Callable[[], T]) -> T:
        """Do the work; with an interval, again and again. Returns what it returned last."""
        with self._stoppable():
            done = work()
            while self.interval_ms is not None and not self._stopping.wait(self.interval_ms / 1000):
                done = work()
        return done

    def follow(self, writer: DataStreamWriter) -> dict[str, Any]:
        """Run a stream: over what is there, or with an interval on and on. Returns rows, batches and seconds."""
        if self.interval_ms is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self.interval_ms} milliseconds")
        began_s = time.monotonic()
        rows_by_batch: dict[int, int] = {}
        with self._stoppable():
            for starts_left in reversed(range(STARTS)):
                query = writer.start()
                try:
                    self._watch(query, rows_by_batch)
                    break
                except Exception as error:
                    if TOO_SLOW not in str(error) or not starts_left:
                        raise
                    self.on_progress("Spark waited 10 s for its Python process: the machine is busy. Starting it again")
                finally:
                    query.stop()
        took_s = time.monotonic() - began_s
        return {"batches": len(rows_by_batch), "rows_read": sum(rows_by_batch.values()), "seconds": round(took_s, 1)}

    def _watch(self, query: StreamingQuery, rows_by_batch: dict[int, int]) -> None:
        is_running = True
        while is_running:
            has_ended = query.awaitTermination(POLL_S)  # type: ignore[arg-type]  # takes parts of seconds too
            is_running = not (has_ended or self._stopping.is_set())
            for progress in query.recentProgress:
                number, rows = progress["batchId"], progress["numInputRows"]
                if rows and number not in rows_by_batch:
                    rows_by_batch[number] = rows
                    rate = progress.get("processedRowsPerSecond") or 0.0
                    self.on_progress(f"batch {number}: {rows:,} rows, {rate:,.0f} rows/s")

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C end what goes on and on in good order; what ends by itself is left to Python's ways."""
        if self.interval_ms is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.stop()

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _silence_pyspark() -> None:
    """PySpark writes down every error of its own, with the trace of Java's calls."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def _prepare(spark: SparkSession) -> None:
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)


@contextlib.contextmanager
def failures_explained() -> Iterator[None]:
    """Errors of Spark and of the file system as one sentence each: Spark's come with the stack traces of two languages
    around the cause."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise PipelineFailed(f"{error.filename} cannot be used: {error.strerror}.") from error
    except Exception as error:
        # Not by their classes: what has not been started yet has not been imported, and need not be there.
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        raise explained(str(error)) from error


_RAISED = re.compile(r"^((?:\w+\.)*)([A-Z]\w*): (.+)$")
_SOURCE = f"{errors.__name__}."
_PACKAGE = re.compile(r"^(?:[a-z]\w*\.)+(?=[A-Z]\w*: )")
_UNREADABLE = re.compile(r"Encountered error while reading file (?:file:/*(?=/))?(\S+?)\.(?:\s|$)")
_SQLSTATE = re.compile(r"\.? SQLSTATE: \w+.*$")


def explained(text: str) -> errors.SparkError:
    """What the last Python traceback in a trace of Spark's ends with, else its last cause, else its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    tracebacks = [place for place, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if tracebacks:
        for raised in filter(None, map(_RAISED.match, lines[tracebacks[-1] + 1 :])):
            if raised[1] == _SOURCE and raised[2] != errors.BrokerRefused.__name__:
                known: type[errors.SparkError] = getattr(errors, raised[2], PipelineFailed)
                return known(raised[3])
            return PipelineFailed(raised[3] if raised[1].startswith("smista.") else f"{raised[2]}: {raised[3]}")
    caused = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    line = caused[-1] if caused else next(iter(lines), "Spark gave no reason.")
    cause = _SQLSTATE.sub("", _PACKAGE.sub("", line))
    unreadable = _UNREADABLE.search(text)
    if unreadable is not None:
        return PipelineFailed(f"{unreadable[1]} cannot be read: {cause}. Restore it, or leave it out.")
    return PipelineFailed(cause)
