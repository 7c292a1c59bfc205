"""Pages in a real Chromium: those of another origin read and change nothing, those of an allowed one do, and our own
works under the policy that it is sent with."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.http.caller import Caller
from tests.protocols.http.chromium import REBOUND, Chromium
from tests.served import Served
from tests.server_process import ServerProcess
from tests.waiting import eventually
from tools import test_clients as clients

pytestmark = pytest.mark.slow

SECRET = "4111-1111"
BY_SCRIPT = ("json", "rest")
"""Ways that a page of an allowed origin may change something: those for which a browser asks first."""
SIMPLE = ("blob", "text", "sqs", "image", "beacon", "form", "formOfSqs", "link")
"""Ways that every page has, and of which a browser asks nobody."""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    reason = clients.fetch_chromium()
    if reason is not None:
        pytest.skip(reason)
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


class Site:
    """Serves one page, whatever it is asked for, on a port of its own."""

    def __init__(self) -> None:
        content = Path(__file__).with_name("attack.html").read_bytes()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture(scope="module")
def allowed_site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture(scope="module")
def broker(allowed_site: Site) -> Iterator[ServerProcess]:
    with ServerProcess(None, "--allowed-origins", f"http://localhost:{allowed_site.port}") as server:
        yield server


class Prey:
    """Queues to attack: one to read, and one for each way to change something."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.names = {way: caller.new_queue() for way in ("victim", "purge", *BY_SCRIPT, *SIMPLE)}
        for way in ("victim", "purge"):
            caller.call("queue.publish", queue=self.names[way], message={"card": SECRET})

    def attack(self, chromium: Chromium, broker: Served, url: str) -> dict[str, Any]:
        with chromium.open(url) as page:
            found: dict[str, Any] = page.evaluate(f"attack({json.dumps(broker.url)}, {json.dumps(self.names)})")
        return found

    def deleted(self) -> set[str]:
        left = set(self._caller.call("queue.list")["queues"])
        return {way for way, name in self.names.items() if name not in left}

    def ready(self, way: str) -> int:
        return int(self._caller.call("queue.stats", queue=self.names[way])["ready"])


@pytest.fixture
def prey(broker: Served) -> Iterator[Prey]:
    with Caller(broker.address) as caller:
        yield Prey(caller)


# The name of this machine, so another site; and the broker's own address, so the same site with another port.
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_page_of_another_origin_reads_and_changes_nothing(
    chromium: Chromium, broker: Served, site: Site, prey: Prey, host: str
) -> None:
    found = prey.attack(chromium, broker, f"http://{host}:{site.port}/")
    assert prey.deleted() == set()
    assert (prey.ready("victim"), prey.ready("purge")) == (1, 1)
    said = json.dumps(found)
    assert SECRET not in said
    assert not [name for name in prey.names.values() if name in said]
    failed = "TypeError: Failed to fetch"
    assert [found[way] for way in ("read", "readMessages", "readMetrics", "json", "rest")] == [failed] * 5
    # What is sent without asking first comes back unread, or is kept from the page by our headers.
    assert all(found[way] in (["opaque", 0, ""], failed) for way in ("blob", "text", "purge", "sqs"))
    assert (found["stream"], found["image"], found["script"]) == ("error", "error", "error")


def test_a_page_of_an_allowed_origin_reads_and_changes(
    chromium: Chromium, broker: Served, allowed_site: Site, prey: Prey
) -> None:
    found = prey.attack(chromium, broker, f"http://localhost:{allowed_site.port}/")
    kind, status, text = found["read"]
    assert (kind, status) == ("cors", 200)
    assert prey.names["victim"] in text
    assert SECRET in found["readMessages"][2]
    assert "smista_" in found["readMetrics"][2]
    assert SECRET in found["stream"]
    # Forms of SQS are what they look like; an image changes nothing whoever shows it; text is no command.
    eventually(lambda: prey.deleted() == {*BY_SCRIPT, "sqs", "formOfSqs"})
    assert prey.ready("purge") == 0
    # The same page under another name of the machine is of another origin.
    other = prey.attack(chromium, broker, f"http://127.0.0.1:{allowed_site.port}/")
    assert other["read"] == "TypeError: Failed to fetch"


def test_a_name_that_was_made_to_lead_here_is_no_way_in(chromium: Chromium, broker: Served, prey: Prey) -> None:
    with chromium.open(f"http://{REBOUND}:{broker.port}/v1/queues") as page:
        shown = page.evaluate("document.body.innerText")
        assert "host_not_allowed" in shown
        assert prey.names["victim"] not in shown
        own = json.dumps({"command": "queue.delete", "payload": {"queue": prey.names["json"]}})
        sent = "fetch('/v1/command', {method: 'POST', headers: {'content-type': 'application/json'}, body: %s})"
        answer = page.evaluate(f"{sent % json.dumps(own)}.then(a => a.status, String)")
        assert answer == 403 or "Failed to fetch" in str(answer)
    assert prey.deleted() == set()


def test_our_own_page_works_under_its_policy(chromium: Chromium, broker: Served, prey: Prey) -> None:
    with chromium.open(f"{broker.url}/") as page:
        page.evaluate("(async () => { while (!document.querySelector('details')) await new Promise(setTimeout); })()")
        assert page.evaluate("getComputedStyle(document.querySelector('details')).borderRadius") == "6px"
        # It reads, and it sends.
        sent = """(async () => {
            const paths = [...document.querySelectorAll('summary code')];
            const form = paths.find(code => code.textContent === '/v1/command').closest('details');
            form.querySelector('textarea').value = %s;
            form.querySelector('button').click();
            const output = form.querySelector('pre');
            while (!output.textContent) await new Promise(r => setTimeout(r, 10));
            return output.textContent;
        })()"""
        delete = json.dumps({"command": "queue.delete", "payload": {"queue": prey.names["json"]}})
        assert page.evaluate(sent % json.dumps(delete)).startswith("200 OK")
        assert prey.deleted() == {"json"}
        assert [text for text in page.complaints if "favicon" not in text and "img-src" not in text] == []
        # And nothing that somebody might get into it is run.
        injected = """new Promise(resolve => {
            document.addEventListener('securitypolicyviolation', event => resolve(event.violatedDirective));
            document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.evil = 1'}));
        })"""
        assert page.evaluate(injected) == "script-src-elem"
        assert page.evaluate("window.evil") is None
