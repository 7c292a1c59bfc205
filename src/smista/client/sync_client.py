"""The client for programs without an event loop: `AsyncClient` on a loop in a thread of its own.

    with Client("http://127.0.0.1:9324") as client:
        client.declare_queue("orders")
        client.publish("orders", {"pizza": "margherita"})
        for delivery in client.subscribe("orders"):
            with delivery:
                print(delivery.json())

Any number of threads may share one client. What they publish and acknowledge at the same time is sent together. A
client does not survive a fork: make a new one in the child process.

Most calls are those of `AsyncClient`, waited for; their parameters, types and docstrings are taken from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from smista.client.answers import PutSummary
from smista.client.async_client import AsyncClient
from smista.client.batch import BATCH_BYTES, BATCH_COUNT, Batch
from smista.client.bulk import Batches, OnProgress, OnResult, Tally
from smista.client.errors import ClientClosed
from smista.client.message import SyncDelivery
from smista.client.pages import Pages
from smista.client.portal import Call, Portal, Work, call_on
from smista.client.session import Pending
from smista.client.settling import RELEASE
from smista.client.sync_subscription import SyncPages, SyncSubscription
from smista.core.settings import check_text
from smista.errors import BrokerError

P = ParamSpec("P")
T = TypeVar("T")
_BATCHES_UNDER_WAY_MAX = 32
_Waited = Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]


def _waited(call: _Waited[P, T]) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(call)
    def wait(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.run(lambda: call(self._client, *args, **kwargs))

    return wait


def _paged(call: Callable[Concatenate[AsyncClient, P], Pages[T]]) -> Callable[Concatenate[Client, P], SyncPages[T]]:
    @functools.wraps(call)
    def pages(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> SyncPages[T]:
        return SyncPages(self._portal, call(self._client, *args, **kwargs))

    shown = inspect.signature(call)
    # For `help`, which would otherwise show the return type of `AsyncClient`.
    pages.__signature__ = shown.replace(return_annotation=f"Sync{shown.return_annotation}")  # type: ignore[attr-defined]
    return pages


def _constructed(
    construct: Callable[P, AsyncClient],
) -> Callable[[Callable[[Client, AsyncClient], None]], Callable[Concatenate[Client, P], None]]:
    """A constructor with the parameters of another class, which is given the instance."""

    def decorated(begin: Callable[[Client, AsyncClient], None]) -> Callable[Concatenate[Client, P], None]:
        @functools.wraps(AsyncClient.__init__)
        def init(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> None:
            begin(self, construct(*args, **kwargs))

        return init

    return decorated


class Client:
    """A connection to a broker, for programs without an event loop; see the module.

        with Client() as client:
            client.declare_queue("orders")
            client.publish("orders", {"pizza": "margherita"})

    Any number of threads may share one. It is closed at the end of the program at the latest.
    """

    @_constructed(AsyncClient)
    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._portal = Portal()
        # Runs also at the end of the program, and when the client is garbage-collected.
        self._shut = weakref.finalize(self, _shut, self._client, self._portal)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at the moment. The client reconnects by itself."""
        return self._client.is_connected

    @property
    def frame_bytes_max(self) -> int | None:
        """The largest request the broker takes from a client; None while there is no connection."""
        return self._client.frame_bytes_max

    def close(self) -> None:
        """End the subscriptions, wait until what was settled is on the broker's disk, and close the connection.

        Other calls under way fail with `ClientClosed`. Closing continues if the task that waits for it is cancelled.
        """
        self._shut()

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    connect = _waited(AsyncClient.connect)

    declare_queue = _waited(AsyncClient.declare_queue)
    create_queue = _waited(AsyncClient.create_queue)
    alter_queue = _waited(AsyncClient.alter_queue)
    queue_settings = _waited(AsyncClient.queue_settings)
    explain_settings = _waited(AsyncClient.explain_settings)
    delete_queue = _waited(AsyncClient.delete_queue)
    purge = _waited(AsyncClient.purge)
    pause = _waited(AsyncClient.pause)
    resume = _waited(AsyncClient.resume)
    queues = _waited(AsyncClient.queues)
    all_stats = _waited(AsyncClient.all_stats)
    stats = _waited(AsyncClient.stats)
    info = _waited(AsyncClient.info)

    set_policy = _waited(AsyncClient.set_policy)
    policies = _waited(AsyncClient.policies)
    delete_policy = _waited(AsyncClient.delete_policy)

    publish = _waited(AsyncClient.publish)
    publish_to_exchange = _waited(AsyncClient.publish_to_exchange)
    send_message = _waited(AsyncClient.send_message)

    def put_many(
        self,
        queue: str,
        messages: Iterable[Any],
        *,
        batch_count: int = BATCH_COUNT,
        batch_bytes: int = BATCH_BYTES,
        on_progress: OnProgress | None = None,
        on_result: OnResult | None = None,
    ) -> PutSummary:
        """Publish any number of messages, in batches, several of them under way at a time; in order.

        Each is bytes, a JSON-able value, or a `Publication` with properties of its own. `on_progress` is called with
        the number of messages done so far, `on_result` with the index and outcome of each message. A message that is
        refused, by the broker or because it cannot be sent, does not stop the others; it is in the summary's `errors`.
        An error that concerns all of them (`QueueNotFound`, `LowDisk`, ...) is raised, and so is what `messages`
        raises, after the messages before it are put; a note of the error says how many were accepted.

        The messages are read and the callbacks called in the calling thread.
        """
        check_text("queue", queue)
        tally = Tally(on_progress, on_result)
        under_way: deque[tuple[Call[Pending], Batch]] = deque()

        def count_first() -> None:
            call, batch = under_way.popleft()
            tally.count(call.wait(), batch)

        try:
            source = Batches(messages, batch_count, batch_bytes)
            for batch in source:
                put = functools.partial(self._client.put_batch, queue, batch, brief=tally.is_brief)
                call = self._portal.submit(put)
                under_way.append((call, batch))
                while under_way and (under_way[0][0].is_done or len(under_way) >= _BATCHES_UNDER_WAY_MAX):
                    count_first()
            while under_way:
                count_first()
        except BrokerError as error:
            tally.count_rest(_answered(under_way), error)
            raise
        tally.check_source(source.failure)
        return tally.summary

    def receive(
        self, queue: str, limit: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None, consumer: str = ""
    ) -> list[SyncDelivery]:
        """Up to `limit` messages under lease (the queue's, or `lease_ms`).

        If the queue is empty this waits up to `wait_ms` (at most 20,000); returns an empty list if nothing came. A
        message is held until its lease ends, whatever happens to the connection. A call that is interrupted, as by
        Ctrl-C, takes nothing: messages that arrive at that moment are released.
        """
        received = _Received()
        try:
            self._portal.run(
                lambda: received.fill(
                    lambda: self._client.receive_as(
                        SyncDelivery, queue, limit, wait_ms=wait_ms, lease_ms=lease_ms, consumer=consumer
                    )
                )
            )
            return received.deliveries
        except BaseException:
            received.give_back(self._portal.loop)
            raise

    def receive_message(self, queue: str, max_messages: int = 1, wait_time_seconds: float = 0) -> list[SyncDelivery]:
        """Receive up to `max_messages`, waiting up to `wait_time_seconds`: `receive` by another name."""
        return self.receive(queue, max_messages, wait_ms=round(wait_time_seconds * 1000))

    def subscribe(
        self,
        queue: str,
        *,
        prefetch: int | None = None,
        lease_ms: int | None = None,
        priority: int = 0,
        consumer: str = "",
    ) -> SyncSubscription:
        """Have the messages of a queue pushed: an iterator of deliveries.

            with client.subscribe("orders", prefetch=100) as orders:
                for delivery in orders:
                    with delivery:
                        handle(delivery.json())

        `prefetch` (default: the queue's) limits how many unsettled messages may be here at a time. Without `lease_ms`
        they are held as long as the connection lives. Consumers of higher `priority` are served first.
        """
        subscription = self._client.subscribe_as(
            SyncDelivery, queue, prefetch=prefetch, lease_ms=lease_ms, priority=priority, consumer=consumer
        )
        return SyncSubscription(self._portal, subscription)

    ack = _waited(AsyncClient.ack)
    nack = _waited(AsyncClient.nack)
    release = _waited(AsyncClient.release)
    extend = _waited(AsyncClient.extend)
    acknowledge_message = _waited(AsyncClient.acknowledge_message)
    nack_message = _waited(AsyncClient.nack_message)
    release_message = _waited(AsyncClient.release_message)
    extend_message = _waited(AsyncClient.extend_message)

    browse = _paged(AsyncClient.browse)
    peek = _waited(AsyncClient.peek)
    get = _waited(AsyncClient.get)
    dead_letters = _paged(AsyncClient.dead_letters)
    dead_letter_places = _waited(AsyncClient.dead_letter_places)
    redrive = _waited(AsyncClient.redrive)
    start_redrive = _waited(AsyncClient.start_redrive)
    redrives = _waited(AsyncClient.redrives)
    cancel_redrive = _waited(AsyncClient.cancel_redrive)
    purge_dead_letters = _waited(AsyncClient.purge_dead_letters)
    scheduled = _paged(AsyncClient.scheduled)
    reschedule = _waited(AsyncClient.reschedule)
    cancel_scheduled = _waited(AsyncClient.cancel_scheduled)
    delete_message = _waited(AsyncClient.delete_message)

    declare_exchange = _waited(AsyncClient.declare_exchange)
    delete_exchange = _waited(AsyncClient.delete_exchange)
    exchanges = _waited(AsyncClient.exchanges)
    bind = _waited(AsyncClient.bind)
    unbind = _waited(AsyncClient.unbind)
    bindings = _waited(AsyncClient.bindings)
    route = _waited(AsyncClient.route)


class _Received:
    """Deliveries on their way to a thread, released if the thread is interrupted before it has them."""

    def __init__(self) -> None:
        self.deliveries: list[SyncDelivery] = []
        self._is_unwanted = False

    async def fill(self, receive: Work[list[SyncDelivery]]) -> None:
        self.deliveries.extend(await receive())
        if self._is_unwanted:
            self._release()

    def give_back(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_unwanted = True
        with contextlib.suppress(ClientClosed):
            call_on(loop, self._release)

    def _release(self) -> None:
        while self.deliveries:
            self.deliveries.pop().settle_soon(RELEASE)


def _answered(under_way: Iterable[tuple[Call[Pending], Batch]]) -> Iterator[tuple[Pending, Batch]]:
    """The batches that were sent, once they are answered; others may not have been, if the client was closed."""
    for call, batch in under_way:
        with contextlib.suppress(BrokerError):
            yield call.wait(), batch


def _shut(client: AsyncClient, portal: Portal) -> None:
    try:
        portal.run(client.close)
    except BrokerError:
        return  # in a forked child, where there is nothing to close
    finally:
        portal.close()
