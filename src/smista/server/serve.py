"""Serving: open the log, recover, listen, and stop in order.

start    sockets listen ─▶ HTTP answers "not ready" ─▶ log opened and replayed ─▶ ready: a line per listener
SIGTERM  no new connections ─▶ streams closed, their messages back ─▶ requests and confirms finish ─▶ log closed
         a second signal ends the process at once; what was confirmed is on disk anyway
failure  the log cannot be written, or not be closed: nothing is confirmed any more, and the process ends with 1
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvloop

from smista.bulk.reader import LogReader
from smista.engine import Broker
from smista.errors import BrokerError, reason
from smista.log import Log, MemoryLog, SqliteLog
from smista.log.errors import LogDamaged
from smista.protocols.amqp.server import AmqpServer
from smista.protocols.amqp.settings import AmqpSettings
from smista.protocols.http.access import Access
from smista.protocols.http.app import HttpApp
from smista.protocols.sqs.app import SqsApp
from smista.protocols.sqs.limits import SqsSettings
from smista.protocols.stalled import StalledPeers
from smista.protocols.turns import Turns
from smista.server import descriptors, logs
from smista.server.collecting import Collecting
from smista.server.http.server import HTTP_FLAG, HttpServer
from smista.server.listening import BACKLOG, beginning_to_accept, is_exposed, listen, names_of_this_machine, shown
from smista.server.settings import ServerSettings
from smista.service import properties
from smista.service.service import Service
from smista.service.staging.batches import Staging

logger = logging.getLogger("smista.server")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
WATCH_S = 0.2
AMQP_FLAG = "--amqp-port"
EXPOSED = "without authentication: whoever reaches this address can read and change everything"
"""HTTP knows no users, and access keys are for SQS only, so this goes for every address but loopback."""
ECHO_STEP_S = 0.1
ECHO_STEPS = 5


def run(settings: ServerSettings, announce: Callable[[str], None]) -> int:
    """Serve until a signal; returns the exit code. `announce` gets the lines that say what is listening."""
    logs.configure(settings.log_level, settings.log_format)
    server = Server(settings, announce)
    try:
        return uvloop.run(server.run())
    except (BrokerError, OSError) as error:
        more = logs.fields(code=error.code) if isinstance(error, BrokerError) else None
        if server.has_started:
            logger.critical("serving failed: %s", error, exc_info=error, extra=more)
            return 1
        logger.error("cannot start: %s", error, extra=more)
        return 2


class Server:
    collecting = Collecting
    """How the process looks for garbage while it serves."""

    def __init__(self, settings: ServerSettings, announce: Callable[[str], None]) -> None:
        self._settings = settings
        self._announce = announce
        self._stopping = asyncio.Event()
        self._echo_steps = 0
        self.has_started = False
        self._service: Service | None = None
        """Both once the broker has recovered."""
        self._log_reader = LogReader(timeout_s=settings.bulk_timeout_s)
        self._places = descriptors.places(descriptors.raise_limit(), settings.connections_max)
        self._http_app = HttpApp(
            request_bytes_max=settings.request_bytes_max,
            output_bytes_max=settings.output_bytes_max,
            websocket_frame_bytes_max=settings.websocket_frame_bytes_max,
            staged_bytes_max=settings.staged_bytes_max,
            access=Access(
                hosts={settings.host, *names_of_this_machine(), *(settings.allowed_hosts or ())},
                origins=settings.allowed_origins or (),
            ),
        )
        self._turns = Turns()
        self._stalled = StalledPeers()
        self._http_app.sqs = self._sqs = SqsApp(self._sqs_settings())

    async def run(self) -> int:
        """The exit code. Raises why it could not start."""
        self._catch_signals()
        settings = self._settings
        with (
            listen(settings.host, settings.http_port, HTTP_FLAG) as listener,
            listen(settings.host, settings.amqp_port, AMQP_FLAG) as amqp_listener,
        ):
            http = HttpServer(self._http_app, settings, self._turns, self._places, self._stalled)
            try:
                await http.start(listener)
                broker = await self._recover()
                try:
                    code = 0
                    if not self._stopping.is_set():
                        code = await self._serve(broker, http, listener, amqp_listener)
                except BaseException:
                    with contextlib.suppress(BrokerError):
                        await broker.close()
                    raise
                # Before the last line, which says that it has stopped.
                self._stalled.close()
                self._http_app.close()
                http.connections.close()
                return await self._close(broker, code)
            finally:
                self._http_app.drain()
                await http.stop(at_once=True)
                self._http_app.close()
                http.connections.close()
                self._stalled.close()
                if self._stopping.is_set():
                    # The loop takes its handlers along, and a signal too many would then decide how the process ends.
                    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    async def _serve(
        self, broker: Broker, http: HttpServer, listener: socket.socket, amqp_listener: socket.socket
    ) -> int:
        service = self._service = self._make_service(broker)
        self._http_app.service = self._sqs.service = service
        service.count_in_memory(self._http_app.kept_bytes)
        service.count_in_memory(self._sqs.kept_bytes)
        service.count_in_memory(lambda: http.connections.kept_bytes)
        service.count_in_memory(self._http_app.output_bytes, is_going_out=True)
        service.count_in_memory(lambda: http.connections.output_bytes, is_going_out=True)
        service.start()
        amqp = AmqpServer(service, self._amqp_settings(), self._turns, self._places, self._stalled)
        with beginning_to_accept(amqp_listener, AMQP_FLAG):
            amqp_server = await asyncio.get_running_loop().create_server(
                amqp.make_protocol, sock=amqp_listener, backlog=BACKLOG
            )
        self._stalled.begin(service)
        self.has_started = True
        exposed = is_exposed(listener)
        if exposed:
            logger.warning(EXPOSED, extra=logs.fields(host=self._settings.host))
        self._say_listening("http", listener, f" - {EXPOSED}" if exposed else "")
        self._say_listening("amqp", amqp_listener)
        with self.collecting() as collecting:
            code = await self._until_stopped(broker, collecting)
        # A disk that is full may stay so for ever: whoever waits for room learns now that the outcome is unknown.
        broker.stop_waiting_for_room()
        amqp_server.close()
        await amqp.drain()
        await self._drain(http)
        return code

    def _say_listening(self, protocol: str, listener: socket.socket, more: str = "") -> None:
        url = f"{protocol}://{shown(listener)}"
        line = f"{protocol} listening on {url}{more}"
        self._announce(logs.announcement(line, self._settings.log_format, protocol=protocol, url=url))

    # -- starting -----------------------------------------------------------------------------------------------------

    def _make_service(self, broker: Broker) -> Service:
        settings = self._settings
        staging = Staging(
            broker,
            None if settings.memory else Path(settings.data) / "staged",
            expires_ms=settings.staged_expires_ms,
            total_bytes_max=settings.staged_total_bytes_max,
            disk_free_bytes_min=settings.disk_free_bytes_min,
        )
        log_reader = None if settings.memory else self._log_reader
        return Service(broker, staging=staging, log_reader=log_reader, connections=self._places.room)

    def _amqp_settings(self) -> AmqpSettings:
        settings = self._settings
        return AmqpSettings(
            body_bytes_max=settings.amqp_body_bytes_max,
            handshake_timeout_s=settings.header_timeout_s,
            connections_max=settings.connections_max,
            output_bytes_max=settings.output_bytes_max,
            output_timeout_s=settings.body_timeout_s,
        )

    def _sqs_settings(self) -> SqsSettings:
        settings = self._settings
        return SqsSettings(
            account=settings.sqs_account,
            region=settings.sqs_region,
            region_urls=settings.sqs_region_urls,
            access_keys=settings.access_keys(),
            strict_timing=settings.sqs_strict_timing,
            relaxed=settings.sqs_relaxed,
            requests_per_second=settings.sqs_requests_per_second,
            actions_off=frozenset(settings.sqs_actions_off or ()),
            request_bytes_max=settings.request_bytes_max,
        )

    async def _recover(self) -> Broker:
        settings = self._settings
        is_damage_served = settings.on_damage == "serve"
        log: Log = MemoryLog()
        if not settings.memory:
            log = await asyncio.to_thread(SqliteLog.open, settings.data, may_lack_end=is_damage_served)
        on_damage = _note_damage if is_damage_served else None
        broker = await Broker.open(log, settings.broker(), on_damage=on_damage, read_routing=properties.read_routing)
        location = log.location()
        if location is not None:
            self._log_reader.read_from(broker, location)
        found = broker.statistics.recovered
        logger.info(
            "recovered",
            extra=logs.fields(
                data="memory" if settings.memory else settings.data,
                log_bytes=broker.log.bytes,
                queues=found.queues,
                messages=found.messages,
                damaged_blocks=found.damaged_blocks,
                took_ms=found.took_ms,
            ),
        )
        return broker

    # -- stopping -----------------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        if not self._stopping.is_set():
            logger.info("stopping: no new connections, letting requests finish")
            self._stopping.set()
            self._pass_echoes(ECHO_STEPS)
        elif self._echo_steps == 0:
            logger.warning("stopped at once by a second signal")
            os._exit(128 + number)

    def _pass_echoes(self, steps: int) -> None:
        """For half a second another signal is taken for the same one: `timeout` and other supervisors signal a process
        and then its group. In steps: a loop that was held up finds a time over before it reads what came meanwhile."""
        self._echo_steps = steps
        if steps:
            asyncio.get_running_loop().call_later(ECHO_STEP_S, self._pass_echoes, steps - 1)

    async def _until_stopped(self, broker: Broker, collecting: Collecting) -> int:
        """Serve until a signal, or until the broker has failed."""
        while not self._stopping.is_set():
            if broker.failure is not None:
                logger.critical("the log failed, so nothing can be confirmed any more: %s", reason(broker.failure))
                return 1
            collecting.collect_if_due(broker.statistics.held_bytes)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), WATCH_S)
        return 0

    async def _drain(self, http: HttpServer) -> None:
        self._http_app.drain()
        await http.stop()
        await self._log_reader.close()
        if self._service is not None:
            await self._service.close()

    async def _close(self, broker: Broker, code: int) -> int:
        """Close the log; returns the exit code."""
        try:
            await broker.close()
        except BrokerError as error:
            logger.error("closing the log failed: %s", error, extra=logs.fields(code=error.code))
            return 1
        if code == 0 and broker.failure is not None:
            logger.error(
                "stopped, and %d bytes that were not confirmed could not be written: %s",
                broker.statistics.measures().log.waiting_bytes,
                broker.failure,
            )
            return 1
        logger.info("stopped")
        return code


def _note_damage(damage: LogDamaged) -> None:
    logger.error("damage in the log, going on without it: %s", damage)
