"""A headless Chromium, driven through chromedriver's HTTP interface: no package is needed."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

DRIVER = shutil.which("chromedriver")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]


class Browser:
    """One window; :meth:`close` ends it and its driver."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._address = f"http://127.0.0.1:{port}"
        self._profile = tempfile.mkdtemp(prefix="gpusync-browser-")
        self._driver = subprocess.Popen(
            [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={self._profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self._session = ""
        for _ in range(100):
            try:
                self._session = self._call("POST", "", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
                break
            except urllib.error.URLError as error:
                if isinstance(error, urllib.error.HTTPError):
                    raise
                time.sleep(0.1)

    def show(self, path, *, width=1280, dark=False):
        """Open a file at a width in pixels and a colour scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._devtools("Emulation.setDeviceMetricsOverride", size)
        self._devtools("Emulation.setEmulatedMedia", {"features": scheme})
        self.log("performance")
        self._call("POST", "/url", {"url": path.as_uri()})

    def run(self, script, *arguments):
        """Run JavaScript in the page, whatever it allows itself, and return what it returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def log(self, kind):
        """Return what has been logged since the last time: "browser" is the console, "performance" what was loaded."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": kind})]

    def requested(self):
        """Return the addresses that were asked for since the page was opened."""
        events = [json.loads(message)["message"] for message in self.log("performance")]
        return [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]

    def picture(self):
        """Return the window as PNG."""
        return base64.b64decode(self._call("GET", "/screenshot"))

    def close(self):
        """End the browser."""
        try:
            if self._session:
                self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(10)
            shutil.rmtree(self._profile, ignore_errors=True)

    def _devtools(self, command, parameters):
        self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _call(self, method, path, body=None):
        where = f"{self._address}/session/{self._session}{path}" if self._session else f"{self._address}/session"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(where, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.loads(answer.read())["value"]
