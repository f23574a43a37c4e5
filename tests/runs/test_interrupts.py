"""`ia`: fast executors go again, their unfinished episodes are kept or dropped, and no count is lost on the way."""

import os
import signal

import live_runs
import numpy as np
import pytest
from test_run_deaths import balanced

from mlxe_async.memory.replay import ReplayMemory

SLOW = {"env": "CartPole-v1", "max_episode_steps": 200, "wrappers": ["slow_tasks:SlowSecond"]}


def columns_at_the_end(run, rows):
    """Have the replay memory's rows copied when the run ends."""

    def hook(line):
        if line["event"] == "run_end":
            supervisor = run.supervisor
            memory = ReplayMemory(
                supervisor._startup.blueprint.memory_shape, supervisor._startup.segments["memory"].buffer
            )
            live_rows = memory.live()
            rows.update(memory.columns(live_rows) | {"left": memory._ring["left"][live_rows].copy()})
            rows["stream"] = live_rows // memory.shape.stream_rows

    run.hooks.append(hook)


def counted(result, run):
    """The counters against the log, exactly."""
    counters = run.supervisor._measures.counters
    assert sum(line["rows"] for line in run.all("phase", phase="generate")) == result.steps
    assert len(run.all("episode_end")) == result.episodes == counters.episodes
    assert len(run.all("phase", phase="generate")) == counters.rollouts
    balanced(run)


@pytest.mark.long
@pytest.mark.parametrize("unfinished", ["keep", pytest.param("drop", marks=pytest.mark.slow)])
def test_episodes_under_way_are_kept_or_dropped(live, unfinished):
    rows = {}

    async def watch(run):
        columns_at_the_end(run, rows)
        await run.enough("weights", times=7)
        await run.saw("run_end")

    result, run = live(
        watch,
        schedule={"kind": "ia", "unfinished": unfinished},
        task=SLOW,
        stop={"env_steps": 50_000},
        memory={"capacity_rows": 60_000},
    )
    assert result.reason == "enough"
    counted(result, run)
    ledger = run.all("ledger")[-1]
    assert ledger["ingested"] + ledger["backlog"] == result.steps
    episodes = {}
    for k in range(len(rows["step"])):
        episodes.setdefault((int(rows["stream"][k]), int(rows["episode"][k])), []).append(k)
    spanning = [k for k in episodes.values() if len(np.unique(rows["version"][k])) > 1]
    if unfinished == "keep":
        assert run.supervisor._measures.counters.episodes_aborted == 0
        assert spanning
        assert rows["cut"].sum() > 0
        for mine in spanning:
            # Whole from its start, in order, each segment closed where the version changes.
            assert rows["step"][mine].tolist() == list(range(len(mine)))
            changes = np.flatnonzero(np.diff(rows["version"][mine]))
            assert rows["cut"][mine][changes].all()
            assert (rows["left"][mine][changes] == 1).all()
            assert np.array_equal(rows["obs"][mine][1:], rows["next_obs"][mine][:-1])
    else:
        assert run.supervisor._measures.counters.episodes_aborted > 0
        assert not spanning
        assert rows["cut"].sum() == 0
        assert sum(lane["dropped"] for lane in ledger["lanes"]) > 0


@pytest.mark.long
def test_rollouts_of_steps_differ_in_number_and_are_all_learned_from_once(live, monkeypatch):
    monkeypatch.setitem(live_runs.QUICK, "algorithm", {"name": "ppo", "epochs": 1, "minibatch": 32})
    result, run = live(
        schedule={"kind": "ia", "envs_per_executor": 2, "rollout_steps": 16},
        task=SLOW,
        stop={"env_steps": 900},
        memory={"block_rows": 8},
    )
    learned = run.all("phase", phase="learn")
    assert {(line["lag_min"], line["lag_max"]) for line in learned} == {(0, 0)}
    assert sum(line["rows"] for line in learned) == result.steps
    per_round = {}
    for line in run.all("phase", phase="generate"):
        per_round.setdefault(line["version"], []).append(line["idx"])
    assert max(map(len, per_round.values())) > 2
    assert max(rollouts.count(0) for rollouts in per_round.values()) <= 4
    balanced(run)


@pytest.mark.parametrize(
    ("process", "unfinished"),
    [
        ("mlxe-exe-0", "keep"),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in (("mlxe-exe-1", "drop"), ("mlxe-lrn", "keep"))),
    ],
)
def test_what_is_killed_comes_back_and_the_round_is_finished(live, process, unfinished):
    async def kill(run):
        for times in (2, 3):
            rounds = len(run.all("weights"))
            await run.saw("weights", times=rounds + 2)
            os.kill(run.pid(process), signal.SIGKILL)
            again = await run.saw("proc_start", times=times, process=process)
            await run.saw("weights", after=again["seq"])
        run.supervisor.request_stop("enough")

    result, run = live(kill, schedule={"kind": "ia", "unfinished": unfinished}, task=SLOW, stop={"env_steps": 100_000})
    assert result.reason == "enough"
    assert run.all("proc_exit", process=process, expected=False)
    played = [(line["idx"], line["episode"]) for line in run.all("episode_end")]
    assert len(played) == len(set(played))
    counted(result, run)


@pytest.mark.slow
def test_a_nursery_that_is_killed_takes_all_with_it_and_all_come_back(live):
    async def kill(run):
        await run.saw("weights", times=3)
        seq = run.lines[-1]["seq"]
        os.kill(run.supervisor._nursery.pid, signal.SIGKILL)
        await run.saw("weights", after=(await run.saw("proc_start", after=seq))["seq"])
        run.supervisor.request_stop("enough")

    result, run = live(kill, schedule={"kind": "ia"}, task=SLOW, stop={"env_steps": 100_000})
    assert result.reason == "enough"
    balanced(run)


@pytest.mark.parametrize(
    "unfinished", [pytest.param("keep", marks=pytest.mark.long), pytest.param("drop", marks=pytest.mark.slow)]
)
def test_a_lane_that_short_rollouts_have_filled_is_emptied_before_the_round_ends(live, unfinished):
    result, run = live(
        schedule={"kind": "ia", "unfinished": unfinished},
        task=SLOW,
        stop={"env_steps": 600},
        memory={"lane_slots": 2},
    )
    assert result.reason == "env_steps"
    per_round = {}
    for line in run.all("phase", phase="generate"):
        per_round.setdefault((line["idx"], line["version"]), []).append(line["rows"])
    assert max(map(len, per_round.values())) > 2
    counted(result, run)
