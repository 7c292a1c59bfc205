"""`python -m bench peers`: measures, prints tables, writes JSON and a page."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import msgspec

from bench.comparison import measuring, page, tables
from bench.comparison.report import Report


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=__doc__)
    add = parser.add_argument
    add("--runs", type=int, default=5, help="of each broker for each row, by turns")
    add("--seconds", type=float, default=4.0, help="of each run")
    add("--backlog", type=int, default=1_000_000, help="messages")
    add("--soak", type=float, default=600.0, help="seconds of the soak")
    every = ",".join(measuring.SECTIONS)
    add("--sections", default=every, help=f"some of {every}; the first row of the rates is always measured")
    add("--folder", type=Path, default=Path("build/bench-peers"), help="for peers.json and peers.html")
    add("--write", type=Path, metavar="PAGE", help="also put the tables between the marks of docs/benchmarks.md")
    add("--from", dest="earlier", type=Path, metavar="JSON", help="measure nothing, use what was found before")
    options = parser.parse_args(arguments)
    if options.earlier:
        found = msgspec.json.decode(options.earlier.read_bytes(), type=Report)
    else:
        sections = options.sections.split(",")
        chosen = measuring.Options(options.runs, options.seconds, options.backlog, options.soak, sections)
        found = measuring.measure(chosen, shlex.join(["python", "-m", "bench", "peers", *arguments]))
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "peers.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    (options.folder / "peers.html").write_text(page.page(found))
    print(tables.markdown(found))
    print(f"{options.folder}/peers.json, {options.folder}/peers.html")
    if options.write:
        tables.write(found, options.write)
    return 0
