"""A browser shows the page at any width, light and dark, asks for nothing more and runs nothing of it."""

import pytest
from browser import PATH, STICKS_OUT, Browser, expect_fit
from report_runs import HOSTILE, hostile, story, write

from mlxe_async.analysis.report.folder import read_run
from mlxe_async.analysis.report.groups import group
from mlxe_async.analysis.report.page import page
from mlxe_async.logs import events

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PATH is None, reason="no Chromium is installed")]

LOOKS = [(360, False), (360, True), (800, False), (1400, False), (1400, True)]


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of one run, of a dead one with faults, of four runs of three settings, and of one that means harm."""
    base = tmp_path_factory.mktemp("pages")
    dead = story("dead", 7, ended="")
    for number in range(200):
        dead.add(11 + number / 50, events.EnvError(0, "step", "it broke " * 20, 3, number), "executor", 0)
    four = [story("oa", 0), story("oa", 1, better=2.0), story("is", 0, kind="is"), story("is", 0, batch=512)]
    four[3].name += "b"
    runs = {"one": [story("one")], "dead": [dead], "four": four, "hostile": [hostile()]}
    for name, logs in runs.items():
        found = [read_run(write(base / name, log)) for log in logs]
        (base / f"{name}.html").write_text(page(group(found)), encoding="utf-8")
    return base


@pytest.mark.parametrize(("width", "dark"), LOOKS)
@pytest.mark.parametrize("name", ["one", "dead", "four", "hostile"])
def test_the_page_fits_and_asks_for_nothing(browser, pages, name, width, dark):
    browser.open(pages / f"{name}.html", width, dark=dark)
    asked = [one["request"]["url"] for one in browser.told("Network.requestWillBeSent")]
    assert asked == [(pages / f"{name}.html").as_uri()]
    assert browser.told("Log.entryAdded", "Runtime.exceptionThrown", "Page.javascriptDialogOpening") == []
    assert browser.ask("document.scripts.length + document.images.length") == 0
    expect_fit(browser, width, dark=dark)


@pytest.mark.parametrize(("width", "columns"), [(360, 1), (800, 2), (1400, 2)])
def test_figures_stand_in_one_column_on_a_phone_and_side_by_side_elsewhere(browser, pages, width, columns):
    browser.open(pages / "one.html", width)
    lefts = browser.ask(
        "[...document.querySelector('.figures').children].map(e => Math.round(e.getBoundingClientRect().left))"
    )
    assert len(set(lefts)) == columns


def test_a_script_that_gets_into_the_page_all_the_same_does_not_run(browser, pages):
    intruder = f"{HOSTILE}<script>document.title = 'ran'</script></main>"
    text = (pages / "one.html").read_text().replace("</main>", intruder)
    (pages / "broken.html").write_text(text)
    browser.open(pages / "broken.html", 800)
    assert browser.ask("document.scripts.length") == 2
    assert browser.told("Page.javascriptDialogOpening") == []
    assert browser.ask("document.title") != "ran"
    asked = {one["requestId"] for one in browser.told("Network.requestWillBeSent")}
    blocked = {one["requestId"] for one in browser.told("Network.loadingFailed") if one.get("blockedReason") == "csp"}
    assert len(asked - blocked) == 1


def test_what_is_folded_away_opens_without_a_script(browser, pages):
    browser.open(pages / "one.html", 360)
    before = browser.ask("document.body.scrollHeight")
    browser.ask("document.querySelectorAll('summary').forEach(e => e.click())")
    assert browser.ask("document.body.scrollHeight") > before + 1000
    assert browser.ask("document.documentElement.scrollWidth") == 360
    assert browser.ask(STICKS_OUT) == []
