"""Receipt handles: the broker's receipts as text after a version, and SQS's rules for what is not in flight any more.

it has the shape of one, of another version     refused: by deleting as InvalidIdFormat, else as any other text
it was given out by another queue               refused: it is no handle here
its message was deleted or moved on             fine: deleting it again changes nothing
its lease ran out, standard queue               still deletes; changing its visibility succeeds and changes nothing
its lease ran out, FIFO queue                   refused: it has expired
its message has been handed out again since     standard: answered like a success, changes nothing; FIFO: refused
"""

from __future__ import annotations

import re

from smista.errors import InvalidReceipt
from smista.protocols.sqs.call import Call, Target
from smista.protocols.sqs.errors import RECEIPT_HANDLE_IS_INVALID, Kind, SqsError, missing
from smista.service.values import Delivery, Receipt

VERSION = "1"
_SHAPE = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{40}")
"""A version, and a receipt."""


def write(delivery: Delivery) -> str:
    return VERSION + delivery.receipt_text


def read(call: Call, target: Target, handle: str | None, *, other_version: Kind = RECEIPT_HANDLE_IS_INVALID) -> Receipt:
    """The receipt in a handle; raises where there is none. `other_version` is the error for one of another version."""
    if not handle:
        raise missing("ReceiptHandle")
    if handle[0] != VERSION:
        if _SHAPE.fullmatch(handle):
            raise SqsError(other_version, "The specified receipt handle isn't valid for the current version.")
        raise _no_handle(handle)
    try:
        receipt = target.session.receipt(handle[1:])
    except InvalidReceipt:
        raise _no_handle(handle) from None
    if receipt.queue != target.session.queue_number(target.name):
        raise SqsError(RECEIPT_HANDLE_IS_INVALID, "The input receipt handle was given out by another queue.")
    call.memory.attempts.touched(receipt)
    return receipt


def _no_handle(text: str) -> SqsError:
    return SqsError(
        RECEIPT_HANDLE_IS_INVALID, f'The input receipt handle "{text[:200]}" is not a valid receipt handle.'
    )
