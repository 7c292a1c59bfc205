"""Every command is in docs/cli.md, and is exercised through a real socket."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smista.cli.app import SECTIONS, built

HERE = Path(__file__).parent
PAGE = (HERE.parent.parent / "docs" / "cli.md").read_text()

EXERCISED = {
    "ack": "test_receiving.py::test_what_was_got_is_acknowledged_by_its_receipt",
    "alter": "test_queues.py::test_alter_changes_what_is_named_and_leaves_the_rest",
    "bench": "test_measuring.py::test_bench_prints_rates_and_percentiles_and_leaves_no_queue",
    "bind": "test_exchanges.py::test_a_binding_leads_to_a_queue_until_it_is_taken_away",
    "bindings": "test_exchanges.py::test_a_binding_leads_to_a_queue_until_it_is_taken_away",
    "browse": "test_browsing.py::test_browse_can_be_narrowed",
    "declare": "test_queues.py::test_declare_tells_whether_the_queue_is_new",
    "delete": "test_queues.py::test_delete_takes_the_messages_along",
    "delete-message": "test_receiving.py::test_messages_are_deleted_by_their_ids",
    "demo": "test_demo.py::test_it_tells_the_story_and_leaves_nothing_behind",
    "dlq list": "test_dead_letters.py::test_list_shows_why_where_and_how_often",
    "dlq cancel": "test_dead_letters.py::test_a_redrive_with_a_rate_is_cancelled",
    "dlq purge": "test_dead_letters.py::test_purge_throws_them_away",
    "dlq redrive": "test_dead_letters.py::test_redrive_sends_all_of_them_back",
    "dlq redrives": "test_dead_letters.py::test_redrives_with_a_rate_are_listed",
    "exchange declare": "test_exchanges.py::exchange",
    "exchange delete": "test_exchanges.py::test_delete_removes_the_exchange",
    "exchanges": "test_exchanges.py::test_exchanges_are_listed",
    "export": "test_transfer.py::test_what_was_exported_comes_back",
    "extend": "test_receiving.py::test_extend_holds_a_message_for_longer",
    "get": "test_receiving.py::test_get_prints_a_message_with_its_receipt_and_leases_it",
    "import": "test_transfer.py::test_importing_again_doubles_nothing",
    "info": "test_queues.py::test_info_tells_what_the_broker_is_and_holds",
    "nack": "test_receiving.py::test_nack_retries_or_sets_aside",
    "pause": "test_queues.py::test_a_paused_queue_hands_out_nothing_until_it_is_resumed",
    "peek": "test_browsing.py::test_peek_shows_what_comes_next_and_leaves_it",
    "pipeline alerts": "test_pipeline.py::test_what_cannot_be_used_is_2_before_spark_is_started",
    "pipeline archive": "test_pipeline.py::test_archive_copies_the_log",
    "pipeline compact": "test_pipeline.py::test_what_cannot_be_used_is_2_before_spark_is_started",
    "pipeline load": "test_pipeline.py::test_load_publishes_rows",
    "pipeline metrics": "test_pipeline.py::test_no_broker_is_3_before_spark_is_started",
    "pipeline reconcile": "test_pipeline.py::test_no_broker_is_3_before_spark_is_started",
    "pipeline redrive": "test_pipeline.py::test_what_cannot_be_used_is_2_before_spark_is_started",
    "pipeline replay": "test_pipeline.py::test_what_cannot_be_used_is_2_before_spark_is_started",
    "pipeline triage": "test_pipeline.py::test_no_broker_is_3_before_spark_is_started",
    "policies": "test_policies.py::test_a_policy_is_set_listed_and_deleted",
    "policy delete": "test_policies.py::test_a_policy_is_set_listed_and_deleted",
    "policy set": "test_policies.py::test_a_policy_is_set_listed_and_deleted",
    "publish": "test_publishing.py::test_publish_tells_which_queues_it_reached",
    "purge": "test_queues.py::test_purge_removes_the_messages_and_says_how_many",
    "put": "test_publishing.py::test_one_body_is_published_and_its_id_printed",
    "queues": "test_queues.py::test_queues_are_listed_as_a_table",
    "release": "test_receiving.py::test_release_gives_a_message_back_uncounted",
    "resume": "test_queues.py::test_a_paused_queue_hands_out_nothing_until_it_is_resumed",
    "route": "test_exchanges.py::test_route_tells_where_a_message_would_go_and_why",
    "scheduled cancel": "test_scheduled.py::test_cancel_removes_it",
    "scheduled change": "test_scheduled.py::test_change_gives_another_time",
    "scheduled list": "test_scheduled.py::test_list_shows_when_they_are_due",
    "serve": "test_serve.py::test_it_serves_from_a_file_of_settings_keeps_its_data_and_stops_when_asked",
    "settings": "test_queues.py::test_settings_are_shown_under_the_names_of_their_options",
    "stats": "test_queues.py::test_stats_show_counts_and_totals",
    "top": "test_measuring.py::test_top_prints_one_frame",
    "unbind": "test_exchanges.py::test_a_binding_leads_to_a_queue_until_it_is_taken_away",
    "worker": "test_worker.py::test_it_runs_the_consumers_and_stops_when_asked",
}
"""Command: the test, or the fixture, that runs it against a broker in another process."""


def commands(group: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by the words it is called by."""
    root: Any = built()
    for name, command in (group or root).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield path + name, command


NAMES = [name for name, _ in commands()]


def test_every_command_is_exercised_through_a_real_socket() -> None:
    assert sorted(NAMES) == sorted(EXERCISED)


@pytest.mark.parametrize("name", NAMES)
def test_the_test_that_is_named_does_run_the_command(name: str) -> None:
    file, _, test = EXERCISED[name].partition("::")
    [body] = [
        node
        for node in ast.parse((HERE / file).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == test
    ]
    assert {"smista", "offline", "url"} & {argument.arg for argument in body.args.args}
    calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
    words = [[part.value for part in call.args if isinstance(part, ast.Constant)] for call in calls]
    assert any(each[: len(name.split())] == name.split() for each in words)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_in_the_documentation(name: str) -> None:
    assert f"`smista {name}" in PAGE


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=NAMES)
def test_every_option_of_a_command_is_in_its_part_of_the_documentation(name: str, command: Any) -> None:
    common = {"--url", "--namespace", "--json", "--help"}
    for parameter in command.params:
        longest = max(parameter.opts, key=len)
        if longest.startswith("--") and longest not in common:
            assert f"`{longest}" in PAGE, longest


def test_every_command_stands_in_one_section_of_the_help() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted({name.split()[0] for name in NAMES})
