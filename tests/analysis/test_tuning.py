"""The search of `tune` finds the fastest neighbour of neighbours, and leaves what is learned as it is."""

import itertools
import tomllib

import pytest

from mlxe_async.analysis.tuning import Knobs, Measured, Search, edited, in_words, keeps_learning, neighbours, told
from mlxe_async.settings import load_settings
from mlxe_async.settings.toml_places import find_places

START = Knobs("is", executors=8, envs=2, memorizer="own", threads=1, is_replay=False)


def rate(knobs, cores=4):
    """Rows per second of a machine that is only imagined: 3 executors' worth of cores beside a learner."""
    lanes = min(knobs.executors, cores - 1) if knobs.kind != "serial" else 1
    crowd = max(0, knobs.executors - cores) * 0.1
    per_lane = knobs.envs / (1 + 0.2 * knobs.envs)
    own = 0.9 if knobs.memorizer == "own" else 1.0
    return 1000 * lanes * per_lane * own / (1 + crowd + 0.5 * (knobs.threads - 1))


def searched(start, cores=4, *, may_change=False, advised=None):
    search = Search(start, cores, may_change=may_change)
    while (changes := search.next()) is not None:
        search.tell(changes, rate(start.after(changes), cores), advised or {})
    return search


def test_the_fastest_of_the_grid_is_found_from_a_bad_start():
    search = searched(START)
    splits = [(one, 16 // one) for one in (1, 2, 4, 8, 16)]
    grid = [
        Knobs("is", executors, envs, memorizer=place, threads=threads)
        for (executors, envs), place, threads in itertools.product(splits, ("learner", "own"), (1, 2, 4))
    ]
    assert search.best.rate >= 0.97 * max(map(rate, grid))
    assert len(search.measured) < len(grid) / 2


@pytest.mark.parametrize(
    "start",
    [
        START,
        Knobs("serial", 2, 8, is_replay=True),
        Knobs("ia", 2, 8, is_replay=False),
        Knobs("oa", 4, 4, is_replay=True),
        Knobs("is", 4, 1, sync="episode", is_replay=True),
        Knobs("is", 4, 4, is_replay=None),
    ],
    ids=lambda one: f"{one.kind}-{one.sync}-{one.is_replay}",
)
def test_what_is_learned_stays_as_it_is(start):
    advised = {"schedule.executors": 3, "schedule.envs_per_executor": 16, "schedule.rollout_steps": 4}
    for found in searched(start, advised=advised).measured.values():
        after = start.after(found.changes)
        assert after.rollout_steps == start.rollout_steps
        assert after.sync == start.sync
        assert after.executors * after.envs == start.executors * start.envs
        if start.kind not in ("serial", "is"):
            assert (after.kind, after.executors) == (start.kind, start.executors)
        if start.is_replay and after.executors != start.executors:
            assert after.capacity == 1024 * start.executors
        if start.is_replay is None:
            assert after.executors == start.executors


def test_with_leave_it_also_tries_what_changes_learning_and_knows_that_it_does():
    search = searched(START, may_change=True, advised={"schedule.kind": "oa"})
    tried = [one.changes for one in search.measured.values()]
    assert {"schedule.kind": "oa"} in tried
    assert not search.keeps({"schedule.kind": "oa"})
    assert search.keeps({"schedule.executors": 4, "schedule.envs_per_executor": 4})
    assert not search.keeps({"schedule.executors": 4})


def test_rows_of_a_replay_memory_count_as_learning():
    before = Knobs("is", 4, 4, is_replay=True)
    assert not keeps_learning(before, before.after({"schedule.executors": 2, "schedule.envs_per_executor": 8}))
    more = {"schedule.executors": 2, "schedule.envs_per_executor": 8, "memory.capacity_rows": 4096}
    assert keeps_learning(before, before.after(more))
    assert not keeps_learning(before, before.after({"memory.capacity_rows": 9}))


def test_advice_on_executors_is_taken_as_a_split_first():
    first = next(neighbours(START, 2, {"schedule.executors": 2}))
    assert first == {"schedule.executors": 2, "schedule.envs_per_executor": 8}


def test_a_run_that_failed_is_never_the_best_and_not_asked_for_again():
    search = Search(START, 2)
    assert search.next() == {}
    search.tell({}, 100.0, {})
    asked = []
    while (changes := search.next()) is not None:
        asked.append(changes)
        search.tell(changes, 0.0, {}, failed="it died")
    assert search.best.changes == {}
    assert len(asked) == len({str(one) for one in asked})
    assert all("failed" in line for line in told([*search.measured.values()])[2:])


def test_a_small_difference_is_none():
    search = Search(START, 2)
    search.tell({}, 100.0, {})
    search.tell({"learner.threads": 2}, 102.0, {})
    assert search.best.changes == {}
    search.tell({"learner.threads": 2}, 112.0, {})
    assert search.best.changes == {"learner.threads": 2}


def test_a_run_that_other_programs_slowed_down_does_not_count():
    search = Search(START, 2)
    search.tell({}, 100.0, {})
    for disturbed in (60.0, 150.0, 70.0):
        search.tell({"learner.threads": 2}, disturbed, {})
    assert search.best.changes == {"learner.threads": 2}
    search.tell({}, 149.0, {})
    assert search.best.changes == {}
    assert search.first in search.close_ones()


def test_a_prediction_is_kept_for_the_settings_that_it_is_of():
    search = Search(START, 2)
    search.tell({}, 100.0, {"schedule.kind": "oa"}, 1.5)
    assert search.prediction({"schedule.kind": "oa"}) == 150.0
    assert search.prediction({"schedule.kind": "ia"}) is None


def test_a_key_without_effect_is_left_out():
    search = searched(START)
    serial = [one.changes for one in search.measured.values() if one.changes.get("schedule.kind") == "serial"]
    assert serial
    assert all(one["schedule.memorizer"] is None for one in serial)
    assert "schedule.memorizer left out" in in_words(serial[0])


TEXT = """\
# mine
[task]
env = "CartPole-v1"
[schedule]   # who waits
kind = "is"
executors = 8   # many
  memorizer = "own"
"""


def test_a_file_is_edited_where_it_says_something_and_stays_as_it_is_elsewhere():
    changes = {"schedule.executors": 2, "schedule.memorizer": None, "learner.threads": 1, "schedule.rollout_steps": 9}
    found = edited(TEXT, find_places(TEXT), changes)
    assert found == (
        '# mine\n[task]\nenv = "CartPole-v1"\n[schedule]   # who waits\nrollout_steps = 9  # by tune\nkind = "is"\n'
        'executors = 2  # by tune, was 8; many\n# memorizer = "own"  # left out by tune: it has no effect here\n\n'
        "[learner]\nthreads = 1  # by tune\n"
    )
    tree = tomllib.loads(found)
    assert tree["schedule"] == {"rollout_steps": 9, "kind": "is", "executors": 2}


def test_a_preset_that_is_edited_means_what_its_overrides_mean():
    with open("settings/ppo-cartpole.toml") as file:  # noqa: PTH123 - as users name it
        text = file.read()
    changes = {"schedule.executors": 4, "schedule.envs_per_executor": 4, "schedule.memorizer": "own"}
    found = load_settings(tomllib.loads(edited(text, find_places(text), changes)), {"run.name": "x"})
    wanted = load_settings("settings/ppo-cartpole.toml", {**changes, "run.name": "x"})
    assert found.model_dump() == wanted.model_dump()


def test_settings_as_they_were_stay_unless_others_beat_them_by_more_than_they_are_known():
    search = Search(START, 2)
    for rate in (3159.0, 4457.0, 5933.0):
        search.tell({}, rate, {})
    for rate in (4516.0, 6300.0, 4594.0):
        search.tell({"learner.threads": 2}, rate, {})
    assert search.best.changes == {}
    search.tell({"learner.threads": 2}, 8000.0, {})
    assert search.best.changes == {"learner.threads": 2}


def test_words_are_those_of_the_command_line():
    assert in_words({}) == "as it was"
    assert told([Measured({"b.c": 2, "a.b": "x"}, [1234.5, 1000.0, 2000.0])])[1].endswith(
        "2,000     3  a.b = x, b.c = 2  (others 1,234, 1,000)"
    )


def test_gradients_of_executors_are_tried_where_the_learner_is_the_limit_and_learning_may_change():
    start = Knobs("is", executors=4, envs=2, is_replay=False)
    wanted = {"schedule.gradients": "executors"}
    assert wanted in [*neighbours(start, 4, limit="learner")]
    assert wanted not in [*neighbours(start, 4, limit="executors")]
    assert wanted not in [*neighbours(start.after(wanted), 4, limit="learner")]
    assert wanted not in [*neighbours(Knobs("ia", 4, 2), 4, limit="learner")]
    assert not keeps_learning(start, start.after(wanted))


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ('env = "a#b"  # why # not', 'env = 1  # by tune, was "a#b"; why # not'),
        ("env = 'a#\\\\'#why", "env = 1  # by tune, was 'a#\\\\'; why"),
        (r'env = "a\"#b"', r'env = 1  # by tune, was "a\"#b"'),
        ("env = 3", "env = 1  # by tune, was 3"),
    ],
)
def test_what_stood_there_and_its_comment_stay_in_the_line(line, changed):
    text = f"[task]\n{line}\n"
    assert edited(text, find_places(text), {"task.env": 1}).splitlines()[1] == changed
