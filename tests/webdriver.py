"""A real Chromium, driven over the WebDriver protocol with nothing but the standard library."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
MISSING = "chromium and chromedriver are not installed: pages are not tried in a real browser"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {
    "left": "\ue012",
    "up": "\ue013",
    "right": "\ue014",
    "down": "\ue015",
    "home": "\ue011",
    "end": "\ue010",
    "tab": "\ue004",
    "enter": "\ue007",
    "escape": "\ue00c",
}
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--mute-audio",
    # No name is found and no address is reached.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9",
)


class Browser:
    """One Chromium without a network; `with Browser() as browser: browser.open(path)`."""

    def __init__(self, *flags: str) -> None:
        """flags: further ones of Chromium."""
        self.flags = flags

    def __enter__(self) -> Self:
        assert CHROMIUM, MISSING
        assert CHROMEDRIVER, MISSING
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.driver = subprocess.Popen(
            [CHROMEDRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.driver.stdout is not None
        self.session = ""
        port = next(
            found[1]
            for line in self.driver.stdout
            if (found := re.search(r"started successfully on port (\d+)", line))
        )
        self.root = f"http://127.0.0.1:{port}"
        options = {
            "binary": CHROMIUM,
            "args": [
                *FLAGS,
                *self.flags,
                f"--user-data-dir={self.profile.name}",
                "--window-size=1280,900",
                "about:blank",
            ],
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{made['sessionId']}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self.session:
                self._call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait(60)
            self.profile.cleanup()

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.root + path, data, headers, method=method)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=200) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()[:600]}") from None

    def open(self, path: Path | str) -> None:
        """Open a file, or an address of this machine."""
        url = path if isinstance(path, str) else path.resolve().as_uri()
        self._call("POST", f"{self.session}/url", {"url": url})

    def type(self, selector: str, text: str) -> None:
        """Type into a field; for a field of files, the path of one."""
        self._call(
            "POST", f"{self.session}/element/{self.find(selector)[ELEMENT]}/value", {"text": text}
        )

    def run(self, script: str, *given: Any) -> Any:
        """What a script returns; `given` are its arguments."""
        body = {"script": script, "args": list(given)}
        return self._call("POST", f"{self.session}/execute/sync", body)

    def emulate(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        body = {"cmd": command, "params": parameters}
        return self._call("POST", f"{self.session}/goog/cdp/execute", body)

    def find(self, selector: str) -> dict[str, str]:
        body = {"using": "css selector", "value": selector}
        found: dict[str, str] = self._call("POST", f"{self.session}/element", body)
        return found

    def click(self, selector: str) -> None:
        self._call("POST", f"{self.session}/element/{self.find(selector)[ELEMENT]}/click", {})

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select by its value."""
        self.click(f"{selector} option[value={json.dumps(value)}]")

    def press(self, *names: str) -> None:
        """Press and release keys, one after the other, wherever the focus is."""
        actions = []
        for name in names:
            key = KEYS.get(name, name)
            actions += [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._act({"type": "key", "id": "keyboard", "actions": actions})

    def point(self, selector: str, x: int, y: int, *, click: bool = False) -> None:
        """Move the mouse to a place of an element, counted from its middle; and click."""
        move = {"type": "pointerMove", "origin": self.find(selector), "x": x, "y": y, "duration": 0}
        actions: list[dict[str, Any]] = [move]
        if click:
            actions += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._act({"type": "pointer", "id": "mouse", "actions": actions})

    def _act(self, source: dict[str, Any]) -> None:
        self._call("POST", f"{self.session}/actions", {"actions": [source]})

    def enter(self, selector: str | None) -> None:
        """Look into a frame; None: at the page itself."""
        chosen = None if selector is None else self.find(selector)
        self._call("POST", f"{self.session}/frame", {"id": chosen})

    def wait(self, script: str, seconds: float = 100.0) -> Any:
        """Until a script returns something true."""
        return self.wait_for(lambda: self.run(script), script, seconds)

    def wait_for(self, ask: Callable[[], Any], what: str, seconds: float = 100.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := ask():
                return found
            time.sleep(0.05)
        raise AssertionError(f"this did not become true in {seconds:g} s: {what}")

    def text(self, selector: str) -> str:
        found: str = self.run("return document.querySelector(arguments[0]).innerText", selector)
        return found

    def errors(self) -> list[str]:
        """What the console has complained of since it was asked last."""
        entries = self._call("POST", f"{self.session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """The addresses that have been asked for since."""
        entries = self._call("POST", f"{self.session}/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self, path: Path) -> Path:
        path.write_bytes(base64.b64decode(self._call("GET", f"{self.session}/screenshot")))
        return path
