"""`smista worker module:app`: runs the consumers of a Python module."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from smista.cli.help import Command
from smista.cli.reach import Reach
from smista.command_line import WrongUsage, switch

if TYPE_CHECKING:
    from smista.client import Worker

commands = typer.Typer()


@commands.command(cls=Command)
def worker(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The worker: app in orders.py is orders:app.")],
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The broker's address, instead of the one in the program.")
    ] = None,
    is_reloaded: Annotated[
        bool, switch("--reload", help="Restart when a Python file in this directory changes.")
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="The lowest level to log.")
    ] = "info",
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Log lines as text or as JSON.")] = "text",
) -> None:
    """Run the consumers of a Python module until stopped.

    On Ctrl-C and SIGTERM running handlers may finish, and other messages are released.
    """
    from smista.address import stream_url
    from smista.errors import InvalidArgument
    from smista.server import strays
    from smista.server.logs import configure

    reach = Reach(url).under(context)
    if reach.namespace is not None:
        raise WrongUsage("A worker's namespace is set in its program: Worker(namespace=...).")
    url = reach.url
    try:
        stream_url(url)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    configure(log_level, log_format)
    strays.catch()
    if is_reloaded:
        from smista.client.reload import run

        again = [sys.executable, "-m", "smista", "worker", name, "--log-level", log_level, "--log-format", log_format]
        raise typer.Exit(run(again if url is None else [*again, "--url", url], [Path.cwd()]))
    found = _loaded(name)
    if not found.queues:
        raise WrongUsage(f"The worker {name} has no consumers; register one with @app.consumer(queue).")
    if url is not None:
        found.address = url
    found.run()


def _loaded(name: str) -> Worker:
    """The worker of that name. If its module fails, prints the traceback from the module on, without our own frames."""
    from smista.client.errors import WorkerNotFound
    from smista.client.worker import load

    try:
        return load(name)
    except WorkerNotFound:
        raise
    except Exception as error:
        frames = error.__traceback__
        while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        traceback.print_exception(error.with_traceback(frames))
        raise WrongUsage(f"The module of {name} cannot be loaded, see above.") from None


def _is_ours(file: str) -> bool:
    return file in (__file__, sys.modules["smista.client.worker"].__file__) or "importlib" in file
