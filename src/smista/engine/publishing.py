"""Publishing on a running broker: the rules are in `core/publishing`, here is what enters in one step.

A batch enters whole, so in one block, unless that would be too much for a block, its queue has to serve its consumers
in between to know what fits, or messages of a full queue become dead letters in very many others for it. Then the rest
of it waits for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from smista.core import fan_out, publishing
from smista.core.checks import check_publications
from smista.core.entering import Placed, Result
from smista.core.exchanges import Reach
from smista.core.limits import is_one_by_one
from smista.core.message import Alike, Publication
from smista.core.queue import Queue
from smista.core.settings import check_text
from smista.core.state import DEFAULT_NAMESPACE, queue_not_found
from smista.engine.consumers import deleted
from smista.engine.delivery import Published
from smista.engine.ids import Ids
from smista.engine.running import Running
from smista.engine.slices import STEP_BYTES_MAX
from smista.engine.tickets import Ticket
from smista.errors import BrokerError, InvalidArgument
from smista.exchange_errors import ReachTooWide

FAN_OUT_AT_ONCE = 1_000
"""How many queues a message may go to beside others in the same turn of the loop: some 6 ms."""
WORK_AT_ONCE = 4_000
"""How much it may take beside others to find where a message goes: some 1.2 ms, which is lost where it takes more. As
many queues as above, by a binding each, are found with less."""


class Publishing:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state
        self._keeper = running.keeper
        self._tickets = running.tickets
        self._ids = running.ids

    async def publish(
        self,
        queue: str,
        publications: Sequence[Publication],
        *,
        batch_id: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published | BrokerError]:
        """As `submit`, when the log has caught up far enough to take more; returns when all are durable."""
        await self._keeper.room()
        return await self.submit(queue, publications, batch_id=batch_id, namespace=namespace)

    def submit(
        self,
        queue: str,
        publications: Sequence[Publication],
        *,
        batch_id: str | None = None,
        is_use: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Ticket[list[Published | BrokerError]]:
        """Publish to a queue; per publication what became of it, in order.

        The same messages under the same `batch_id` again, within the queue's deduplication window, are not stored
        again. Without `is_use` a queue that is deleted when nobody uses it does not live longer for this. An error for
        all where nothing at all was stored: no such queue, disk or memory low, broker stopped.
        """
        try:
            now_ms = self._running.enter_within_limits()
            self._running.check_pressure()
            target = self._state.queue(queue, namespace)
            if type(publications) is not list:
                check_publications(publications)
            if batch_id is None and len(publications) == 1:
                placed = publishing.publish(self._state, target, publications, is_use=is_use, now_ms=now_ms)
                if self._state.over_limit:
                    self._running.keep_limits(now_ms)
            else:
                placed = self._publish_in_parts(target, publications, 0, batch_id, is_use, now_ms)
        except BrokerError as error:
            return self._tickets.refused(error)
        self._running.after()
        results = self._published(placed)
        if len(results) == len(publications):
            return self._tickets.done(results)
        # These made dead letters in very many queues.
        return self._tickets.under_way(self._publish_rest(target, publications, results, batch_id, is_use))

    async def _publish_rest(
        self,
        target: Queue,
        publications: Sequence[Publication],
        results: list[Published | BrokerError],
        batch_id: str | None,
        is_use: bool,
    ) -> list[Published | BrokerError]:
        while len(results) < len(publications):
            await self._running.fair_turns.turn()
            results += self._publish_more(target, publications, len(results), batch_id, is_use)
        return results

    def _publish_more(
        self, target: Queue, publications: Sequence[Publication], start: int, batch_id: str | None, is_use: bool
    ) -> list[Published | BrokerError]:
        """Publish more of a batch, from `start` on. Some of it is stored: so what keeps the rest out is its result."""
        try:
            now_ms = self._running.enter_within_limits()
            self._running.check_pressure()
        except BrokerError as error:
            return [error] * (len(publications) - start)
        placed = self._publish_in_parts(target, publications[start:], start, batch_id, is_use, now_ms)
        self._running.after()
        return self._published(placed)

    def _publish_in_parts(
        self,
        target: Queue,
        publications: Sequence[Publication],
        start: int,
        batch_id: str | None,
        is_use: bool,
        now_ms: int,
    ) -> list[Result]:
        """`start` is the place of the first of them in its batch."""
        placed: list[Result] = []
        since = self._state.work
        is_known = batch_id is not None and not start and publishing.is_known_batch(target, batch_id, now_ms)
        sizes = _sizes(publications)
        for place in [slice(0, len(sizes))] if is_known else _parts(target, sizes):
            part = publications[place]
            if target.is_deleted:
                # By a consumer that was served in between.
                placed += [deleted(target)] * (len(publications) - len(placed))
                break
            batch = None
            if batch_id is not None:
                is_whole = not start and len(part) == len(publications)
                batch = publishing.Batch(batch_id, start + len(placed), is_whole)
            results = publishing.publish(
                self._state,
                target,
                part,
                batch=batch,
                is_use=is_use,
                is_cut=True,
                since=since + len(placed),
                now_ms=now_ms,
            )
            placed += results
            self._after_part(now_ms)
            if len(results) < len(part):
                break
        return placed

    def submit_alike(
        self, queue: str, alike: Alike, *, is_use: bool = True, namespace: str = DEFAULT_NAMESPACE
    ) -> Ticket[list[tuple[int, BrokerError]]]:
        """Publish messages that are alike: which of them were refused, and why."""
        try:
            now_ms = self._running.enter_within_limits()
            self._running.check_pressure()
            target = self._state.queue(queue, namespace)
        except BrokerError as error:
            return self._tickets.refused(error)
        refused: list[tuple[int, BrokerError]] = []
        since = self._state.work
        for part in _parts(target, list(map(len, alike.bodies))):
            first = part.start
            if target.is_deleted:
                refused += [(place, deleted(target)) for place in range(first, len(alike.bodies))]
                break
            found = publishing.publish_alike(
                self._state, target, alike.part(part), is_use=is_use, since=since + first, now_ms=now_ms
            )
            refused += [(first + place, error) for place, error in found]
            self._after_part(now_ms)
        self._running.after()
        return self._tickets.done(refused)

    def _after_part(self, now_ms: int) -> None:
        """A batch has been noted, or a part of one that does not enter in one step. Limits are kept in the same
        instant, since a message with no time to live is for whoever waits now."""
        self._running.keep_limits(now_ms)
        self._state.journal.between()

    async def publish_to_exchange(
        self,
        exchange: str,
        publication: Publication,
        *,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        batch_id: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published]:
        """As `submit_to_exchange`, when the log has caught up far enough; returns when it is durable."""
        await self._keeper.room()
        return await self.submit_to_exchange(
            exchange, publication, headers=headers, extra_keys=extra_keys, batch_id=batch_id, namespace=namespace
        )

    def submit_to_exchange(
        self,
        exchange: str,
        publication: Publication,
        *,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        batch_id: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Ticket[list[Published]]:
        """Publish through an exchange by the envelope's routing key: stored in every queue it leads to, or in none.

        Under the same `batch_id` again, within a queue's deduplication window, it is not stored there again.
        """
        publish = partial(
            self._publish_to_exchange,
            exchange,
            publication,
            headers=headers,
            extra_keys=extra_keys,
            batch_id=batch_id,
            namespace=namespace,
        )
        try:
            return self._tickets.done(publish(within=Reach(FAN_OUT_AT_ONCE, WORK_AT_ONCE)))
        except ReachTooWide:
            return self._tickets.under_way(self._publish_wide(publish))
        except BrokerError as error:
            return self._tickets.refused(error)

    async def _publish_wide(self, publish: Callable[[], list[Published]]) -> list[Published]:
        """One step, which nobody may cut: so there is one of them at a time, and then turns for everybody else. It has
        to be seen early that it is long, for very many may come in one turn of the loop."""
        turns = self._running.fan_out_turns
        await turns.turn()
        results = publish()
        turns.rest(max(1, len(results) // FAN_OUT_AT_ONCE))
        return results

    def _publish_to_exchange(
        self,
        exchange: str,
        publication: Publication,
        *,
        headers: Mapping[str, object] | None,
        extra_keys: Sequence[str],
        batch_id: str | None,
        within: Reach | None = None,
        namespace: str,
    ) -> list[Published]:
        """`within` less than any message may reach, one that goes further raises `ReachTooWide`."""
        check_text("exchange", exchange)
        if type(publication) is not Publication:
            raise InvalidArgument(f"A publication is a Publication, not {type(publication).__name__}.")
        now_ms = self._running.enter_within_limits()
        self._running.check_pressure()
        try:
            placed = fan_out.publish_to_exchange(
                self._state,
                self._state.namespace(namespace),
                exchange,
                publication,
                headers=headers,
                extra_keys=extra_keys,
                batch_id=batch_id,
                within=within,
                now_ms=now_ms,
            )
        finally:
            # Also where it is refused: it may have become a dead letter.
            self._running.keep_limits(now_ms)
            self._running.after()
        return [_as_published(one, self._ids) for one in placed]

    def submit_to_queues(
        self,
        queues: Sequence[str],
        publication: Publication,
        *,
        is_use: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Ticket[list[Published | BrokerError]]:
        """Publish to several queues, each for itself: per queue what became of it, also where another refused it, or is
        not there any more. Where they are very many, to some of them at a time."""
        if len(queues) > FAN_OUT_AT_ONCE:
            return self._tickets.under_way(self._publish_to_many(queues, publication, is_use, namespace))
        try:
            return self._tickets.done(self._publish_to_queues(queues, publication, is_use, namespace))
        except BrokerError as error:
            return self._tickets.refused(error)

    async def _publish_to_many(
        self, queues: Sequence[str], publication: Publication, is_use: bool, namespace: str
    ) -> list[Published | BrokerError]:
        _check_distinct(queues)
        results: list[Published | BrokerError] = []
        while len(results) < len(queues):
            await self._keeper.room()
            await self._running.fan_out_turns.turn()
            some = queues[len(results) : len(results) + FAN_OUT_AT_ONCE]
            try:
                results += self._publish_to_queues(some, publication, is_use, namespace)
            except BrokerError as error:
                if not results:
                    raise
                # Some of it is stored: so what keeps the rest out is its result.
                results += [error] * (len(queues) - len(results))
        return results

    def _publish_to_queues(
        self, queues: Sequence[str], publication: Publication, is_use: bool, namespace: str
    ) -> list[Published | BrokerError]:
        _check_distinct(queues)
        now_ms = self._running.enter_within_limits()
        self._running.check_pressure()
        space = self._state.namespaces.get(namespace)
        there: Mapping[str, Queue] = {} if space is None else space.queues
        found = [queue for name in queues if (queue := there.get(name)) is not None]
        placed = fan_out.publish_to_queues(self._state, found, publication, is_use=is_use, now_ms=now_ms)
        self._running.keep_limits(now_ms)
        self._running.after()
        published = self._published(placed)
        if len(found) == len(queues):
            return published
        results = {queue.name: result for queue, result in zip(found, published, strict=True)}
        return [results.get(name) or queue_not_found(name, namespace) for name in queues]

    def _published(self, placed: Sequence[Result]) -> list[Published | BrokerError]:
        ids = self._ids
        return [one if isinstance(one, BrokerError) else _as_published(one, ids) for one in placed]


def _as_published(placed: Placed, ids: Ids) -> Published:
    return Published(placed.number, placed.created_at_ms, placed.queue, placed.position, placed.is_duplicate, ids)


def _check_distinct(queues: Sequence[str]) -> None:
    """All are asked before anything is stored: a queue would be asked twice whether it has room for one."""
    if len(set(queues)) < len(queues):
        raise InvalidArgument("A queue is named twice; name each once, as it takes the message once.")


def _sizes(publications: Sequence[Publication]) -> list[int]:
    try:
        return [len(one.body) for one in publications]
    except (AttributeError, TypeError):
        # Something is no message, or its body is no bytes: it is refused by itself, wherever it stands.
        return [STEP_BYTES_MAX] * len(publications)


def _parts(queue: Queue, sizes: Sequence[int]) -> list[slice]:
    """How a batch enters whose bodies have these sizes: whole, unless that is too much for one block, or its queue has
    to serve in between."""
    count = len(sizes)
    if is_one_by_one(queue):
        return [slice(place, place + 1) for place in range(count)]
    if sum(sizes) <= STEP_BYTES_MAX:
        return [slice(0, count)]
    parts: list[slice] = []
    start = part_bytes = 0
    for place, size in enumerate(sizes):
        if part_bytes + size > STEP_BYTES_MAX and place > start:
            parts.append(slice(start, place))
            start, part_bytes = place, 0
        part_bytes += size
    parts.append(slice(start, count))
    return parts
