"""`smista worker module:app`: runs the consumers of a program."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from smista.cli.exits import WrongUsage
from smista.cli.help import Command
from smista.cli.reach import Reach

if TYPE_CHECKING:
    from smista.client import Worker

commands = typer.Typer()


@commands.command(cls=Command)
def worker(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="Where the worker is: orders.py's app is orders:app.")
    ],
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="The broker, instead of the one the program names.")
    ] = None,
    is_reloaded: Annotated[
        bool, typer.Option("--reload", help="Start anew when a Python file here changes.", show_default=False)
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="The least severe lines that are logged.")
    ] = "info",
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Lines for people or for machines.")] = "text",
) -> None:
    """Run the consumers of a program until it is told to stop.

    Ctrl-C and SIGTERM let running handlers finish and give the rest back.
    """
    from smista.client.address import stream_url
    from smista.core.errors import InvalidArgument
    from smista.server import strays
    from smista.server.logs import configure

    reach = Reach(url).under(context)
    if reach.namespace is not None:
        raise WrongUsage("A worker's namespace is said in its program: Worker(namespace=...).")
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
    """The worker of that name. Where its module fails, whatever with, its author is shown where, and not how we came
    there."""
    from smista.client.errors import WorkerNotFound
    from smista.client.worker import load

    try:
        return load(name)
    except WorkerNotFound:
        raise
    except Exception as error:
        frames = error.__traceback__
        while frames is not None and _is_on_the_way(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        traceback.print_exception(error.with_traceback(frames))
        raise WrongUsage(f"The module of {name} cannot be loaded, see above.") from None


def _is_on_the_way(file: str) -> bool:
    return file in (__file__, sys.modules["smista.client.worker"].__file__) or "importlib" in file
