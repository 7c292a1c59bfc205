"""Errors over AMQP: the table from every error to a reply code, which says what is closed too."""

from __future__ import annotations

from smista.errors import BrokerError
from smista.protocols.amqp.wire.replies import (
    ACCESS_REFUSED,
    INTERNAL_ERROR,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    AmqpError,
    ChannelClosing,
    ConnectionClosing,
)

REPLY_CODES = {
    "access_denied": ACCESS_REFUSED,
    "ack_deadline_exceeded": PRECONDITION_FAILED,
    "binding_target_not_found": NOT_FOUND,
    "broker_closed": INTERNAL_ERROR,
    "broker_stopped": INTERNAL_ERROR,
    "claim_broken": PRECONDITION_FAILED,
    "claim_expired": PRECONDITION_FAILED,
    "claim_not_found": NOT_FOUND,
    "consumer_in_use": ACCESS_REFUSED,
    "consumer_not_found": NOT_FOUND,
    "dead_letter_cycle": PRECONDITION_FAILED,
    "exchange_cycle": PRECONDITION_FAILED,
    "exchange_differs": PRECONDITION_FAILED,
    "exchange_in_use": PRECONDITION_FAILED,
    "exchange_internal": ACCESS_REFUSED,
    "exchange_not_found": NOT_FOUND,
    "exchange_reserved": ACCESS_REFUSED,
    "invalid_argument": PRECONDITION_FAILED,
    "invalid_binding": PRECONDITION_FAILED,
    "invalid_exchange": PRECONDITION_FAILED,
    "invalid_name": PRECONDITION_FAILED,
    "invalid_priority": PRECONDITION_FAILED,
    "invalid_receipt": PRECONDITION_FAILED,
    "invalid_request": PRECONDITION_FAILED,
    "invalid_settings": PRECONDITION_FAILED,
    "low_disk": PRECONDITION_FAILED,
    "low_memory": PRECONDITION_FAILED,
    "message_not_found": NOT_FOUND,
    "message_too_large": PRECONDITION_FAILED,
    "namespace_not_found": NOT_FOUND,
    "outcome_unknown": INTERNAL_ERROR,
    "policy_not_found": NOT_FOUND,
    "queue_deleted": NOT_FOUND,
    "queue_differs": PRECONDITION_FAILED,
    "queue_full": PRECONDITION_FAILED,
    "queue_in_exclusive_use": ACCESS_REFUSED,
    "queue_in_use": PRECONDITION_FAILED,
    "queue_not_empty": PRECONDITION_FAILED,
    "queue_not_found": NOT_FOUND,
    "reach_too_wide": PRECONDITION_FAILED,
    "redrive_ended": PRECONDITION_FAILED,
    "redrive_not_found": NOT_FOUND,
    "redrive_running": PRECONDITION_FAILED,
    "stale_receipt": PRECONDITION_FAILED,
}
"""Those of HTTP's requests are not here, nor those of the log in bulk. A queue that is full, and memory or disk that is
low, are answered by basic.nack where the channel confirms, see `channel.publisher`."""
OF_CHANNELS = frozenset((ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED))
"""Soft errors, as the specification calls them; the others close the connection."""


def closing(error: BrokerError, text: str = "") -> AmqpError:
    """What an error of the broker closes. `text` is what RabbitMQ says in its place, where it says anything."""
    code = REPLY_CODES.get(error.code, INTERNAL_ERROR)
    return (ChannelClosing if code in OF_CHANNELS else ConnectionClosing)(code, text or str(error))
