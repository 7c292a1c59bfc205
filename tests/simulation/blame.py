"""What the simulator says when something is not as it must be."""

from __future__ import annotations


class Violation(AssertionError):
    """A rule does not hold. `rule` names it in a few words, the same for every life that breaks it."""

    def __init__(self, rule: str, story: str) -> None:
        super().__init__(f"{rule}: {story}")
        self.rule = rule
        self.story = story


class Blame:
    """Violations as they are found. Inside the broker nothing is raised, since it might be caught there."""

    ignored: frozenset[str] = frozenset()
    """Rules that are not held against anybody, to see what lies behind them."""

    def __init__(self) -> None:
        self.found: list[Violation] = []

    def say(self, rule: str, story: str) -> None:
        if rule not in self.ignored:
            self.found.append(Violation(rule, story))

    def raise_first(self) -> None:
        if self.found:
            raise self.found[0]


def where(error: BaseException | None) -> str:
    """The last place in the broker where it came from."""
    traceback, place = None if error is None else error.__traceback__, ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "/smista/" in code.co_filename:
            place = f" at {code.co_filename.split('/smista/')[-1]}:{traceback.tb_lineno} {code.co_name}"
        traceback = traceback.tb_next
    return place
