"""What a pipeline tells at its end, and how Spark's failures are put into a sentence."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from smista.spark.errors import BrokerUnreachable
from smista.spark.pipelines.errors import PipelineFailed
from smista.spark.pipelines.folder import alone_in
from smista.spark.pipelines.run import explained, failures_explained
from smista.spark.pipelines.summary import Summary

TOLD = Summary(
    {"pipeline": "triage", "still_dead": 12_345, "share": 0.25},
    [{"group": "a1", "last_at": datetime(2026, 1, 31, tzinfo=UTC), "error": "no\x1b[2Jdough " + "x" * 80}],
    is_good=False,
    notes=["It does not add up."],
)


def test_people_get_a_table_that_cannot_move_their_cursor() -> None:
    heading, count, share, _, columns, row, _, note = TOLD.text().splitlines()
    assert (heading, count, share) == ("pipeline    triage", "still dead  12,345", "share       0.25")
    assert columns.split("  ")[0] == "group"
    assert "\\x1b[2Jdough" in row
    assert row.endswith("…")
    assert note == "It does not add up."


def test_machines_get_one_object() -> None:
    told = json.loads(TOLD.json())
    assert (told["still_dead"], told["is_good"]) == (12_345, False)
    assert told["found"][0]["last_at"] == "2026-01-31T00:00:00+00:00"


PYTHON = """[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):
  File "source.py", line 1, in read
    raise {raised}
{raised}
\tat org.apache.spark.sql.Something
"""


@pytest.mark.parametrize(
    ("trace", "kind", "said"),
    [
        (PYTHON.format(raised="ValueError: no such thing"), PipelineFailed, "ValueError: no such thing"),
        (
            PYTHON.format(raised="smista.spark.errors.BrokerUnreachable: Nobody answers."),
            BrokerUnreachable,
            "Nobody answers.",
        ),
        (
            PYTHON.format(raised="smista.spark.errors.BrokerRefused: There is no queue 'x'."),
            PipelineFailed,
            "There is no queue 'x'.",
        ),
        (
            "Job aborted.\n\tat a.b.C\nCaused by: java.io.IOException: disk full",
            PipelineFailed,
            "IOException: disk full",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: x. SQLSTATE: 42K03; line 1",
            PipelineFailed,
            "[PATH_NOT_FOUND] Path does not exist: x",
        ),
        (
            "Job aborted.\n: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while "
            "reading file file:///a/b.parquet.  SQLSTATE: KD001\nCaused by: java.lang.RuntimeException: no footer",
            PipelineFailed,
            "/a/b.parquet cannot be read: RuntimeException: no footer. Restore it, or leave it out.",
        ),
        ("", PipelineFailed, "Spark gave no reason."),
    ],
    ids=["python", "unreachable", "refused", "java", "plain", "file", "silent"],
)
def test_of_a_trace_the_cause_is_told(trace: str, kind: type[Exception], said: str) -> None:
    error = explained(trace)
    assert (type(error), str(error)) == (kind, said)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(PipelineFailed, match=r"/file/state cannot be used: Not a directory\."),
        failures_explained(),
        alone_in(tmp_path / "file" / "state", "looking"),
    ):
        raise AssertionError("it was held")
    with pytest.raises(ValueError, match="ours"), failures_explained():
        raise ValueError("ours")
