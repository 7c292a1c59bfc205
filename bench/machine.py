"""Describes the machine of a measurement, and summarises figures."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
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
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    return (
        f"{cpu}, {os.cpu_count()} cores, {memory_bytes >> 30} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


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
