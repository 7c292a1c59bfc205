"""Changing visibility by receipt handle, for ChangeMessageVisibility and each entry of a batch.

However often that is done, a message is held for 12 hours at most, counted from its receive. 0 frees it at once: a
failed delivery to us, which counts towards maxReceiveCount, as the receive did.
"""

from __future__ import annotations

from smista.errors import BrokerError, LeaseExpired, StaleReceipt
from smista.protocols.sqs.call import Call, Target
from smista.protocols.sqs.errors import (
    MESSAGE_NOT_INFLIGHT,
    SqsError,
    from_broker,
    invalid_value,
    missing,
)
from smista.service.values import Receipt


def check_timeout(call: Call, timeout_s: int | None) -> int:
    if timeout_s is None:
        raise missing("VisibilityTimeout")
    if not 0 <= timeout_s <= call.limits.visibility_s:
        raise invalid_value(
            timeout_s,
            "VisibilityTimeout",
            f"VisibilityTimeout must be an integer between 0 and {call.limits.visibility_s}.",
        )
    return timeout_s


async def change(call: Call, target: Target, handle: str, receipt: Receipt, timeout_s: int) -> SqsError | None:
    """None, or why it was refused."""
    refusal: BrokerError | None
    if timeout_s == 0:
        [result] = await target.session.nack([receipt], delay_ms=0)
        refusal = result if isinstance(result, BrokerError) else None
    elif await _held_s(call, target, receipt) + timeout_s > call.limits.visibility_s:
        return invalid_value(
            timeout_s,
            "VisibilityTimeout",
            f"Total VisibilityTimeout for the message is beyond the limit [{call.limits.visibility_s} seconds].",
        )
    else:
        [refusal] = await target.session.extend([receipt], timeout_s * 1000)
    if refusal is None:
        return None
    if not isinstance(refusal, StaleReceipt):
        return from_broker(refusal)
    if refusal.is_gone:
        return invalid_value(
            handle,
            "ReceiptHandle",
            "Message does not exist or is not available for visibility timeout change.",
        )
    if not target.settings.ordered:
        # Another consumer may hold it by now, or none: AWS answers with success, and nothing is changed.
        return None
    if isinstance(refusal, LeaseExpired):
        return invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")
    return SqsError(MESSAGE_NOT_INFLIGHT, "The specified message is not in flight: its visibility timeout is over.")


async def _held_s(call: Call, target: Target, receipt: Receipt) -> int:
    """How long ago a message was received, in whole seconds; 0 where nobody holds it under this receipt."""
    deliveries = await target.session.held([receipt])
    return (call.service.now_ms() - deliveries[0].delivered_at_ms) // 1000 if deliveries else 0
