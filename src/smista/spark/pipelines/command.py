"""Pipelines as commands: of `smista pipeline`, and of the file itself under spark-submit or Python.

    @pipeline
    def archive(run: Run, *, to: Annotated[str, typer.Option(help="...")], ...) -> Summary:
        "What it does."

    if __name__ == "__main__":
        main(archive)

A pipeline has the options of its parameters, and those that `command` gives to all of them. What goes wrong is a
sentence on standard error and an exit code: 1 for what failed or did not add up, 2 for wrong usage, 3 where no broker
answers.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from smista.command_line import as_command, duration, exit_code_for, past_ms, switch
from smista.errors import BrokerError
from smista.spark.errors import SparkError, WrongOption
from smista.spark.pipelines.rows import Source
from smista.spark.pipelines.run import Run, failures_explained
from smista.spark.pipelines.summary import Summary

Body = TypeVar("Body", bound=Callable[..., Summary])
CURE = "pip install 'smista[spark]'"
INTERVAL_MS = 10_000
PIPELINES: dict[str, Callable[..., Summary]] = {}
"""By name; each is there when its module was imported."""


# -- how options are read ---------------------------------------------------------------------------------------------


def pairs(written: list[str] | None, option: str) -> dict[str, str]:
    """`NAME=VALUE`, repeatable."""
    found = {}
    for one in written or ():
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise WrongOption(f"{one!r} is not NAME=VALUE: {option} wants that.")
        found[name] = value
    return found


ArchiveFolder = Annotated[
    str | None, typer.Option("--archive", metavar="FOLDER", help="Read this archive, not the broker's log.")
]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", "-q", metavar="QUEUE", help="Only this queue, or those like orders-*. Repeatable."),
]
Since = Annotated[
    int | None, typer.Option("--since", parser=past_ms, metavar="INSTANT", help="Only what happened then or later.")
]
Until = Annotated[
    int | None, typer.Option("--until", parser=past_ms, metavar="INSTANT", help="Only what happened before.")
]


To = Annotated[str | None, typer.Option("--to", metavar="QUEUE", help="Publish into this queue.")]
Through = Annotated[
    str | None,
    typer.Option("--exchange", metavar="EXCHANGE", help="Publish through this exchange, by the messages' keys."),
]


def target_of(queue: str | None, exchange: str | None) -> dict[str, str]:
    """What messages are to be published to, as an option of the data source."""
    if (queue is None) == (exchange is None):
        raise WrongOption("Say where to: --to QUEUE or --exchange EXCHANGE, one of them.")
    return {"queue": queue} if queue is not None else {"exchange": exchange or ""}


def source(archive: str | None, queue: list[str] | None, since: int | None = None, until: int | None = None) -> Source:
    return Source(archive, tuple(queue or ()), since, until)


# -- what every pipeline has ------------------------------------------------------------------------------------------


def pipeline(body: Body) -> Body:
    """Register a function as the pipeline of its name. Whatever goes wrong in it is reported in a sentence."""
    explaining = failures_explained()(body)
    PIPELINES[body.__name__] = explaining
    return explaining


def command(body: Callable[..., Summary]) -> Callable[..., None]:
    """The pipeline as a function that typer can make a command of. Options before the command's name count too, where
    there is such a place."""

    def run(
        context: typer.Context,
        *,
        endpoint: Annotated[
            str | None,
            typer.Option(
                "--endpoint", "--url", metavar="URL", help="Where the broker is; SMISTA_URL, else this machine."
            ),
        ] = None,
        namespace: Annotated[
            str | None, typer.Option(metavar="NAME", help="The namespace that the names are in.")
        ] = None,
        master: Annotated[str | None, typer.Option(metavar="URL", help="Spark's master, such as local[2].")] = None,
        conf: Annotated[
            list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting for Spark. Repeatable.")
        ] = None,
        is_continuous: Annotated[bool, switch("--continuous", help="Go on until SIGTERM or Ctrl-C.")] = False,
        interval: Annotated[
            int | None, duration("--interval", help="Go on, and look so often; every 10s with --continuous alone.")
        ] = None,
        as_json: Annotated[bool, switch("--json", help="Print JSON.")] = False,
        **values: Any,
    ) -> None:
        need_spark()
        outer = context.obj
        of_broker = Run(
            endpoint=endpoint or getattr(outer, "url", None),
            namespace=namespace or getattr(outer, "namespace", None),
            master=master,
            conf=pairs(conf, "--conf"),
            interval_ms=INTERVAL_MS if interval is None and is_continuous else interval,
        )
        try:
            summary = body(of_broker, **values)
        finally:
            of_broker.close()
        print(summary.json() if as_json or getattr(outer, "is_json", False) else summary.text(), flush=True)
        raise typer.Exit(0 if summary.is_good else 1)

    [context, *common, _] = inspect.signature(run, eval_str=True).parameters.values()
    [_, *own] = inspect.signature(body, eval_str=True).parameters.values()
    return as_command(run, [context, *own, *common], inspect.getdoc(body))


def need_spark() -> None:
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkError(f"Pipelines run on Spark, and {' and '.join(missing)} is not installed: {CURE}.")


def main(body: Callable[..., Summary]) -> None:
    """Run the pipeline with the arguments of this process, and end it."""
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command()(command(body))
    try:
        alone(prog_name=body.__name__)
    except BrokerError as error:
        print(f"Error: {error} [{error.code}]", file=sys.stderr)
        sys.exit(exit_code_for(error))
