"""What the live view shows, at the sizes that terminals have."""

import pytest
from cli_tools import SECOND, run_start, story

from mlxe_async.cli.view.drawing import Glyphs, compact, draw, duration, sparkline
from mlxe_async.cli.view.picture import Picture

NOW = 20 * SECOND


def drawn(width=80, height=24, events=(), glyphs=None, executors=2):
    picture = Picture()
    for event in (*story(executors=executors), *events):
        picture.feed(event)
    return [line.plain for line in draw(picture, NOW, width, height, glyphs or Glyphs())]


def test_at_80_columns_the_first_lines_are_title_counts_and_lanes():
    assert [" ".join(line.split()) for line in drawn()[:10]] == [
        "20260101T000000Z-x 19 s",
        "mlxe on CartPole-v1 · schedule oa · seed 7",
        "3,800 steps 200/s 38 episodes 152 updates 19 versions",
        "",
        f"executor 0 generate {'▅' * 19} 50% 100 steps/s",
        f"executor 1 generate {'▅' * 19} 50% 100 steps/s",
        f"learner learn {'█' * 19} 91% 8.0 updates/s",
        f"└ memorizer memorize {'▁' * 19} 10% 200 rows/s",
        f"evaluator evaluate {'▃' * 19} 25% 5,000 steps/s",
        "",
    ]


@pytest.mark.parametrize(
    "says",
    ["return", "mean 155  best 200", "policy lag  mean 1.5, max 4, bound 8 versions", "version 9 passed · mean return"],
)
def test_facts_are_told_in_words(says):
    assert any(says in line for line in drawn())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("memory", " 1,000 of 2,000 rows"),
        ("steps", " 3,800 of 10,000"),
        ("episodes", " 38 of 500 · "),
        ("seconds", " of 60 · "),
        ("passed", " 2 of 3 in a row"),
        ("faults", "none"),
    ],
)
def test_bars_and_faults_have_their_line(name, says):
    [line] = [line for line in drawn() if line.startswith(f"{name} ")]
    assert says in line


@pytest.mark.parametrize("executors", [1, 2, 16, 300])
@pytest.mark.parametrize(("width", "height"), [(20, 5), (40, 10), (79, 23), (139, 40), (139, 10), (300, 100)])
def test_no_line_is_too_wide_and_there_are_not_too_many(width, height, executors):
    lines = drawn(width, height, executors=executors)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height


def test_many_executors_are_summed_up_and_those_in_trouble_are_shown():
    lines = drawn(executors=40, events=[{"event": "proc_exit", "process": "mlxe-exe-33", "expected": False}])
    assert any(line.startswith("executor 33 died") for line in lines)
    assert any(line.split()[1:2] == ["more"] for line in lines)
    assert any(line.startswith("learner") for line in lines)


def test_wide_terminals_have_lanes_and_facts_side_by_side():
    [line] = [line for line in drawn(139) if line.startswith("executor 0")]
    assert "return" in line


def test_an_ascii_terminal_gets_ascii():
    assert "".join(drawn(glyphs=Glyphs(plain=True))).isascii()


def test_before_the_run_begins_one_line_says_so():
    [line] = draw(Picture(), 0, 80, 24, Glyphs())
    assert line.plain.startswith("starting")


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([{"event": "stop_requested", "reason": "SIGINT"}], "stops (SIGINT)"),
        ([{"event": "run_end", "reason": "episodes", "seconds": 75.0}], "ended (episodes) after 1 min 15 s"),
        ([{"event": "solved", "version": 3}], "solved"),
    ],
)
def test_the_first_line_tells_how_it_stands(events, says):
    assert says in drawn(events=events)[0]


def test_a_run_without_a_stop_condition_says_so():
    picture = Picture()
    picture.feed(run_start(settings={"schedule": {"executors": 1}}))
    assert any("no condition" in line.plain for line in draw(picture, NOW, 80, 24, Glyphs()))


def test_numbers_are_short():
    assert [compact(n) for n in (0, 0.31, 9.96, 950, 9999, 12_345, 999_600, 4.56e6, 7e9)] == [
        *("0", "0.3", "10", "950", "9,999", "12.3k", "1M", "4.56M", "7G")
    ]
    assert [duration(s) for s in (0.9, 59, 185, 7620, 273_600)] == [
        *("0 s", "59 s", "3 min 05 s", "2 h 07 min", "3 d 04 h")
    ]
    assert sparkline([0, 1, 2, 7], Glyphs()) == "▁▂▃█"
    assert sparkline([5, 5], Glyphs()) == "▄▄"


def lines_of(picture, name, now_ns):
    return [line.plain for line in draw(picture, now_ns, 80, 40, Glyphs()) if line.plain.startswith(f"{name} ")]


def test_what_is_left_is_told_once_it_can_be_known():
    picture = Picture()
    first, *events = story(executors=2)
    for event in [first, *events]:
        picture.feed(event)
    ready = picture.ready_ns
    assert "to go" not in lines_of(picture, "steps", ready + 4 * SECOND)[0]
    (later,) = lines_of(picture, "steps", ready + 10 * SECOND)
    assert later.endswith(f" · {duration(10 * 6200 / 3800)} to go")
    (seconds,) = lines_of(picture, "seconds", ready + 4 * SECOND)
    assert seconds.endswith(" · 56 s to go")
    picture.counts_before = {"env_steps": 1900, "episodes": 38, "updates": 0}
    (resumed,) = lines_of(picture, "steps", ready + 10 * SECOND)
    assert resumed.endswith(f" · {duration(10 * 6200 / 1900)} to go")
    assert "to go" not in lines_of(picture, "episodes", ready + 10 * SECOND)[0]


def test_a_resumed_run_is_estimated_by_what_it_did_since():
    picture = Picture()
    picture.feed(next(story()))
    picture.feed({"event": "run_resume", "env_steps": 1000, "episodes": 10, "updates": 5})
    assert picture.counts_before == {"env_steps": 1000, "episodes": 10, "updates": 5}


def test_rollouts_are_not_shown_as_a_memory_that_is_always_empty():
    kept = drawn(events=[{"event": "ledger", "kept": 0, "capacity": 512}])
    assert any(line.startswith("memory ") and " 0 of 512 rows" in line for line in kept)
    told = [
        {"event": "probe_ok", "memory": "rollouts"},
        {"event": "ledger", "kept": 0, "capacity": 512},
        {"event": "phase", "phase": "learn", "role": "learner", "rows": 1024, "updates": 1},
    ]
    (line,) = [line for line in drawn(events=told) if line.startswith("memory ")]
    assert line == "memory      rollouts, learned from once, 1,024 rows in the last"
