"""Describes the machine of a measurement, and summarises figures."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def describe() -> str:
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    all_bytes = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    return (
        f"{cpu}, {os.cpu_count()} cores, {all_bytes >> 30} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def family(pid: int) -> list[int]:
    """A process and all that it started, and they."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """What processes have used of all cores, with all their threads, and with their children that have ended."""
    return sum(map(_cpu_s, pids))


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    if not fields:
        return 0.0
    own_s, children_s = (sum(map(int, fields[at : at + 2])) / os.sysconf("SC_CLK_TCK") for at in (11, 13))
    threads_s = 0.0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread may end any time
            threads_s += int(task.read_text().split()[0]) / 1e9
    # To the nanosecond as long as no thread has ended; those that have are only in the count of ticks.
    return max(own_s, threads_s) + children_s


def memory_bytes(pids: Iterable[int]) -> int:
    """What processes hold of the machine's memory; pages that several share count once."""
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            found += sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))
    return found


def _stat(pid: int) -> list[str]:
    """What follows the command's name in /proc: state, parent, group, session ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def stolen_s() -> float:
    """Seconds of all cores since boot that this machine was ready to run while its host ran something else."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def spread(values: list[float], unit: str, scale: float = 1.0) -> str:
    """Median and range of repeated measurements."""
    scaled = sorted(value * scale for value in values)
    return f"{statistics.median(scaled):,.0f} {unit} ({scaled[0]:,.0f} to {scaled[-1]:,.0f}, {len(scaled)} runs)"


def latencies(step: Callable[[], object], count: int) -> list[float]:
    """The seconds that each of `count` calls took, sorted."""
    taken = []
    clock = time.perf_counter
    for _ in range(count):
        start = clock()
        step()
        taken.append(clock() - start)
    return sorted(taken)


def summary(taken: list[float]) -> str:
    """p50, p99 and the longest of sorted seconds, in microseconds."""
    return (
        f"p50 {percentile(taken, 0.5) * 1e6:.1f}, p99 {percentile(taken, 0.99) * 1e6:.1f}, "
        f"longest {taken[-1] * 1e6:.0f} us"
    )
