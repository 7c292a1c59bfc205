"""Errors over HTTP: the table from every error to a status, and how one is answered."""

from __future__ import annotations

import msgspec

from smista.errors import BrokerError

STATUS = {
    "access_denied": 403,
    "ack_deadline_exceeded": 409,
    "arrow_missing": 501,
    "binding_target_not_found": 404,
    "broker_closed": 503,
    "broker_stopped": 503,
    "bulk_reader_failed": 503,
    "claim_broken": 410,
    "claim_expired": 410,
    "claim_not_found": 404,
    "consumer_in_use": 409,
    "consumer_not_found": 404,
    "dead_letter_cycle": 409,
    "exchange_cycle": 409,
    "exchange_differs": 409,
    "exchange_in_use": 409,
    "exchange_internal": 403,
    "exchange_not_found": 404,
    "exchange_reserved": 403,
    "host_not_allowed": 403,
    "invalid_argument": 400,
    "invalid_binding": 400,
    "invalid_exchange": 400,
    "invalid_name": 400,
    "invalid_priority": 400,
    "invalid_receipt": 400,
    "invalid_request": 400,
    "invalid_settings": 400,
    "log_in_memory": 409,
    "log_position_dropped": 410,
    "low_disk": 507,
    "low_memory": 507,
    "message_not_found": 404,
    "message_too_large": 413,
    "method_not_allowed": 405,
    "namespace_not_found": 404,
    "origin_not_allowed": 403,
    "outcome_unknown": 503,
    "path_not_found": 404,
    "policy_not_found": 404,
    "queue_deleted": 410,
    "queue_differs": 409,
    "queue_full": 429,
    "queue_in_exclusive_use": 409,
    "queue_in_use": 409,
    "queue_not_empty": 409,
    "queue_not_found": 404,
    "reach_too_wide": 409,
    "redrive_ended": 409,
    "redrive_not_found": 404,
    "redrive_running": 409,
    "request_cancelled": 409,
    "request_too_large": 413,
    "stage_busy": 409,
    "stage_damaged": 409,
    "stage_not_found": 404,
    "stale_receipt": 409,
    "too_many_readers": 429,
    "too_many_requests": 429,
    "unknown_command": 400,
    "unsupported_media_type": 415,
    "upgrade_required": 426,
}
"""Those of the log are not here: a broker that cannot open its log serves nobody, and later ones arrive as
`broker_stopped` and `outcome_unknown`."""


class ErrorBody(msgspec.Struct, frozen=True):
    code: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorBody


INTERNAL_ERROR = ErrorBody("internal_error", "The broker is at fault; its log says more. Nothing was confirmed.")


def error_body(error: BrokerError) -> ErrorBody:
    return ErrorBody(error.code, str(error))
