"""Messages as a program gets them: seen by browsing, or delivered, to be settled.

    Message ── what browse, peek and get show
       └── Delivered ── one handing-over; names itself by a tag (pushed) or a receipt (received)
              ├── Delivery       of `AsyncClient`: `await delivery.ack()`
              └── SyncDelivery   of `Client`: `delivery.ack()`, from any thread

They are decoded straight from what came over the stream. A second object around each would cost 0.2 us, on top of 0.7
for decoding, and every field would have to be passed through.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar, overload

import msgspec

from smista.client.portal import run_on
from smista.client.settling import ACK, RELEASE, Settler, Settling
from smista.core.errors import InvalidArgument, StaleReceipt

T = TypeVar("T")
Kind: TypeAlias = type[T]  # a message has a field called `type`
_ERROR_CHARACTERS_MAX = 2_000
_DELAY_MS_MAX = 1 << 52


class Failure(msgspec.Struct, frozen=True):
    """One delivery that failed."""

    delivery: int
    reason: str
    delivered_at_ms: int
    failed_at_ms: int
    error: str


class Death(msgspec.Struct, frozen=True):
    """One passage of a message into a dead-letter queue."""

    queue: str
    reason: str
    at_ms: int
    delivery_count: int
    failures: list[Failure] = []
    count: int = 1
    exchange: str = ""
    routing_key: str = ""


class Message(msgspec.Struct, kw_only=True, eq=False):
    """A message with all that is known of it; `body` has its bytes, `json`, `text` and `value` read them."""

    id: str = msgspec.field(name="message_id")
    queue: str = ""
    body: bytes | None = None
    """None where the log lost it to damage, and where bodies were not asked for."""
    priority: int = 0
    headers: dict[str, Any] = {}
    delivery_count: int = 0
    """Deliveries so far."""
    retry_count: int = 0
    """Deliveries before this one, or before the next one when browsing."""
    created_at_ms: int = 0
    state: str = ""
    """`ready`, `scheduled`, `in_flight` or `dead`; empty for a delivery."""
    ready_at_ms: int | None = None
    expires_at_ms: int | None = None
    lease_until_ms: int | None = None
    exchange: str = ""
    routing_key: str = ""
    group: str | None = None
    deduplication_id: str | None = None
    ttl_ms: int | None = None
    max_retries: int | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    type: str | None = None
    app_id: str | None = None
    user_id: str | None = None
    external_id: str | None = None
    timestamp_ms: int | None = None
    properties: bytes | None = None
    """As another protocol keeps them (AMQP, SQS), where it published the message; not of a delivery."""
    failures: list[Failure] = []
    deaths: list[Death] = []

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: Kind[T]) -> T: ...

    def json(self, kind: Any = Any) -> Any:
        """The body read as JSON; with a `kind` (a dataclass, a `msgspec.Struct`, ...) checked and made into one.

        Raises `msgspec.DecodeError` for what is not JSON, and `msgspec.ValidationError`, which is one too, for what is
        not of the kind.
        """
        return msgspec.json.decode(self._present(), type=kind)

    def text(self) -> str:
        """The body as text in UTF-8; raises `UnicodeDecodeError`."""
        return self._present().decode()

    def value(self) -> Any:
        """What the body says by its content type: a JSON value, text, or the bytes as they are."""
        content_type = (self.content_type or "").partition(";")[0].strip().lower()
        if content_type == "application/json" or content_type.endswith("+json"):
            return self.json()
        if content_type.startswith("text/"):
            return self.text()
        body = self._present()
        if content_type:
            return body
        try:
            return body.decode()
        except UnicodeDecodeError:
            return body

    def _present(self) -> bytes:
        if self.body is None:
            raise ValueError(f"Message {self.id} came without its body: it was not asked for, or the log has lost it.")
        return self.body

    def __repr__(self) -> str:
        state = f", {self.state}" if self.state else ""
        return f"<{type(self).__name__} {self.id} of queue {self.queue!r}{state}, delivery {self.delivery_count}>"


class Delivered(Message, kw_only=True, eq=False):
    """What both kinds of delivery have in common."""

    body: bytes = b""
    receipt: str | None = None
    """Names this delivery where it was received; survives the connection."""
    tag: int = 0
    """Names it on its connection, where it was pushed."""
    delivered_at_ms: int = 0
    is_settled: bool = False
    """Whether this program has acked, nacked or released it."""
    settler: Settler | None = None

    @property
    def is_redelivered(self) -> bool:
        """Whether it was delivered before."""
        return self.delivery_count > 1

    @property
    def is_void(self) -> bool:
        """Whether its connection is gone: the broker has put the message back, and it comes again."""
        return self.settler is not None and self.settler.is_void

    @property
    def name(self) -> int | str:
        """What its settler knows it by."""
        return self.tag if self.receipt is None else self.receipt

    def settle_soon(self, how: Settling) -> None:
        """What `ack_soon` and its like do."""
        self._claim(how).settle_soon(how, self.name)

    async def _settle(self, how: Settling) -> str:
        return await self._claim(how).settle(how, self.name)

    def _claim(self, how: Settling) -> Settler:
        """Note that it is being settled, which can be done once."""
        assert self.settler is not None
        if self.is_settled:
            raise StaleReceipt(
                f"Delivery {self.delivery_count} of message {self.id} has been settled already, by this program; "
                "settle each once."
            )
        self.is_settled = how.lease_ms is None
        return self.settler


def nacking(error: str | BaseException, *, requeue: bool = True, delay_ms: int | None = None) -> Settling:
    """Raises `InvalidArgument` for a delay that the broker would refuse: nothing is settled then."""
    if delay_ms is not None and (type(delay_ms) is not int or not 0 <= delay_ms <= _DELAY_MS_MAX):
        raise InvalidArgument(f"delay_ms is {delay_ms!r}; give a whole number of milliseconds, 0 or more.")
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
    # What is no UTF-8, as names of files may be, has to be said in other words.
    error = error[:_ERROR_CHARACTERS_MAX].encode(errors="backslashreplace").decode()
    return Settling("nack", bool(requeue), delay_ms, error)


def text_of(error: BaseException) -> str:
    """What it says of itself, also where it cannot."""
    try:
        return str(error)
    except Exception:
        return "(it has no text: its __str__ raises)"


class Delivery(Delivered, kw_only=True, eq=False):
    """One handing-over of a message to this program.

        async with delivery:            # acks at the end, nacks with the error's text on an exception
            handle(delivery.json())

    or settle it by hand. `ack`, `nack`, `release` and `extend` return when the broker has it on disk, and raise
    `StaleReceipt` when the message is no longer this program's. `ack_soon` and `nack_soon` do not wait, and neither
    does the `async with`: they go out together with others, and where they come too late the message comes again.
    """

    async def ack(self) -> None:
        """It is done: the message is gone."""
        await self._settle(ACK)

    async def nack(self, error: str = "", *, requeue: bool = True, delay_ms: int | None = None) -> str:
        """It failed: retried after a back-off (or `delay_ms`) while it has retries left; else, or with `requeue`
        False, a dead letter. Returns which: `requeued` or `dead_lettered`."""
        return await self._settle(nacking(error, requeue=requeue, delay_ms=delay_ms))

    async def release(self) -> None:
        """Give it back to its place, not counted as a failure."""
        await self._settle(RELEASE)

    async def extend(self, lease_ms: int) -> None:
        """The lease now ends `lease_ms` from now."""
        await self._settle(Settling("extend", lease_ms=lease_ms))

    def ack_soon(self) -> None:
        """As `ack`, together with others, and not waited for."""
        self.settle_soon(ACK)

    def nack_soon(self, error: str = "", *, requeue: bool = True, delay_ms: int | None = None) -> None:
        """As `nack`, together with others, and not waited for."""
        self.settle_soon(nacking(error, requeue=requeue, delay_ms=delay_ms))

    async def __aenter__(self) -> Delivery:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        if not self.is_settled:
            self.settle_soon(ACK if error is None else _settling_for(error))
        return False


class SyncDelivery(Delivered, kw_only=True, eq=False):
    """One handing-over of a message to this program, to be settled from any thread.

        with delivery:                  # acks at the end, nacks with the error's text on an exception
            handle(delivery.json())

    or settle it by hand. `ack`, `nack`, `release` and `extend` return when the broker has it on disk, and raise
    `StaleReceipt` when the message is no longer this program's. `ack_soon` and `nack_soon` do not wait, and neither
    does the `with`: they go out together with others, and where they come too late the message comes again.
    """

    def ack(self) -> None:
        """It is done: the message is gone."""
        self._run(ACK)

    def nack(self, error: str = "", *, requeue: bool = True, delay_ms: int | None = None) -> str:
        """It failed: retried after a back-off (or `delay_ms`) while it has retries left; else, or with `requeue`
        False, a dead letter. Returns which: `requeued` or `dead_lettered`."""
        return self._run(nacking(error, requeue=requeue, delay_ms=delay_ms))

    def release(self) -> None:
        """Give it back to its place, not counted as a failure."""
        self._run(RELEASE)

    def extend(self, lease_ms: int) -> None:
        """The lease now ends `lease_ms` from now."""
        self._run(Settling("extend", lease_ms=lease_ms))

    def ack_soon(self) -> None:
        """As `ack`, together with others, and not waited for."""
        self.settle_soon(ACK)

    def nack_soon(self, error: str = "", *, requeue: bool = True, delay_ms: int | None = None) -> None:
        """As `nack`, together with others, and not waited for."""
        self.settle_soon(nacking(error, requeue=requeue, delay_ms=delay_ms))

    def settle_soon(self, how: Settling) -> None:
        """What `ack_soon` and its like do."""
        assert self.settler is not None
        self.settler.check_process()
        self._claim(how).settle_from_thread(how, self.name)

    def _run(self, how: Settling) -> str:
        assert self.settler is not None
        self.settler.check_process()
        return run_on(self.settler.loop, lambda: self._settle(how))

    def __enter__(self) -> SyncDelivery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        if not self.is_settled:
            self.settle_soon(ACK if error is None else _settling_for(error))
        return False


def _settling_for(error: BaseException) -> Settling:
    """A program that is told to stop has not failed: what it was doing goes back uncounted."""
    return nacking(error) if isinstance(error, Exception) else RELEASE
