"""Claims: numbered, frozen, held by one session, ended once."""

from __future__ import annotations

import pytest

from smista.core import claims
from smista.core.browsing import stats
from smista.core.claims import Claim, Claimant
from smista.core.settings import QueueSettings
from smista.core.settling import receipt_for
from smista.errors import ClaimBroken, ClaimExpired, ClaimNotFound, ConsumerInUse
from tests.core.bench import START_MS, Bench, bodies

LEASE_MS = 600_000
SESSION_MS = 15_000


class ClaimBench(Bench):
    """Commands of consumer "spark" in session "one" unless they name another; what ends is worked off at once."""

    def seize(self, session: str = "one", consumer: str = "spark") -> Claimant:
        return claims.seize(
            self.state, self.queue, consumer, session, session_ms=SESSION_MS, is_new=True, now_ms=self.now_ms
        )

    def claim(self, after: int, limit: int = 10, *, session: str = "one", consumer: str = "spark") -> Claim | None:
        claimant = self.seize(session, consumer)
        claims.check_after(self.queue, claimant, after)
        self._work_off(claims.acknowledge_up_to(self.state, self.queue, claimant, after)[0])
        claim = claims.claim_after(claimant, after)
        if claim is not None:
            return claim
        messages = claims.take(self.state, self.queue, consumer, limit, now_ms=self.now_ms)
        if not messages:
            return None
        claim = claims.open_claim(self.state, self.queue, claimant, after, lease_ms=LEASE_MS, now_ms=self.now_ms)
        claims.add_rows(self.state, self.queue, claim, messages)
        return claim

    def made(self, after: int, limit: int = 10, *, consumer: str = "spark") -> Claim:
        claim = self.claim(after, limit, consumer=consumer)
        assert claim is not None
        return claim

    def read(self, number: int, start: int = 0, end: int = 1 << 30) -> list[bytes]:
        claim = claims.look_up(self.queue, self.seize(), number)
        return bodies(claims.messages_of(self.queue, claim, start, end))

    def acknowledge_claims(self, number: int) -> tuple[int, int]:
        closed, late = claims.acknowledge_up_to(self.state, self.queue, self.seize(), number)
        self._work_off(closed)
        return sum(claim.settled_count for claim in closed), late + sum(claim.late_count for claim in closed)

    def release_claims(self, after: int = 0) -> int:
        closed = claims.release_after(self.state, self.queue, self.seize(), after)
        self._work_off(closed)
        return sum(claim.settled_count for claim in closed)

    def renew(self, lease_ms: int = LEASE_MS) -> None:
        claims.renew(self.state, self.queue, self.seize(), lease_ms, now_ms=self.now_ms)

    def _work_off(self, closed: list[Claim]) -> None:
        for claim in closed:
            while claims.work_off(self.state, self.queue, claim, 2, now_ms=self.now_ms):
                pass


@pytest.fixture
def orders() -> ClaimBench:
    """A queue with bodies 0 to 9."""
    bench = ClaimBench()
    bench.publish_many(10)
    return bench


# -- making -----------------------------------------------------------------------------------------------------------


def test_a_claim_has_the_next_messages_in_their_order_under_the_next_number(orders: ClaimBench) -> None:
    first, second = orders.made(0, 4), None
    assert (first.number, first.row_count, first.body_bytes) == (1, 4, 4)
    assert orders.read(1) == [b"0", b"1", b"2", b"3"]
    assert orders.read(1, 1, 3) == [b"1", b"2"]
    second = orders.made(1, 4)
    assert second.number == 2
    assert orders.read(2) == [b"4", b"5", b"6", b"7"]


def test_who_asks_again_with_the_same_after_gets_the_same_claim(orders: ClaimBench) -> None:
    first = orders.made(0, 4)
    assert orders.made(0, 10) is first
    assert orders.counts() == (6, 0, 4, 0)


def test_claiming_after_a_number_acknowledges_all_up_to_it(orders: ClaimBench) -> None:
    orders.made(0, 4)
    orders.made(1, 4)
    assert orders.counts() == (2, 0, 4, 0)
    assert orders.queue.counters.acknowledged == 4


def test_an_empty_queue_gives_no_claim_and_uses_no_number() -> None:
    bench = ClaimBench()
    assert bench.claim(0) is None
    bench.publish(b"x")
    assert bench.made(0).number == 1


def test_consumers_count_their_own_numbers_and_share_the_messages(orders: ClaimBench) -> None:
    assert orders.made(0, 4).number == 1
    other = orders.made(0, 4, consumer="flink")
    assert other.number == 1
    assert bodies(claims.messages_of(orders.queue, other, 0, 4)) == [b"4", b"5", b"6", b"7"]


