"""What all command lines have in common, `smista` and a pipeline run by itself: exit codes, and values of options."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from typing import Any

import typer

from smista import durations
from smista.errors import BrokerError


class ExitCode(enum.IntEnum):
    DONE = 0
    REFUSED = 1
    """The broker refused the request, or part of it."""
    USAGE = 2
    """The command line, a file it names or the configuration cannot be used as it is."""
    UNREACHABLE = 3
    """There is no broker at the address, or the connection was lost."""
    NOTHING = 4
    """No message was found, or no queue to route to."""
    INTERRUPTED = 130


class WrongUsage(typer.TyperException):
    """The command line cannot be carried out as written. For the value of one option use `typer.BadParameter`."""

    exit_code = ExitCode.USAGE


# By code rather than by class, so that a command that does not need the client does not load it.
_BY_CODE = {
    "broker_unreachable": ExitCode.UNREACHABLE,
    "connection_failed": ExitCode.UNREACHABLE,
    "connection_lost": ExitCode.UNREACHABLE,
    "invalid_configuration": ExitCode.USAGE,
    "wrong_option": ExitCode.USAGE,
    "java_not_found": ExitCode.USAGE,
    "spark_error": ExitCode.USAGE,
    "worker_not_found": ExitCode.USAGE,
}


def exit_code_for(error: BrokerError) -> ExitCode:
    return _BY_CODE.get(error.code, ExitCode.REFUSED)


# -- options ----------------------------------------------------------------------------------------------------------


def _option(read: Callable[[str], int]) -> Callable[[str | int], int]:
    """What `smista.durations` refuses is wrong usage."""

    def parse(text: str | int) -> int:
        if isinstance(text, int):
            return text  # typer passes an option's default through its parser
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


duration_ms = _option(durations.duration_ms)
past_ms = _option(durations.past_ms)
future_ms = _option(durations.future_ms)


def duration(*flags: str, help: str, shown: str | bool = False) -> Any:
    """An option that is a duration; `shown` is its default in the help."""
    return typer.Option(*flags, parser=duration_ms, metavar="DURATION", help=help, show_default=shown)


def switch(*flags: str, help: str) -> Any:
    """An option that is given or not."""
    return typer.Option(*flags, help=help, show_default=False)


def as_command(run: Callable[..., None], parameters: list[inspect.Parameter], doc: str | None) -> Callable[..., None]:
    """Give `run` the signature that typer shall see."""
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # which inspect prefers
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = doc
    return run
