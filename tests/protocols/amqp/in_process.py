"""A connection without a socket, over a log that a test holds up: for what happens between two frames."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any, TypeVar

from smista.engine import Broker, BrokerSettings
from smista.engine.clock import Clock
from smista.protocols.amqp.adapter import AmqpAdapter
from smista.protocols.amqp.channel.channel import Channel
from smista.protocols.amqp.server import AmqpServer
from smista.protocols.amqp.settings import AmqpSettings
from smista.protocols.amqp.shared import PrincipalOf
from smista.protocols.amqp.users import principal_of
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.frames import METHOD
from smista.protocols.amqp.wire.methods import Method
from smista.protocols.stalled import StalledPeers
from smista.protocols.turns import Turns
from smista.service.service import Service
from tests.engine.bench import SETTINGS, KeptLog
from tests.protocols.amqp.raw import HELLO, OPEN, Frame, on, start_ok, tune_ok
from tests.waiting import patience

M = TypeVar("M", bound=Method)


class Wire(asyncio.Transport):
    """Takes what is written; hands over what is fed to it unless reading is paused."""

    def __init__(self, adapter: AmqpAdapter) -> None:
        super().__init__()
        self._adapter = adapter
        self._fed = b""
        self.written = b""
        self.has_written = asyncio.Event()
        self.is_paused = False
        self.is_closed = False
        self.was_aborted = False
        self.waiting_bytes = 0
        """What the other side has not read, as we say."""

    def feed(self, data: bytes) -> None:
        self._fed += data
        self._hand_over()

    def _hand_over(self) -> None:
        if self._fed and not self.is_paused and not self.is_closed:
            data, self._fed = self._fed, b""
            self._adapter.data_received(data)

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        if self.is_paused:
            self.is_paused = False
            asyncio.get_running_loop().call_soon(self._hand_over)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed, "written after the end"
        self.written += bytes(data)
        self.has_written.set()

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        # The other side closes its half as soon as we have closed ours.
        self.close()

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.has_written.set()
            asyncio.get_running_loop().call_soon(self._adapter.connection_lost, None)

    def abort(self) -> None:
        self.was_aborted = self.was_aborted or not self.is_closed
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 12345) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes


class Client:
    """The other side of a wire."""

    def __init__(self, amqp: AmqpServer) -> None:
        self.adapter = amqp.make_protocol()
        self.connection = self.adapter.connection
        self.ours = self.adapter.client
        self.wire = Wire(self.adapter)
        self._read = 0
        self.adapter.connection_made(self.wire)

    async def open(self, *, channels: int = 1, heartbeat: int = 0) -> Client:
        self.feed(HELLO, start_ok(), tune_ok(heartbeat=heartbeat), OPEN)
        await self.expect_all(methods.ConnectionStart, methods.ConnectionTune, methods.ConnectionOpenOk)
        for number in range(1, channels + 1):
            self.feed(on(number, methods.ChannelOpen()))
            await self.expect(methods.ChannelOpenOk)
        return self

    def feed(self, *data: bytes) -> None:
        self.wire.feed(b"".join(data))

    async def frame(self) -> Frame:
        """The next frame that was written."""
        while True:
            found = self._parse()
            if found is not None:
                return found
            assert not self.wire.is_closed, "nothing more comes"
            self.wire.has_written.clear()
            async with patience():
                await self.wire.has_written.wait()

    def _parse(self) -> Frame | None:
        written = self.wire.written
        if len(written) - self._read < 8:
            return None
        kind, number, length = struct.unpack_from(">BHI", written, self._read)
        first = self._read + 7
        if len(written) < first + length + 1:
            return None
        assert written[first + length] == 0xCE
        self._read = first + length + 1
        return kind, number, written[first : first + length]

    async def expect(self, kind: type[M]) -> M:
        """The next frame, which has to be this method."""
        found, _, payload = await self.frame()
        assert found == METHOD, (found, payload)
        method = methods.read(payload)
        assert isinstance(method, kind), method
        return method

    async def expect_all(self, *kinds: type[Method]) -> None:
        """The next frames, which have to be these methods."""
        for kind in kinds:
            await self.expect(kind)

    async def method(self) -> tuple[int, Method]:
        """The next frame, a method, and its channel."""
        found, number, payload = await self.frame()
        assert found == METHOD, (found, payload)
        return number, methods.read(payload)

    async def call(self, method: Method, reply: type[M], *, channel: int = 1) -> M:
        self.feed(on(channel, method))
        return await self.expect(reply)

    async def deliveries(self, count: int) -> list[tuple[int, bytes]]:
        """The next frames, which have to be so many deliveries: their tags and bodies."""
        return [((await self.expect(methods.BasicDeliver)).delivery_tag, await self.content()) for _ in range(count)]

    async def content(self) -> bytes:
        _, _, payload = await self.frame()
        size = int.from_bytes(payload[4:12], "big")
        body = b""
        while len(body) < size:
            body += (await self.frame())[2]
        return body

    @property
    def has_nothing(self) -> bool:
        """Whether all that was written has been looked at."""
        return self._read == len(self.wire.written)

    def channel(self, number: int = 1) -> Channel:
        """Ours, at its other end."""
        channel = self.connection.channels[number].events
        assert isinstance(channel, Channel)
        return channel

    def lose(self) -> None:
        """The socket is gone."""
        self.wire.is_closed = True
        self.adapter.connection_lost(ConnectionResetError())


class TurnClock:
    """What connections' turns are measured by: no time passes, so that none is cut short, unless looking takes some."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.look_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.look_s
        return self.now_s


class Server:
    """A broker that speaks AMQP."""

    broker: Broker
    amqp: AmqpServer

    def __init__(self) -> None:
        self.log = KeptLog()
        self.clock = TurnClock()
        self._passed_ms = 0

    async def start(
        self,
        settings: BrokerSettings = SETTINGS,
        amqp: AmqpSettings | None = None,
        principal_of: PrincipalOf = principal_of,
    ) -> Server:
        clock = Clock(
            wall_ms=lambda: time.time_ns() // 1_000_000 + self._passed_ms,
            since_boot_ms=lambda: time.monotonic_ns() // 1_000_000 + self._passed_ms,
        )
        self.broker = await Broker.open(self.log, settings, clock=clock)
        self.stalled = StalledPeers()
        service = Service(self.broker)
        self.amqp = AmqpServer(service, amqp, Turns(self.clock), stalled=self.stalled, principal_of=principal_of)
        self.stalled.begin(service)
        return self

    def pass_time(self, ms: int) -> None:
        """Let the broker's clock go that much further than time does."""
        self._passed_ms += ms
        self.broker._running.deadlines.look_again()

    async def connect(self, *, channels: int = 1, heartbeat: int = 0) -> Client:
        return await Client(self.amqp).open(channels=channels, heartbeat=heartbeat)

    def counts(self, queue: str = "q") -> tuple[int, int, int]:
        """Ready, in flight, consumers."""
        stats = self.broker.statistics.stats(queue)
        return stats.ready, stats.in_flight, stats.consumers

    async def stop(self) -> None:
        self.log.gate.set()
        for connection in list(self.amqp.shared.connections):
            connection.abort()
        await self.amqp.drain()
        self.stalled.close()
        await self.broker.close()


async def settle() -> None:
    """Let everything that is due on the loop happen."""
    for _ in range(20):
        await asyncio.sleep(0)
