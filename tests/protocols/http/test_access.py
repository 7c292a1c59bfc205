"""Who is let in, by the headers that a request has. What each of the clients sends stands beside it."""

from __future__ import annotations

from typing import Any

import pytest

from smista.errors import HostNotAllowed, InvalidRequest, OriginNotAllowed
from smista.protocols.http.access import KNOWN_HOSTS_MAX, Access, is_host, is_origin

EVIL = "https://evil.example"
APP = "https://app.example.com"


def request(host: str | None = "127.0.0.1:9324", path: str = "/v1/queues", kind: str = "http", **headers: str) -> Any:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    if host is not None:
        named.append((b"host", host.encode()))
    return {"type": kind, "method": "GET", "path": path, "query_string": b"", "headers": named}


def opened(**changed: str) -> dict[str, str]:
    """What a browser says of a link that was followed from elsewhere."""
    return {
        "sec_fetch_site": "cross-site",
        "sec_fetch_mode": "navigate",
        "sec_fetch_dest": "document",
        **changed,
    }


# -- the name under which it was asked --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost:9324",
        "LOCALHOST",
        "localhost.",
        "broker.localhost:9324",  # browsers and systemd take all of these to loopback
        "127.0.0.1:9324",
        "[::1]:9324",
        "10.1.2.3:9324",  # a probe of Kubernetes, Prometheus, a port that Docker publishes
        "[fe80::1%25eth0]:9324",
        "",
        None,  # HTTP/1.0
    ],
)
def test_a_name_of_loopback_and_any_address_will_do(host: str | None) -> None:
    assert Access().check(request(host)) is None


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_http_1_1_needs_a_name_if_an_empty_one(kind: str) -> None:
    with pytest.raises(InvalidRequest, match="`Host`"):
        Access().check({**request(None, kind=kind), "http_version": "1.1"})
    assert Access().check({**request(None), "http_version": "1.0"}) is None
    assert Access().check({**request(""), "http_version": "1.1"}) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:9324",
        "localhost.evil.example",
        "evillocalhost",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "[::1].evil.example",
        "[evil.example]",
        "127.0.0.1:80:80",
        "1.2.3.4:9324/evil",
        "\xff",
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_any_other_name_has_to_be_allowed(host: str, kind: str) -> None:
    with pytest.raises(HostNotAllowed, match="allowed_hosts"):
        Access().check(request(host, kind=kind))


def test_of_two_names_both_have_to_be_ours() -> None:
    asked = request("localhost")
    asked["headers"].append((b"host", b"evil.example"))
    with pytest.raises(HostNotAllowed):
        Access().check(asked)


def test_names_are_allowed_one_by_one_by_their_ending_or_all_of_them() -> None:
    access = Access(hosts=["Broker.Example.com", "*.svc.cluster.local"])
    access.check(request("broker.example.com"))
    access.check(request("broker.example.com.:443"))
    access.check(request("smista-0.smista.default.svc.cluster.local:9324"))
    for other in ("example.com", "x.broker.example.com", "svc.cluster.local", "evilsvc.cluster.local"):
        with pytest.raises(HostNotAllowed):
            access.check(request(other))
    Access(hosts=["*"]).check(request("evil.example"))


def test_what_is_kept_of_names_that_were_good_is_bounded() -> None:
    access = Access(hosts=["*"])
    for number in range(KNOWN_HOSTS_MAX * 2):
        access.check(request(f"h{number}.example"))
    assert len(access._known_hosts) <= KNOWN_HOSTS_MAX


# -- whose page it is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},  # curl, boto3, our client, Prometheus, a probe of Kubernetes
        {"sec_fetch_site": "none"},  # somebody types the address
        {"sec_fetch_site": "same-origin"},  # our own page reads
        {"origin": "http://127.0.0.1:9324", "sec_fetch_site": "same-origin"},  # and sends
        {"origin": "https://127.0.0.1:9324"},  # the same, with TLS in front of us
    ],
)
def test_programs_and_our_own_page_are_served(headers: dict[str, str]) -> None:
    assert Access().check(request(**headers)) is None


