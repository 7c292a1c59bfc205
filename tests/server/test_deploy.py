"""What is in deploy/ fits the server."""

from __future__ import annotations

import re
from pathlib import Path

from smista.server.settings import ServerSettings, load

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
DEFAULTS = ServerSettings()


def test_the_unit_waits_longer_than_a_drain_takes() -> None:
    unit = (DEPLOY / "smista.service").read_text()
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(seconds) > DEFAULTS.drain_timeout_s
    [files] = re.findall(r"^LimitNOFILE=(\d+)$", unit, re.MULTILINE)
    assert int(files) > DEFAULTS.connections_max


def test_the_unit_leaves_readable_what_the_clock_reads() -> None:
    assert not re.search(r"^ProcSubset=", (DEPLOY / "smista.service").read_text(), re.MULTILINE)


def test_the_image_sets_what_the_server_knows() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    settings = load({}, dict(re.findall(r"\b(SMISTA_[A-Z_]+)=(\S+)", image)), None)
    assert (settings.host, settings.data) == ("0.0.0.0", "/var/lib/smista")
    # Docker kills after 10 s.
    assert settings.drain_timeout_s < 10


def test_the_image_exposes_the_ports_the_server_listens_on() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    assert f"EXPOSE {DEFAULTS.http_port} {DEFAULTS.amqp_port}\n" in image
    assert f"'{DEFAULTS.http_port}'" in image
