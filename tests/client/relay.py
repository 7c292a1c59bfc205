"""A wire between a client and a broker that a test can hold and cut."""

from __future__ import annotations

import asyncio


class Relay:
    """Passes bytes both ways until the test holds or cuts it. On the loop of the test."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers_pass = asyncio.Event()
        self._answers_pass.set()
        self.connection_count = 0
        self.has_held = asyncio.Event()
        """Whether an answer has come since answers are held."""
        self.address = ""

    async def __aenter__(self) -> Relay:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_listening()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen(self) -> None:
        port = int(self.address.rpartition(":")[2] or 0)
        self._listener = await asyncio.start_server(self._pass, "127.0.0.1", port)
        self.address = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def stop_listening(self) -> None:
        """From now on nobody answers at the address."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def hold_answers(self) -> None:
        """Hold what the broker sends; requests still pass."""
        self.has_held.clear()
        self._answers_pass.clear()

    def let_pass(self) -> None:
        """Pass what was held, and what comes later."""
        self._answers_pass.set()

    def cut(self) -> None:
        """Break every connection; later ones pass everything."""
        for writer in self._writers:
            writer.transport.abort()
        self._answers_pass.set()

    async def _pass(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {to_client, to_broker}
        here = asyncio.current_task()
        assert here is not None
        self._tasks.add(here)
        try:
            await asyncio.gather(self._copy(from_client, to_broker), self._copy(from_broker, to_client, is_answer=True))
        finally:
            for writer in (to_client, to_broker):
                writer.transport.abort()
                self._writers.discard(writer)
            self._tasks.discard(here)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool = False
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if is_answer and not self._answers_pass.is_set():
                    self.has_held.set()
                    await self._answers_pass.wait()
                writer.write(data)
                await writer.drain()
        except (ConnectionError, OSError):
            pass
        finally:
            writer.transport.abort()
