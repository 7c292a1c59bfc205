"""One WebSocket: requests in, answers and pushed messages out. The words are in docs/stream.md.

    receive ─▶ frame ─▶ each request runs as a task of its own ─▶ answer ─┐
                                                                         ├─▶ outbox ─▶ one writer ─▶ send
    broker ─▶ subscription.deliver ─▶ pushed messages ───────────────────┘

Requests start in the order in which they came, and each does its transition in its first step, so that publishes keep
their order; answers come when they are ready. What is so long that it is read over several turns of the loop holds up
those behind it until it is read, and not longer. The requests of an array are started over several turns of the loop
where their first steps take long, so that everybody else has a turn in between; the next frame waits for that.

What one connection can make us keep is bounded. No frame is read while many requests are under way, many answers wait
to be written, or the log is behind; subscriptions get next to nothing more while many pushed messages wait. What waits
for something to happen, long polls above all, is bounded by itself (`stream_waiting`).

It ends in one of two ways. The connection goes: all that it held goes back at once, as failed deliveries, since any of
them may be what killed the consumer. Or the broker stops (`close`): what is held is released, requests under way are
answered, and then the WebSocket is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec

from smista.errors import (
    BrokerClosed,
    BrokerError,
    RequestTooLarge,
    TooManyRequests,
    UnknownCommand,
)
from smista.protocols.faults import Faults
from smista.protocols.http.answering import encoded, may_be_long, takes_turns
from smista.protocols.http.bounded import AT_ONCE_BYTES, VALUES_MAX, byte_count, check_values, in_steps
from smista.protocols.http.commands import COMMANDS, DECODERS, Call
from smista.protocols.http.errors import INTERNAL_ERROR, error_body
from smista.protocols.http.formats import JSON, Format
from smista.protocols.http.outbox import Outbox
from smista.protocols.http.requests import NO_PAYLOAD
from smista.protocols.http.stream_frames import (
    OWN_DECODERS,
    Answer,
    Cancel,
    Refusal,
    StreamRequest,
    Subscribe,
    read_frame,
)
from smista.protocols.http.stream_subscriptions import Subscriptions
from smista.protocols.http.stream_waiting import Waiting
from smista.protocols.stalled import Unseen
from smista.protocols.web.asgi import Event, Receive, Send
from smista.service.held import Held, HeldBytes
from smista.service.principal import Principal
from smista.service.service import Service
from smista.service.values import SLICE_S

T = TypeVar("T")
logger = logging.getLogger("smista.stream")
_faults = Faults(logger)

REQUESTS_MAX = 10_000
"""Under way on one connection; beyond that no frame is read until some are answered."""
LONG_ANSWERS_MAX = 4
"""So many requests whose answers may be long are under way at a time: some MiB each, before it is known how many."""
AT_ONCE = 100
"""How many requests are started before those that were get their turn."""

_NOTHING = msgspec.Raw()
_SETTLING_COMMANDS = frozenset(("ack", "nack", "release", "extend"))
"""One of them may be about very many messages."""
_LONG_ANSWERS = frozenset(name for name, kind in COMMANDS.items() if may_be_long(kind))
Begun = Callable[[], None]
"""Called when a long request has been read: those behind it may begin then."""
CALLS_MAX = 100


class Budget:
    """How much the answers to one array may still take."""

    __slots__ = ("bytes_left", "taken_bytes")

    def __init__(self, bytes_left: int) -> None:
        self.bytes_left = bytes_left
        self.taken_bytes = 0

    def take(self, count: int) -> None:
        self.bytes_left -= count
        self.taken_bytes += count


class Turn:
    """How long the first steps of requests that were started together may take, in one turn of the loop."""

    __slots__ = ("_end_s", "begun")

    def __init__(self) -> None:
        self._end_s = 0.0
        self.begun = 0

    def begin(self) -> bool:
        """Whether one more may begin; after a no there is no yes."""
        now_s = time.perf_counter()
        if not self.begun:
            self._end_s = now_s + SLICE_S
        elif now_s > self._end_s:
            return False
        self.begun += 1
        return True


class Stream:
    def __init__(
        self,
        service: Service,
        principal: Principal,
        spoken: Format,
        receive: Receive,
        send: Send,
        *,
        output_bytes_max: int,
        held: Held | None = None,
        unseen: Unseen | None = None,
    ) -> None:
        """`held` counts the arrays that are under way, and is released by who gives it. `unseen` knows what is
        settled."""
        self._held = held or Held(HeldBytes())
        self._unseen = unseen or Unseen()
        self._service = service
        self._principal = principal
        self._calls: dict[str, Call] = {}
        """By namespace; one for all requests, but for those that are long."""
        self._format = spoken
        self._decoders = DECODERS[spoken]
        self._own_decoders = OWN_DECODERS[spoken]
        self._receive = receive
        self._output_bytes_max = output_bytes_max
        self._outbox = Outbox(send, is_text=spoken is JSON, bytes_max=output_bytes_max, on_room=self._make_room)
        self._subscriptions = Subscriptions(service, principal, spoken, self._outbox, on_fault=self._fail)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._making_long: set[asyncio.Task[Any]] = set()
        """Those of them whose answers may be long."""
        self._made_bytes = 0
        """Of answers in arrays of which others are missing."""
        self._waiting = Waiting()
        self._has_room = asyncio.Event()
        self._closing: tuple[int, str] | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until either side goes. What is held then goes back at once."""
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._outbox.write())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._subscriptions.let_go(is_vanished=True)
            running = [reader, writer, *self._tasks]
            for task in running:
                task.cancel()
            self._outbox.end()
            results = await asyncio.gather(*running, return_exceptions=True)
        for result in results[:2]:
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    def close(self, code: int, reason: str) -> None:
        """Release what is held, read no more, answer the requests that are under way, and then close."""
        if self._closing is not None:
            return
        self._closing = (code, reason)
        self._subscriptions.let_go(is_vanished=False)
        self._waiting.end()
        if not self._tasks:
            self._outbox.close(code, reason)

    def _fail(self) -> None:
        self._subscriptions.let_go(is_vanished=True)
        self.close(1011, "internal error")

    @property
    def output_bytes(self) -> int:
        """Of answers and messages that are not written."""
        return self._outbox.waiting_bytes + self._made_bytes

    # -- in -----------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        for count in itertools.count(1):
            # In a function of its own, so that an idle connection does not keep its last frame.
            if not await self._take_in(await self._receive()):
                return
            if count % AT_ONCE == 0:
                # Frames that came together are received without a pause.
                await asyncio.sleep(0)
            if self._is_busy:
                await self._room()

    async def _take_in(self, event: Event) -> bool:
        """Start what a frame asks for; False when there will be no more frames."""
        if event["type"] == "websocket.disconnect":
            return False
        if self._closing is not None:
            return True
        text, binary = event.get("text"), event.get("bytes")
        data: str | bytes = text or binary or b""
        if len(data) > VALUES_MAX:
            try:
                data = data.encode() if isinstance(data, str) else data
                await check_values(data, self._format, self._service.fair_turns)
            except RequestTooLarge as error:
                self._outbox.put(self._format.encode(Refusal(None, error_body(error))))
                return True
        frame = read_frame(self._format, text=text, binary=binary)
        if isinstance(frame, StreamRequest):
            answering = partial(self._answer_one, frame)
            if _is_long(frame):
                await self._begin(answering)
            else:
                self._start(answering(), may_be_long=frame.command in _LONG_ANSWERS)
            if frame.command in _SETTLING_COMMANDS:
                await asyncio.sleep(0)
                await self._subscriptions.settled()
        elif isinstance(frame, list):
            await self._start_array(frame, len(event.get("text") or event.get("bytes") or b""))
        else:
            self._outbox.put(self._format.encode(frame))
        return True

    @property
    def _is_busy(self) -> bool:
        return (
            len(self._tasks) >= REQUESTS_MAX
            or self._has_many_long
            or self._made_bytes > self._output_bytes_max
            or self._outbox.has_many_answers
            or self._service.is_behind
        )

    @property
    def _has_many_long(self) -> bool:
        return len(self._making_long) >= LONG_ANSWERS_MAX

    async def _room(self) -> None:
        """Wait until another frame may be read. That is never long, unless the peer or the disk stands still."""
        while self._is_busy:
            if self._service.is_behind:
                # Here rather than in each publish, so that they keep their order.
                try:
                    await self._service.room()
                except BrokerError:
                    return  # it has stopped, as every request will be answered
            else:
                self._has_room.clear()
                await self._has_room.wait()

    def _make_room(self) -> None:
        self._has_room.set()
        self._subscriptions.make_room()

    def _start(self, work: Coroutine[Any, Any, T], *, may_be_long: bool = False) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        if may_be_long:
            self._making_long.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._making_long.discard(task)
        self._has_room.set()
        if self._closing is not None and not self._tasks:
            self._outbox.close(*self._closing)

    # -- answering ----------------------------------------------------------------------------------------------------

    async def _begin(self, work: Callable[[Begun], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Start something that is so long that it is read in turns; returns when it is read."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not begun.done():
                begun.set_result(None)

        task = self._start(work(begin))
        await asyncio.wait((task, begun), return_when=asyncio.FIRST_COMPLETED)
        return task

    async def _answer_one(self, request: StreamRequest, begun: Begun | None = None) -> None:
        answer = await self._outcome(request, begun)
        if answer is not None:
            self._outbox.put(answer)

    async def _start_array(self, requests: list[StreamRequest], frame_bytes: int) -> None:
        """Start as many as can be started together: what comes in the next frame is started after them."""
        is_started = asyncio.Event()
        self._start(self._answer_all(_in_order(requests), frame_bytes, is_started))
        await is_started.wait()

    async def _answer_all(
        self, groups: Iterator[list[StreamRequest]], frame_bytes: int, is_started: asyncio.Event
    ) -> None:
        # All of its requests hold on to the frame, until the last of them begins.
        self._held.add(frame_bytes)
        budget = Budget(self._output_bytes_max)
        answers: list[bytes | None] = []
        try:
            for group in groups:
                started = await self._start_group(group, budget)
                is_started.set()
                answers += await asyncio.gather(*started)
        finally:
            self._held.add(-frame_bytes)
            self._made_bytes -= budget.taken_bytes
            # Whatever happens, frames are read on.
            is_started.set()
        given = [msgspec.Raw(answer) for answer in answers if answer is not None]
        if given:
            self._outbox.put(self._format.encode(given))

    async def _start_group(self, group: list[StreamRequest], budget: Budget) -> list[asyncio.Task[bytes | None]]:
        """Start them in order; returns when all have done their first step."""
        started: list[asyncio.Task[bytes | None]] = []
        while len(started) < len(group):
            while self._has_many_long:
                self._has_room.clear()
                await self._has_room.wait()
            turn = Turn()
            some = group[len(started) : len(started) + AT_ONCE]
            if _is_long(some[0]):
                started.append(await self._begin(partial(self._outcome_within, budget, turn, some[0])))
                continue
            tasks: list[asyncio.Task[bytes | None]] = []
            for request in itertools.takewhile(lambda request: not _is_long(request), some):
                may_be_long = request.command in _LONG_ANSWERS
                if may_be_long and self._has_many_long:
                    break
                tasks.append(self._start(self._outcome_within(budget, turn, request), may_be_long=may_be_long))
            await asyncio.sleep(0)
            # Those that did not begin have ended without a trace, and are started anew.
            started += tasks[: turn.begun]
            await self._subscriptions.settled()
        return started

    async def _outcome_within(
        self, budget: Budget, turn: Turn, request: StreamRequest, begun: Begun | None = None
    ) -> bytes | None:
        """`_outcome`, unless the answers before it are too much already; nothing once its turn is over."""
        if not turn.begin():
            return None
        if budget.bytes_left < 0:
            error = TooManyRequests(
                f"The answers to this array are over {self._output_bytes_max} bytes already, and this request was not "
                "carried out; send it in another frame."
            )
            return self._format.encode(Refusal(request.id, error_body(error)))
        answer = await self._outcome(request, begun)
        if answer is not None:
            budget.take(len(answer))
            self._made_bytes += len(answer)
        return answer

    async def _outcome(self, request: StreamRequest, begun: Begun | None) -> bytes | None:
        """Carry out a request; what to answer, or None where no answer is wanted."""
        try:
            result = await self._carry_out(request, begun)
            if request.id is None:
                return None
            if takes_turns(result):
                result = msgspec.Raw(await encoded(result, self._format, self._service.fair_turns))
            return self._format.encode(Answer(request.id, result))
        except BrokerError as error:
            refusal = error_body(error)
        except Exception as error:
            _faults.note(error, "a request failed", command=request.command[:100])
            refusal = INTERNAL_ERROR
        return self._format.encode(Refusal(request.id, refusal))

    async def _carry_out(self, request: StreamRequest, begun: Begun | None) -> object:
        payload = request.payload if len(memoryview(request.payload)) else NO_PAYLOAD[self._format]
        # It would keep the whole frame in memory for as long as the command takes.
        request.payload = _NOTHING
        decode = self._decoders.get(request.command)
        if decode is not None:
            command = await in_steps(decode, payload, self._service.fair_turns)
            del payload
            call = self._calls.get(command.namespace) if begun is None else None
            if call is None:
                call = self._new_call(command.namespace, begun)
            if command.waits is not None and command.is_waiting:
                # It has an answer when something happens, and until then others need not wait for it.
                task = asyncio.current_task()
                assert task is not None
                self._making_long.discard(task)
                self._has_room.set()
                return await self._waiting.wait_for(command, call, request.id)
            return await command.carry_out(call)
        decode_own = self._own_decoders.get(request.command)
        if decode_own is None:
            raise UnknownCommand(f"There is no command {request.command[:100]!r}; see docs/commands.md.")
        own = decode_own(payload)
        del payload
        if isinstance(own, Cancel):
            return self._waiting.cancel(own)
        if isinstance(own, Subscribe) and self._closing is not None:
            raise BrokerClosed("The broker is stopping; subscribe again in a moment.")
        if request.command in _SETTLING_COMMANDS:
            self._unseen.settled_at_s = asyncio.get_running_loop().time()
        return await self._subscriptions.carry_out(own)

    def _new_call(self, namespace: str, begun: Begun | None) -> Call:
        session = self._service.session(self._principal, namespace)
        if begun is not None:
            return Call(session, self._format, self._format, begun)
        call = Call(session, self._format, self._format)
        # Their number is the peer's choice, so it must not grow for ever.
        if len(self._calls) < CALLS_MAX:
            self._calls[namespace] = call
        return call


def _is_long(request: StreamRequest) -> bool:
    """Whether it may be read over several turns of the loop: those behind it wait until it is."""
    return byte_count(request.payload) > AT_ONCE_BYTES


def _in_order(requests: list[StreamRequest]) -> Iterator[list[StreamRequest]]:
    """The requests of an array, those together that may be started one right after the other."""
    group: list[StreamRequest] = []
    for request in requests:
        kind = COMMANDS.get(request.command)
        if kind is not None and not kind.at_once:
            if group:
                yield group
            yield [request]
            group = []
        else:
            group.append(request)
    if group:
        yield group
