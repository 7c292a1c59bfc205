"""`make bench`, or `python -m bench NAME ...`: run the benchmarks, each in a process of its own.

`make bench-peers`, or `python -m bench peers ...`, compares with other brokers; it takes hours, and has options.
"""

from __future__ import annotations

import signal
import subprocess
import sys

from bench import amqp, durable, floods, http, memory, operations, pauses, queues, recovery, spark, sqs, stream, topics
from bench.applications import running as applications
from bench.comparison import command as comparison
from bench.machine import describe

BENCHMARKS = {
    "operations": operations.main,
    "durable": durable.main,
    "memory": memory.main,
    "queues": queues.main,
    "recovery": recovery.main,
    "pauses": pauses.main,
    "topics": topics.main,
    "http": http.main,
    "amqp": amqp.main,
    "applications": applications.main,
    "stream": stream.main,
    "sqs": sqs.main,
    "floods": floods.main,
    "spark": spark.main,
}


def main(names: list[str]) -> int:
    # As on Ctrl-C, so that the servers of a benchmark end with it.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    if names[:1] == ["peers"]:
        return comparison.main(names[1:])
    if len(names) == 1 and names[0] in BENCHMARKS:
        print(f"\n## {names[0]}    (python -m bench {names[0]})", flush=True)
        BENCHMARKS[names[0]]()
        return 0
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"There is no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}.", file=sys.stderr)
        return 2
    print(f"# {describe()}", flush=True)
    return max(map(_run, names or BENCHMARKS))


def _run(name: str) -> int:
    with subprocess.Popen([sys.executable, "-m", "bench", name]) as running:
        try:
            return running.wait()
        except SystemExit:
            running.terminate()
            raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
