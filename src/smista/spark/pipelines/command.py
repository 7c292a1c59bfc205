"""Pipelines as commands: of `smista pipeline`, and of the file itself under spark-submit or Python.

    @pipeline
    def archive(run: Run, *, to: Annotated[str, typer.Option(help="...")], ...) -> Summary:
        "What it does."

    if __name__ == "__main__":
        main(archive)

A pipeline has the options of its parameters and those of `_COMMON`. An option that is a duration or an instant is
written as on the rest of the command line. What goes wrong is a sentence on standard error and an exit code: 1 for what
failed or did not add up, 2 for wrong usage, 3 where no broker answers.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer

from smista.errors import BrokerError
from smista.spark.errors import BrokerUnreachable, JavaNotFound, SparkError, WrongOption
from smista.spark.pipelines.rows import Source
from smista.spark.pipelines.run import Run, failures_explained
from smista.spark.pipelines.summary import Summary

Body = TypeVar("Body", bound=Callable[..., Summary])
CURE = "pip install 'smista[spark]'"
INTERVAL_MS = 10_000
PIPELINES: dict[str, Callable[..., Summary]] = {}
"""By name; each is there when its module was imported."""
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


# -- how options are read ---------------------------------------------------------------------------------------------


def duration_ms(text: str | int) -> int:
    """`250ms`, `30s`, `1h30m`, `14d`; a plain number counts seconds."""
    if isinstance(text, int):
        return text
    written = text.strip().lower()
    if re.fullmatch(r"[0-9]+", written):
        written += "s"
    parts = re.findall(r"([0-9]+)(ms|[smhdw])", written)
    if not parts or "".join(number + unit for number, unit in parts) != written:
        raise typer.BadParameter(f"{text!r} is not a duration; write it as 250ms, 30s, 5m, 1h30m or 14d.")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in parts)


def instant_ms(text: str | int) -> int:
    """ISO 8601, local time unless it names a zone; or a duration, which means so long ago."""
    if isinstance(text, int):
        return text
    try:
        return round(datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return round(time.time() * 1000) - duration_ms(text)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is not an instant; write it as 2026-01-31T12:00, or as 5m for five minutes ago."
        ) from None


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
    int | None, typer.Option("--since", parser=instant_ms, metavar="INSTANT", help="Only what happened then or later.")
]
Until = Annotated[
    int | None, typer.Option("--until", parser=instant_ms, metavar="INSTANT", help="Only what happened before.")
]


def source(archive: str | None, queue: list[str] | None, since: int | None = None, until: int | None = None) -> Source:
    return Source(archive, tuple(queue or ()), since, until)


# -- what every pipeline has ------------------------------------------------------------------------------------------


def _parameter(name: str, annotation: Any, default: object = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


_COMMON = [
    _parameter(
        "endpoint",
        Annotated[
            str | None,
            typer.Option(
                "--endpoint", "--url", metavar="URL", help="Where the broker is; SMISTA_URL, else this machine."
            ),
        ],
    ),
    _parameter(
        "namespace",
        Annotated[str | None, typer.Option("--namespace", metavar="NAME", help="The namespace that the names are in.")],
    ),
    _parameter(
        "master",
        Annotated[str | None, typer.Option("--master", metavar="URL", help="Spark's master, such as local[2].")],
    ),
    _parameter(
        "conf",
        Annotated[
            list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting for Spark. Repeatable.")
        ],
    ),
    _parameter(
        "is_continuous",
        Annotated[bool, typer.Option("--continuous", help="Go on until SIGTERM or Ctrl-C.", show_default=False)],
        False,
    ),
    _parameter(
        "interval",
        Annotated[
            int | None,
            typer.Option(
                "--interval",
                parser=duration_ms,
                metavar="DURATION",
                help="Go on, and look so often; every 10s with --continuous alone.",
            ),
        ],
    ),
    _parameter("as_json", Annotated[bool, typer.Option("--json", help="Print JSON.", show_default=False)], False),
]


def pipeline(body: Body) -> Body:
    """Register a function as the pipeline of its name. Whatever goes wrong in it is told in a sentence."""
    explaining = failures_explained()(body)
    PIPELINES[body.__name__] = explaining
    return explaining


def command(body: Callable[..., Summary]) -> Callable[..., None]:
    """The pipeline as a function that typer can make a command of."""
    hints = inspect.get_annotations(body, eval_str=True)
    own = [
        each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for each in list(inspect.signature(body).parameters.values())[1:]
    ]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    def run(context: typer.Context, **values: Any) -> None:
        common = {each.name: values.pop(each.name) for each in _COMMON}
        raise typer.Exit(carry_out(body, _defaults(context, common), values))

    parameters = [context, *own, *_COMMON]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what inspect looks at first
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__ = inspect.getdoc(body)
    return run


def _defaults(context: typer.Context, common: dict[str, Any]) -> dict[str, Any]:
    """With what was said before the command's name, where there is such a place."""
    said = context.obj
    common["endpoint"] = common["endpoint"] or getattr(said, "url", None)
    common["namespace"] = common["namespace"] or getattr(said, "namespace", None)
    common["as_json"] = common["as_json"] or getattr(said, "is_json", False)
    return common


def carry_out(body: Callable[..., Summary], common: dict[str, Any], values: dict[str, Any]) -> int:
    """Run the pipeline and tell what it did; returns the exit code."""
    need_spark()
    interval_ms = common["interval"]
    if interval_ms is None and common["is_continuous"]:
        interval_ms = INTERVAL_MS
    run = Run(
        endpoint=common["endpoint"],
        namespace=common["namespace"],
        master=common["master"],
        conf=pairs(common["conf"], "--conf"),
        interval_ms=interval_ms,
    )
    try:
        summary = body(run, **values)
    finally:
        run.close()
    print(summary.json() if common["as_json"] else summary.text(), flush=True)
    return 0 if summary.is_good else 1


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
        sys.exit(exit_code(error))


def exit_code(error: BrokerError) -> int:
    if error.code in ("connection_failed", "connection_lost", BrokerUnreachable.code):
        return 3
    return 2 if error.code in (WrongOption.code, SparkError.code, JavaNotFound.code) else 1
