"""Where a server's settings come from, and what is said when one of them cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from smista.engine.settings import BrokerSettings
from smista.server.errors import InvalidConfiguration
from smista.server.settings import ServerSettings, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "smista.toml"


def refusal(flags: dict[str, object], environ: dict[str, str], file: Path | None = None) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        load(flags, environ, file)
    assert caught.value.code == "invalid_configuration"
    return str(caught.value)


def test_without_anything_the_defaults_count() -> None:
    settings = load({}, {}, None)
    assert settings == ServerSettings()
    assert settings.broker() == BrokerSettings()


def test_flags_win_over_variables_and_those_over_the_file(file: Path) -> None:
    file.write_text('host = "file"\ndata = "file"\nlog_format = "json"\n')
    environ = {"SMISTA_HOST": "variable", "SMISTA_DATA": "variable"}
    settings = load({"host": "flag"}, environ, file)
    assert (settings.host, settings.data, settings.log_format, settings.http_port) == ("flag", "variable", "json", 9324)


def test_a_flag_that_is_none_was_not_given() -> None:
    assert load({"http_port": None}, {"SMISTA_HTTP_PORT": "1"}, None).http_port == 1


def test_the_broker_gets_its_own_settings() -> None:
    settings = load({"body_bytes_max": 7}, {"SMISTA_WATCH_INTERVAL_S": "2"}, None)
    assert settings.broker() == BrokerSettings(body_bytes_max=7, watch_interval_s=2.0)


def test_a_broker_in_memory_keeps_nothing_for_readers_who_cannot_come() -> None:
    settings = load({"memory": True}, {"SMISTA_LOG_RETENTION_MS": "1000"}, None)
    assert settings.broker() == BrokerSettings(log_retention_ms=0, log_retention_bytes=0)


def test_a_variable_names_the_file_unless_a_flag_does(file: Path, tmp_path: Path) -> None:
    file.write_text("http_port = 1")
    other = tmp_path / "other.toml"
    other.write_text("http_port = 2")
    assert load({}, {"SMISTA_CONFIG": str(file)}, None).http_port == 1
    assert load({}, {"SMISTA_CONFIG": str(file)}, other).http_port == 2


def test_a_file_that_nobody_named_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("http_port = 1")
    monkeypatch.chdir(file.parent)
    assert load({}, {}, None).http_port == 9324


def test_what_is_written_as_text_becomes_what_it_means() -> None:
    environ = {
        "SMISTA_MEMORY": "true",
        "SMISTA_HTTP_PORT": "0",
        "SMISTA_KEEP_ALIVE_S": "1",
        "SMISTA_LOG_LEVEL": "debug",
        "SMISTA_MEMORY_BYTES_MAX": "1000",
    }
    settings = load({"header_timeout_s": "0.5", "amqp_port": 7}, environ, None)
    assert settings == ServerSettings(
        memory=True,
        http_port=0,
        keep_alive_s=1.0,
        log_level="debug",
        memory_bytes_max=1000,
        header_timeout_s=0.5,
        amqp_port=7,
    )


def test_none_takes_a_limit_away(file: Path) -> None:
    file.write_text("memory_bytes_max = 1000")
    assert load({}, {"SMISTA_MEMORY_BYTES_MAX": "none"}, file).memory_bytes_max is None
    file.write_text('memory_bytes_max = "none"')
    assert load({}, {}, file).memory_bytes_max is None


def test_names_stand_in_a_list_or_with_commas_between_them(file: Path) -> None:
    for written in ('["PurgeQueue", "DeleteQueue"]', '"PurgeQueue, DeleteQueue"'):
        file.write_text(f"sqs_actions_off = {written}")
        assert load({}, {}, file).sqs_actions_off == ("PurgeQueue", "DeleteQueue")
    assert load({}, {"SMISTA_SQS_ACTIONS_OFF": "PurgeQueue"}, file).sqs_actions_off == ("PurgeQueue",)
    assert load({"sqs_actions_off": "TagQueue,UntagQueue"}, {}, file).sqs_actions_off == ("TagQueue", "UntagQueue")
    assert load({"sqs_actions_off": "none"}, {}, file).sqs_actions_off is None


def test_an_action_that_sqs_does_not_have_cannot_be_off(file: Path) -> None:
    assert refusal({}, {"SMISTA_SQS_ACTIONS_OFF": "DeleteQueue,PurgeQueues"}) == (
        "sqs_actions_off names 'PurgeQueues' from variable SMISTA_SQS_ACTIONS_OFF, which is no action of SQS; "
        "did you mean PurgeQueue?"
    )
    file.write_text('sqs_actions_off = ["Xyzzy"]')
    assert refusal({}, {}, file) == (
        f"sqs_actions_off names 'Xyzzy' in {file}, line 1, which is no action of SQS; "
        "take it out, or see docs/sqs.md for what there is."
    )


def test_names_and_origins_are_checked() -> None:
    given = {"allowed_hosts": "broker.example.com, *.svc", "allowed_origins": "https://a.example,http://localhost:3000"}
    found = load(given, {}, None)
    assert found.allowed_hosts == ("broker.example.com", "*.svc")
    assert found.allowed_origins == ("https://a.example", "http://localhost:3000")
    assert load({}, {"SMISTA_ALLOWED_HOSTS": "*"}, None).allowed_hosts == ("*",)
    for name, value, cure in (
        ("allowed_hosts", "http://broker:9324", "give names without scheme and port, such as broker.example.com or "),
        ("allowed_hosts", "broker:9324", "give names without scheme and port, such as broker.example.com or "),
        ("allowed_origins", "app.example.com", "give origins as a browser writes them, such as "),
        ("allowed_origins", "https://app.example.com/page", "give origins as a browser writes them, such as "),
    ):
        said = refusal({}, {f"SMISTA_{name.upper()}": value})
        assert said.startswith(f"{name} has '{value}' from variable SMISTA_{name.upper()}; {cure}")


@pytest.mark.parametrize("name", ["SMISTA_LONG", "SMISTA_TEST_PORT", "SMISTA", "OTHER_HTTP_PORT", "_SMISTA_COMPLETE"])
def test_variables_of_others_are_left_alone(name: str) -> None:
    assert load({}, {name: "x"}, None) == ServerSettings()


@pytest.mark.parametrize("service", ["SMISTA", "SMISTA_AMQP", "SMISTA_HTTP"])
def test_what_kubernetes_tells_of_services_is_no_setting(service: str) -> None:
    told = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "5672",
        f"{service}_SERVICE_PORT_AMQP": "5672",
        f"{service}_PORT": "tcp://10.0.0.1:5672",
        f"{service}_PORT_5672_TCP": "tcp://10.0.0.1:5672",
        f"{service}_PORT_5672_TCP_PROTO": "tcp",
        f"{service}_PORT_5672_TCP_PORT": "5672",
        f"{service}_PORT_5672_TCP_ADDR": "10.0.0.1",
    }
    assert load({}, told, None) == ServerSettings()
    assert load({}, {**told, "SMISTA_CONNECTIONS_MAX": "7"}, None).connections_max == 7
    assert refusal({}, {"SMISTA_PORT": "5672"}).startswith("The variable SMISTA_PORT is not a setting; ")


def test_an_unknown_name_is_refused_with_those_it_resembles(file: Path) -> None:
    assert refusal({}, {"SMISTA_HTTP_PROT": "1"}) == (
        "The variable SMISTA_HTTP_PROT is not a setting; did you mean SMISTA_HTTP_PORT?"
    )
    assert refusal({"dta": "x"}, {}) == "The flag --dta is not a setting; did you mean --data?"
    file.write_text('# mine\nhost = "x"\nkeepalive_s = 3\n')
    assert refusal({}, {}, file) == f"keepalive_s in {file}, line 3 is not a setting; did you mean keep_alive_s?"
    assert refusal({}, {"SMISTA_XYZZY": "1"}) == (
        "The variable SMISTA_XYZZY is not a setting; take it out, or see docs/settings.md for what there is."
    )


@pytest.mark.parametrize("name", ["SMISTA_http_port", "SMISTA_", "SMISTA_CONFIGS", "SMISTA_LONGER", "SMISTA_TEST"])
def test_a_variable_that_only_resembles_a_known_one_is_refused(name: str) -> None:
    assert refusal({}, {name: "1"}).startswith(f"The variable {name} is not a setting; ")


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("http_port", "x", "a whole number from 0 to 65535"),
        ("http_port", "65536", "a whole number from 0 to 65535"),
        ("http_port", "-1", "a whole number from 0 to 65535"),
        ("http_port", "1.5", "a whole number from 0 to 65535"),
        ("http_port", "", "a whole number from 0 to 65535"),
        ("http_port", "none", "a whole number from 0 to 65535"),
        ("header_timeout_s", "nan", "a number from 0.01 to 86400.0"),
        ("header_timeout_s", "inf", "a number from 0.01 to 86400.0"),
        ("header_timeout_s", "0", "a number from 0.01 to 86400.0"),
        ("memory", "maybe", "true or false"),
        ("log_format", "xml", "text or json"),
        ("log_level", "loud", "debug or info or warning or error"),
        ("on_damage", "weep", "refuse or serve"),
        ("host", "", "text"),
        ("memory_bytes_max", "much", "a whole number from 1 to 2^50, or none"),
        ("memory_bytes_max", "0", "a whole number from 1 to 2^50, or none"),
        ("sqs_actions_off", "", "names with commas between them, or none"),
    ],
)
def test_a_value_that_cannot_be_is_refused(name: str, value: str, takes: str, file: Path) -> None:
    variable = f"SMISTA_{name.upper()}"
    assert refusal({}, {variable: value}) == f"{name} is {value!r} from variable {variable}; give {takes}."
    flag = "--" + name.replace("_", "-")
    assert refusal({name: value}, {}) == f"{name} is {value!r} from flag {flag}; give {takes}."
    file.write_text(f'\n{name} = "{value}"')
    assert refusal({}, {}, file) == f"{name} is {value!r} in {file}, line 2; give {takes}."


@pytest.mark.parametrize(
    "line",
    [
        "http_port = true",
        "http_port = 1.0",
        "http_port = []",
        "memory = 1",
        "host = 1",
        'keep_alive_s = "1"',
        "sqs_actions_off = [1]",
    ],
)
def test_a_value_of_another_type_in_the_file_is_refused(line: str, file: Path) -> None:
    file.write_text(line)
    assert f"in {file}, line 1; give " in refusal({}, {}, file)


def test_a_file_with_sections_is_refused(file: Path) -> None:
    file.write_text('host = "x"\n[server]\nhttp_port = 1\n')
    assert refusal({}, {}, file) == (
        f"'server' in {file}, line 2 is a section; settings stand at the top of the file, in no section."
    )


def test_a_file_that_cannot_be_read_is_refused(file: Path) -> None:
    assert refusal({}, {}, file).startswith(f"The configuration file {file} cannot be read: ")
    assert refusal({}, {"SMISTA_CONFIG": str(file.parent)}).startswith(f"The configuration file {file.parent} cannot ")
    file.write_bytes(b"\xff\xfe")
    assert refusal({}, {}, file).startswith(f"The configuration file {file} cannot be read: ")


def test_a_file_that_is_not_toml_is_refused_with_the_line(file: Path) -> None:
    file.write_text("http_port = 1\nhost = \n")
    assert refusal({}, {}, file).startswith(f"The configuration file {file} is not TOML: ")
    assert "line 2" in refusal({}, {}, file)


def test_two_doors_on_one_port_are_refused() -> None:
    assert refusal({"amqp_port": 7}, {"SMISTA_HTTP_PORT": "7"}) == (
        "http_port and amqp_port are both 7 (http_port from variable SMISTA_HTTP_PORT; amqp_port from flag "
        "--amqp-port); give them different ones."
    )
    assert load({"http_port": 0, "amqp_port": 0}, {}, None).amqp_port == 0


@pytest.mark.parametrize("later", [{"SMISTA_HTTP_PORT": "1"}, {}])
def test_a_wrong_value_is_refused_even_where_a_better_one_would_count(later: dict[str, str], file: Path) -> None:
    file.write_text("http_port = -1")
    assert "line 1" in refusal({"http_port": 1}, later, file)
