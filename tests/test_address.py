import pytest

from smista import AsyncClient, Client, Worker
from smista.address import shown_address, stream_url
from smista.errors import InvalidArgument


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://127.0.0.1:9324", "ws://127.0.0.1:9324/v1/stream"),
        ("http://127.0.0.1:9324/", "ws://127.0.0.1:9324/v1/stream"),
        ("https://queues.example", "wss://queues.example:443/v1/stream"),
        ("ws://broker:80", "ws://broker:80/v1/stream"),
        ("ws://broker:80/v1/stream", "ws://broker:80/v1/stream"),
        ("wss://broker:1/smista/", "wss://broker:1/smista/v1/stream"),
        ("127.0.0.1:1234", "ws://127.0.0.1:1234/v1/stream"),
        ("broker", "ws://broker:9324/v1/stream"),
        ("[::1]:9324", "ws://[::1]:9324/v1/stream"),
    ],
)
def test_an_address_is_written_in_many_ways(address: str, url: str) -> None:
    assert stream_url(address) == url


def test_no_address_is_the_variable_or_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMISTA_URL", raising=False)
    assert stream_url(None) == "ws://127.0.0.1:9324/v1/stream"
    monkeypatch.setenv("SMISTA_URL", "https://queues.example")
    assert stream_url(None) == "wss://queues.example:443/v1/stream"


@pytest.mark.parametrize(
    "address", ["", "amqp://127.0.0.1:5672", "http://", "http://host:port", "host:99999", "http://me:secret@host"]
)
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(InvalidArgument, match=r"http://127\.0\.0\.1:9324"):
        stream_url(address)


@pytest.mark.parametrize("address", [9324, b"http://127.0.0.1:9324", ("127.0.0.1", 9324)])
def test_an_address_that_is_no_text_is_refused_with_an_example(address: object) -> None:
    for make in (AsyncClient, Client, Worker):
        with pytest.raises(InvalidArgument, match=r"is text, not .*; write it as http://127\.0\.0\.1:9324"):
            make(address)  # type: ignore[arg-type]  # the mistake


def test_an_address_is_shown_as_people_write_it() -> None:
    for address in (
        "http://127.0.0.1:9324",
        "https://queues.example:443",
        "http://[::1]:9324",
        "http://proxy:80/broker",
    ):
        assert shown_address(stream_url(address)) == address
