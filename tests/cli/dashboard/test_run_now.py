"""A run as its log tells it: numbers that are right, texts that are harmless, memory that does not grow."""

import json
import math
import re
import tracemalloc
from html.parser import HTMLParser

import pytest
from dashboard_tools import within
from report_runs import HOSTILE, Log, end, hostile, plain, second, start, story

from mlxe_async.analysis.report.markup import Markup
from mlxe_async.analysis.report.story import Story
from mlxe_async.cli.dashboard.panels import PANELS
from mlxe_async.cli.dashboard.run_now import LAST_EPISODES, MOST_NAMES, MOST_PROCESSES, RunNow
from mlxe_async.cli.dashboard.state import state_of
from mlxe_async.cli.dashboard.watching import MOST_CHARACTERS, Frames
from mlxe_async.logs import events


def told(log, *, held=False):
    run = RunNow(log.name)
    run.is_held = held
    for line in log.lines:
        run.feed(plain(line))
    return run


def shown(run):
    """All parts of its page, by name, and its state; which is plain JSON."""
    json.dumps(state_of(run), allow_nan=False)
    return {name: str(panel.make(run)) for name, panel in PANELS.items()}


def text_of(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def returned(*values):
    """A run of one executor whose episodes have these returns."""
    log = Log("x")
    start(log)
    for number, value in enumerate(values, 1):
        log.add(
            float(number),
            events.EpisodeEnd(0, number, value, 10, True, number + 1, number, 10 * number, 77),
            "executor",
            number % 2,
        )
    return told(log, held=True)


def test_counters_score_and_means_are_those_of_the_log():
    run = told(story(seconds=10))
    state = state_of(run)
    assert state["state"] == "finished"
    assert (state["env_steps"], state["episodes"], state["updates"]) == (1000, 10, 80)
    assert state["version"] == 11
    assert state["best_return"] == 100.0
    assert state["best_episode"]["executor"] == "executor 0"
    assert state["mean_return"] == 55.0
    assert state["best_test"] == {"version": 11, "return_mean": 100.0}
    assert state["memory"] == {"kept": 200.0, "capacity": 200.0, "backlog": 0.0}
    assert state["losses"] == {"loss": 0.1}
    assert state["unusable_lines"] == 0
    assert [row[2] for row in state["tests"]["rows"]] == [10.0 * number for number in range(1, 11)]
    assert state["seconds"] == 11.5


def test_the_moving_average_is_that_of_the_study():
    average, values = 0.0, [10.0, 20.0, 0.0, -5.0, 40.0]
    run = returned(*values)
    for value in values:
        average = value if average == 0 else 0.99 * average + 0.01 * value
    assert run.moving == pytest.approx(average)
    assert run.last_episodes[-1].moving == pytest.approx(average)
    assert state_of(run)["moving_averages"]["rows"][-1][2] == pytest.approx(average)


def test_each_episode_has_its_executor_and_the_last_ones_are_listed():
    run = returned(*range(1, 41))
    state = state_of(run)
    assert [one["executor"] for one in state["last_episodes"][-2:]] == ["executor 1", "executor 0"]
    assert len(state["last_episodes"]) == LAST_EPISODES
    assert run.by_executor == {"executor 0": 20, "executor 1": 20}
    assert "executor 1" in text_of(shown(run)["episodes"])
    assert "40 (episode 40, executor 0, version 41)" in text_of(shown(run)["numbers"])


@pytest.mark.parametrize(
    ("ended", "code", "held", "state", "said"),
    [
        ("solved", 0, False, "finished", "because its task was solved"),
        ("SIGINT", 130, False, "stopped", "It was stopped by SIGINT after 11.5 s"),
        ("it broke", 3, False, "failed", "It failed after 11.5 s: it broke"),
        ("", 0, True, "running", "It has been going on for 10.9 s"),
        ("", 0, False, "died", "It died without a last word at 2026-11-27 13:50:12 UTC, 10.9 s after its start"),
        ("", 0, None, "unknown", "whether it still runs cannot be told here"),
    ],
)
def test_the_page_says_how_a_run_ended_or_that_it_goes_on(ended, code, held, state, said):
    run = told(story(ended=ended, code=code), held=held)
    assert run.state == state
    assert said in text_of(shown(run)["top"])


def test_threads_of_one_process_have_times_of_their_own():
    log = story(ended="")
    log.add(12.0, events.Times("mlxe-istb", {"updating": 9.0}), "istb")
    for index in (0, 1):
        log.add(12.0, events.Times("mlxe-istb", {"stepping": 2.0 + index}), "executor", index)
    run = told(log, held=True)
    expected = {"mlxe-istb": {"updating": 9.0}, **{f"mlxe-istb: executor {i}": {"stepping": 2.0 + i} for i in (0, 1)}}
    assert run.modes == expected
    assert "mlxe-istb: executor 1" in text_of(shown(run)["times"])
    assert Story.of(log.lines).modes == expected


def test_the_verdict_and_the_times_stand_on_the_page():
    log = story(ended="")
    log.add(12.0, events.Bottleneck({"learner": 0.9}, "learner", "the learner works 90% of the time"))
    log.add(12.0, events.Times("mlxe-lrn", {"updating": 9.0, "waiting": 1.0}), "learner")
    parts = shown(told(log, held=True))
    assert "Verdict Its pace is limited by: learner. The learner works 90% of the time." in text_of(parts["top"])
    assert "updating 90.0 %" in parts["times"]
    assert "waiting: a request" in text_of(parts["times"])


def test_lanes_tell_what_each_role_does_and_how_full_its_lane_is():
    log = story(ended="")
    log.lines[0]["settings"]["memory"] = {"lane_slots": 64}
    log.add(11.0, events.Ledger(1, 1, 0, lanes=[{"backlog_blocks": 3}]))
    parts = shown(told(log, held=True))
    assert "executor 0 generate" in text_of(parts["lanes"])
    assert "3 of 64" in text_of(parts["lanes"])


def test_faults_are_counted_and_told():
    log = story(ended="")
    for number in range(100):
        log.add(11.0, events.EnvError(0, "step", "it broke", number, 4), "executor", 0)
    run = told(log, held=True)
    assert "environment error: 100" in text_of(shown(run)["faults"])
    assert "it broke (in step, episode 99, step 4)" in text_of(shown(run)["faults"])
    assert state_of(run)["faults"] == {"environment error": 100}


def test_a_resumed_run_goes_on_by_its_own_clock():
    log = story(seconds=3, ended="")
    log.add(100.0, events.RunStart(0, "oa", "mlxe", "CartPole-v1", {}, resumed=True))
    log.add(101.0, events.ProcStart("mlxe-exe-0", 11, 1, 0.2), "executor", 0)
    log.add(101.5, events.RunResume(1, 3, 300, 3, 24, 3.95, gap_ns=97 * 10**9))
    second(log, 102.0, 4)
    end(log, 104.0, "seconds", 4)
    run = told(log)
    assert run.seconds == pytest.approx(7.0)
    assert run.returns.rows()[-1][:2] == [400.0, pytest.approx(5.5)]
    assert run.state == "finished"


def test_a_log_whose_beginning_is_lost_is_told_as_far_as_it_goes():
    log = story(seconds=5)
    del log.lines[:12]
    parts = shown(told(log))
    assert "Its log does not tell what it learns" in text_of(parts["top"])
    assert "500" in text_of(parts["numbers"])


def test_of_an_empty_log_every_part_can_be_made():
    parts = shown(RunNow("x"))
    assert "cannot be told here" in text_of(parts["top"])


class Reader(HTMLParser):
    """Names of elements, and their attributes, as a browser reads them."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.attributes = set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        self.attributes += attrs


OURS = set(
    re.findall(r"\w+", "a b br caption dd details div dl dt figcaption figure li p path rect section span summary")
)
OURS |= set(re.findall(r"\w+", "svg table tbody td th thead title tr ul wbr"))


def test_no_text_of_a_log_becomes_an_element_an_attribute_or_a_script():
    log = hostile()
    log.add(5.0, events.EpisodeEnd(0, 1, 5.0, 3, True, 1, 1, 10), HOSTILE, 0)
    log.add(5.0, events.Times(HOSTILE, {HOSTILE: 3.0}), "learner")
    log.add(5.0, events.Metrics({HOSTILE: 3.0}, 10), "executor", 0)
    log.add(5.0, events.Ledger(1, 1, 0, kept=1, capacity=1, lanes=[{HOSTILE: HOSTILE}]))
    del log.lines[-5]  # it goes on
    for part in shown(told(log, held=True)).values():
        read = Reader(part)
        assert read.elements <= OURS
        assert {name for name, _ in read.attributes if name.startswith("on") or name in ("src", "href")} == set()
        assert all(re.fullmatch(r"[-a-z]+:[-0-9.%a-z]+", value) for name, value in read.attributes if name == "style")
        assert "\u202e" not in part


ODD = [
    None,
    True,
    -1,
    0,
    2**70,
    1e300,
    -1e300,
    math.nan,
    math.inf,
    "",
    "x" * 300_000,
    [],
    {},
    [[[[]]]],
    {"a": {"b": []}},
    [None],
    "\ud800",
]


@pytest.mark.parametrize("odd", ODD, ids=lambda value: f"{value!r:.20}")
def test_any_value_under_any_key_leaves_a_page(odd):
    log = story(seconds=2, ended="")
    log.add(4.0, events.Times("mlxe-lrn", {"updating": 9.0}), "learner")
    log.add(4.0, events.Bottleneck({"learner": 0.9}, "learner", "advice"))
    log.add(4.0, events.Metrics({"a": 3.0}, 10), "executor", 0)
    log.add(4.0, events.EnvError(0, "step", "it broke", 3, 4), "executor", 0)
    end(log, 5.0, "seconds", 2)
    lines = [plain(line) for line in log.lines]
    run = RunNow("x")
    for line in lines:
        for key in line:
            if key != "event":
                run.feed({**line, key: odd})
        run.feed({"event": line["event"]})
        run.feed({**line, "event": odd})
        run.feed(line)
    shown(run)


def names(count):
    """A log that makes up names: of losses, processes, modes, metrics, executors."""
    for number in range(count):
        name = f"{number}-" * 20
        yield {"event": "phase", "phase": "learn", "role": name, "idx": number, "losses": {name: 1.0}}
        yield {"event": "times", "process": name[:90], "seconds": {name[:80] + str(one): 1.0 for one in range(100)}}
        yield {"event": "metrics", "values": {name: 1.0}, "env_steps": number}
        yield {"event": "episode_end", "idx": number, "episode_return": 1.0, "length": 1, "version": 1, "env": 0}
        yield {"event": "weights", "version": number, "env_steps": number}
        yield {"event": "warning", "message": name}


@pytest.mark.long
def test_memory_is_bounded_whatever_the_log_makes_up():
    run, peaks = RunNow("x"), []
    tracemalloc.start()
    try:
        for _ in range(3):
            for line in names(500):
                run.feed(line)
            for number in range(12_000):
                run.feed({"event": "weights", "version": number + 10**6, "env_steps": number})
            peaks.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(run.losses) <= MOST_NAMES
    assert len(run.modes) <= MOST_PROCESSES
    assert len(run.by_executor) <= MOST_PROCESSES
    assert 1.1 * peaks[0] > peaks[2] < 60e6


@pytest.mark.long
def test_a_page_that_would_be_too_large_says_so_instead():
    run = RunNow("x")
    for line in names(100):
        run.feed(line)

    async def parts(_more):
        return {name: Markup(html) for name, html in shown(run).items()}

    async def main():
        frames = Frames(parts)
        await frames.make()
        return frames.newest

    frame = within(main)
    assert sum(len(html) for _, html in frame.panels.values()) < MOST_CHARACTERS + 2000
    assert "This is too much to be shown" in frame.panels["times"][1]
    assert len(frame.changes({})) < 2 * MOST_CHARACTERS
