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
for something to happen, long polls above all, is bounded by itself, so that reading never has to wait for it.

It ends in one of two ways. The connection goes: all that it held goes back at once, as failed deliveries, since any of
them may be what killed the consumer. Or the broker stops (`close`): what is held is released, requests under way are
answered, and then the WebSocket is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec

from smista.engine import Broker
from smista.engine.running import SLICE_S
from smista.errors import BrokerClosed, BrokerError
from smista.protocols.faults import Faults
from smista.protocols.http.answering import encoded, has_long_list
from smista.protocols.http.asgi import Event, Receive, Send
from smista.protocols.http.bounded import AT_ONCE_BYTES, VALUES_MAX, byte_count, check_values, in_steps
from smista.protocols.http.commands import DECODERS, Door
from smista.protocols.http.commands.claims import MakeClaim
from smista.protocols.http.commands.dead_letters import RedriveDeadLetters
from smista.protocols.http.commands.receiving import Consume, Messages
from smista.protocols.http.commands.receiving import Receive as ReceiveCommand
from smista.protocols.http.errors import (
    ErrorBody,
    RequestCancelled,
    RequestTooLarge,
    TooManyRequests,
    UnknownCommand,
    error_body,
)
from smista.protocols.http.formats import JSON, Format
from smista.protocols.http.held import Held, HeldBytes
from smista.protocols.http.messages import MessageView
from smista.protocols.http.outbox import Outbox
from smista.protocols.http.staging import Staging
from smista.protocols.http.stream_frames import (
    NO_PAYLOAD,
    OWN_DECODERS,
    Answer,
    Cancel,
    Cancelled,
    Refusal,
    RequestId,
    StreamRequest,
    Subscribe,
    read_frame,
)
from smista.protocols.http.stream_subscriptions import Subscriptions
from smista.protocols.places import Places

T = TypeVar("T")
logger = logging.getLogger("smista.stream")
_faults = Faults(logger)

REQUESTS_MAX = 10_000
"""Under way on one connection; beyond that no frame is read until some are answered."""
WAITING_MAX = 1_000
"""Of those, how many may wait for something to happen: long polls, slow redrives. One more is refused."""
AT_ONCE = 100
"""How many requests are started before those that were get their turn."""

INTERNAL_ERROR = ErrorBody("internal_error", "The broker is at fault; its log says more. Nothing was confirmed.")

_NOTHING = msgspec.Raw()
_SLOW_COMMANDS = frozenset(
    (
        "queue.consume",
        "queue.receive",
        "dlq.retry",
        "dlq.purge",
        "claim.make",
        "claim.acknowledge",
        "claim.release",
        "staged.commit",
        "staged.discard",
    )
)
"""They do not do all they do in their first step: in an array, the next request waits for them."""
_SETTLING_COMMANDS = frozenset(("ack", "nack", "release", "extend"))
"""One of them may be about very many messages."""
_MAY_WAIT: frozenset[type] = frozenset((ReceiveCommand, Consume, MakeClaim, RedriveDeadLetters))


