"""`scheduled list`, `scheduled change`, `scheduled cancel`."""

import pytest

from tests.cli.conftest import Smista


@pytest.fixture
def late(smista: Smista, queue: str) -> str:
    """The id of a message that is due in an hour."""
    return str(smista("put", queue, "x", "--delay", "1h", "--json").json["message_id"])


def test_list_shows_when_they_are_due(smista: Smista, queue: str, late: str) -> None:
    _, row = smista("scheduled", "list", queue).out.splitlines()
    assert row.split()[0] == late
    assert row.split()[1].startswith("59m")
    assert smista("scheduled", "list", queue, "--json").lines[0]["state"] == "scheduled"


def test_list_of_a_queue_without_any_is_4(smista: Smista, queue: str) -> None:
    assert smista("scheduled", "list", queue).code == 4


def test_list_can_be_narrowed_and_spare_the_bodies(smista: Smista, queue: str, late: str) -> None:
    smista("put", queue, "y", "--delay", "1h", "--priority", "3")
    [urgent] = smista("scheduled", "list", queue, "--priority", "3", "--json").lines
    assert urgent["message"] == "y"
    heading, _, _ = smista("scheduled", "list", queue, "--no-bodies").out.splitlines()
    assert "body" not in heading
    assert smista("scheduled", "list", queue, "--group", "nobody").code == 4


def test_change_gives_another_time(smista: Smista, queue: str, late: str) -> None:
    assert smista("scheduled", "change", queue, late, "--at", "2099-01-01T00:00:00+00:00").code == 0
    assert smista("scheduled", "list", queue, "--json").lines[0]["ready_at_ms"] == 4_070_908_800_000
    assert smista("scheduled", "change", queue, late, "--delay", "0").out == "Changed 1 message.\n"
    assert smista("get", queue, "--wait", "20s", "--body").out == "x\n"


def test_change_wants_either_a_delay_or_an_instant(smista: Smista, queue: str, late: str) -> None:
    assert smista("scheduled", "change", queue, late).code == 2
    assert smista("scheduled", "change", queue, late, "--delay", "1s", "--at", "2099-01-01").code == 2


def test_cancel_removes_it(smista: Smista, queue: str, late: str) -> None:
    assert smista("scheduled", "cancel", queue, late, "--json").json == {"queue": queue, "cancelled": 1}
    again = smista("scheduled", "cancel", queue, late)
    assert (again.code, "[message_not_found]" in again.err) == (1, True)
