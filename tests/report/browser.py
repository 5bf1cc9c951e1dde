"""A headless Chromium, spoken to over a pipe in the DevTools protocol: no driver, no port, no package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 120.0
"""Seconds to wait for an answer: a machine that is busy is no failure of the page."""


def chromium() -> str | None:
    """The browser's program: that of ``CHROMIUM``, or one on the path."""
    return os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """An open page; remembers what its console said and what it asked the network for."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._from, 1 << 16)
            assert read, "the browser went away"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(params["exceptionDetails"].get("exception", params)))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(str(params["args"]))
            case "Log.entryAdded":
                self.errors.append(str(params["entry"]["text"]))
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
        return message

    def open(self, path: Path, width: int = 1280, height: int = 900, scheme: str = "light", scale: float = 1) -> None:
        """Open a file and wait until its script is done, drawing included."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        self.color_scheme(scheme)
        start = time.monotonic()
        self.call("Page.navigate", url=path.resolve().as_uri())
        ready = "location.protocol === 'file:' && document.documentElement?.dataset.ready === 'yes'"
        while not self.value(ready):
            assert not self.errors, self.errors
            assert time.monotonic() - start < PATIENCE, f"the script of {path.name} does not come to its end"
            time.sleep(0.02)
        self.value("new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(true), 0)))")

    def color_scheme(self, scheme: str) -> None:
        """What the user's system prefers: ``light`` or ``dark``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def mouse(self, x: float, y: float, kind: str = "mouseMoved") -> None:
        """Move the pointer, or press it."""
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def click(self, selector: str) -> None:
        """Press an element as a user does."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{element}.scrollIntoView({{block: 'center'}})")
        x, y, width, height = self.value(
            f"(({{x, y, width, height}}) => [x, y, width, height])({element}.getBoundingClientRect())"
        )
        place = x + width / 2, y + height / 2
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(*place, kind)

    def picture(self, path: Path, whole: bool = False) -> Path:
        """Save what is seen as PNG, or the whole page."""
        params: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            params["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **params)["data"]))
        return path


@contextmanager
def opened(profile: Path) -> Iterator[Page]:
    """A page of a fresh browser.

    Args:
        profile: an empty folder.
    """
    program = chromium()
    assert program is not None
    read_commands, write_commands = os.pipe()
    read_answers, write_answers = os.pipe()
    options = (
        "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions "
        "--disable-background-networking --disable-component-update --hide-scrollbars --remote-debugging-pipe"
    )
    # The browser reads from descriptor 3 and writes to 4; a shell cannot count on having others above 9.
    start = (
        "import os, sys; read, write = (os.dup(os.dup(os.dup(int(number)))) for number in sys.argv[1:3]); "
        "os.dup2(read, 3); os.dup2(write, 4); os.execv(sys.argv[3], sys.argv[3:])"
    )
    command = [sys.executable, "-c", start, str(read_commands), str(write_answers), program, *options.split()]
    running = subprocess.Popen(
        [*command, f"--user-data-dir={profile}"],
        pass_fds=(read_commands, write_answers),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        yield Page(write_commands, read_answers)
    finally:
        os.close(write_commands)
        os.close(read_answers)
        running.terminate()
        running.wait(30)
