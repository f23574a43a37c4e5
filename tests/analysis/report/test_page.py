"""The page tells of any runs, holds no script and no address, and is the same for the same folders."""

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import HOSTILE, end, hostile, story, write

from mlxe_async.analysis.report.folder import RunRead, read_run
from mlxe_async.analysis.report.groups import group
from mlxe_async.analysis.report.markup import Markup
from mlxe_async.analysis.report.page import POLICY, page
from mlxe_async.analysis.report.points import mapping
from mlxe_async.analysis.report.speed import by_mode, by_phase, causes_of, styles_of
from mlxe_async.analysis.report.story import Story
from mlxe_async.logs import events

ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "section", "h1", "h2", "h3", "p", "b", "div"),
    *("span", "figure", "figcaption", "svg", "path", "rect", "ul", "li", "dl", "dt", "dd", "details", "summary"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "wbr"),
}
VOID = {"meta", "wbr", "path"}


class Read(HTMLParser):
    """Elements, attributes and texts of a page; fails where elements are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.texts, self.open, self.pictures = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += attributes
        if tag == "svg":
            self.pictures.append(dict(attributes))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def made(*folders):
    return page(group(read_run(folder) for folder in folders))


def is_harmless(read):
    """Whether a page asks for nothing and runs nothing."""
    names = {name for name, _ in read.attributes}
    return (
        set(read.elements) <= ALLOWED
        and not names & {"src", "href", "xlink:href", "action", "data", "srcset", "poster"}
        and not any(name.startswith("on") for name in names)
        and not any("url(" in (value or "") for name, value in read.attributes if name == "style")
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    log = story(ended="")
    log.add(
        10.99, events.ProcExit("mlxe-exe-0", 11, 1, False, "it was killed by SIGSEGV", None, "SIGSEGV"), "executor", 0
    )
    log.add(10.99, events.Bottleneck({"learner": 0.9}, "learner", "fewer updates would help"))
    log.add(10.99, events.Solved(9, 8, 900, 72, 7.25))
    end(log, 11.5, "solved", 10, solved=True)
    status = {"cpu_seconds": {"mlxe-lrn": 2.5, "mlxe-sup": 0.5}, "seconds": 10.0}
    return Read(made(write(tmp_path_factory.mktemp("alone"), log, status=status)))


@pytest.mark.parametrize(
    "said",
    [
        "It solved its task with version 9",
        "Its pace is limited by: learner. Fewer updates would help. Result",
        "At work: learner 90 %.",
        "state solved",
        "Returns in training",
        "time since the start (s)",
        "Tests",
        "What learning measured",
        "loss",
        "Where the time went",
        "waiting: lane",
        "CPU seconds",
        "mlxe-sup 0.5 5 %",
        "How fast it went",
        "environment steps per second",
        "Policy lag",
        "rows by policy lag",
        "Memory",
        "age of the oldest row, seconds",
        "Episode lengths",
        "Faults and restarts",
        "death: 1",
        "it was killed by SIGSEGV",
        "All settings",
        "algorithm. name",
        "Machine and versions",
        "2.13.0",
        "Made from 78 lines of logs",
    ],
)
def test_the_page_of_a_run_tells(alone, said):
    assert said in alone.text


def test_the_page_of_a_run_is_harmless_and_says_so_to_the_browser(alone):
    assert is_harmless(alone)
    assert ("content", POLICY) in alone.attributes
    assert ("content", "width=device-width, initial-scale=1") in alone.attributes
    assert POLICY.startswith("default-src 'none'; ")


def test_pictures_are_told_in_words(alone):
    labels = [value for name, value in alone.attributes if name == "aria-label"]
    assert any(one.startswith("return by environment steps: oa from 10 to 100") for one in labels)
    assert all(one.keys() & {"aria-label", "aria-hidden"} for one in alone.pictures)


def test_the_page_is_the_same_each_time(tmp_path):
    folder = write(tmp_path, story())
    assert made(folder) == made(folder)


def test_seeds_of_the_same_settings_are_one_curve_and_others_are_beside(tmp_path):
    folders = [write(tmp_path, story("oa", seed)) for seed in range(3)]
    folders += [write(tmp_path, story("is", 0, kind="is", batch=512))]
    folders += [write(tmp_path, story("oa", 9, learning_rate=0.5))]
    groups = group(read_run(folder) for folder in folders)
    assert [len(one.runs) for one in groups] == [3, 1, 1]
    assert groups[0].title.startswith("oa-")
    assert groups[1].title == "is"
    read = Read(page(groups))
    assert is_harmless(read)
    differing = read.text.partition("Settings that differ key")[2].partition("All settings")[0]
    assert "algorithm. batch" in differing
    assert "512" in differing
    assert "schedule. kind" in differing
    assert "task. env" not in differing
    assert ": 3 runs, of which 3 finished; the best test of each from 100 to 102." in read.text


def test_two_runs_that_differ_in_their_seed_alone_differ_in_no_settings(tmp_path):
    read = Read(made(write(tmp_path, story("oa", 1)), write(tmp_path, story("oa", 2))))
    assert "oa (2 runs)" in read.text
    assert "Settings that differ" not in read.text
    assert "all runs" in read.text


def test_a_text_of_the_log_never_becomes_part_of_the_page(tmp_path):
    about = {"cpu_seconds": {HOSTILE: 1.0}, "seconds": 2.0, "versions": {HOSTILE: HOSTILE}}
    read = Read(made(write(tmp_path, hostile(), status=about, run=about), write(tmp_path, story())))
    assert is_harmless(read)
    assert "alert(1)" in read.text
    assert "\u202e" not in read.text


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("left an empty log", 0),
        ("its log has no last word", -1),
        ("its oldest lines were dropped", None),
    ],
)
def test_what_is_missing_is_told(tmp_path, said, lines):
    log = story()
    log.lines = log.lines[5:] if lines is None else log.lines[:lines]
    read = Read(made(write(tmp_path, log)))
    assert said in read.text
    assert is_harmless(read)


def test_a_log_cut_in_any_place_still_makes_a_page(tmp_path):
    folder = write(tmp_path, story(seconds=3))
    whole = (folder / "log.jsonl").read_bytes()
    for size in range(0, len(whole), 997):
        (folder / "log.jsonl").write_bytes(whole[:size])
        Read(made(folder))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.long
@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), values), min_size=1, max_size=12))
def test_a_log_with_any_value_in_any_field_still_makes_a_page(changes):
    lines = [dict(line) for line in story(seconds=6).lines]
    for where, field, value in changes:
        line = lines[where % len(lines)]
        line[list(line)[field % len(line)]] = value
    run = read_run_of(lines)
    assert is_harmless(Read(page(group([run]))))


def read_run_of(lines):
    """A run of lines that stand in no folder."""
    told = Story.of(json.loads(json.dumps(lines)))
    return RunRead("x", told, False, mapping(told.start.get("settings")), {}, {})


def test_time_of_seeds_is_added_up_and_new_causes_follow_those_that_are_known(tmp_path):
    runs = [read_run(write(tmp_path, story("oa", seed, seconds=4))) for seed in range(2)]
    table = by_phase(runs)
    assert list(table) == ["executor 0", "memorizer", "learner"]
    assert table["executor 0"].causes == pytest.approx({"waiting: lane": 1.0, "generate": 3.0})
    assert table["learner"].lived == pytest.approx(2 * 5.25)
    table["learner"].causes["pondering"] = 0.5
    names = causes_of(table.values())
    assert names == ["generate", "taking in", "memorize", "learn", "pondering", "waiting: lane"]
    styles = styles_of(names)
    assert len({styles[name] for name in names}) == len(names)


def test_time_by_mode_is_drawn_where_the_log_tells_it_and_phases_stand_below(tmp_path):
    log = story("oa", seconds=4, ended="")
    for seconds in (2.0, 4.0):
        modes = {"waiting": seconds / 4, "updating": seconds / 2, "dreaming": seconds / 4}
        log.add(1 + seconds, events.Times("mlxe-lrn", modes), "learner")
        log.add(1 + seconds, events.Times("mlxe-exe-0", {"room": seconds}), "executor", 0)
    run = read_run(write(tmp_path, log))
    table = by_mode([run, run])
    assert list(table) == ["mlxe-exe-0", "mlxe-lrn"]
    assert table["mlxe-lrn"].lived == pytest.approx(8.0)
    assert table["mlxe-lrn"].causes == pytest.approx({"waiting: a request": 2.0, "updating": 4.0, "dreaming": 2.0})
    assert by_mode([read_run(write(tmp_path, story("is")))]) == {}
    text = Read(page(group([run]))).text
    assert "updating 50.0 %" in text
    assert "By phase" in text


def test_modes_of_a_resumed_run_go_on_from_those_before():
    lines = story("oa", seconds=1, ended="").lines
    told = {"event": "times", "process": "mlxe-lrn", "mono_ns": lines[-1]["mono_ns"]}
    again = {**lines[0], "resumed": True}
    going_on = {"event": "run_resume", "gap_ns": 0, "mono_ns": lines[-1]["mono_ns"]}
    sitting = {**told, "seconds": {"updating": 3.0}}, again, going_on, {**told, "seconds": {"updating": 1.0}}
    found = Story.of([*lines, *sitting, {**told, "seconds": {"updating": 2.0, "keeping": 0.5}}])
    assert found.modes == {"mlxe-lrn": {"updating": 5.0, "keeping": 0.5}}


def test_latencies_stand_in_a_table_with_their_quantiles(tmp_path):
    log = story("oa")
    lines = {
        "event": "times",
        "process": "mlxe-lrn",
        "role": "learner",
        "seconds": {},
        "mono_ns": log.lines[-1]["mono_ns"],
    }
    log.lines.append(
        {**log.lines[-1], **lines, "histograms": {"updating": {"1048576": 98, "2097152": 1, "5368709120": 1}}}
    )
    text = Read(page(group([read_run(write(tmp_path, log))]))).text
    assert "mlxe-lrn updating 100 1.05 ms 1.05 ms 2.1 ms" in text


def test_further_tables_stand_before_the_sections(tmp_path):
    text = page(group([read_run(write(tmp_path, story()))]), [Markup("<p>of a study</p>")])
    assert text.index("of a study") < text.index("Returns in training")


def test_quantiles_have_a_chart_each_where_they_were_asked_for(tmp_path):
    log = story(seconds=4)
    assert "Actions, weights and gradients" not in page(group([read_run(write(tmp_path / "without", log))]))
    for number in range(1, 4):
        values = {"gradients": {"p5": -number, "p50": 0.5, "p95": float(number)}}
        log.add(0.5 + number, events.Quantiles(number, number, 100 * number, values, {"gradients": 9}), "learner")
    text = page(group([read_run(write(tmp_path / "with", log))]))
    assert "Actions, weights and gradients" in text
    for told in ("5 % are below", "median", "95 % are below"):
        assert f"<b>gradients, {told}</b>" in text