class Budget:
    """How much the answers to one array may still take."""

    __slots__ = ("bytes_left",)

    def __init__(self, bytes_left: int) -> None:
        self.bytes_left = bytes_left


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
        broker: Broker,
        staging: Staging,
        spoken: Format,
        receive: Receive,
        send: Send,
        *,
        peer: str,
        output_bytes_max: int,
        held: Held | None = None,
        places: Places | None = None,
    ) -> None:
        """`held` counts the arrays that are under way, and is released by who gives it."""
        self._held = held or Held(HeldBytes())
        self._broker = broker
        self._format = spoken
        self._decoders = DECODERS[spoken]
        self._own_decoders = OWN_DECODERS[spoken]
        self._door = Door(broker, staging, spoken, spoken, places)
        self._receive = receive
        self._output_bytes_max = output_bytes_max
        self._outbox = Outbox(send, is_text=spoken is JSON, bytes_max=output_bytes_max, on_room=self._make_room)
        self._subscriptions = Subscriptions(broker, spoken, self._outbox, peer=peer, on_fault=self._fail)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting: set[asyncio.Future[object]] = set()
        """What waits for something to happen, in one of the tasks."""
        self._cancellable: dict[RequestId, asyncio.Future[object]] = {}
        """Of those, the ones that can be taken back, by the number of their request ..."""
        self._taken_back: set[asyncio.Future[object]] = set()
        """... and the ones that were."""
        self._has_room = asyncio.Event()
        self._farewell: tuple[int, str] | None = None

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
            results = await asyncio.gather(*running, return_exceptions=True)
        for result in results[:2]:
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    def close(self, code: int, reason: str) -> None:
        """Release what is held, read no more, answer the requests that are under way, and then close."""
        if self._farewell is not None:
            return
        self._farewell = (code, reason)
        self._subscriptions.let_go(is_vanished=False)
        for waiting in self._waiting:
            waiting.cancel()
        if not self._tasks:
            self._outbox.close(code, reason)

    def _fail(self) -> None:
        self._subscriptions.let_go(is_vanished=True)
        self.close(1011, "internal error")

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
        if self._farewell is not None:
            return True
        text, binary = event.get("text"), event.get("bytes")
        data: str | bytes = text or binary or b""
        if len(data) > VALUES_MAX:
            try:
                data = data.encode() if isinstance(data, str) else data
                await check_values(data, self._format, self._broker.lane)
            except RequestTooLarge as error:
                self._outbox.put(self._format.encode(Refusal(None, error_body(error))))
                return True
        frame = read_frame(self._format, text=text, binary=binary)
        if isinstance(frame, StreamRequest):
            answering = partial(self._answer_one, frame)
            if _is_long(frame):
                await self._begin(answering)
            else:
                self._start(answering(self._door))
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
        return len(self._tasks) >= REQUESTS_MAX or self._outbox.has_many_answers or self._broker.is_behind

    async def _room(self) -> None:
        """Wait until another frame may be read. That is never long, unless the peer or the disk stands still."""
        while self._is_busy:
            if self._broker.is_behind:
                # Here rather than in each publish, so that they keep their order.
                try:
                    await self._broker.room()
                except BrokerError:
                    return  # it has stopped, as every request will be told
            else:
                self._has_room.clear()
                await self._has_room.wait()

    def _make_room(self) -> None:
        self._has_room.set()
        self._subscriptions.make_room()

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._has_room.set()
        if self._farewell is not None and not self._tasks:
            self._outbox.close(*self._farewell)

    # -- answering ----------------------------------------------------------------------------------------------------

    async def _begin(self, work: Callable[[Door], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Start something that is so long that it is read in turns; returns when it is read."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not begun.done():
                begun.set_result(None)

        door = Door(self._broker, self._door.staging, self._format, self._format, self._door.places, begin)
        task = self._start(work(door))
        await asyncio.wait((task, begun), return_when=asyncio.FIRST_COMPLETED)
        return task

    async def _answer_one(self, request: StreamRequest, door: Door) -> None:
        answer = await self._outcome(request, door)
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
            # Whatever happens, frames are read on.
            is_started.set()
        told = [msgspec.Raw(answer) for answer in answers if answer is not None]
        if told:
            self._outbox.put(self._format.encode(told))

    async def _start_group(self, group: list[StreamRequest], budget: Budget) -> list[asyncio.Task[bytes | None]]:
        """Start them in order; returns when all have done their first step."""
        started: list[asyncio.Task[bytes | None]] = []
        while len(started) < len(group):
            turn = Turn()
            some = group[len(started) : len(started) + AT_ONCE]
            if _is_long(some[0]):
                started.append(await self._begin(partial(self._outcome_within, budget, turn, some[0])))
                continue
            short = itertools.takewhile(lambda request: not _is_long(request), some)
            tasks = [self._start(self._outcome_within(budget, turn, request, self._door)) for request in short]
            await asyncio.sleep(0)
            # Those that did not begin have ended without a trace, and are started anew.
            started += tasks[: turn.begun]
            await self._subscriptions.settled()
        return started

    async def _outcome_within(self, budget: Budget, turn: Turn, request: StreamRequest, door: Door) -> bytes | None:
        """`_outcome`, unless the answers before it are too much already; nothing once its turn is over."""
        if not turn.begin():
            return None
        if budget.bytes_left < 0:
            error = TooManyRequests(
                f"The answers to this array are over {self._output_bytes_max} bytes already, and this request was not "
                "carried out; send it in another frame."
            )
            return self._format.encode(Refusal(request.id, error_body(error)))
        answer = await self._outcome(request, door)
        if answer is not None:
            budget.bytes_left -= len(answer)
        return answer

    async def _outcome(self, request: StreamRequest, door: Door) -> bytes | None:
        """Carry out a request; what to answer, or None where nothing is to be said."""
        try:
            result = await self._carry_out(request, door)
            if request.id is None:
                return None
            if has_long_list(result):
                result = msgspec.Raw(await encoded(result, self._format, self._broker.lane))
            return self._format.encode(Answer(request.id, result))
        except BrokerError as error:
            said = error_body(error)
        except Exception as error:
            _faults.note(error, "a request failed", command=request.command[:100])
            said = INTERNAL_ERROR
        return self._format.encode(Refusal(request.id, said))

    async def _carry_out(self, request: StreamRequest, door: Door) -> object:
        payload = request.payload if len(memoryview(request.payload)) else NO_PAYLOAD[self._format]
        # It would keep the whole frame in memory for as long as the command takes.
        request.payload = _NOTHING
        decode = self._decoders.get(request.command)
        if decode is not None:
            command = await in_steps(decode, payload, self._broker.lane)
            del payload
            if type(command) in _MAY_WAIT and _waits(command):
                return await self._wait_for(command.run(door), request.id)
            return await command.run(door)
        decode_own = self._own_decoders.get(request.command)
        if decode_own is None:
            raise UnknownCommand(f"There is no command {request.command[:100]!r}; see docs/commands.md.")
        own = decode_own(payload)
        del payload
        if isinstance(own, Cancel):
            return self._cancel(own)
        if isinstance(own, Subscribe) and self._farewell is not None:
            raise BrokerClosed("The broker is stopping; subscribe again in a moment.")
        return await self._subscriptions.carry_out(own)

    async def _wait_for(self, work: Awaitable[object], request_id: RequestId) -> object:
        """The result of something that may take long: there is a bound to those, and `close` and `cancel` end them."""
        waiting = asyncio.ensure_future(work)
        try:
            if len(self._waiting) >= WAITING_MAX:
                raise TooManyRequests(f"{WAITING_MAX} requests wait on this connection; let one of them end first.")
            self._waiting.add(waiting)
            if request_id is not None:
                self._cancellable.setdefault(request_id, waiting)
            return await waiting
        except asyncio.CancelledError:
            if waiting in self._taken_back:
                raise RequestCancelled(
                    "This request was taken back by whoever sent it; it has taken nothing."
                ) from None
            if self._farewell is not None:
                raise BrokerClosed("The broker is stopping; ask again in a moment.") from None
            # The peer is gone, and would not hear of what had just come for it.
            waiting.add_done_callback(self._give_back)
            raise
        finally:
            waiting.cancel()
            self._waiting.discard(waiting)
            self._taken_back.discard(waiting)
            if self._cancellable.get(request_id) is waiting:
                del self._cancellable[request_id]

    def _cancel(self, command: Cancel) -> Cancelled:
        waiting = self._cancellable.get(command.request)
        # One that has its result is answered with it, and whoever asked can give it back.
        if waiting is None or not waiting.cancel():
            return Cancelled(False)
        self._taken_back.add(waiting)
        return Cancelled(True)

    def _give_back(self, done: asyncio.Future[object]) -> None:
        """Release what was received for somebody who will not hear of it."""
        if (
            done.cancelled()
            or done.exception() is not None
            or self._broker.is_closed
            or self._broker.failure is not None
        ):
            return
        match done.result():
            case Messages(messages=views):
                texts = [view.receipt for view in views]
            case MessageView(receipt=receipt):
                texts = [receipt]
            case _:
                return
        self._broker.release_now([self._broker.receipt(text) for text in texts if isinstance(text, str)])


def _is_long(request: StreamRequest) -> bool:
    """Whether it may be read over several turns of the loop: those behind it wait until it is."""
    return byte_count(request.payload) > AT_ONCE_BYTES


def _in_order(requests: list[StreamRequest]) -> Iterator[list[StreamRequest]]:
    """The requests of an array, those together that may be started one right after the other."""
    group: list[StreamRequest] = []
    for request in requests:
        if request.command in _SLOW_COMMANDS:
            if group:
                yield group
            yield [request]
            group = []
        else:
            group.append(request)
    if group:
        yield group


def _waits(command: object) -> bool:
    """Whether it waits for something to happen."""
    match command:
        case ReceiveCommand() | MakeClaim():
            return command.wait_ms > 0
        case Consume():
            return command.timeout > 0
        case RedriveDeadLetters():
            return command.per_second is not None
        case _:
            raise AssertionError(command)
