"""Deleting by receipt handle, for DeleteMessage and each entry of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from smista.errors import BrokerError, StaleReceipt
from smista.protocols.sqs import receipts
from smista.protocols.sqs.call import Call, Target
from smista.protocols.sqs.errors import INVALID_ID_FORMAT, SqsError, from_broker, invalid_value
from smista.service.values import Receipt


def read(call: Call, target: Target, handle: str | None) -> Receipt:
    return receipts.read(call, target, handle, other_version=INVALID_ID_FORMAT)


async def delete(call: Call, target: Target, handles: Sequence[tuple[str, Receipt]]) -> list[SqsError | None]:
    """Acknowledge what these handles name; per handle None, or why it was refused."""
    outcomes = await target.session.acknowledge([receipt for _, receipt in handles])
    return [
        None if outcome is None else _refusal(target, handle, outcome)
        for (handle, _), outcome in zip(handles, outcomes, strict=True)
    ]


def _refusal(target: Target, handle: str, outcome: BrokerError) -> SqsError | None:
    if not isinstance(outcome, StaleReceipt):
        return from_broker(outcome)
    if target.settings.ordered and not outcome.is_gone:
        return invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")
    return None
