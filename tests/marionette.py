"""A real Firefox, driven over its Marionette protocol with nothing but the standard library."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FIREFOX = shutil.which("firefox") or shutil.which("firefox-esr")
MISSING = "firefox is not installed: pages are not tried in it"
PREFERENCES = {
    "marionette.port": 0,  # any that is free
    "network.proxy.type": 1,  # a proxy that is not there: no address is reached
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
}


class Firefox:
    """One Firefox without a network; `with Firefox() as browser: browser.open(path)`."""

    def __enter__(self) -> Self:
        assert FIREFOX, MISSING
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        folder = Path(self.profile.name)
        lines = [f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in PREFERENCES.items()]
        (folder / "user.js").write_text("\n".join(lines), "utf-8")
        self.process = subprocess.Popen(
            [FIREFOX, "--headless", "--marionette", "--no-remote", "--profile", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.number = 0
        self.connection = self._connected(folder / "MarionetteActivePort")
        self.received = b""
        self._message()  # its greeting
        self._call("WebDriver:NewSession", {"capabilities": {}})
        return self

    def _connected(self, port_file: Path, seconds: float = 120.0) -> socket.socket:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"firefox has ended with {self.process.returncode}")
            if port_file.exists() and (port := port_file.read_text().strip()):
                return socket.create_connection(("127.0.0.1", int(port)), timeout=200)
            time.sleep(0.1)
        raise AssertionError(f"firefox did not listen within {seconds:g} s")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.wait(60)
        self.profile.cleanup()

    def _message(self) -> Any:
        """A message is its length, a colon, and JSON."""
        while b":" not in self.received:
            self._receive()
        length, _, self.received = self.received.partition(b":")
        while len(self.received) < int(length):
            self._receive()
        text, self.received = self.received[: int(length)], self.received[int(length) :]
        return json.loads(text)

    def _receive(self) -> None:
        found = self.connection.recv(65536)
        assert found, "firefox has closed the connection"
        self.received += found

    def _call(self, command: str, given: dict[str, Any]) -> Any:
        self.number += 1
        text = json.dumps([0, self.number, command, given]).encode()
        self.connection.sendall(b"%d:%s" % (len(text), text))
        _, _, error, found = self._message()
        assert error is None, f"{command}: {error}"
        return found

    def open(self, path: Path) -> None:
        self._call("WebDriver:Navigate", {"url": path.resolve().as_uri()})

    def run(self, script: str, *given: Any) -> Any:
        """What a script returns; `given` are its arguments."""
        found = self._call("WebDriver:ExecuteScript", {"script": script, "args": list(given)})
        return found["value"]

    def wait(self, script: str, seconds: float = 100.0) -> Any:
        """Until a script returns something true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := self.run(script):
                return found
            time.sleep(0.05)
        raise AssertionError(f"this did not become true in {seconds:g} s: {script}")
