"""A Spark session that works where it is started: with a Java, with this Python on the workers, with `smista` known."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from smista.spark import java
from smista.spark.errors import SparkError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",  # else the name of this machine has to resolve
    "spark.ui.enabled": "false",
}
"""Settings of a session that has no cluster; `conf` overrules them."""
NICENESS = "spark.smista.niceness"
NICENESS_DEFAULT = "10"
"""Without a cluster, Spark computes with what others on the machine leave over: the broker, most likely. A job that
reads the log at full speed would else double the time in which a message is confirmed."""
COMMON = {"spark.ui.showConsoleProgress": "false"}


def session(app: str = "smista", *, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session on `master`, all cores of this machine by default; `sc://host` is a Spark Connect server.

    Below spark-submit, its options hold. A session that exists already is returned, with `conf` applied as far as Spark
    lets it. Raises `JavaNotFound`; `SparkError` where PySpark is not installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkError("PySpark is not installed. Install it with: pip install 'smista[spark]'") from None
    builder = SparkSession.builder.appName(app)
    settings = dict(conf or {})
    if master is not None and master.startswith("sc://"):
        builder = builder.remote(master)
    elif "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM
        builder = builder if master is None else builder.master(master)
    else:
        master = master or settings.get("spark.master") or "local[*]"
        builder = builder.master(master)
        java.prepare()
        _name_python(master, settings)
        settings = (LOCAL if master.startswith("local") else {}) | COMMON | settings
    for name, value in settings.items():
        builder = builder.config(name, value)
    before = _children()
    spark: SparkSession = builder.getOrCreate()
    if master is not None and master.startswith("local"):
        for started in _children() - before:  # the JVM, unless somebody else has started it
            _yield_to_others(started, int(spark.conf.get(NICENESS, NICENESS_DEFAULT) or NICENESS_DEFAULT))
    return spark


def _children() -> set[int]:
    """The Javas that this process has started, on Linux; PySpark does not say which one is its own."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            is_child = f"\nPPid:\t{os.getpid()}\n" in (process / "status").read_text()
            if is_child and (process / "exe").readlink().name == "java":
                found.add(int(process.name))
    return found


def _yield_to_others(jvm: int, niceness: int) -> None:
    """Of the JVM, and so of the workers that it starts; this process stays as it is."""
    done: set[int] = set()
    # Each thread has a niceness of its own, which those that it starts take over: some may start meanwhile.
    while more := {jvm, *(int(thread.name) for thread in Path(f"/proc/{jvm}/task").glob("*"))} - done:
        for thread in more:
            with contextlib.suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
        done |= more


def is_classic(spark: SparkSession) -> bool:
    """Whether Spark's driver is this program: not over Spark Connect, whose sessions have no `sparkContext`."""
    return hasattr(spark, "sparkContext")


def register(spark: SparkSession) -> None:
    """Make `format("smista")` known to a session. Needed only where the module `pyspark_smista` is not found, as when
    Smista came by `--py-files`."""
    from smista.spark.source import SmistaSource

    if is_classic(spark):  # a server of Spark Connect has paths of its own
        _lead_to_py_files(spark.sparkContext)
    spark.dataSource.register(SmistaSource)


def _lead_to_py_files(context: SparkContext) -> None:
    """Spark puts what came by `--py-files` on the path of the tasks, but not of the process beside the driver in which
    the reader of a stream lives; that has the environment in which the source was registered."""
    if context.getConf().get("spark.submit.pyFiles"):
        import smista

        [package] = smista.__path__
        before = context.environment.get("PYTHONPATH")
        context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.dirname(package), before]))


def _name_python(master: str, settings: Mapping[str, str]) -> None:
    """Workers run the `python3` of their PATH, which in a virtual environment is another Python than this one, unless
    PYSPARK_PYTHON names one. Where that is set, as for workers on machines that have Python elsewhere, it holds."""
    if "spark.pyspark.python" not in settings and master.startswith(("local", "spark://")):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
