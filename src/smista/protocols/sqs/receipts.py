"""Receipt handles: the broker's receipts as text, and SQS's rules for those that name nothing in flight any more.

it was given out by another queue               refused: it is no handle here
its message was deleted or moved on             fine: deleting it again changes nothing
its lease ran out, standard queue               still deletes
its lease ran out, FIFO queue                   refused: it has expired
its message has been handed out again since     standard: answered like a success, deletes nothing; FIFO: expired
"""

from __future__ import annotations

from smista.core.errors import InvalidReceipt
from smista.core.message import Receipt
from smista.engine import Broker
from smista.protocols.sqs.call import Call, Target
from smista.protocols.sqs.errors import RECEIPT_HANDLE_IS_INVALID, SqsError, missing


def read(call: Call, target: Target, handle: str | None) -> Receipt:
    if not handle:
        raise missing("ReceiptHandle")
    try:
        receipt = call.broker.receipt(handle)
    except InvalidReceipt:
        raise SqsError(
            RECEIPT_HANDLE_IS_INVALID, f'The input receipt handle "{handle[:200]}" is not a valid receipt handle.'
        ) from None
    if not call.broker.is_receipt_of(receipt, target.name, namespace=target.namespace):
        raise SqsError(RECEIPT_HANDLE_IS_INVALID, "The input receipt handle was given out by another queue.")
    call.memory.attempts.touched(receipt)
    return receipt


async def is_there(broker: Broker, target: Target, receipt: Receipt) -> bool:
    """Whether the message a receipt names is still in the queue, in whatever state."""
    page = await broker.browse(target.name, after=receipt.sequence - 1, limit=1, namespace=target.namespace)
    return any(message.sequence == receipt.sequence for message in page.messages)
