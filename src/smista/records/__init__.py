"""The log's schema: what stands inside a block, one module for each kind of record.

    blocks      a block: its head, and the records in it
    frames      what stands around every record
    kinds       the number of each kind
    rows        what a record gives to those who read the log in bulk

    opened
    queue_declared  queue_deleted  exchange_declared  exchange_deleted  bound  unbound  policy_set  policy_deleted
    enqueued  fanned_out  placed  remembered
    claimed  claimant  committed  job  job_advanced
    delivered  extended  given_back  rescheduled  became_ready  readdressed
    acknowledged  removed  parked  moved  purged

The module of a record has its layout (`HEAD` and `FIELDS`, or the structure that is packed), `encode`, `decode`, and
`collect` where it has rows. Whoever writes, folds, moves or exports records takes all of that from here, and from
nowhere else. docs/log-format.md says the same for people, and a test compares the two.

Hot records are packed with `struct`, many messages to a record (measured: a fixed struct per message costs a third of
one msgpack map per message); rare ones are msgpack arrays. What is read is never trusted: whatever does not fit, or is
not known, raises `RecordError`. The schema knows plain values of the core, such as an envelope or a queue's settings;
what a record changes is the engine's business.
"""

# ruff: noqa: F401  # whoever imports the package takes its modules from it

from smista.records import (
    acknowledged,
    became_ready,
    blocks,
    bound,
    claimant,
    claimed,
    committed,
    delivered,
    enqueued,
    entry,
    envelope,
    exchange_declared,
    exchange_deleted,
    extended,
    fanned_out,
    frames,
    given_back,
    job,
    job_advanced,
    moved,
    opened,
    parked,
    placed,
    policy_deleted,
    policy_set,
    purged,
    queue_declared,
    queue_deleted,
    readdressed,
    remembered,
    removed,
    rescheduled,
    unbound,
)
from smista.records.blocks import Record as Record
from smista.records.errors import RecordError as RecordError
from smista.records.kinds import Kind as Kind
