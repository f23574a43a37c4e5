"""What is refused, what is told, what is sound: every pair of memory and schedule."""

import itertools

import pytest

from mlxe_async.algorithms import load_algorithm
from mlxe_async.rows import Spaces
from mlxe_async.schedules.soundness import Facts, verdicts

SCHEDULES = [
    {"kind": "serial"},
    {"kind": "istb"},
    {"kind": "is"},
    {"kind": "ia", "unfinished": "keep"},
    {"kind": "ia", "unfinished": "drop"},
    {"kind": "oa", "max_policy_lag": None},
    {"kind": "oa", "max_policy_lag": 0},
    {"kind": "oa", "max_policy_lag": 3},
]


def judged(**facts):
    found = list(verdicts(Facts(**facts)))
    return [v.key[-1] for v in found if v.refused], [v.key[-1] for v in found if not v.refused]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: "-".join(map(str, s.values())))
def test_the_whole_table(schedule):
    drops, late = schedule.get("unfinished") == "drop", schedule["kind"] == "oa" and schedule.get("max_policy_lag") != 0
    told_of_drops = ["unfinished"] if drops else []
    for memory, off_policy in itertools.product(("replay", "rollouts"), ("learns", "corrects", "ignores", None)):
        refused, told = judged(memory=memory, off_policy=off_policy, **schedule)
        uncorrected = off_policy == "ignores"
        assert refused == (["kind"] if memory == "rollouts" and uncorrected and late else [])
        assert told == (["name"] if memory == "replay" and uncorrected else []) + told_of_drops


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: "-".join(map(str, s.values())))
def test_who_does_not_bootstrap_needs_whole_episodes(schedule):
    cuts = ["unfinished"] if schedule.get("unfinished") == "keep" else []
    assert judged(memory="replay", bootstraps=False, sync="episode", **schedule)[0] == cuts
    for sync in ("rollout", "either"):
        assert judged(memory="replay", bootstraps=False, sync=sync, **schedule)[0] == ["sync"]


def test_who_does_not_bootstrap_plays_one_environment_in_each_executor():
    facts = {"kind": "is", "off_policy": "ignores", "sync": "episode", "envs": 2}
    assert judged(memory="rollouts", bootstraps=False, **facts)[0] == ["envs_per_executor"]
    assert judged(memory="replay", bootstraps=False, **facts)[0] == []
    assert judged(memory="rollouts", bootstraps=True, **facts)[0] == []
    assert judged(memory="rollouts", bootstraps=False, **{**facts, "envs": 1})[0] == []


def test_local_memories_and_recordings_of_executors_that_differentiate():
    facts = {"kind": "oa", "exchanges": True, "off_policy": "learns"}
    assert judged(memory="replay", local=True, **facts)[0] == []
    assert judged(memory="replay", local=True, prioritised=True, **facts)[0] == ["replay"]
    assert judged(memory="rollouts", local=True, **facts)[0] == ["replay"]
    assert judged(memory="replay", recorded=True, **facts)[0] == ["record"]
    assert judged(memory="rollouts", recorded=True, **facts)[0] == []
    assert judged(memory="replay", recorded=True, kind="oa", off_policy="learns")[0] == []


def test_a_refusal_says_what_would_do():
    (verdict,) = verdicts(Facts("oa", "rollouts", "ignores", max_policy_lag=8))
    assert verdict.message.startswith('got "oa", where rollouts may be 8 versions old, expected "is", "ia" or')
    (verdict,) = verdicts(Facts("oa", "rollouts", "ignores", max_policy_lag=3))
    assert "3 versions old" in verdict.message
    verdict = next(verdicts(Facts("oa", "rollouts", "ignores", bootstraps=False, max_policy_lag=8)))
    assert 'expected "is", "ia" with schedule.unfinished = "drop", or schedule.max_policy_lag = 0' in verdict.message


@pytest.mark.parametrize("kind", ["is", "serial"])
def test_simulated_lag_is_refused_where_nothing_corrects_for_it(kind):
    for memory, off_policy in itertools.product(("replay", "rollouts"), ("learns", "corrects", "ignores", None)):
        refused, _ = judged(kind=kind, memory=memory, off_policy=off_policy, simulated_lag=1)
        assert refused == (["simulated_lag"] if memory == "rollouts" and off_policy == "ignores" else [])
        assert judged(kind=kind, memory=memory, off_policy=off_policy, simulated_lag=0)[0] == []


@pytest.mark.parametrize(
    ("name", "settings", "stated"),
    [
        ("mlxe", {}, "corrects"),
        ("mlxe", {"correction": "vtrace"}, "corrects"),
        ("mlxe", {"correction": "none"}, "ignores"),
        ("dqn", {}, "learns"),
        ("ppo", {}, "corrects"),
    ],
)
def test_what_the_built_in_algorithms_state(name, settings, stated):
    algorithm = load_algorithm(name)
    made = algorithm(algorithm.Settings(**settings), Spaces(observation_shape=(4,), actions=2), seed=0, learns=False)
    assert made.off_policy == stated


@pytest.mark.parametrize("key", ["temperature_by_executor", "epsilon_by_executor"])
@pytest.mark.parametrize("schedule", SCHEDULES[:5], ids=lambda s: "-".join(map(str, s.values())))
def test_who_takes_rollouts_for_those_of_its_present_policy_explores_by_that_policy(key, schedule):
    for exchanges in (False, True):
        facts = {"memory": "rollouts", "explores_apart": key, "exchanges": exchanges, **schedule}
        assert judged(off_policy="ignores", **facts)[0] == [key]
        for other in ("learns", "corrects", None):
            assert judged(off_policy=other, **facts)[0] == []
        assert judged(off_policy="ignores", **{**facts, "memory": "replay"})[0] == []
        assert judged(off_policy="ignores", **{**facts, "explores_apart": None})[0] == []
