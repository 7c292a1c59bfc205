"""Publishing, the hot path in: what came in one read goes to the broker in one call per queue.

    a message, or several alike ─▶ route ─▶ the batch of its queue ─▶ flush: publish, then confirm when answered
                                                                     └ at the end of a read, or before any other method

What arrived together for one queue is one call of `_publish_batches`: runs of messages that followed each other on one
channel, under the same terms. A message for several queues is a call of its own.

One for very many queues enters some of them at a time, each for itself as always in AMQP. Until it is in all of them
this connection is not read, and it is confirmed when all are on disk. The same goes for whatever else the broker does
not do in one step, as messages that make room by dead letters for very many queues. Nothing that comes behind overtakes
them: neither the method, nor the message for several queues, before which they were handed to the broker.

A confirm waits for all that the connection has submitted by then and that is not answered yet, acknowledgements too: so
it also tells that what came before is on disk, wherever its queue is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from smista.errors import BrokerError, NamespaceNotFound, QueueFull, QueueNotFound, ResourceLow
from smista.exchange_errors import ExchangeInternal, ExchangeNotFound
from smista.protocols.amqp.channel.outcomes import Outcomes
from smista.protocols.amqp.channel.prepared import Prepared, Terms
from smista.protocols.amqp.channel.run import Run
from smista.protocols.amqp.channel.target import Target, Targets
from smista.protocols.amqp.client import Client
from smista.protocols.amqp.errors import closing
from smista.protocols.amqp.reply_to import REPLY_PREFIX
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.replies import NO_ROUTE, ChannelClosing
from smista.service.values import Alike, Publication, Published, RoutedQueue, Ticket

ALIKE_PER_STEP = 500
"""How many messages that are alike enter a queue in one step where nothing of each is looked at: some 1 ms."""
ONE_BY_ONE_PER_STEP = 50
"""How many enter it, or several of them, where each makes room for itself, has its time, goes back to its publisher, or
whatever else: some 1 ms too."""
ROUTED_PER_WORK = 16
"""So much work to find where messages go counts as much as reading a frame."""
T = TypeVar("T")
_Result = Published | BrokerError | tuple[int, BrokerError]
"""What came of a message; or, of those that are alike, which was refused and why."""


class _Batch:
    """Messages for one queue that followed each other on one channel, under the same terms."""

    __slots__ = ("bodies", "envelopes", "first_tag", "outcomes", "terms")

    def __init__(self, outcomes: Outcomes, first_tag: int, run: Run) -> None:
        self.outcomes = outcomes
        self.first_tag = first_tag
        """Of its first message; 0 where the channel does not confirm."""
        self.terms = run.terms
        self.bodies = run.bodies
        self.envelopes = run.envelopes

    def tag(self, index: int) -> int:
        return self.first_tag + index if self.first_tag else 0

    def goes_on(self, outcomes: Outcomes, tag: int, terms: Terms) -> bool:
        """Whether a message of this tag is one more of them."""
        return terms is self.terms and outcomes is self.outcomes and tag == self.tag(len(self.bodies))

    def add(self, run: Run) -> None:
        self.bodies += run.bodies
        self.envelopes += run.envelopes

    @property
    def alike(self) -> Alike:
        return Alike(self.terms.like, self.bodies, self.envelopes)


class Publisher:
    """What one connection publishes."""

    __slots__ = ("_batches", "_client", "_confirms", "_postponed", "_service", "_unknown_count", "targets")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._service = client.service
        self.targets = Targets(client)
        self._batches: dict[RoutedQueue, list[_Batch]] = {}
        """By queue, what goes to it with the next flush."""
        self._confirms: dict[Outcomes, int] = {}
        """By channel, the highest tag that will be confirmed by the next flush."""
        self._unknown_count = 0
        """Of what the broker has not done yet. Nothing is confirmed meanwhile, since that confirms what came before."""
        self._postponed: list[Callable[[], None]] = []
        """What is published when all of that is done."""

    def publish(self, outcomes: Outcomes, run: Run, queues: tuple[RoutedQueue, ...]) -> None:
        """Publish now or with the next flush, to the queues that it was routed to."""
        if len(queues) == 1:
            tag = self._take_tags(outcomes, len(run))
            batches = self._batches.get(queues[0])
            if batches is None:
                self._batches[queues[0]] = [_Batch(outcomes, tag, run)]
            elif batches[-1].goes_on(outcomes, tag, run.terms):
                batches[-1].add(run)
            else:
                batches.append(_Batch(outcomes, tag, run))
            return
        for body, envelope in zip(run.bodies, run.envelopes, strict=True):
            if outcomes.is_over:
                return
            if queues:
                self._publish_to_several(outcomes, queues, run.terms.publication(body, envelope))
                continue
            self._take_tags(outcomes, 1)
            properties = envelope.properties[1:]
            if not self._reply(run.target, properties, body) and run.target.is_mandatory:
                self._return(outcomes, run.target, properties, body)

    def _take_tags(self, outcomes: Outcomes, count: int) -> int:
        """The first of the tags of so many messages, which the next flush confirms; 0 where the channel does not."""
        if not outcomes.is_confirming:
            return 0
        first = outcomes.publish_tag + 1
        outcomes.publish_tag += count
        self._confirms[outcomes] = outcomes.publish_tag
        return first

    def route(self, target: Target, prepared: Prepared) -> tuple[RoutedQueue, ...]:
        """Where a message would go. Raises what closes the channel."""
        route = target.route
        try:
            return route.queues(prepared)
        except (ExchangeNotFound, NamespaceNotFound) as error:
            raise closing(error, f"no exchange '{target.exchange}' in vhost '{self._vhost}'") from None
        except ExchangeInternal as error:
            text = f"cannot publish to internal exchange '{target.exchange}' in vhost '{self._vhost}'"
            raise closing(error, text) from None
        except BrokerError as error:
            raise closing(error) from None
        finally:
            if route.work_done:
                self._client.connection.add_work(route.work_done // ROUTED_PER_WORK)
                route.work_done = 0

    @property
    def _vhost(self) -> str:
        return self._client.session.namespace

    def count_per_step(self, target: Target, prepared: Prepared) -> int:
        """How many messages like this may be published in one step, by the work that they make as things are now: a
        target may remember a shorter route. None where an exchange on the way looks at headers by now that nobody
        kept."""
        if not target.is_enough(prepared):
            return 0
        try:
            queues = self.route(target, prepared)
        except ChannelClosing:
            # Whoever publishes one hears of it.
            return 1
        if len(queues) == 1 and self._client.session.is_plain(queues[0], prepared.terms.like):
            return ALIKE_PER_STEP
        return max(1, ONE_BY_ONE_PER_STEP // max(1, len(queues)))

    def present(self, queues: tuple[RoutedQueue, ...]) -> tuple[RoutedQueue, ...]:
        """Those that are still there."""
        return tuple(filter(self._client.session.has_queue, queues))

    def flush(self) -> None:
        """Hand everything to the broker; confirm it when it is on disk."""
        self._flush_batches()
        if self._confirms and not self._unknown_count:
            # So that a confirm also tells that what was acknowledged before is on disk.
            self._client.flush_acknowledged()
            confirms, self._confirms = self._confirms, {}
            self._client.unanswered.together().when_done(partial(self._confirm, confirms))
        if self._service.is_behind:
            self._client.driver.hold_until_room()

    def _flush_batches(self) -> None:
        if self._batches:
            batches, self._batches = self._batches, {}
            for queue, of_queue in batches.items():
                self._publish_batches(queue, of_queue)

    def _publish_batches(self, queue: RoutedQueue, batches: list[_Batch]) -> None:
        session = self._client.session
        ticket: Ticket[Sequence[_Result]]
        if len(batches) == 1:
            ticket = session.submit_alike(queue, batches[0].alike, is_use=False)
        else:
            publications = [each for batch in batches for each in batch.alike.publications()]
            ticket = session.submit(queue, publications, is_use=False)
        if ticket.is_known:
            self._entered(batches, ticket)
        else:
            self._answer_later(ticket, partial(self._entered, batches))

    def _entered(self, batches: list[_Batch], ticket: Ticket[Sequence[_Result]]) -> None:
        try:
            results = ticket.result()
        except QueueNotFound:
            # Deleted since it was routed: as if no binding had led there.
            return
        except ResourceLow as low:
            results = [low] * sum(len(batch.bodies) for batch in batches)
        else:
            self._client.unanswered.add(ticket)
        refused = [
            one if isinstance(one, tuple) else (index, one)
            for index, one in enumerate(results)
            if not isinstance(one, Published)
        ]
        if refused:
            origins = [(batch.outcomes, batch.tag(index)) for batch in batches for index in range(len(batch.bodies))]
            for index, error in refused:
                self._refused(*origins[index], error)

    def _publish_to_several(
        self, outcomes: Outcomes, queues: tuple[RoutedQueue, ...], publication: Publication
    ) -> None:
        # What goes to one of these queues alone and came before must be in it first.
        self._flush_batches()
        if self._unknown_count:
            self._postponed.append(partial(self._publish_to_several, outcomes, queues, publication))
            return
        if outcomes.is_over:
            return
        self._client.connection.add_work(len(queues))
        ticket = self._client.session.submit_to_queues(queues, publication, is_use=False)
        if ticket.is_known:
            self._entered_several(outcomes, ticket)
            return
        # What came before is confirmed without waiting for this.
        self.flush()
        self._answer_later(ticket, partial(self._entered_several, outcomes))

    def _entered_several(self, outcomes: Outcomes, ticket: Ticket[list[Published | BrokerError]]) -> None:
        tag = self._take_tags(outcomes, 1)
        try:
            # What is not there any more refuses nothing.
            answers = (one for one in ticket.result() if not isinstance(one, (Published, QueueNotFound)))
            refusal = next(answers, None)
            self._client.unanswered.add(ticket)
        except BrokerError as error:
            refusal = error
        if refusal is not None:
            self._refused(outcomes, tag, refusal)

    def _answer_later(self, ticket: Ticket[T], answer: Callable[[Ticket[T]], None]) -> None:
        """When it is known what came of it; until then nothing more is read."""

        def known(ticket: Ticket[T]) -> None:
            self._unknown_count -= 1
            answer(ticket)
            postponed, self._postponed = self._postponed, []
            for publish in postponed:
                publish()
            self.flush()

        self._unknown_count += 1
        self._client.do_first(ticket, known)

    # -- what becomes of it -------------------------------------------------------------------------------------------

    def _refused(self, outcomes: Outcomes, tag: int, error: BrokerError) -> None:
        if isinstance(error, (QueueFull, ResourceLow)):
            outcomes.refuse(tag)
            return
        outcomes.is_refused = outcomes.is_transactional
        # Not raised: whatever is being done now, it was this channel that published.
        refusal = closing(error)
        if isinstance(refusal, ChannelClosing):
            self._client.connection.close_channel(outcomes.channel, refusal)
        else:
            self._client.driver.broker_failed(error)

    def _confirm(self, confirms: dict[Outcomes, int], ticket: Ticket[object]) -> None:
        if ticket.error is not None:
            self._client.driver.broker_failed(ticket.error)
            return
        for outcomes, tag in confirms.items():
            outcomes.confirm_up_to(tag)
        self._client.driver.flush_soon()

    def _return(self, outcomes: Outcomes, target: Target, properties: bytes, body: bytes) -> None:
        head = methods.BasicReturn(NO_ROUTE, "NO_ROUTE", target.exchange, target.routing_key)
        outcomes.channel.send_content(head, properties, body)

    def _reply(self, target: Target, properties: bytes, body: bytes) -> bool:
        """A direct reply goes to whoever asked; nothing if nobody waits for it."""
        if target.exchange or not target.routing_key.startswith(REPLY_PREFIX):
            return False
        return self._client.shared.reply_to.deliver(target.routing_key, properties, body)
