"""What Python would write to standard error by itself goes into the log instead: each as one line, in the log's form.

    warnings                           warning    py.warnings
    an exception that ends a thread    error      smista.server
    ... that nobody could be given     error      smista.server    in a destructor, say
    ... that ends the process          critical   smista.server

asyncio logs what its tasks raise by itself, through `logging`. Two things are left that write as they like: the
interpreter where it cannot go on (`faulthandler`, a fatal error), and what other programs that were started write, so
those get a pipe to write into (see `bulk/reader`).
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from types import TracebackType
from typing import TextIO

from smista.server.logs import fields

logger = logging.getLogger("smista.server")
_warned = logging.getLogger("py.warnings")


def catch() -> None:
    """From now on, in this process, for good."""
    warnings.showwarning = _warning
    sys.excepthook = _ending
    threading.excepthook = _ending_thread
    sys.unraisablehook = _unraisable


def _warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _warned.warning("%s", message, extra=fields(category=category.__name__, at=f"{filename}:{lineno}"))


def _ending(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logger.critical("ended by an error of its own: %s", error, exc_info=(kind, error, trace))


def _ending_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is SystemExit:
        return  # as Python does it: a thread may end like this
    error = ended.exc_value or ended.exc_type()
    name = "" if ended.thread is None else ended.thread.name
    logger.error(
        "a thread was ended by an error: %s",
        error,
        exc_info=(ended.exc_type, error, ended.exc_traceback),
        extra=fields(thread=name),
    )


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    error = found.exc_value or found.exc_type()
    logger.error(
        "%s: %s",
        found.err_msg or "an error that nobody could be given",
        error,
        exc_info=(found.exc_type, error, found.exc_traceback),
        extra=fields(object=repr(found.object)[:200]),
    )
