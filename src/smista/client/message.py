"""Messages as a program gets them: browsed, or delivered and to be settled.

    Message ── what browse, peek and get return
       └── Delivered ── one delivery, named by a tag (pushed) or a receipt (received)
              ├── Delivery       of `AsyncClient`: `await delivery.ack()`
              └── SyncDelivery   of `Client`: `delivery.ack()`, from any thread

They are decoded directly from the stream. A second object around each would cost 0.2 us on top of the 0.7 us for
decoding, and would have to pass every field through.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar, overload

import msgspec

from smista.client.portal import run_on
from smista.client.settling import ACK, RELEASE, Settler, Settling
from smista.errors import InvalidArgument, StaleReceipt
from smista.message_properties import MessageProperties, is_json, is_text

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
    """One dead-lettering of a message."""

    queue: str
    reason: str
    at_ms: int
    delivery_count: int
    failures: list[Failure] = []
    count: int = 1
    exchange: str = ""
    routing_key: str = ""


class Message(MessageProperties, kw_only=True, eq=False):
    """A message with its metadata; `body` holds its bytes, which `json`, `text` and `value` decode."""

    id: str = msgspec.field(name="message_id")
    queue: str = ""
    body: bytes | None = None
    """None if the log lost it to damage, or if bodies were not asked for."""
    priority: int = 0
    headers: dict[str, Any] = msgspec.field(default_factory=dict)
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
    properties: bytes | None = None
    """The encoded properties of a message published over AMQP or SQS; absent from deliveries."""
    failures: list[Failure] = msgspec.field(default_factory=list)
    deaths: list[Death] = msgspec.field(default_factory=list)

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: Kind[T]) -> T: ...

    def json(self, kind: Any = Any) -> Any:
        """The body decoded as JSON; with a `kind` (a dataclass, a `msgspec.Struct`, ...) checked and converted to it.

        Raises `msgspec.DecodeError` if it is not JSON, and `msgspec.ValidationError`, a subclass, if it is not of the
        kind.
        """
        return msgspec.json.decode(self._present(), type=kind)

    def text(self) -> str:
        """The body decoded as UTF-8; raises `UnicodeDecodeError`."""
        return self._present().decode()

    def value(self) -> Any:
        """The body decoded by its content type: a JSON value, text, or the bytes as they are."""
        if is_json(self.content_type):
            return self.json()
        body = self._present()
        if not is_text(self.content_type or None):
            return body
        try:
            return body.decode()
        except UnicodeDecodeError:
            if self.content_type:
                raise
            return body

    def _present(self) -> bytes:
        if self.body is None:
            raise ValueError(f"Message {self.id} has no body here: it was not asked for, or the log has lost it.")
        return self.body

    def __repr__(self) -> str:
        state = f", {self.state}" if self.state else ""
        return f"<{type(self).__name__} {self.id} of queue {self.queue!r}{state}, delivery {self.delivery_count}>"


class Delivered(Message, kw_only=True, eq=False):
    """What `Delivery` and `SyncDelivery` have in common."""

    body: bytes = b""
    receipt: str | None = None
    """Names a delivery that was received; outlives the connection."""
    tag: int = 0
    """Names a delivery that was pushed, on its connection."""
    delivered_at_ms: int = 0
    is_settled: bool = False
    """Whether this program has acknowledged, nacked or released it."""
    settler: Settler | None = None

    @property
    def is_redelivered(self) -> bool:
        """Whether it was delivered before."""
        return self.delivery_count > 1

    @property
    def is_void(self) -> bool:
        """Whether its connection is gone: the broker has requeued the message and will deliver it again."""
        return self.settler is not None and self.settler.is_void

    @property
    def name(self) -> int | str:
        """The tag or receipt by which its settler names it."""
        return self.tag if self.receipt is None else self.receipt

    def settle_soon(self, how: Settling) -> None:
        """Settle it without waiting, together with others."""
        self._claim(how).settle_soon(how, self.name)

    def ack_soon(self) -> None:
        """As `ack`, but without waiting, and sent together with others."""
        self.settle_soon(ACK)

    def nack_soon(self, error: str = "", *, requeue: bool = True, delay_ms: int | None = None) -> None:
        """As `nack`, but without waiting, and sent together with others."""
        self.settle_soon(nacking(error, requeue=requeue, delay_ms=delay_ms))

    async def _settle(self, how: Settling) -> str:
        return await self._claim(how).settle(how, self.name)

    def _leave(self, error: BaseException | None) -> None:
        """At the end of a `with`. An exception that stops the program is no failure of the message: it is released."""
        if not self.is_settled:
            how = ACK if error is None else nacking(error) if isinstance(error, Exception) else RELEASE
            self.settle_soon(how)

    def _claim(self, how: Settling) -> Settler:
        """Note that it is being settled; raises `StaleReceipt` the second time."""
        assert self.settler is not None
        if self.is_settled:
            raise StaleReceipt(
                f"Delivery {self.delivery_count} of message {self.id} has been settled already, by this program; "
                "settle each once."
            )
        self.is_settled = how.lease_ms is None
        return self.settler


def nacking(error: str | BaseException, *, requeue: bool = True, delay_ms: int | None = None) -> Settling:
    """Raises `InvalidArgument` for a delay that the broker would refuse; nothing is settled then."""
    if delay_ms is not None and (type(delay_ms) is not int or not 0 <= delay_ms <= _DELAY_MS_MAX):
        raise InvalidArgument(f"delay_ms is {delay_ms!r}; give a whole number of milliseconds, 0 or more.")
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
    # Text that is not valid UTF-8, as in names of files, is escaped.
    error = error[:_ERROR_CHARACTERS_MAX].encode(errors="backslashreplace").decode()
    return Settling("nack", bool(requeue), delay_ms, error)


def text_of(error: BaseException) -> str:
    """The text of an error; a placeholder if its `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return "(it has no text: its __str__ raises)"


class Delivery(Delivered, kw_only=True, eq=False):
    """One delivery of a message to this program.

        async with delivery:            # acknowledges at the end, nacks with the error's text on an exception
            handle(delivery.json())

    or settle it by hand. `ack`, `nack`, `release` and `extend` return when the broker has it on disk, and raise
    `StaleReceipt` when the delivery is over. `ack_soon`, `nack_soon` and the `async with` do not wait: they are sent
    together with others, and if one comes too late the message is delivered again.
    """

    async def ack(self) -> None:
        """Acknowledge: the message is done and is removed."""
        await self._settle(ACK)

    async def nack(self, error: str = "", *, requeue: bool = True, delay_ms: int | None = None) -> str:
        """The delivery failed. The message is retried after a back-off (or `delay_ms`) while it has retries left; else,
        or with `requeue` False, it becomes a dead letter. Returns `requeued` or `dead_lettered`."""
        return await self._settle(nacking(error, requeue=requeue, delay_ms=delay_ms))

    async def release(self) -> None:
        """Return it to its place in the queue; not counted as a failure."""
        await self._settle(RELEASE)

    async def extend(self, lease_ms: int) -> None:
        """Have the lease end `lease_ms` from now."""
        await self._settle(Settling("extend", lease_ms=lease_ms))

    async def __aenter__(self) -> Delivery:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        self._leave(error)
        return False


class SyncDelivery(Delivered, kw_only=True, eq=False):
    """One delivery of a message to this program, to be settled from any thread.

        with delivery:                  # acknowledges at the end, nacks with the error's text on an exception
            handle(delivery.json())

    or settle it by hand. `ack`, `nack`, `release` and `extend` return when the broker has it on disk, and raise
    `StaleReceipt` when the delivery is over. `ack_soon`, `nack_soon` and the `with` do not wait: they are sent
    together with others, and if one comes too late the message is delivered again.
    """

    def ack(self) -> None:
        """Acknowledge: the message is done and is removed."""
        self._run(ACK)

    def nack(self, error: str = "", *, requeue: bool = True, delay_ms: int | None = None) -> str:
        """The delivery failed. The message is retried after a back-off (or `delay_ms`) while it has retries left; else,
        or with `requeue` False, it becomes a dead letter. Returns `requeued` or `dead_lettered`."""
        return self._run(nacking(error, requeue=requeue, delay_ms=delay_ms))

    def release(self) -> None:
        """Return it to its place in the queue; not counted as a failure."""
        self._run(RELEASE)

    def extend(self, lease_ms: int) -> None:
        """Have the lease end `lease_ms` from now."""
        self._run(Settling("extend", lease_ms=lease_ms))

    def settle_soon(self, how: Settling) -> None:
        """Settle it without waiting, together with others."""
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
        self._leave(error)
        return False
