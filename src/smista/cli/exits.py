"""How a command ends: the exit codes, and which error leads to which."""

from __future__ import annotations

import enum

import typer

from smista.errors import BrokerError


class ExitCode(enum.IntEnum):
    DONE = 0
    REFUSED = 1
    """The broker said no."""
    USAGE = 2
    """The command line, a file it names or the configuration cannot be used as it is."""
    UNREACHABLE = 3
    """No broker at the address, or it went away."""
    NOTHING = 4
    """There is no message, or no queue that would take it."""
    INTERRUPTED = 130


class WrongUsage(typer.TyperException):
    """What was asked for cannot be done so; the sentence says why. For one option's value there is `BadParameter`."""

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