def test_the_usual_port_may_be_left_out() -> None:
    access = Access(hosts=["broker.example.com"])
    assert access.check(request("broker.example.com", origin="https://broker.example.com")) is None
    assert access.check(request("broker.example.com:443", origin="https://broker.example.com")) is None
    with pytest.raises(OriginNotAllowed):
        access.check(request("broker.example.com", origin="https://broker.example.com:8443"))


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL},
        {"origin": EVIL, "sec_fetch_site": "same-origin"},
        {"origin": "null"},  # a file, a sandbox
        {"origin": ""},
        {"origin": "http://127.0.0.1:3000"},  # another program of this machine
        {"origin": "http://localhost:9324"},  # the same one, under another name
        {"origin": "http://127.0.0.1:9324@evil.example"},
        {"origin": "http://127.0.0.1:9324.evil.example"},
        {"origin": "127.0.0.1:9324"},
        {"sec_fetch_site": "cross-site"},  # an image, a script
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "anything"},
        opened(),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_pages_of_others_are_not(headers: dict[str, str], kind: str) -> None:
    with pytest.raises(OriginNotAllowed, match="allowed_origins"):
        Access().check(request(kind=kind, **headers))


def test_of_two_origins_both_have_to_be_allowed() -> None:
    asked = request(origin="http://127.0.0.1:9324")
    asked["headers"].append((b"origin", EVIL.encode()))
    with pytest.raises(OriginNotAllowed):
        Access(origins=[APP]).check(asked)


def test_a_page_of_an_allowed_origin_is_served_and_may_read_the_answer() -> None:
    access = Access(origins=[APP.upper() + "/"])
    assert access.check(request(origin=APP, sec_fetch_site="cross-site")) == APP.encode()
    with pytest.raises(OriginNotAllowed):
        access.check(request(origin=APP + ":8443"))
    with pytest.raises(OriginNotAllowed):
        access.check(request(origin="http://app.example.com"))
    # It does not say whose page it is, so it may be anybody's.
    with pytest.raises(OriginNotAllowed):
        access.check(request(sec_fetch_site="cross-site"))
    everybody = Access(origins=["*"])
    assert everybody.check(request(origin=EVIL)) == EVIL.encode()
    assert everybody.check(request(sec_fetch_site="cross-site")) is None


def test_a_page_under_a_name_that_leads_here_is_not_our_own() -> None:
    with pytest.raises(HostNotAllowed):
        Access().check(request("evil.example", origin="http://evil.example", sec_fetch_site="same-origin"))


def test_a_link_may_lead_to_the_page_but_to_nothing_else() -> None:
    access = Access()
    assert access.check(request(path="/", **opened())) is None
    asked = request(path="/", **opened())
    asked["query_string"] = b"Action=ListQueues"
    for other in (
        asked,
        request(path="/", **opened(sec_fetch_dest="iframe")),
        request(path="/", **opened(sec_fetch_mode="no-cors")),
        {**request(path="/", **opened()), "method": "POST"},
    ):
        with pytest.raises(OriginNotAllowed):
            access.check(other)


# -- settings ---------------------------------------------------------------------------------------------------------


def test_what_a_setting_can_name() -> None:
    assert all(map(is_host, ("*", "broker", "Broker_1.example.com", "*.example.com")))
    assert not any(map(is_host, ("", "http://x", "x:9324", "a b", "*x", "x.*", "x/", "[::1]")))
    assert all(map(is_origin, ("*", "https://x", "http://localhost:3000", "https://[::1]:1", "chrome-extension://ab")))
    assert not any(
        map(is_origin, ("", "x", "null", "https://", "https://x/y", "https://*.x", "https://a b", "https://x:y"))
    )
