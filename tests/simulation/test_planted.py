"""The simulator finds what is planted: a test that cannot fail is a defect, and this is how it is seen to fail."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.simulation import planted
from tests.simulation.blame import Blame
from tests.simulation.lives import Lived, draw_life, live
from tests.simulation.planted import Plant

LIVES_MAX = 300
"""How many lives a fault may hide in. Those of its theme are looked at, which are one in fifteen of all."""


def lives_about(theme: str) -> Iterator[Lived]:
    for seed in itertools.count():
        life = draw_life(seed)
        if life.theme == theme:
            yield live(life)


def find(theme: str, rules: set[str]) -> tuple[int, Lived]:
    """After how many lives one of these rules was seen to be broken, and how."""
    for number, lived in enumerate(itertools.islice(lives_about(theme), LIVES_MAX), 1):
        if lived.violation is not None and lived.violation.rule in rules:
            return number, lived
    raise AssertionError(f"{LIVES_MAX} lives found nothing")


ENDED_INSIDE = "a block ended inside a command"
FAULTS: list[tuple[Plant, str, set[str]]] = [
    (planted.serve_inside_commands, "staging", {"a slice is torn"}),
    (planted.serve_inside_commands, "limits", {ENDED_INSIDE}),
    (planted.note_readiness_last, "limits", {"the log cannot be replayed"}),
    (
        planted.refuse_before_noting,
        "limits",
        {"ended where it was not", "moved from where it was not", "the log says something else than the broker"},
    ),
    (planted.enter_one_after_the_other, "limits", {"a refused publish changed something"}),
    (planted.give_back_before_leaving, "limits", {"in flight and held by nobody"}),
    (planted.skip_a_record, "reclaiming", {"the log says something else than the broker"}),
    (planted.forget_how_far_a_job_is, "dead letters", {"the log says something else than the broker"}),
    (planted.forget_to_resume, "dead letters", {"a job stands still, or goes on after its end"}),
    (
        planted.count_moves_later,
        "dead letters",
        {"the log says something else than the broker", "a job counts wrongly"},
    ),
    (planted.forget_who_holds, "alone", {"holders do not add up"}),
    (
        planted.drop_what_cannot_be_read,
        "reclaiming",
        {"the broker does not start again", "a start finds something else than the broker knew"},
    ),
    (planted.fold_too_far, "reclaiming", {"a start finds something else than the broker knew"}),
    (planted.confirm_too_early, "limits", {"confirmed before it was on disk"}),
    (planted.keep_what_nobody_wants, "paging", {"in flight and held by nobody"}),
    (planted.forget_to_wake, "alone", {"a consumer waits in vain"}),
    (planted.count_bytes_wrongly, "paging", {"resident bytes do not add up"}),
    (planted.keep_old_histories, "limits", {"bytes of histories do not add up"}),
    (planted.keep_what_has_left, "limits", {"the broker's tables are wrong"}),
    (planted.trust_old_receipts, "limits", {"taken from its holder", "a stale receipt had an effect"}),
    (planted.keep_after_restart, "reclaiming", {"in flight for ever and held by nobody"}),
    (planted.forget_the_rest, "alone", {"a policy never reaches all queues"}),
    (
        planted.govern_what_is_matched,
        "alone",
        {"a policy does not hold", "the log says something else than the broker"},
    ),
    (planted.acknowledge_neighbours, "paging", {"acknowledged by nobody"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "theme", "rules"), FAULTS, ids=[f"{plant.__name__}" for plant, _, _ in FAULTS])
def test_a_planted_fault_is_found(plant: Plant, theme: str, rules: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    if ENDED_INSIDE not in rules:
        # It is met first by all that serve inside commands, and what comes of it is what is looked for.
        monkeypatch.setattr(Blame, "ignored", frozenset((ENDED_INSIDE,)))
    number, lived = find(theme, rules)
    print(f"{plant.__name__}: found in life {number} about {theme!r}, seed {lived.life.seed}: {lived.violation}")
