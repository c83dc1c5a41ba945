"""Drives a headless Chromium through its DevTools protocol, over two pipes. No other library."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "headless_shell")

FLAGS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # a container's root cannot have one; the only page opened is ours
    "--no-first-run",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
]

# Chromium reads commands from descriptor 3 and answers on 4, so they are moved there first.
_LAUNCH = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(pipes[0], 3), os.dup2(pipes[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""

KEYS = {
    "Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowRight": (39, ""),
    "ArrowDown": (40, ""), "Home": (36, ""), "End": (35, ""),
}  # fmt: skip


def find_chromium() -> str | None:
    """The installed browser, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser process with one tab. Every wait ends after `patience` seconds."""

    def __init__(self, path: str, patience: float = 30.0) -> None:
        self._patience = patience
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        launch = [sys.executable, "-c", _LAUNCH, str(commands), str(answers)]
        self._process = subprocess.Popen(
            [*launch, path, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self.problems: list[str] = []  # what the console, and the page's policies, complained of
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._session = None
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            self.send("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Run a command of the protocol. Raises RuntimeError with the browser's reason."""
        self._last_id += 1
        command = {"id": self._last_id, "method": method, "params": params}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + self._patience
        while True:
            message = self._receive(deadline)
            if message.get("id") != self._last_id:
                self._note(message)
            elif "error" in message:
                raise RuntimeError(f"{method}: {message['error']['message']}")
            else:
                result: dict[str, Any] = message["result"]
                return result

    def open(self, url: str) -> None:
        """Go to a page and wait until it has loaded."""
        self.send("Page.navigate", url="about:blank")  # else a change of the fragment loads nothing
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of a script, awaited if it is a promise. Raises AssertionError if it throws."""
        reply = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True,
            userGesture=True,
        )  # fmt: skip
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a script's value, or what it promises, counts as true."""
        deadline = time.monotonic() + self._patience
        while not self.run(f"Promise.resolve({condition}).then(Boolean)"):
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """What an element shows."""
        found: str = self.run(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key."""
        code, text = KEYS[key]
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **fields)
        self.send("Input.dispatchKeyEvent", type="keyUp", **fields)

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Set the size of the view, in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1.0, mobile=phone,
        )  # fmt: skip

    def prefer(self, **features: str) -> None:
        """Set media features, for example prefers_color_scheme="dark"."""
        named = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.send("Emulation.setEmulatedMedia", features=named)

    def screenshot(self, path: Path, kind: str = "png") -> None:
        """Save what the view shows."""
        options = {} if kind == "png" else {"quality": 82}
        data = self.send("Page.captureScreenshot", format=kind, **options)["data"]
        path.write_bytes(base64.b64decode(data))

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise EOFError("the browser has ended")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        """Keep errors and warnings; network statuses are the tests' own business."""
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["source"] != "network":
                self.problems.append(params["entry"]["text"])
