"""The explorer in its two forms, served on this machine, and a page of it in a real browser."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import shutil
import threading
from contextlib import contextmanager

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from capsroute.explorer.server import listen, make_app, make_server

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium and chromedriver here (Debian: apt install chromium chromium-driver)"
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1400,1000"
)

HANGS = 60  # seconds after which a page that has not come to an end is given up

SEVEN = [(-0.2, -0.3), (0.2, -0.3), (0, 0.3)]  # corners of the digit, from the middle of the pad, in parts of its side


@contextmanager
def served(networks):
    """The address of a running server."""
    opened = listen("127.0.0.1", 0)
    server = make_server(make_app(networks))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{opened.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextmanager
def files_served(folder):
    """The address of a plain file server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Page:
    """The explorer as somebody in front of it sees it."""

    def __init__(self, browser, address):
        self.browser, self.address = browser, address

    def open(self, fragment=""):
        self.browser.get_log("browser")
        self.browser.get("about:blank")
        self.browser.get(self.address + fragment)
        self.settle()

    def part(self, name):
        return self.browser.find_element(By.ID, name)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, name):
        return self.run(f"return document.getElementById('{name}').textContent")

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def wait_for(self, script, *arguments):
        """The value of an async function's body."""
        given = "const done = arguments[arguments.length - 1];"
        called = f"(async () => {{ {script} }})().then(done, (error) => done(String(error)))"
        return self.browser.execute_async_script(given + called, *arguments)

    def until(self, condition):
        WebDriverWait(self.browser, HANGS, 0.02).until(lambda _: condition())

    def settle(self):
        """Wait until nothing is being asked or drawn."""
        self.until(
            lambda: self.run("return globalThis.explorer?.answer && !document.querySelector('[aria-busy=true]')")
        )

    def pixels(self, name):
        return self.run(f"return document.getElementById('{name}').toDataURL()")

    def draw(self, corners):
        pad, (start, *rest) = self.part("pad"), corners
        self.run("arguments[0].scrollIntoView({block: 'center'})", pad)
        side = pad.size["width"]
        offset = lambda corner: [round(side * part) for part in corner]  # noqa: E731
        actions = ActionChains(self.browser, duration=30)
        actions.move_to_element_with_offset(pad, *offset(start)).click_and_hold()
        for corner in rest:
            actions.move_to_element_with_offset(pad, *offset(corner))
        actions.release().perform()
        self.settle()

    def click(self, name):
        self.run(f"document.getElementById('{name}').click()")
        self.settle()

    def sample(self, at):
        self.run("document.querySelectorAll('#samples button')[arguments[0]].click()", at)
        self.settle()

    def set(self, name, value):
        """Move a slider, or choose from a list."""
        self.run(
            "const part = document.getElementById(arguments[0]); part.value = arguments[1];"
            "for (const kind of ['input', 'change']) part.dispatchEvent(new Event(kind, {bubbles: true}))",
            name,
            str(value),
        )
        self.settle()

    def scores(self):
        return self.run("return explorer.answer.scores")

    def size(self, width, dark=False, still=False):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def photograph(self, path, selector=None):
        """The whole page, or one part of it, as a PNG file."""
        box = self.run(
            "const part = arguments[0] ? document.querySelector(arguments[0]) : document.documentElement;"
            "const box = part.getBoundingClientRect();"
            "return [box.x + scrollX, box.y + scrollY, box.width, Math.max(part.scrollHeight, box.height)]",
            selector,
        )
        clip = {**dict(zip(("x", "y", "width", "height"), box)), "scale": 1}
        shot = self.browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self):
        """What the browser wrote to its console, but for answers that a test asked for."""
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def requests(self):
        return json.loads(
            self.run("return JSON.stringify(performance.getEntriesByType('resource').map((entry) => entry.name))")
        )
