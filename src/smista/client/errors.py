"""What can go wrong between a program and its broker.

    BrokerError
    ├── ConnectionFailed     nobody answers at the address, or not as a broker does
    ├── ConnectionLost       the connection broke while this was in flight: it may or may not have happened
    ├── ClientClosed         the client was closed, or belongs to another process
    ├── InternalError        the broker is at fault; its log says more
    ├── ServerError          an error of the broker's that this client does not know; `code` is the broker's
    └── WorkerNotFound       `smista worker module:app` names no worker

What the broker refuses arrives as the class that the broker itself raised, found by its code: `QueueNotFound` is
`smista.core.errors.QueueNotFound` on both sides, `InvalidRequest` is `smista.errors.InvalidRequest`. Only the sentence
travels, so attributes such as `ExchangeNotFound.exchange` are not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from smista import errors as broker_errors
from smista.core import errors as core_errors
from smista.errors import BrokerError


class ConnectionFailed(BrokerError):
    code: ClassVar[str] = "connection_failed"


class ConnectionLost(BrokerError):
    code: ClassVar[str] = "connection_lost"


class ClientClosed(BrokerError):
    code: ClassVar[str] = "client_closed"


class InternalError(BrokerError):
    code: ClassVar[str] = "internal_error"


class ServerError(BrokerError):
    code: ClassVar[str] = "server_error"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        # Each error has its code in its class; here it is known only now.
        self.__dict__["code"] = code


class WorkerNotFound(BrokerError):
    code: ClassVar[str] = "worker_not_found"


_MODULES = (core_errors.__name__, broker_errors.__name__)


def _descendants(error: type[BrokerError]) -> Iterator[type[BrokerError]]:
    for child in error.__subclasses__():
        yield child
        yield from _descendants(child)


_BY_CODE: dict[str, type[BrokerError]] = {
    InternalError.code: InternalError,
    **{error.code: error for error in _descendants(BrokerError) if error.__module__ in _MODULES},
}


def error_from(code: str, message: str) -> BrokerError:
    """The broker's error as an exception of the class the broker knows it by."""
    known = _BY_CODE.get(code)
    if known is None:
        return ServerError(code, message)
    # Their constructors make the sentence out of its parts; here it is made already.
    error = known.__new__(known, message)
    assert isinstance(error, BrokerError)
    return error


def another(error: BrokerError) -> BrokerError:
    """The same error for one more caller. Whoever hears of an error may raise it, add notes to it and keep it, so each
    has one of its own."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update({name: value for name, value in error.__dict__.items() if name != "__notes__"})
    return copy
