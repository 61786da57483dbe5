"""A headless Chromium that opens a page of this machine, over its DevTools pipe: no driver needed.

Protocol: messages of JSON, each ended by a zero byte, on descriptors 3 and 4
(chromium --remote-debugging-pipe).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET: Final = (
    "--headless",
    "--no-sandbox",  # in a container there is none to be had
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE_S: Final = 60.0


def found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Page:
    """One tab. `events` are all that it reported so far."""

    sending: int
    hearing: int
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _number: int = 0
    _rest: bytes = b""

    def ask(self, method: str, **parameters: Any) -> Any:
        """The answer to one command. Raises RuntimeError where Chromium refuses it."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.sending, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self.hearing], [], [], PATIENCE_S)[0], "Chromium says nothing"
            came = os.read(self.hearing, 1 << 20)
            assert came, "Chromium is gone"
            self._rest += came
        message, _, self._rest = self._rest.partition(b"\0")
        seen: dict[str, Any] = json.loads(message)
        return seen

    def open(self, file: Path) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.navigate", url=file.resolve().as_uri())
        until = time.monotonic() + PATIENCE_S
        while self.value("document.readyState") != "complete":
            assert time.monotonic() < until, f"{file} does not load"

    def show(self, width: int, dark: bool = False, medium: str = "screen") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media=medium, features=[scheme])
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is in the page. Raises RuntimeError where it throws."""
        seen = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in seen:
            raise RuntimeError(f"{expression}: {seen['exceptionDetails']['text']}")
        return seen["result"].get("value")

    def printed(self, file: Path) -> None:
        file.write_bytes(b64decode(self.ask("Page.printToPDF", printBackground=True)["data"]))

    def complaints(self) -> list[dict[str, Any]]:
        """What stands on its console, and what its scripts threw."""
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [each["params"] for each in self.events if each.get("method") in kinds]

    def requests(self) -> list[str]:
        sent = [each for each in self.events if each.get("method") == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in sent]


@contextmanager
def page() -> Iterator[Page]:
    """A tab of a browser of its own, which ends with it."""
    program = found()
    assert program
    hers, ours = os.pipe(), os.pipe()  # to her, from her
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The descriptors that we got may be 3 and 4 themselves: the shell puts them there.
        command = f'exec "$0" "$@" 3<&{hers[0]} 4>&{ours[1]}'
        with subprocess.Popen(
            ["bash", "-c", command, program, *QUIET, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(hers[0], ours[1]),
            stderr=subprocess.DEVNULL,
        ) as browser:
            os.close(hers[0])
            os.close(ours[1])
            try:
                yield _tab(Page(hers[1], ours[0]))
            finally:
                browser.kill()
                os.close(hers[1])
                os.close(ours[0])


def _tab(browser: Page) -> Page:
    target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
    attached = browser.ask("Target.attachToTarget", targetId=target, flatten=True)
    browser.session = attached["sessionId"]
    return browser
