"""Who waited for whom in real runs, told by their logs alone."""

import json
from collections import Counter

import pytest

EVALUATED = {"enabled": True, "max_episode_steps": 200, "screen_steps": 50, "episodes": 3}
SLOW = {"env": "CartPole-v1", "max_episode_steps": 200, "wrappers": ["slow_tasks:SlowSecond"]}


class Trace:
    """The phases of a run from its log.jsonl, by the one clock that all processes share."""

    def __init__(self, folder):
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        phases = [line for line in lines if line["event"] == "phase"]
        self.generated = [line for line in phases if line["phase"] == "generate"]
        self.learned = [line for line in phases if line["phase"] == "learn"]
        self.published = {line["version"]: line for line in phases if line["phase"] == "publish"}
        self.evaluated = [line for line in phases if line["phase"] == "evaluate"]

    @staticmethod
    def end(line):
        return line["start_ns"] + line["seconds"] * 1e9

    def newest_at(self, moment_ns):
        """The newest version whose publication was over at this moment."""
        return max((v for v, line in self.published.items() if self.end(line) <= moment_ns), default=0)

    def per_round(self):
        """version -> executor -> rollouts."""
        rounds = {}
        for line in self.generated:
            rounds.setdefault(line["version"], Counter())[line["idx"]] += 1
        return rounds


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("istb", marks=pytest.mark.slow),
        pytest.param("is", marks=pytest.mark.slow),
        pytest.param("ia", marks=pytest.mark.long),
    ],
)
def test_no_executor_begins_a_round_before_the_last_one_was_published_and_tested(live, kind):
    async def some_rounds(run):
        await run.enough("weights", times=8)

    result, _ = live(some_rounds, schedule={"kind": kind}, task=SLOW, stop={"env_steps": 50_000}, evaluation=EVALUATED)
    assert result.reason == "enough"
    trace = Trace(result.run_dir)
    assert len(trace.generated) > 10
    for line in trace.generated:
        assert trace.newest_at(line["start_ns"]) == line["version"]
        assert trace.end(line) <= trace.published.get(line["version"] + 1, {"start_ns": float("inf")})["start_ns"]
    tested = {line["version"]: trace.end(line) for line in trace.evaluated}
    assert len(tested) > 2
    assert all(tested.get(line["version"], 0) <= line["start_ns"] for line in trace.generated)
    *rounds, _ = trace.per_round().values()
    if kind == "ia":
        assert all(set(rollouts) == {0, 1} for rollouts in rounds)
        # The fast one goes on: it delivered several times in a round, more than once.
        assert sum(rollouts[0] > 1 for rollouts in rounds) > 1
    else:
        assert all(rollouts == {0: 1, 1: 1} for rollouts in rounds)
    # What is new is learned from under the version that made it.
    assert {line["lag_min"] for line in trace.learned if line["updates"]} <= {0}


@pytest.mark.long
def test_where_nobody_waits_an_episode_is_played_under_the_newest_version_at_its_start(live):
    result, _ = live(schedule={"kind": "oa", "executors": 2, "updates_per_publish": 4}, stop={"env_steps": 2000})
    trace = Trace(result.run_dir)
    assert len(trace.generated) > 30
    for line in trace.generated:
        assert trace.newest_at(line["start_ns"]) <= line["version"]
        assert trace.published[line["version"]]["start_ns"] <= trace.end(line)
    # And nobody waits for a round to end: playing and learning overlap.
    assert any(
        play["start_ns"] < trace.end(learn) and learn["start_ns"] < trace.end(play)
        for learn in trace.learned
        for play in trace.generated
    )