def test_a_number_that_was_never_given_out_is_not_found(orders: ClaimBench) -> None:
    orders.made(0, 4)
    with pytest.raises(ClaimNotFound, match="last one was 1"):
        orders.claim(5)
    with pytest.raises(ClaimNotFound, match="never made"):
        orders.read(2)


def test_an_after_below_what_was_acknowledged_is_refused(orders: ClaimBench) -> None:
    orders.made(0, 4)
    orders.made(1, 4)
    with pytest.raises(ClaimNotFound, match="acknowledged queue 'orders' up to claim 1"):
        orders.claim(0)


def test_what_is_claimed_of_an_ordered_queue_is_in_order_and_nobody_else_gets_the_rest_of_the_group() -> None:
    bench = ClaimBench(QueueSettings(ordered=True))
    for number in range(4):
        bench.publish(b"%d" % number, group="g")
    bench.made(0, 3)
    assert bench.read(1) == [b"0", b"1", b"2"]
    assert bench.receive() == []
    bench.made(1)
    assert bench.read(2) == [b"3"]


# -- ending -----------------------------------------------------------------------------------------------------------


def test_acknowledging_is_idempotent(orders: ClaimBench) -> None:
    orders.made(0, 4)
    assert orders.acknowledge_claims(1) == (4, 0)
    assert orders.acknowledge_claims(1) == (0, 0)
    with pytest.raises(ClaimNotFound, match="has been acknowledged"):
        orders.read(1)
    assert orders.counts() == (6, 0, 0, 0)


def test_a_released_claim_goes_back_uncounted_and_its_number_is_not_used_again(orders: ClaimBench) -> None:
    orders.made(0, 4)
    assert orders.release_claims() == 4
    assert orders.counts() == (10, 0, 0, 0)
    with pytest.raises(ClaimNotFound, match="released"):
        orders.read(1)
    again = orders.made(0, 4)
    assert (again.number, again.after) == (2, 0)
    assert [delivery.message.failure_count for delivery in orders.receive(1)] == [0]


def test_a_claim_that_is_not_renewed_expires_and_its_messages_come_again(orders: ClaimBench) -> None:
    orders.made(0, 4)
    orders.pass_time(ms=LEASE_MS - 1)
    assert orders.read(1) == [b"0", b"1", b"2", b"3"]
    orders.pass_time(ms=20)
    assert orders.counts() == (10, 0, 0, 0)
    with pytest.raises(ClaimExpired):
        orders.read(1)
    assert [delivery.delivery_count for delivery in orders.receive(4)] == [2, 2, 2, 2]
    assert orders.queue.counters.timed_out == 4


def test_a_heartbeat_puts_the_end_off(orders: ClaimBench) -> None:
    orders.made(0, 4)
    for _ in range(5):
        orders.pass_time(ms=LEASE_MS - 1000)
        orders.renew()
    assert orders.read(1) == [b"0", b"1", b"2", b"3"]


def test_a_claim_of_many_rows_expires_in_slices() -> None:
    bench = ClaimBench()
    bench.publish_many(1_200)
    claim = bench.made(0, 1_200)
    bench.leap(ms=LEASE_MS)
    assert claim.state is claims.ClaimState.EXPIRED
    bench.pass_time(ms=1_000)
    assert bench.counts() == (1_200, 0, 0, 0)
    assert bench.seize().claims == {}


def test_what_has_no_retries_left_when_a_claim_expires_is_a_dead_letter() -> None:
    bench = ClaimBench(QueueSettings(max_retries=0))
    bench.publish_many(3)
    bench.made(0)
    bench.pass_time(ms=LEASE_MS + 20)
    assert bench.depth == 0
    assert bodies(bench.dead_letters()) == [b"0", b"1", b"2"]


def test_going_on_after_an_expired_claim_counts_it_as_acknowledged_too_late(orders: ClaimBench) -> None:
    orders.made(0, 4)
    orders.pass_time(ms=LEASE_MS + 20)
    again = orders.made(1, 4)
    assert again.number == 2
    assert orders.read(2) == [b"0", b"1", b"2", b"3"]
    assert orders.seize().late_count == 4


def test_after_an_expired_claim_the_same_after_gives_the_next_number(orders: ClaimBench) -> None:
    orders.made(0, 4)
    orders.pass_time(ms=LEASE_MS + 20)
    again = orders.made(0, 4)
    assert (again.number, again.after) == (2, 0)
    assert orders.acknowledge_claims(2) == (4, 4)


# -- taken from under it ----------------------------------------------------------------------------------------------


