"""A ledger for batches that are staged, committed, claimed and acknowledged, and its checker.

All of these can be repeated until they are answered, and claims here never expire. So nothing excuses a row that is
seen twice, or not at all:

    lost       its commit was answered, and when the queue is empty nobody has read it
    doubled    it is in two claims, or twice in one
    unstaged   nobody committed it
    changed    a claim reads differently from what it read before
    repeated   a commit that was answered published something again
"""

from __future__ import annotations

from collections import Counter


class BulkLedger:
    def __init__(self) -> None:
        self.violations: list[str] = []
        self.totals: Counter[str] = Counter()
        self._asked: set[bytes] = set()
        """Rows whose commit was asked for: they may be there."""
        self._committed: set[bytes] = set()
        """Rows whose commit was answered: they must be there."""
        self._claims: dict[int, list[bytes]] = {}
        self._claim_of: dict[bytes, int] = {}

    @property
    def kinds(self) -> set[str]:
        return {violation.partition(":")[0] for violation in self.violations}

    # -- publishing ---------------------------------------------------------------------------------------------------

    def committing(self, rows: list[bytes]) -> None:
        self._asked |= set(rows)

    def committed(self, rows: list[bytes], *, published: int) -> None:
        if published != len(rows):
            self._report("lost" if published < len(rows) else "doubled", f"{published} of {len(rows)} were published")
        self._committed |= set(rows)
        self.totals["committed"] += 1

    def committed_again(self, rows: list[bytes], *, published: int, is_repeated: bool) -> None:
        if not is_repeated or published != len(rows):
            self._report("repeated", f"a batch of {len(rows)} was published again")
        self.totals["committed again"] += 1

    # -- claiming -----------------------------------------------------------------------------------------------------

    def read(self, claim: int, rows: list[bytes]) -> None:
        before = self._claims.setdefault(claim, rows)
        self.totals["read"] += 1
        if before is not rows:
            self.totals["read again"] += 1
            if before != rows:
                self._report("changed", f"claim {claim} had {len(before)} rows and has {len(rows)}")
            return
        for row in rows:
            if row not in self._asked:
                self._report("unstaged", f"{row!r} in claim {claim}")
            earlier = self._claim_of.setdefault(row, claim)
            if earlier != claim or rows.count(row) > 1:
                self._report("doubled", f"{row!r} in claims {earlier} and {claim}")

    def finish(self) -> None:
        """The queue is empty."""
        lost = self._committed - self._claim_of.keys()
        if lost:
            self._report("lost", f"{len(lost)} rows, {min(lost)!r} among them")

    def _report(self, kind: str, what: str) -> None:
        self.violations.append(f"{kind}: {what}")
