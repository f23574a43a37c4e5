"""A browser shows the page at three widths, light and dark; it asks this server alone, and runs nothing of a log."""

import contextlib
import json
import select
import subprocess
import sys

import pytest
from browser import PATH, Browser, expect_fit
from dashboard_tools import LIMIT_S, TOKEN
from report_runs import HOSTILE, Log, end, hostile, plain, second, start, story, write

from mlxe_async.logs import events

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PATH is None, reason="no Chromium is installed")]

LOOKS = [(width, dark) for width in (360, 800, 1400) for dark in (False, True)]
READ = "document.getElementById('connection').className == 'live' && !document.body.textContent.includes('being read')"


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run, a dead one with faults, one that means harm, and a run of many lanes."""
    base = tmp_path_factory.mktemp("runs")
    dead = story("dead", 7, ended="")
    for number in range(200):
        dead.add(11 + number / 50, events.EnvError(0, "step", "it broke " * 20, 3, number), "executor", 0)
    many = Log("20261127T135002Z-many")
    start(many)
    many.lines[0]["settings"]["schedule"]["executors"] = 40
    for number in range(1, 200):
        second(many, float(number), number)
    many.add(201.0, events.Times("mlxe-lrn", {"updating": 90.0, "waiting": 10.0}), "learner")
    many.add(201.0, events.Bottleneck({"learner": 0.9}, "learner", "the learner works 90% of the time, " * 5))
    for log in (story("one"), dead, hostile(), many):
        write(base, log)
    return base


@contextlib.contextmanager
def serving(base):
    """The address of the page, served by a process of its own."""
    words = ["dashboard", str(base), "--port", "0", "--token", TOKEN]
    process = subprocess.Popen([sys.executable, "-m", "mlxe_async", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert select.select([process.stdout], [], [], LIMIT_S)[0]
        yield process.stdout.readline().partition("/?")[0]
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="module")
def address(runs):
    with serving(runs) as address:
        yield address


def shown(browser, address, path, width=800, *, dark=False):
    browser.open(f"{address}{path}?token={TOKEN}", width, dark=dark)
    browser.until(READ)


@pytest.mark.parametrize(("width", "dark"), LOOKS)
@pytest.mark.parametrize("name", ["one-0", "dead-7", "hostile", "many", ""])
def test_the_page_fits_and_asks_this_server_alone(browser, address, name, width, dark):
    shown(browser, address, f"/run/20261127T135002Z-{name}" if name else "/", width, dark=dark)
    if name:
        browser.ask("document.querySelectorAll('details[data-more]').forEach(part => { part.open = true })")
        browser.until("document.getElementById('settings').innerHTML != ''")
        browser.until(READ)
    asked = {one["request"]["url"] for one in browser.told("Network.requestWillBeSent")}
    assert all(url.startswith(f"{address}/") for url in asked)
    assert browser.told("Log.entryAdded", "Runtime.exceptionThrown", "Page.javascriptDialogOpening") == []
    expect_fit(browser, width, dark=dark)
    assert "token" not in browser.ask("location.href")
    assert browser.ask("document.cookie") == ""


def test_no_text_of_a_run_that_means_harm_is_run_or_becomes_an_element(browser, address):
    shown(browser, address, "/run/20261127T135002Z-hostile")
    assert browser.ask("document.scripts.length") == 1
    assert browser.ask("document.images.length") == 0
    assert HOSTILE[:25] in browser.ask("document.body.textContent")
    assert browser.told("Page.javascriptDialogOpening") == []


def test_a_script_that_gets_into_the_page_all_the_same_does_not_run_and_sends_nothing(browser, address):
    shown(browser, address, "/run/20261127T135002Z-one-0")
    intruder = json.dumps("<img src=x onerror='document.title=1'><img src='http://127.0.0.2/x'><a onclick='1'>")
    browser.ask(f"document.getElementById('top').innerHTML = {intruder}")
    browser.until("true")
    blocked = browser.told("Log.entryAdded")
    assert any("Content Security Policy" in one["entry"]["text"] for one in blocked)
    assert browser.ask("document.title") != "1"
    sent = {
        one["requestId"] for one in browser.told("Network.requestWillBeSent") if "127.0.0.2" in one["request"]["url"]
    }
    failed = {one["requestId"] for one in browser.told("Network.loadingFailed") if one.get("blockedReason") == "csp"}
    assert sent <= failed


def test_a_page_from_elsewhere_gets_nothing(browser, address, tmp_path):
    shown(browser, address, "/run/20261127T135002Z-one-0")  # the cookie is there
    foreign = tmp_path / "foreign.html"
    foreign.write_text(f"<script src='{address}/page.js'></script><iframe src='{address}/'></iframe>")
    browser.open(foreign, 800)
    browser.ask(
        f"fetch('{address}/runs.json', {{credentials: 'include'}}).then(r => r.text()).then(t => {{ got = t }}, "
        "e => { got = 'refused' })"
    )
    assert browser.until("typeof got == 'string' && got") == "refused"
    answers = [one["response"]["status"] for one in browser.told("Network.responseReceived")]
    assert set(answers) <= {200, 403}
    ours = [one["response"] for one in browser.told("Network.responseReceived") if address in one["response"]["url"]]
    assert {one["status"] for one in ours} <= {403}
    assert ours


def test_the_page_follows_the_run_and_what_is_open_stays_open(browser, tmp_path):
    log = Log("20261127T135002Z-live")
    start(log)
    for number in range(1, 4):
        second(log, float(number), number)
    path = write(tmp_path, log)
    with serving(tmp_path) as address:
        shown(browser, address, "/run/20261127T135002Z-live")
        assert "300" in browser.ask("document.getElementById('numbers').textContent")
        browser.ask("document.querySelector('#returns details').open = true")
        browser.ask("document.querySelector('details[data-more=losses]').open = true")
        browser.until("document.querySelector('#losses svg') != null")
        written = len(log.lines)
        second(log, 4.0, 4)
        with (path / "log.jsonl").open("a") as file:
            file.writelines(f"{json.dumps(plain(line))}\n" for line in log.lines[written:])
        browser.until("document.getElementById('numbers').textContent.includes('400')")
        browser.until("document.querySelector('#returns details').open")
        assert browser.ask("document.querySelector('details[data-more=losses]').open")
        written = len(log.lines)
        end(log, 6.0, "seconds", 4)
        with (path / "log.jsonl").open("a") as file:
            file.writelines(f"{json.dumps(plain(line))}\n" for line in log.lines[written:])
        browser.until("document.getElementById('top').textContent.includes('finished')")
    browser.until("document.getElementById('connection').className == 'over'")
    assert "its last state" in browser.ask("document.getElementById('connection').textContent")


def test_without_the_right_token_there_is_a_sentence_and_no_page(browser, runs):
    with serving(runs) as address:
        browser.open(f"{address}/?token=another-token-of-no-use", 800)
        assert "the token is missing or is another one" in browser.ask("document.body.textContent")
        assert browser.ask("document.scripts.length") == 0
