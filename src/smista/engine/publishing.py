"""Publishing on a running broker: the rules are in `core/publishing`, here is what enters in one step.

A batch enters whole, so in one block, unless that would be too much for a block, its queue has to serve its consumers
in between to know what fits, or messages of a full queue become dead letters in very many others for it. Then the rest
of it waits for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from smista.core import fan_out, publishing
from smista.core.entering import Placed, Result
from smista.core.exchanges import Reach, ReachTooWide
from smista.core.limits import is_one_by_one
from smista.core.message import Publication
from smista.core.queue import Queue
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.consumers import deleted
from smista.engine.declaring import DeclaringBroker
from smista.engine.delivery import Published
from smista.engine.running import STEP_BYTES_MAX
from smista.errors import BrokerError

P = TypeVar("P")
FAN_OUT_AT_ONCE = 1_000
"""How many queues a message may go to beside others in the same turn of the loop: some 6 ms."""
WORK_AT_ONCE = 4_000
"""How much it may take beside others to find where a message goes: some 1.2 ms, which is lost where it takes more. As
many queues as above, by a binding each, are found with less."""


class PublishingBroker(DeclaringBroker):
    async def publish(
        self,
        queue: str,
        publications: Sequence[Publication],
        *,
        batch_id: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published | BrokerError]:
        """Publish to a queue; per publication what became of it, in order. Returns when all are durable.

        The same messages under the same `batch_id` again, within the queue's deduplication window, are not stored
        again. Raises where nothing at all was stored: no such queue, disk or memory low, broker stopped.
        """
        await self.room()
        results = self.publish_now(queue, publications, batch_id=batch_id, is_cut=True, namespace=namespace)
        if len(results) < len(publications):
            target = self._state.queue(queue, namespace)
            while len(results) < len(publications):
                await self.lane.turn()
                results += self._publish_more(target, publications, len(results), batch_id)
        await self._keeper.durable()
        return results

    def publish_now(
        self,
        queue: str,
        publications: Sequence[Publication],
        *,
        batch_id: str | None = None,
        is_use: bool = True,
        is_cut: bool = False,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published | BrokerError]:
        """Without `is_use` a queue that is deleted when nobody uses it does not live longer for this. With `is_cut`
        there are fewer results than publications where these made dead letters in very many queues: the others are not
        published yet."""
        now_ms = self._enter_within_limits()
        self._check_pressure()
        target = self._state.queue(queue, namespace)
        if batch_id is None and len(publications) == 1:
            placed = publishing.publish(self._state, target, publications, is_use=is_use, now_ms=now_ms)
            if self._state.crowded:
                self._keep_limits(now_ms)
        else:
            placed = self._publish_in_parts(target, publications, 0, batch_id, is_use, is_cut, now_ms)
        self._after()
        return [self._published(one) if isinstance(one, Placed) else one for one in placed]

    def _publish_more(
        self, target: Queue, publications: Sequence[Publication], start: int, batch_id: str | None
    ) -> list[Published | BrokerError]:
        """Publish more of a batch, from `start` on. Some of it is stored: so what keeps the rest out is its result."""
        try:
            now_ms = self._enter_within_limits()
            self._check_pressure()
        except BrokerError as error:
            return [error] * (len(publications) - start)
        placed = self._publish_in_parts(target, publications[start:], start, batch_id, True, True, now_ms)
        self._after()
        return [self._published(one) if isinstance(one, Placed) else one for one in placed]

    def _publish_in_parts(
        self,
        target: Queue,
        publications: Sequence[Publication],
        start: int,
        batch_id: str | None,
        is_use: bool,
        is_cut: bool,
        now_ms: int,
    ) -> list[Result]:
        """`start` is the place of the first of them in its batch."""
        placed: list[Result] = []
        since = self._state.work
        is_known = batch_id is not None and not start and publishing.is_known_batch(target, batch_id, now_ms)
        for part in (publications,) if is_known else _parts(target, publications, _body_bytes):
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
                is_cut=is_cut,
                since=since + len(placed),
                now_ms=now_ms,
            )
            placed += results
            self._after_part(now_ms)
            if len(results) < len(part):
                break
        return placed

    def publish_alike_now(
        self,
        queue: str,
        bodies: Sequence[bytes],
        like: Publication,
        *,
        is_use: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[tuple[int, BrokerError]]:
        """Publish bodies that have all but themselves in common with `like`: which of them were refused, and why."""
        now_ms = self._enter_within_limits()
        self._check_pressure()
        target = self._state.queue(queue, namespace)
        refused: list[tuple[int, BrokerError]] = []
        count, since = 0, self._state.work
        for part in _parts(target, bodies, len):
            if target.is_deleted:
                refused += [(place, deleted(target)) for place in range(count, len(bodies))]
                break
            found = publishing.publish_alike(
                self._state, target, part, like, is_use=is_use, since=since + count, now_ms=now_ms
            )
            refused += [(count + place, error) for place, error in found]
            count += len(part)
            self._after_part(now_ms)
        self._after()
        return refused

    def _after_part(self, now_ms: int) -> None:
        """A batch has been noted, or a part of one that does not enter in one step. Limits are kept in the same
        instant, since a message with no time to live is for whoever waits now."""
        self._keep_limits(now_ms)
        self._keeper.seal_if_large()

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
        """Publish through an exchange by the envelope's routing key: stored in every queue it leads to, or in none.

        Under the same `batch_id` again, within a queue's deduplication window, it is not stored there again.
        """
        await self.room()
        publish = partial(
            self.publish_to_exchange_now,
            exchange,
            publication,
            headers=headers,
            extra_keys=extra_keys,
            batch_id=batch_id,
            namespace=namespace,
        )
        try:
            results = publish(within=Reach(FAN_OUT_AT_ONCE, WORK_AT_ONCE))
        except ReachTooWide:
            # One step, which nobody may cut: so there is one of them at a time, and then turns for everybody else. It
            # has to be seen early that it is long, for very many may come in one turn of the loop.
            await self.fan_out_lane.turn()
            results = publish()
            self.fan_out_lane.rest(max(1, len(results) // FAN_OUT_AT_ONCE))
        await self._keeper.durable()
        return results

    def publish_to_exchange_now(
        self,
        exchange: str,
        publication: Publication,
        *,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        batch_id: str | None = None,
        within: Reach | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published]:
        """`within` less than any message may reach, one that goes further raises `ReachTooWide`."""
        now_ms = self._enter_within_limits()
        self._check_pressure()
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
            self._keep_limits(now_ms)
            self._after()
        return [self._published(one) for one in placed]

    def publish_to_queues_now(
        self,
        queues: Iterable[str],
        publication: Publication,
        *,
        is_use: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published | BrokerError]:
        """Publish to several queues, each for itself: per queue what became of it, also where another refused it."""
        now_ms = self._enter_within_limits()
        self._check_pressure()
        found = [self._state.queue(name, namespace) for name in queues]
        placed = fan_out.publish_to_queues(self._state, found, publication, is_use=is_use, now_ms=now_ms)
        self._keep_limits(now_ms)
        self._after()
        return [self._published(one) if isinstance(one, Placed) else one for one in placed]

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be written that publishers should be held back."""
        return self._keeper.is_behind

    async def room(self) -> None:
        """Wait until the log has caught up far enough to take more."""
        await self._keeper.room()

    def _published(self, placed: Placed) -> Published:
        return Published(
            placed.number, placed.created_at_ms, placed.queue, placed.position, placed.is_duplicate, self.ids
        )


def _parts(queue: Queue, messages: Sequence[P], size: Callable[[P], int]) -> Sequence[Sequence[P]]:
    """A batch as it enters: whole, unless that is too much for one block, or its queue has to serve in between."""
    if is_one_by_one(queue):
        return [messages[place : place + 1] for place in range(len(messages))]
    sizes = list(map(size, messages))
    if sum(sizes) <= STEP_BYTES_MAX:
        return (messages,)
    parts: list[Sequence[P]] = []
    start = part_bytes = 0
    for place, body_bytes in enumerate(sizes):
        if part_bytes + body_bytes > STEP_BYTES_MAX and place > start:
            parts.append(messages[start:place])
            start, part_bytes = place, 0
        part_bytes += body_bytes
    parts.append(messages[start:])
    return parts


def _body_bytes(publication: Publication) -> int:
    return len(publication.body)
