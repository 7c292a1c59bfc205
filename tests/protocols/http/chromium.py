"""A real Chromium without a window, driven by its DevTools protocol: open a page, have it evaluate something."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

from websockets.sync.client import connect

from tests.waiting import PATIENCE_S, eventually

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which root needs, as in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-port=0",
)
REBOUND = "rebound.example"
"""A name that leads to this machine, as anybody can have one."""


class Chromium(contextlib.closing["Chromium"]):
    def __init__(self, folder: Path) -> None:
        super().__init__(self)
        names = f"MAP {REBOUND} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"
        self._process = subprocess.Popen(
            ["chromium", *FLAGS, f"--user-data-dir={folder}", f"--host-resolver-rules={names}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        told = folder / "DevToolsActivePort"
        eventually(lambda: self._process.poll() is not None or (told.exists() and "\n" in told.read_text()))
        assert self._process.poll() is None, "chromium has ended"
        self._port = int(told.read_text().splitlines()[0])

    def close(self) -> None:
        # It has many processes, all in the session that it was started in.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def open(self, url: str) -> Page:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        connection.request("PUT", "/json/new?about:blank")
        target = json.loads(connection.getresponse().read())
        connection.close()
        page = Page(target["webSocketDebuggerUrl"])
        page.go(url)
        return page


class Page(contextlib.closing["Page"]):
    def __init__(self, url: str) -> None:
        super().__init__(self)
        self._numbers = itertools.count(1)
        self._open = contextlib.ExitStack()
        self._devtools = self._open.enter_context(connect(url, max_size=None, open_timeout=PATIENCE_S))
        self.complaints: list[str] = []
        """What the browser wrote to its console: what a policy forbade, and exceptions that nobody caught."""
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        self._open.close()

    def go(self, url: str) -> None:
        """Open an address, and wait until it is loaded."""
        self._call("Page.navigate", url=quote(url, safe=":/?&=%#[]@"))
        self._read(lambda event: event.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """What an expression comes to in the page; a promise is waited for."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _call(self, method: str, **parameters: object) -> Any:
        number = next(self._numbers)
        self._devtools.send(json.dumps({"id": number, "method": method, "params": parameters}))
        answer = self._read(lambda event: event.get("id") == number)
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self, is_wanted: Any) -> Any:
        while True:
            event = json.loads(self._devtools.recv(timeout=PATIENCE_S))
            if event.get("method") == "Log.entryAdded":
                self.complaints.append(event["params"]["entry"]["text"])
            elif event.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(event["params"]["exceptionDetails"]))
            if is_wanted(event):
                return event
