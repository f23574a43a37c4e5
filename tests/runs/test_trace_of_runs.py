"""Real runs have timelines that keep to the format, with every phase that their log tells."""

import json
import os
import signal
from collections import Counter

import pytest
from live_runs import EVALUATED
from trace_format import of_kind, problems, stops_of

from mlxe_async.analysis.trace.chrome import trace_of
from mlxe_async.analysis.trace.timeline import timeline_of
from mlxe_async.cli import main

NOT_PHASES = ("start", "alive", "probe")
PPO = {"name": "ppo", "epochs": 2, "minibatch": 64}


def trace(lines):
    made = json.loads(trace_of(timeline_of(lines, is_held=False)))
    assert problems(made) == []
    phases = [line["phase"] for line in lines if line["event"] == "phase"]
    assert sorted(one["name"] for one in of_kind(made, "X") if one["name"] not in NOT_PHASES) == sorted(phases)
    return made


def learned(made):
    """Arrows of rollouts that go all the way to a version."""
    return [stops for stops in stops_of(made, "rollout") if len(stops) == 4]


@pytest.mark.long
def test_a_run_that_ended_has_a_timeline_and_an_arrow_from_each_rollout_to_a_version(undisturbed):
    _, run = undisturbed
    made = trace(run.lines)
    assert len(learned(made)) == len(run.all("phase", phase="generate"))
    assert made["otherData"]["ending"].startswith("ended: ")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["mlxe", "ppo"])
@pytest.mark.parametrize("kind", ["serial", "istb", "is", "ia", "oa"])
def test_each_schedule_has_a_timeline_with_arrows(live, kind, algorithm):
    tables = {"schedule": {"kind": kind, "executors": 1 if kind == "serial" else 2}, "evaluation": EVALUATED}
    if algorithm == "ppo":
        tables["algorithm"] = PPO
        tables["schedule"] |= {"sync": "rollout", "rollout_steps": 64}
    _, run = live(**tables)
    made = trace(run.lines)
    found, rollouts = learned(made), run.all("phase", phase="generate")
    assert len(found) >= (1 if kind == "oa" else len(rollouts) - 2)  # where no process waits, some come too late
    assert len(stops_of(made, "weights")) >= 2
    if algorithm == "ppo":
        rows = Counter()
        for rollout, _, batch, _ in found:
            rows[batch["ts"], batch["args"]["rows"]] += rollout["args"]["rows"]
        assert all(learned_from == delivered for (_, learned_from), delivered in rows.items())


@pytest.mark.slow
def test_a_run_whose_executor_is_killed_has_a_timeline_with_both_lives(live):
    async def kill(run):
        await run.saw("weights", times=3)
        os.kill(run.pid("mlxe-exe-0"), signal.SIGKILL)
        await run.enough("weights", times=12)

    _, run = live(kill, schedule={"kind": "oa", "executors": 2}, stop={"env_steps": 10**7})
    made = trace(run.lines)
    marks = [one["name"] for one in of_kind(made, "i")]
    assert any(one.startswith("proc exit: mlxe-exe-0") and "SIGKILL" in one for one in marks)
    assert any(one.startswith("proc restart") for one in marks)
    lives = [one["args"]["process"] for one in of_kind(made, "X") if one["name"] == "alive"]
    assert lives.count("mlxe-exe-0") == 2


@pytest.mark.long
def test_a_run_that_is_killed_altogether_has_a_timeline_that_says_when(command, tmp_path, capsys):
    toml = '[task]\nenv = "CartPole-v1"\n[schedule]\nkind = "oa"\n[algorithm]\nname = "mlxe"\nmin_updates = 4\n'
    run = command(toml)
    run.saw("weights", times=5)
    run.signal(signal.SIGKILL)
    run.wait()
    assert main(["trace", str(run.runs / "latest"), "--out", str(tmp_path / "t.json")]) == 0
    lines = run.lines()
    assert f"the run died without a last word, its last line is of {lines[-1]['ts']}" in capsys.readouterr().out
    assert problems(json.loads((tmp_path / "t.json").read_bytes())) == []
    trace(lines)
