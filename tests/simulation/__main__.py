"""Live lives from the command line.

python -m tests.simulation 12345 --trace     live that one again, and say what happened
python -m tests.simulation 12345 --shrink    find the shortest life that fails in the same way
python -m tests.simulation --from 0 --lives 2000    live many; says which fail, by the rule they break
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.blame import Blame
from tests.simulation.lives import Lived, draw_life, live
from tests.simulation.shrink import shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--trace", action="store_true", help="say what happened")
    parser.add_argument("--shrink", action="store_true", help="look for the shortest life that fails so")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--lives", type=int, default=200)
    parser.add_argument("--ignore", action="append", default=[], metavar="RULE", help="look behind this rule")
    arguments = parser.parse_args()
    Blame.ignored = frozenset(arguments.ignore)
    if arguments.seed is not None:
        return _one(arguments.seed, is_traced=arguments.trace, is_shrunk=arguments.shrink)
    return _many(arguments.first, arguments.lives)


def _one(seed: int, *, is_traced: bool, is_shrunk: bool) -> int:
    lived = live(draw_life(seed))
    if lived.violation is not None and is_shrunk:
        lived = shrink(lived)
        is_traced = True
    if is_traced:
        print(*lived.trace, sep="\n")
    print(report(lived))
    return int(lived.violation is not None)


def _many(first: int, count: int) -> int:
    started_s = time.monotonic()
    rules: dict[str, list[Lived]] = {}
    steps = blocks = 0
    for seed in range(first, first + count):
        lived = live(draw_life(seed))
        steps += lived.steps
        blocks += lived.blocks
        if lived.violation is not None:
            rules.setdefault(lived.violation.rule, []).append(lived)
    for rule, broken in sorted(rules.items(), key=lambda item: -len(item[1])):
        seeds = " ".join(str(lived.life.seed) for lived in broken[:8])
        print(f"{len(broken):5} {rule}\n      seeds {seeds}\n      {broken[0].violation}")
    failed = sum(map(len, rules.values()))
    elapsed_s = time.monotonic() - started_s
    print(f"{count} lives, {steps} steps, {blocks} blocks, {elapsed_s:.1f} s: {failed} failed by {len(rules)} rules")
    return int(bool(rules))


def report(lived: Lived) -> str:
    """What went wrong, and how to see it again."""
    if lived.violation is None:
        return f"life {lived.life.seed}: all is well after {lived.steps} steps"
    return (
        f"life {lived.life.seed} fails at step {lived.steps}: {lived.violation}\n"
        f"    again: .venv/bin/python -m tests.simulation {lived.life.seed} --shrink"
    )


if __name__ == "__main__":
    sys.exit(main())
