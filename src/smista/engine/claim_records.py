"""How claims, committed batches and jobs stand in the log, and how they come back from it.

A CLAIMANT record is the whole of a consumer but for the rows of its claims, a COMMITTED record the whole of a batch, a
JOB record the whole of a job: the latest one counts. The rows stand in CLAIMED records by themselves, each with its
place in the claim, so any of them can be written again alone. Since the front of the log is dropped, rows may come
before their CLAIMANT: they are kept until one says whether their claim is still there.
"""

from __future__ import annotations

from array import array

import msgspec

from smista import records
from smista.core.claims import Claim, Claimant, Rows, attach_claims, next_serial
from smista.core.jobs import Job, apply_advanced, apply_job
from smista.core.staging import Commit, apply_committed
from smista.core.state import BrokerState
from smista.records.claimant import Claimant as ClaimantFields
from smista.records.claimant import ClaimFields
from smista.records.claimed import Claimed
from smista.records.committed import Committed
from smista.records.job import Job as JobFields


def claimed_record(claim: Claim, rows: Rows) -> Claimed:
    claimant = claim.claimant
    return Claimed(
        claimant.queue,
        claimant.consumer,
        claim.number,
        rows.first,
        rows.run,
        rows.body_bytes,
        rows.sequences,
        rows.deliveries,
    )


def claimant_record(claimant: Claimant, *, is_forgotten: bool = False) -> ClaimantFields:
    claims = [
        ClaimFields(claim.number, claim.after, claim.state, claim.made_at_ms, claim.expires_at_ms, claim.row_count)
        for claim in claimant.claims.values()
    ]
    return ClaimantFields(
        claimant.queue,
        claimant.consumer,
        claimant.session,
        claimant.acknowledged,
        claimant.last,
        claimant.late_count,
        claims,
        [(number, how, rows) for number, (how, rows) in claimant.ended.items()],
        is_forgotten,
    )


def commit_record(commit: Commit) -> Committed:
    return msgspec.convert(commit, Committed, from_attributes=True)


def job_record(job: Job) -> JobFields:
    return JobFields(*(getattr(job, field) for field in JobFields.__struct_fields__))


class ClaimRecovery:
    """Folds these records into a state."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._rows: dict[tuple[int, str], dict[int, dict[int, Rows]]] = {}
        """By queue and consumer, claim, and place in the claim."""

    def claimed(self, data: memoryview, position: int) -> None:
        record = records.claimed.decode(data)
        rows = Rows(
            record.first,
            record.run,
            array("Q", record.sequences),
            array("I", record.deliveries),
            record.body_bytes,
            position,
        )
        claims = self._rows.setdefault((record.queue, record.consumer), {})
        claims.setdefault(record.number, {})[record.first] = rows

    def claimant(self, data: memoryview, position: int) -> None:
        record = records.claimant.decode(data)
        by_name = self._state.claimants.setdefault(record.queue, {})
        if record.is_forgotten:
            by_name.pop(record.consumer, None)
            self._rows.pop((record.queue, record.consumer), None)
            return
        known = by_name.get(record.consumer)
        claimant = Claimant(record.queue, record.consumer, next_serial(by_name) if known is None else known.serial)
        claimant.session = record.session
        claimant.acknowledged = record.acknowledged
        claimant.last = record.last
        claimant.late_count = record.late_count
        claimant.ended = {number: (how, rows) for number, how, rows in record.ended}
        claimant.position = position
        for one in record.claims:
            claim = Claim(claimant, one.number, one.after, one.made_at_ms, one.expires_at_ms)
            claim.state = one.state
            claim.noted_count = one.rows
            claimant.claims[one.number] = claim
        by_name[record.consumer] = claimant
        rows = self._rows.get((record.queue, record.consumer), {})
        for number in [number for number in rows if number not in claimant.claims and number <= claimant.last]:
            del rows[number]

    def committed(self, data: memoryview, position: int) -> None:
        record = records.committed.decode(data)
        fields = msgspec.structs.asdict(record)
        apply_committed(self._state, Commit(**fields, position=position))

    def job(self, data: memoryview, position: int) -> None:
        fields = msgspec.structs.asdict(records.job.decode(data))
        apply_job(self._state, Job(**fields, position=position))

    def job_advanced(self, data: memoryview) -> None:
        """Of a job that is not known, a JOB stands further on, or it is forgotten."""
        advanced = records.job_advanced.decode(data)
        job = self._state.jobs.get(advanced.queue, {}).get(advanced.sequence)
        if job is not None:
            apply_advanced(job, advanced.place, advanced.after, advanced.moved, advanced.strays)

    def queue_deleted(self, number: int) -> None:
        for key in [key for key in self._rows if key[0] == number]:
            del self._rows[key]
        self._state.claimants.pop(number, None)
        self._state.jobs.pop(number, None)

    def finish(self, now_ms: int) -> None:
        for by_name in self._state.claimants.values():
            for claimant in by_name.values():
                parts = self._rows.get((claimant.queue, claimant.consumer), {})
                for claim in claimant.claims.values():
                    claim.rows = [rows for _, rows in sorted(parts.get(claim.number, {}).items())]
        self._rows.clear()
        attach_claims(self._state, now_ms)
        for number in [number for number in self._state.jobs if number not in self._state.queues]:
            del self._state.jobs[number]
