"""Errors that only clients raise; `smista.errors` draws the tree of all.

An error of the broker arrives as the class that the broker itself raised, found by its code: `QueueNotFound` is
`smista.errors.QueueNotFound` on both sides, `ExchangeNotFound` is that of `smista.exchange_errors`. Only code and
message are sent, so attributes such as `ExchangeNotFound.exchange` are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from smista import errors, exchange_errors
from smista.errors import BrokerError


class ClientError(BrokerError):
    """The root of those that do not come from the broker; never raised itself."""

    code: ClassVar[str] = "client_error"


class ConnectionFailed(ClientError):
    """No broker answers at the address; the request was not sent."""

    code: ClassVar[str] = "connection_failed"


class ConnectionLost(ClientError):
    """The connection broke before the answer: the request may or may not have been carried out."""

    code: ClassVar[str] = "connection_lost"


class ClientClosed(ClientError):
    """The client was closed, or belongs to another process."""

    code: ClassVar[str] = "client_closed"


class InternalError(BrokerError):
    """A bug in the broker; its log has the details."""

    code: ClassVar[str] = "internal_error"


class ServerError(BrokerError):
    """An error code that this client does not know."""

    code: ClassVar[str] = "server_error"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        # Other errors have their code in the class; here it is the broker's.
        self.__dict__["code"] = code


class WorkerNotFound(ClientError):
    """`smista worker module:app` names no worker."""

    code: ClassVar[str] = "worker_not_found"


def _descendants(error: type[BrokerError]) -> Iterator[type[BrokerError]]:
    for child in error.__subclasses__():
        yield child
        yield from _descendants(child)


_OF_THE_BROKER = (errors.__name__, exchange_errors.__name__)
_BY_CODE: dict[str, type[BrokerError]] = {
    InternalError.code: InternalError,
    **{error.code: error for error in _descendants(BrokerError) if error.__module__ in _OF_THE_BROKER},
}


def error_from(code: str, message: str) -> BrokerError:
    """The broker's error as an exception of its own class."""
    known = _BY_CODE.get(code)
    if known is None:
        return ServerError(code, message)
    # Without `__init__`: some constructors build the message from parts, and here it is complete.
    error = known.__new__(known, message)
    assert isinstance(error, BrokerError)
    return error


def another(error: BrokerError) -> BrokerError:
    """A copy of an error for another caller: each may raise it, add notes to it and keep it."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update({name: value for name, value in error.__dict__.items() if name != "__notes__"})
    return copy
