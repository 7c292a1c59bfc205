"""Deleting by receipt handle, for DeleteMessage and each entry of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from smista.core.errors import StaleReceipt
from smista.core.message import Receipt
from smista.core.settling import Outcome
from smista.protocols.sqs import receipts
from smista.protocols.sqs.call import Call, Target
from smista.protocols.sqs.errors import INVALID_ID_FORMAT, SqsError, from_broker, invalid_value


def read(call: Call, target: Target, handle: str | None) -> Receipt:
    return receipts.read(call, target, handle, other_version=INVALID_ID_FORMAT)


async def delete(call: Call, target: Target, handles: Sequence[tuple[str, Receipt]]) -> list[SqsError | None]:
    """Acknowledge what these handles name; per handle None, or why it was refused."""
    outcomes = await call.broker.acknowledge([receipt for _, receipt in handles])
    return [
        None if outcome is None else _refusal(call, target, handle, receipt, outcome)
        for (handle, receipt), outcome in zip(handles, outcomes, strict=True)
    ]


def _refusal(call: Call, target: Target, handle: str, receipt: Receipt, outcome: Outcome) -> SqsError | None:
    assert outcome is not None
    if not isinstance(outcome, StaleReceipt):
        return from_broker(outcome)
    if target.settings.ordered and call.broker.is_there(receipt):
        return invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")
    return None
