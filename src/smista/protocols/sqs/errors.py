"""The errors of SQS: one kind per code, with its name in either wire protocol and its status.

An `SqsError` is an answer, not a fault of ours: actions raise it, `SqsApp` writes it. What the broker refuses is put
into SQS's words by the table at the end.
"""

from __future__ import annotations

from typing import NamedTuple

from smista.errors import BrokerError

_PREFIX = "AWS.SimpleQueueService."


class Kind(NamedTuple):
    name: str
    """In the JSON protocol, after the # of `__type`."""
    code: str
    """In the Query protocol, in `x-amzn-query-error`, and for a failed entry of a batch."""
    status: int = 400


QUEUE_DOES_NOT_EXIST = Kind("QueueDoesNotExist", _PREFIX + "NonExistentQueue")
QUEUE_NAME_EXISTS = Kind("QueueNameExists", "QueueAlreadyExists")
QUEUE_DELETED_RECENTLY = Kind("QueueDeletedRecently", _PREFIX + "QueueDeletedRecently")
EMPTY_BATCH = Kind("EmptyBatchRequest", _PREFIX + "EmptyBatchRequest")
TOO_MANY_ENTRIES = Kind("TooManyEntriesInBatchRequest", _PREFIX + "TooManyEntriesInBatchRequest")
IDS_NOT_DISTINCT = Kind("BatchEntryIdsNotDistinct", _PREFIX + "BatchEntryIdsNotDistinct")
BATCH_TOO_LONG = Kind("BatchRequestTooLong", _PREFIX + "BatchRequestTooLong")
INVALID_ENTRY_ID = Kind("InvalidBatchEntryId", _PREFIX + "InvalidBatchEntryId")
PURGE_IN_PROGRESS = Kind("PurgeQueueInProgress", _PREFIX + "PurgeQueueInProgress", 403)
MESSAGE_NOT_INFLIGHT = Kind("MessageNotInflight", _PREFIX + "MessageNotInflight")
UNSUPPORTED_OPERATION = Kind("UnsupportedOperation", _PREFIX + "UnsupportedOperation")
OVER_LIMIT = Kind("OverLimit", "OverLimit", 403)
RECEIPT_HANDLE_IS_INVALID = Kind("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid")
INVALID_ID_FORMAT = Kind("InvalidIdFormat", "InvalidIdFormat")
INVALID_MESSAGE_CONTENTS = Kind("InvalidMessageContents", "InvalidMessageContents")
INVALID_ATTRIBUTE_NAME = Kind("InvalidAttributeName", "InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE = Kind("InvalidAttributeValue", "InvalidAttributeValue")
INVALID_ADDRESS = Kind("InvalidAddress", "InvalidAddress")
INVALID_SECURITY = Kind("InvalidSecurity", "InvalidSecurity")
REQUEST_THROTTLED = Kind("RequestThrottled", "RequestThrottled")
RESOURCE_NOT_FOUND = Kind("ResourceNotFoundException", "ResourceNotFoundException", 404)
KMS = {
    name: Kind(name, "KMS." + (f"{name.removeprefix('Kms')}Exception"))
    for name in (
        "KmsDisabled",
        "KmsInvalidState",
        "KmsNotFound",
        "KmsOptInRequired",
        "KmsThrottled",
        "KmsAccessDenied",
        "KmsInvalidKeyUsage",
    )
}

# AWS sends these, though its model of the API does not have them.
INVALID_PARAMETER_VALUE = Kind("InvalidParameterValueException", "InvalidParameterValue")
MISSING_PARAMETER = Kind("MissingRequiredParameterException", "MissingParameter")
INVALID_ACTION = Kind("InvalidAction", "InvalidAction")
MALFORMED_INPUT = Kind("MalformedInput", "MalformedInput")
SERIALIZATION = Kind("SerializationException", "SerializationException")
UNKNOWN_OPERATION = Kind("UnknownOperationException", "InvalidAction")
ACCESS_DENIED = Kind("AccessDeniedException", "AccessDenied", 403)
MISSING_TOKEN = Kind("MissingAuthenticationTokenException", "MissingAuthenticationToken", 403)
INCOMPLETE_SIGNATURE = Kind("IncompleteSignatureException", "IncompleteSignature", 400)
INVALID_CLIENT_TOKEN = Kind("UnrecognizedClientException", "InvalidClientTokenId", 403)
SIGNATURE_DOES_NOT_MATCH = Kind("InvalidSignatureException", "SignatureDoesNotMatch", 403)
UNSUPPORTED_MEDIA_TYPE = Kind("UnsupportedMediaTypeException", "UnsupportedMediaType", 415)
REQUEST_TOO_LARGE = Kind("RequestEntityTooLargeException", "RequestEntityTooLarge", 413)
INTERNAL_FAILURE = Kind("InternalFailure", "InternalFailure", 500)
SERVICE_UNAVAILABLE = Kind("ServiceUnavailable", "ServiceUnavailable", 503)


class SqsError(Exception):
    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def missing(parameter: str) -> SqsError:
    return SqsError(MISSING_PARAMETER, f"The request must contain the parameter {parameter}.")


def invalid(message: str) -> SqsError:
    return SqsError(INVALID_PARAMETER_VALUE, message)


def invalid_value(value: object, parameter: str, reason: str) -> SqsError:
    return invalid(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def no_such_queue() -> SqsError:
    return SqsError(QUEUE_DOES_NOT_EXIST, "The specified queue does not exist.")


# -- what the broker refuses ------------------------------------------------------------------------------------------

KINDS: dict[str, Kind] = {
    "ack_deadline_exceeded": RECEIPT_HANDLE_IS_INVALID,
    "binding_target_not_found": INTERNAL_FAILURE,
    "broker_closed": SERVICE_UNAVAILABLE,
    "broker_error": INTERNAL_FAILURE,
    "broker_stopped": SERVICE_UNAVAILABLE,
    "claim_broken": INTERNAL_FAILURE,
    "claim_expired": INTERNAL_FAILURE,
    "claim_not_found": INTERNAL_FAILURE,
    "consumer_in_use": INTERNAL_FAILURE,
    "consumer_not_found": INTERNAL_FAILURE,
    "dead_letter_cycle": INVALID_PARAMETER_VALUE,
    "exchange_cycle": INTERNAL_FAILURE,
    "exchange_differs": INTERNAL_FAILURE,
    "exchange_in_use": INTERNAL_FAILURE,
    "exchange_internal": INTERNAL_FAILURE,
    "exchange_not_found": INTERNAL_FAILURE,
    "exchange_reserved": INTERNAL_FAILURE,
    "access_denied": ACCESS_DENIED,
    "host_not_allowed": ACCESS_DENIED,
    "invalid_argument": INVALID_PARAMETER_VALUE,
    "invalid_binding": INTERNAL_FAILURE,
    "invalid_exchange": INTERNAL_FAILURE,
    "invalid_name": INVALID_PARAMETER_VALUE,
    "invalid_priority": INVALID_PARAMETER_VALUE,
    "invalid_receipt": RECEIPT_HANDLE_IS_INVALID,
    "invalid_request": MALFORMED_INPUT,
    "invalid_settings": INVALID_ATTRIBUTE_VALUE,
    "low_disk": SERVICE_UNAVAILABLE,
    "low_memory": SERVICE_UNAVAILABLE,
    "message_not_found": INVALID_PARAMETER_VALUE,
    "message_too_large": INVALID_PARAMETER_VALUE,
    "namespace_not_found": QUEUE_DOES_NOT_EXIST,
    "origin_not_allowed": ACCESS_DENIED,
    "outcome_unknown": SERVICE_UNAVAILABLE,
    "policy_not_found": INTERNAL_FAILURE,
    "queue_deleted": QUEUE_DOES_NOT_EXIST,
    "queue_differs": QUEUE_NAME_EXISTS,
    "queue_full": REQUEST_THROTTLED,
    "queue_in_exclusive_use": UNSUPPORTED_OPERATION,
    "queue_in_use": UNSUPPORTED_OPERATION,
    "queue_not_empty": UNSUPPORTED_OPERATION,
    "queue_not_found": QUEUE_DOES_NOT_EXIST,
    "reach_too_wide": INTERNAL_FAILURE,
    "redrive_ended": UNSUPPORTED_OPERATION,
    "redrive_not_found": RESOURCE_NOT_FOUND,
    "redrive_running": INVALID_PARAMETER_VALUE,
    "request_too_large": REQUEST_TOO_LARGE,
    "resource_low": SERVICE_UNAVAILABLE,
    "stale_receipt": RECEIPT_HANDLE_IS_INVALID,
}


def from_broker(error: BrokerError) -> SqsError:
    """An error of the broker as one of SQS."""
    kind = KINDS.get(error.code, INTERNAL_FAILURE)
    if kind is QUEUE_DOES_NOT_EXIST:
        return no_such_queue()
    return SqsError(kind, str(error))