def test_a_purge_makes_reading_an_error_and_acknowledging_too_late(orders: ClaimBench) -> None:
    orders.made(0, 4)
    orders.purge()
    with pytest.raises(ClaimBroken, match="4 of the rows 0 to 4"):
        orders.read(1)
    assert orders.acknowledge_claims(1) == (0, 4)


def test_a_row_settled_by_its_message_id_is_missed_only_where_it_stood(orders: ClaimBench) -> None:
    claim = orders.made(0, 4)
    sequence = claim.rows[0].sequences[1]
    orders.acknowledge(_Held(receipt_for(orders.queue, sequence)))  # type: ignore[arg-type]  # only the receipt counts
    assert orders.read(1, 2, 4) == [b"2", b"3"]
    with pytest.raises(ClaimBroken, match="1 of the rows 0 to 4"):
        orders.read(1)
    assert orders.acknowledge_claims(1) == (3, 1)


class _Held:
    def __init__(self, receipt: object) -> None:
        self.receipt = receipt


def test_a_row_that_somebody_else_holds_by_now_is_left_to_them(orders: ClaimBench) -> None:
    claim = orders.made(0, 1)
    sequence = claim.rows[0].sequences[0]
    orders.release(_Held(receipt_for(orders.queue, sequence)))  # type: ignore[arg-type]  # only the receipt counts
    theirs = orders.receive_one()
    assert theirs.body == b"0"
    assert orders.acknowledge_claims(1) == (0, 1)
    orders.acknowledge(theirs)


def test_a_deleted_queue_takes_its_claims_with_it(orders: ClaimBench) -> None:
    orders.made(0, 4)
    orders.delete()
    assert orders.state.claimants == {}
    orders.leap(ms=LEASE_MS)


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_second_session_is_refused_while_the_first_is_seen(orders: ClaimBench) -> None:
    orders.made(0, 4)
    orders.pass_time(ms=SESSION_MS - 1)
    with pytest.raises(ConsumerInUse, match=f"session 'one', last seen 14999 ms ago \\(at {START_MS}\\)"):
        orders.claim(0, session="two")
    orders.renew()
    orders.pass_time(ms=SESSION_MS - 1)
    with pytest.raises(ConsumerInUse):
        orders.claim(0, session="two")


def test_a_session_that_is_not_seen_any_more_is_taken_over_with_its_claims(orders: ClaimBench) -> None:
    first = orders.made(0, 4)
    orders.pass_time(ms=SESSION_MS)
    assert orders.claim(0, session="two") is first
    with pytest.raises(ConsumerInUse, match="session 'two'"):
        orders.claim(0)


def test_a_heartbeat_keeps_a_queue_that_is_deleted_when_nobody_uses_it() -> None:
    bench = ClaimBench(QueueSettings(expires_ms=10_000))
    bench.publish_many(3)
    bench.made(0)
    for _ in range(5):
        bench.pass_time(ms=8_000)
        bench.renew()
    assert bench.read(1) == [b"0", b"1", b"2"]
    bench.pass_time(ms=20_000)
    assert not bench.has_queue("orders")


def test_releasing_gives_up_the_name(orders: ClaimBench) -> None:
    orders.made(0, 4)
    orders.release_claims()
    assert orders.claim(0, session="two") is not None


def test_statistics_show_what_is_claimed(orders: ClaimBench) -> None:
    orders.made(0, 4)
    found = stats(orders.queue, claimants=claims.claimants(orders.state, orders.queue), now_ms=orders.now_ms)
    assert (found.claims, found.claimed, found.acknowledged_late_total) == (1, 4, 0)


def test_of_too_many_consumers_the_one_not_seen_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CLAIMANTS_KEPT", 3)
    bench = ClaimBench()
    bench.publish_many(1)
    bench.made(0, consumer="holds")
    for name in ("b", "c", "d"):
        bench.now_ms += 1000
        bench.seize(consumer=name)
    assert set(bench.state.claimants[bench.queue.number]) == {"holds", "c", "d"}
    bench.now_ms += 1000
    bench.seize(consumer="c")
    bench.seize(consumer="e")
    assert set(bench.state.claimants[bench.queue.number]) == {"holds", "c", "e"}
    serials = [one.serial for one in bench.state.claimants[bench.queue.number].values()]
    assert len(set(serials)) == 3, "each has its own place in the calendar"


def test_consumers_that_hold_claims_are_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CLAIMANTS_KEPT", 2)
    bench = ClaimBench()
    bench.publish_many(2)
    for name in ("a", "b"):
        bench.made(0, 1, consumer=name)
    with pytest.raises(ConsumerInUse, match="as many as it remembers"):
        bench.seize(consumer="c")
