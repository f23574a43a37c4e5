"""A headless Chromium at the other end of two pipes, by its DevTools protocol; nothing else is needed."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATH = next((path for name in NAMES if (path := shutil.which(name))), None)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")
LIMIT_S = 60.0
# The browser reads commands from descriptor 3 and writes answers to 4; the shell puts the pipes there.
SCRIPT = 'exec "$0" "$@" 3<&{} 4>&{} {}<&- {}>&-'
WIDTH, PAPER = "document.documentElement.scrollWidth", "getComputedStyle(document.body).backgroundColor"
# What sticks out of the window, but for what lies in a part that scrolls by itself.
STICKS_OUT = """[...document.querySelectorAll("body *")].filter(e => !e.closest(".wide, caption, details:not([open])")
  && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 120))"""
SMALLEST = """Math.min(...[...document.querySelectorAll("body *")].filter(e => e.textContent.trim())
  .filter(e => !e.closest("svg")).map(e => parseFloat(getComputedStyle(e).fontSize)))"""


class Browser:
    """One page; what it asks for and complains about since it was opened is in `events`."""

    def __init__(self):
        self._profile = tempfile.mkdtemp()
        theirs, self._out = os.pipe()
        self._in, back = os.pipe()
        script = SCRIPT.format(theirs, back, theirs, back)
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, PATH, *FLAGS, f"--user-data-dir={self._profile}"],
            pass_fds=(theirs, back),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(back)
        self._numbers, self._rest, self.events, self._session = itertools.count(1), b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._answer()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, page, width, *, dark=False):
        """Load a file, or what is at an address, at a width, with a preference for light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        preference = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[preference])
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.absolute().as_uri())
        while not self.told("Page.loadEventFired"):
            self.events.append(self._answer())

    def told(self, *methods):
        """Events of some kinds since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def ask(self, expression):
        """The value of an expression of JavaScript; the page's policy binds the page, not its examiner."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression, seconds=LIMIT_S):
        """Wait until an expression of JavaScript is true, and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.ask(expression)):
            assert time.monotonic() < deadline, f"not so within {seconds} s: {expression}"
            select.select([], [], [], 0.05)
        return value

    def picture(self, path):
        """Write a picture of the whole page."""
        height = min(16_000, self.ask("document.documentElement.scrollHeight"))
        clip = {"x": 0, "y": 0, "width": self.ask("innerWidth"), "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        self._session = None
        try:
            self.call("Browser.close")
        finally:
            self._process.wait(30)
            os.close(self._in)
            os.close(self._out)
            shutil.rmtree(self._profile, ignore_errors=True)

    def _answer(self):
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], LIMIT_S)[0], "the browser does not answer"
            more = os.read(self._in, 2**20)
            assert more, "the browser has gone"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


def expect_fit(browser, width, *, dark):
    """The page is as wide as the window, all of it is legible, and its paper has the colour that is asked for."""
    paper = "rgb(23, 24, 26)" if dark else "rgb(255, 255, 255)"
    found = [browser.ask(one) for one in (WIDTH, STICKS_OUT, PAPER)]
    assert found == [width, [], paper], found
    smallest = browser.ask(SMALLEST)
    assert smallest >= 12, smallest
