"""`policies`, `policy set`, `policy delete`."""

from tests.cli.conftest import Smista


def test_a_policy_is_set_listed_and_deleted(smista: Smista, queue: str) -> None:
    done = smista("policy", "set", queue, f"{queue}*", "--max-depth", "5", "--lease", "2m", "--priority", "3")
    assert (done.code, done.out) == (0, f"Policy {queue} now applies to 1 queue.\n")
    listed = smista("policies").out
    assert f"{queue}*" in listed
    assert "--max-depth 5" in listed
    assert "--lease 2m" in listed
    assert queue in [each["policy"] for each in smista("policies", "--json").lines]
    assert smista("stats", queue, "--json").json["policy"] == queue
    done = smista("policy", "delete", queue, "--yes")
    assert (done.code, done.out) == (0, f"Deleted policy {queue}.\n")
    assert smista("stats", queue, "--json").json["policy"] is None
    assert "[policy_not_found]" in smista("policy", "delete", queue, "--yes").err


def test_a_policy_without_settings_is_wrong_usage(smista: Smista, name: str) -> None:
    done = smista("policy", "set", name, "*")
    assert done.code == 2
    assert "No setting is given" in done.err


def test_a_policy_has_no_options_for_what_a_queue_is_built_on(smista: Smista, name: str) -> None:
    assert smista("policy", "set", name, "*", "--ordered").code == 2


def test_alter_says_which_policy_stands_before_what_was_asked_for(smista: Smista, queue: str) -> None:
    smista("policy", "set", queue, queue, "--max-depth", "100")
    done = smista("alter", queue, "--max-depth", "50", "--lease", "2m")
    assert "--max-depth 100" in done.out
    assert f"Policy {queue} overrides --max-depth; your change applies when the policy is deleted." in done.err
    smista("policy", "delete", queue, "--yes")
    assert smista("settings", queue, "--json").json["max_depth"] == 50


def test_settings_show_what_was_declared_and_what_the_policy_gives(smista: Smista, queue: str) -> None:
    smista("policy", "set", "seen", queue, "--max-depth", "50")
    heading, *rows = (line.split() for line in smista("settings", queue).out.splitlines())
    assert heading == ["name", "value", "declared", "by", "policy"]
    assert ["max-depth", "50", "none", "seen"] in rows
    assert ["retry-base", "10ms", "10ms"] in rows
    found = smista("settings", queue, "--json").json
    assert (found["max_depth"], found["declared"]["max_depth"], found["policy"]) == (50, None, "seen")
    assert found["effective_policy_definition"] == {"max_depth": 50}
    smista("policy", "delete", "seen", "--yes")
    assert all(len(line.split()) == 2 for line in smista("settings", queue).out.splitlines())


def test_only_declare_names_defaults(smista: Smista) -> None:
    assert "Default 30s." in " ".join(smista("declare", "--help").out.split())
    for command in (("alter",), ("policy", "set")):
        assert "Default" not in smista(*command, "--help").out
