"""What a query may set: `.option(name, value)`, all of it text, names in any case. See docs/spark.md for the table.

Whatever is not known, does not go with the mode, or does not read as what it should be is refused by name before the
broker is asked anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from smista.address import DEFAULT_ADDRESS, http_url
from smista.durations import duration_ms
from smista.errors import InvalidArgument
from smista.spark.errors import WrongOption
from smista.spark.positions import EARLIEST, LATEST, Place, read_place

LOG, CONSUME = "log", "consume"
LOG_ROWS = 500_000
CONSUME_ROWS = 50_000
LEASE_MS = 600_000
TRIGGER_DELAY_MS = 60_000

_BROKER = ("endpoint", "namespace", "token")
_LIMITS = ("maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay")
_READING = ("mode", "queue", "columns", "includeBody", "minPartitions", "failOnDataLoss")
_STARTING = ("startingOffsets", "startingTimestamp")
_ENDING = ("endingOffsets", "endingTimestamp")
_ROLES = {
    "reading the log": (*_BROKER, *_READING, *_STARTING, *_ENDING, "kinds"),
    "streaming the log": (*_BROKER, *_READING, *_STARTING, *_LIMITS, "kinds"),
    "consuming a queue": (*_BROKER, *_READING, *_LIMITS, "consumer", "leaseMs"),
    "publishing": (*_BROKER, "queue", "exchange", "jobId", "batchId"),
}
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark's own that it hands on with ours."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where the broker is and as whom it is asked."""

    endpoint: str
    namespace: str | None
    token: str | None


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch takes."""

    max_rows: int
    max_bytes: int | None
    min_rows: int
    delay_ms: int
    """How long a batch waits for `min_rows`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading in either mode has in common."""

    server: Server
    queues: tuple[str, ...]
    columns: tuple[str, ...] | None
    has_body: bool | None
    partition_count: int | None
    is_loss_an_error: bool


@dataclass(frozen=True, slots=True)
class LogReading(Reading):
    kinds: tuple[str, ...]
    start: Place
    start_at_ms: int | None
    end: Place
    end_at_ms: int | None
    limits: Limits


@dataclass(frozen=True, slots=True)
class Consuming(Reading):
    consumer: str
    lease_ms: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class Publishing:
    server: Server
    queue: str | None
    exchange: str | None
    job: str | None
    batch: int | None


class Given:
    """Options as they were given, read one by one."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    @property
    def mode(self) -> str:
        return self.choice("mode", (LOG, CONSUME), LOG)

    # -- what a query is ----------------------------------------------------------------------------------------------

    def log_reading(self, *, is_stream: bool) -> LogReading:
        self._check("streaming the log" if is_stream else "reading the log")
        for offsets, timestamp in (_STARTING, _ENDING):
            if self.text(offsets) and self.text(timestamp):
                raise WrongOption(f"Options {offsets} and {timestamp} say the same thing twice; leave one out.")
        return LogReading(
            *self._common(),
            kinds=self.names("kinds") or (),
            start=self._place("startingOffsets", EARLIEST),
            start_at_ms=self.instant("startingTimestamp"),
            end=self._place("endingOffsets", LATEST),
            end_at_ms=self.instant("endingTimestamp"),
            limits=self._limits(LOG_ROWS),
        )

    def consuming(self) -> Consuming:
        self._check("consuming a queue")
        common = self._common()
        if len(common[1]) != 1 or set(common[1][0]) & set("*?["):
            raise WrongOption("Mode consume takes one queue by its name: set option queue, and a query for each.")
        consumer = self.text("consumer")
        if not consumer:
            raise WrongOption(
                "Mode consume needs option consumer: a name of your choice under which the broker keeps this query's "
                "claims. Give every query its own."
            )
        return Consuming(
            *common,
            consumer=consumer,
            lease_ms=self.integer("leaseMs", LEASE_MS, least=1_000),
            limits=self._limits(CONSUME_ROWS),
        )

    def publishing(self) -> Publishing:
        self._check("publishing")
        queue, exchange = self.text("queue"), self.text("exchange")
        if (queue is None) == (exchange is None):
            raise WrongOption("Publishing needs option queue or option exchange: one of them, not both.")
        job, batch = self.text("jobId"), self.integer("batchId", -1)
        if (job is None) != (batch < 0):
            raise WrongOption("Options jobId and batchId go together: what was published under them is not again.")
        return Publishing(self._server(), queue, exchange, job, None if batch < 0 else batch)

    def _check(self, role: str) -> None:
        known = {name.lower() for name in _ROLES[role]} | _OF_SPARK
        unknown = sorted(set(self._values) - known)
        if not unknown:
            return
        spelled = {name.lower(): name for names in _ROLES.values() for name in names}
        named = ", ".join(spelled.get(name, name) for name in unknown)
        does = "does not go with" if all(name in spelled for name in unknown) else "is not known for"
        raise WrongOption(f"Option {named} {does} {role}. Its options: {', '.join(sorted(_ROLES[role]))}.")

    def _server(self) -> Server:
        given = self.text("endpoint")
        try:
            return Server(http_url(given), self.text("namespace"), self.text("token"))
        except InvalidArgument:
            raise WrongOption(f"Option endpoint is {given!r}; write it as {DEFAULT_ADDRESS}.") from None

    def _common(self) -> tuple[Server, tuple[str, ...], tuple[str, ...] | None, bool | None, int | None, bool]:
        return (
            self._server(),
            self.names("queue") or (),
            self.names("columns"),
            self.flag("includeBody"),
            self.integer("minPartitions", 0) or None,
            self.flag("failOnDataLoss") is not False,
        )

    def _limits(self, rows: int) -> Limits:
        limits = Limits(
            max_rows=self.integer("maxRowsPerTrigger", rows, least=1),
            max_bytes=self.integer("maxBytesPerTrigger", 0) or None,
            min_rows=self.integer("minRowsPerTrigger", 0),
            delay_ms=self.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MS),
        )
        if limits.min_rows > limits.max_rows:
            raise WrongOption("Option minRowsPerTrigger is above maxRowsPerTrigger; no batch could ever be both.")
        return limits

    # -- values -------------------------------------------------------------------------------------------------------

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise WrongOption(f"Option {name} is empty; leave it out or give it a value.")
        return value

    def names(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = (self.text(name) or default).lower()
        if value not in choices:
            raise WrongOption(f"Option {name} is {value!r}; it is one of {', '.join(choices)}.")
        return value

    def flag(self, name: str) -> bool | None:
        value = self.text(name)
        return None if value is None else self.choice(name, ("true", "false"), "") == "true"

    def integer(self, name: str, default: int, *, least: int = 0) -> int:
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"\d{1,18}", value) or int(value) < least:
            raise WrongOption(f"Option {name} is {value!r}; it is a whole number, {least} or more.")
        return int(value)

    def duration_ms(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        try:
            return duration_ms(value, unit="ms")
        except ValueError:
            raise WrongOption(f"Option {name} is {value!r}; write milliseconds, or 500ms, 30s, 5m, 2h, 1d.") from None

    def instant(self, name: str) -> int | None:
        """In milliseconds since 1970."""
        value = self.text(name)
        if value is None or re.fullmatch(r"\d{1,15}", value):
            return None if value is None else int(value)
        try:
            read = datetime.fromisoformat(value)
        except ValueError:
            raise WrongOption(
                f"Option {name} is {value!r}; write 2026-01-31T12:00:00Z (UTC unless it says so), or milliseconds "
                "since 1970."
            ) from None
        return int((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp() * 1000)

    def _place(self, name: str, default: str) -> Place:
        return read_place(self.text(name) or default, f"Option {name}")
