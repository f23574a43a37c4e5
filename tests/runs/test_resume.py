"""A run that is interrupted and gone on with equals one that never was, bit for bit, where the schedule allows it."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import live_runs
import pytest
from command import Command
from resume_tools import SAVING, interrupted, run_here, settings, whole_numbers

from mlxe_async.errors import RunFailed, RunFolderBusy, SettingsError
from mlxe_async.logs.reader import read_log
from mlxe_async.settings import dump_settings, load_settings
from mlxe_async.storage import checkpoints
from mlxe_async.storage.run_folder import RunFolder
from mlxe_async.storage.safe_text import visible
from mlxe_async.supervisor import Supervisor
from mlxe_async.supervisor.plan.provenance import without_secrets

STOP = {"stop": {"env_steps": 1200}}
TESTED = {"evaluation": {"enabled": True, "rule": "cap", "max_episode_steps": 300, "screen_steps": 50, "episodes": 3}}
DQN = {"name": "dqn", "start_rows": 200, "batch": 32}
RECALLING = {**DQN, "cell": "lstm", "cell_size": 8, "sequence_steps": 8, "burn_in": 4, "batch": 36}
APEX = {"name": "apex", "start_rows": 200, "batch": 32, "replay_ratio": 2.0}
RAINBOW = {**DQN, "name": "rainbow", "layers": [16], "v_max": 90.0, "train_every": 8, "average": 0.2}
PPO = {"name": "ppo", "epochs": 2, "minibatch": 32}
SAC = {"name": "sac", "start_rows": 200, "batch": 16, "layers": [16], "train_every": 4}
TD3 = {**SAC, "name": "td3", "noise": "ou", "noise_first": 0.3, "noise_steps": 600, "normalise": True}
KEEPING = {"name": "ppo", "epochs": 2, "minibatch": 32, "reward_scaling": True, "kl_penalty_target": 0.01}
KEEPING |= {"value_epochs": 1, "annealed": ["clip", "entropy"], "entropy": 0.01}
REMEMBERING = {**PPO, "cell": "lstm", "cell_size": 8, "sequence_steps": 10}
A2C = {"name": "a2c", "optimiser": "rmsprop", "reward_scaling": True, "rows_per_update": 200}
PENDULUM = {"env": "Pendulum-v1", "max_episode_steps": 50}
SPANNING = {"sync": "rollout", "rollout_steps": 37, "envs_per_executor": 2}
HIDDEN = {"env": "CartPole-v1", "hide": [1, 3]}
LAKE = {"env": "FrozenLake-v1", "max_episode_steps": 100}
SHOWN = {"kwargs": {"pictures": True}, "max_episode_steps": 20}
KINDS = {
    "mlxe": (None, {**TESTED}),
    "mlxe, serial": (None, {"schedule": {"kind": "serial"}}),
    "mlxe, threads": (None, {"schedule": {"kind": "istb"}}),
    "mlxe, episodes that span rollouts": (None, {"schedule": SPANNING}),
    "mlxe, priorities and the best version": (
        {"name": "mlxe", "min_updates": 4, "batch": 64, "priorities": ["age", "td"], "target": "per_iteration"},
        {"learner": {"promote_best": 3}},
    ),
    "dqn": (DQN, {"schedule": SPANNING}),
    "dqn with a cell": (RECALLING, {"schedule": SPANNING, "task": HIDDEN}),
    "apex": (APEX, {"schedule": SPANNING}),
    "apex, serial": (APEX, {"schedule": {**SPANNING, "kind": "serial"}}),
    "rainbow": (RAINBOW, {"schedule": SPANNING}),
    "ppo": (PPO, {"schedule": {**SPANNING, "memorizer": "own"}}),
    "ppo, all that it keeps": (KEEPING, {"schedule": SPANNING, "task": PENDULUM}),
    "ppo with a cell": (REMEMBERING, {"schedule": SPANNING, "task": HIDDEN}),
    "ppo with two cells, all that it keeps": (
        {**KEEPING, "cell": "gru", "cells": "apart", "minibatches": "sequences"},
        {"schedule": SPANNING, "task": PENDULUM},
    ),
    "impala with a cell, serial": ({"name": "impala", "cell": "gru"}, {"schedule": {**SPANNING, "kind": "serial"}}),
    "a2c with a cell of cores": ({"name": "a2c", "cell": "dilated", "cell_cores": 3}, {"schedule": SPANNING}),
    "a2c": (A2C, {"schedule": SPANNING, "task": PENDULUM}),
    "a2c, rollouts that episodes end": (A2C, {"schedule": {"sync": "either", "rollout_steps": 37}}),
    "impala": ({"name": "impala"}, {"schedule": SPANNING}),
    "reinforce": ({"name": "reinforce", "rows_per_update": 60, "baseline": "mean"}, {}),
    "q_learning": ({"name": "q_learning"}, {"schedule": SPANNING, "task": LAKE}),
    "q_learning, threads": ({"name": "q_learning"}, {"schedule": {**SPANNING, "kind": "istb"}, "task": LAKE}),
    "sarsa, serial": ({"name": "sarsa"}, {"schedule": {**SPANNING, "kind": "serial"}, "task": LAKE}),
    "sac": (SAC, {"schedule": {**SPANNING, "envs_per_executor": 1}, "task": PENDULUM}),
    "sac, discrete actions": (SAC, {"schedule": SPANNING}),
    "ppo, executors that learn together": (
        KEEPING,
        {"schedule": {**SPANNING, "gradients": "executors"}, "task": PENDULUM},
    ),
    "sac, executors that learn together": (
        SAC,
        {"schedule": {**SPANNING, "envs_per_executor": 1, "gradients": "executors"}, "task": PENDULUM},
    ),
    "dqn, executors that learn together, serial": (
        DQN,
        {"schedule": {**SPANNING, "kind": "serial", "gradients": "executors"}},
    ),
    "td3": (TD3, {"schedule": SPANNING, "task": PENDULUM}),
    "dqn, observations of parts": (DQN, {"schedule": SPANNING, "task": {"env": "parted_tasks:Lamps", **SHOWN}}),
}


def chosen_for(monkeypatch, kind, **more):
    algorithm, tables = KINDS[kind]
    if algorithm:
        monkeypatch.setitem(live_runs.QUICK, "algorithm", algorithm)
    return settings(**STOP, **tables, **more)


def story(lines, after):
    """Versions and tests from a moment on."""
    names = {"weights": ("version", "updates", "env_steps", "episodes", "norm"), "evaluation": ("version", "steps")}
    return [
        tuple(line[name] for name in names[line["event"]])
        for line in lines
        if line["event"] in names and line["seq"] > after
    ]


def one_story(path, told):
    """What is void is what was undone: without it counters and the clock go on where they were."""
    lines = list(read_log(path))
    assert not [line for line in lines if told["void_from"] <= line["seq"] <= told["void_to"]]
    assert told["void_to"] < told["seq"]
    shifted = [line["mono_ns"] - (told["gap_ns"] if line["seq"] >= told["seq"] else 0) for line in lines]
    at = next(place for place, line in enumerate(lines) if line["seq"] == told["seq"])
    assert shifted[at] >= max(shifted[: next(p for p, line in enumerate(lines) if line["seq"] > told["void_to"])])
    steps = [line["env_steps"] for line in lines if line["event"] in ("episode_end", "run_resume")]
    assert steps == sorted(steps)
    counts = [line["episodes"] for line in lines if line["event"] == "episode_end"]
    assert counts == list(range(1, len(counts) + 1))
    assert sum(line["event"] == "run_end" for line in lines) == 1


QUICK_KINDS = ("ppo", "ppo with a cell")


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK_KINDS else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_going_on_from_any_checkpoint_leads_to_the_same_weights(tmp_path, monkeypatch, kind):
    plain, _ = run_here(chosen_for(monkeypatch, kind), tmp_path)
    saving = chosen_for(monkeypatch, kind, **SAVING)
    saved, saved_run = run_here(saving, tmp_path)
    # Saving changes nothing.
    assert saved.weights_hash == plain.weights_hash
    whole = whole_numbers(saved_run)
    assert len(whole) >= 3
    kept = sorted(int(path.name) for path in (saved.run_dir / "checkpoints").iterdir())
    first = min(set(kept) & set(whole))
    for number in kept:
        if number > first:
            shutil.rmtree(saved.run_dir / "checkpoints" / str(number))
    again, run = run_here(saving, resume=saved.run_dir)
    (told,) = run.all("run_resume")
    assert (told["checkpoint"], told["exact"]) == (first, True)
    one_story(saved.run_dir, told)
    assert again.weights_hash == plain.weights_hash
    assert (again.steps, again.episodes, again.updates) == (plain.steps, plain.episodes, plain.updates)
    moment = next(line["seq"] for line in saved_run.lines if line["event"] == "checkpoint" and line["number"] == first)
    assert story(run.lines, 0) == story(saved_run.lines, moment)
    assert not run.all("warning")
    ledger = run.all("ledger")[-1]
    assert (ledger["lost"], ledger["backlog"]) == (0, 0)
    numbers = [line["seq"] for line in map(json.loads, (saved.run_dir / "log.jsonl").read_text().splitlines())]
    assert numbers == list(range(len(numbers)))


def killed_and_gone_on_with(folder, chosen, expected, chance):
    path = interrupted(folder, chosen, chance=chance)
    result, run = run_here(chosen, resume=path)
    assert result.run_dir == path
    assert result.weights_hash == expected.weights_hash
    assert (result.steps, result.updates) == (expected.steps, expected.updates)
    assert run.all("run_resume")[0]["previous_run_died"] == (
        not any('"run_end"' in line for line in (path / "log.jsonl").read_text().splitlines()[: run.lines[0]["seq"]])
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", [pytest.param("mlxe", marks=pytest.mark.slow), "ppo"])
def test_a_supervisor_that_is_killed_costs_nothing_but_time(tmp_path, monkeypatch, kind):
    chosen = chosen_for(monkeypatch, kind, **SAVING)
    expected, _ = run_here(chosen, tmp_path)
    killed_and_gone_on_with(tmp_path / "killed", chosen, expected, chance=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_supervisors_killed_at_many_moments_cost_nothing_but_time(tmp_path, monkeypatch, kind):
    chosen = chosen_for(monkeypatch, kind, **SAVING)
    expected, _ = run_here(chosen, tmp_path)
    for chance in range(20):
        killed_and_gone_on_with(tmp_path / str(chance), chosen, expected, chance)


@pytest.mark.slow
def test_a_run_that_was_asked_to_stop_goes_on_from_there(tmp_path):
    chosen = settings(**STOP, **SAVING)
    expected, _ = run_here(chosen, tmp_path)
    path = interrupted(tmp_path / "stopped", chosen, signal_number=signal.SIGINT)
    last = json.loads((path / "log.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["exit_code"]) == ("run_end", 130)
    result, run = run_here(chosen, resume=path)
    (told,) = run.all("run_resume")
    assert not told["previous_run_died"]
    assert told["env_steps"] == last["env_steps"]
    assert result.weights_hash == expected.weights_hash


@pytest.mark.slow
def test_a_run_that_has_ended_goes_on_with_another_stop(tmp_path):
    expected, _ = run_here(settings(stop={"env_steps": 1200}), tmp_path)
    half, _ = run_here(settings(stop={"env_steps": 500}), tmp_path)
    result, run = run_here(settings(stop={"env_steps": 1200}), resume=half.run_dir)
    assert result.weights_hash == expected.weights_hash
    assert run.all("run_resume")[0]["changed"] == []
    assert result.seconds > half.seconds


@pytest.mark.slow
def test_where_nobody_waits_counters_versions_and_ledger_go_on(tmp_path):
    tables = {"schedule": {"kind": "oa", "updates_per_publish": 4}, "stop": {"env_steps": 2500}}
    chosen = settings(**tables, **SAVING)
    path = interrupted(tmp_path / "killed", chosen, chance=3)
    before = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    result, run = run_here(chosen, resume=path)
    (told,) = run.all("run_resume")
    assert told["exact"] is False
    assert result.steps >= 2500
    versions = [line["version"] for line in before + run.lines if line["event"] == "weights"]
    assert versions == sorted(set(versions))
    for name in ("env_steps", "episodes", "updates"):
        assert min(line[name] for line in run.all("weights")) >= told[name]
    ledger = run.all("ledger")[-1]
    assert (ledger["lost"], ledger["torn"]) == (0, 0)
    assert ledger["committed"] >= result.steps
    assert ledger["committed"] == ledger["ingested"] + ledger["backlog"]


@pytest.mark.slow
def test_an_environment_that_no_seed_repeats_is_told_and_begun_anew(tmp_path):
    task = {"env": "CartPole-v1", "max_episode_steps": 200, "wrappers": ["odd_tasks:Unrepeatable"]}
    chosen = settings(**STOP, **SAVING, task=task, schedule=SPANNING)
    path = interrupted(tmp_path / "killed", chosen)
    result, run = run_here(chosen, resume=path)
    assert result.reason == "env_steps"
    assert any("begun anew" in line["message"] for line in run.all("warning"))
    assert run.all("run_resume")[0]["exact"] is False
    assert run.all("ledger")[-1]["lost"] == 0


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    result, _ = run_here(settings(stop={"env_steps": 400}, **SAVING), tmp_path_factory.mktemp("finished"))
    return result.run_dir


@pytest.fixture
def finished(finished_once, tmp_path):
    """The folder of a finished run, for this test alone."""
    return shutil.copytree(finished_once, tmp_path / finished_once.name)


@pytest.mark.long
def test_what_must_stay_is_refused_by_name_and_the_folder_is_untouched(finished):
    log = (finished / "log.jsonl").read_bytes()
    with pytest.raises(SettingsError) as caught:
        run_here(settings({"algorithm.policy": [8, 8], "run.seed": 99}), resume=finished)
    assert {line.split(": ")[1] for line in caught.value.problems} == {"algorithm.policy", "run.seed"}
    assert (finished / "log.jsonl").read_bytes() == log
    RunFolder.reopen(finished).close()


@pytest.mark.long
def test_what_may_be_different_is_told(finished):
    chosen = settings({"algorithm.learning_rate": 0.01, "schedule.executors": 3}, stop={"env_steps": 800})
    result, run = run_here(chosen, resume=finished)
    (told,) = run.all("run_resume")
    assert sorted(line.split(":")[0] for line in told["changed"]) == ["algorithm.learning_rate", "schedule.executors"]
    assert told["exact"] is False
    assert any("begins empty" in line["message"] for line in run.all("warning"))
    assert result.steps >= 800
    ledger = run.all("ledger")[-1]
    assert (ledger["lost"], ledger["committed"]) == (0, result.steps)


def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_none_is_a_failure(finished):
    numbers = sorted((int(path.name) for path in (finished / "checkpoints").iterdir()), reverse=True)
    assert len(numbers) >= 2
    os.truncate(finished / "checkpoints" / str(numbers[0]) / "memorizer.safetensors", 1000)
    chosen = settings(stop={"env_steps": 400})
    _, run = run_here(chosen, resume=finished)
    (rejected,) = run.all("checkpoint_rejected")
    assert rejected["number"] == numbers[0]
    assert "memorizer.safetensors is 1000 bytes" in rejected["cause"]
    assert run.all("run_resume")[0]["checkpoint"] == numbers[1]
    # The number of the bad one is not used again.
    assert min(whole_numbers(run)) > numbers[0]
    for path in (finished / "checkpoints").iterdir():
        os.truncate(path / "learner.safetensors", 10)
    with pytest.raises(RunFailed, match="no whole checkpoint"):
        run_here(chosen, resume=finished)


def kept_in(folder):
    """Files of a run and what is in them, but for the file by which it is held."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "lock"}


def killed_before_anything_was_saved(folder, chosen):
    """The folder of a run that was killed once it had published."""
    run = Command(folder, dump_settings(chosen), "--no-progress")
    try:
        run.saw("weights", times=3)
        run.signal(signal.SIGKILL)
        run.process.wait(30)
        return (run.runs / "latest").resolve()
    finally:
        run.close()


@pytest.mark.slow
@pytest.mark.cold  # its command is told
@pytest.mark.parametrize("kind", ["is", "serial"])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew_and_is_the_same(tmp_path, kind):
    chosen = settings(schedule={"kind": kind}, stop={"env_steps": 400})
    plain, _ = run_here(chosen, tmp_path / "plain")
    folder = killed_before_anything_was_saved(tmp_path, settings(schedule={"kind": kind}, stop={"env_steps": 10**6}))
    assert not (folder / "checkpoints").exists()
    assert check_here(chosen, folder)[0].startswith("goes on from  nothing: the run ended before its first checkpoint")
    os.truncate(folder / "log.jsonl", (folder / "log.jsonl").stat().st_size - 5)
    result, run = run_here(chosen, resume=folder)
    assert (result.weights_hash, result.steps, result.run_dir) == (plain.weights_hash, plain.steps, folder)
    (told,) = run.all("run_resume")
    assert (told["checkpoint"], told["exact"], told["void_from"]) == (0, True, 0)
    about = json.loads((folder / "run.json").read_text())
    assert about["command"] == without_secrets(sys.orig_argv)
    assert about["begun"]["command"][-1] == "--no-progress"
    assert about["begun"]["versions"] == about["versions"]
    assert min(line["seq"] for line in read_log(folder)) > told["void_to"]
    (said,) = [line for line in run.all("warning") if "begins anew" in line["message"]]
    assert said["loud"]
    versions = [line["version"] for line in read_log(folder) if line["event"] == "weights"]
    assert versions == list(range(1, len(versions) + 1))


@pytest.mark.slow
def test_where_nobody_waits_a_run_without_a_checkpoint_does_not_begin_anew(tmp_path):
    chosen = settings(schedule={"kind": "oa"}, stop={"env_steps": 10**6})
    folder = killed_before_anything_was_saved(tmp_path, chosen)
    why = 'no whole checkpoint in .*: nothing was saved before it ended, and under schedule "oa" beginning anew is '
    why += r"another run; begin a new run with its settings: python -m mlxe_async .*/settings\.toml"
    before = kept_in(folder)
    for goes_on in (lambda: run_here(chosen, resume=folder), lambda: check_here(chosen, folder)):
        with pytest.raises(RunFailed, match=why):
            goes_on()
    assert kept_in(folder) == before
    load_settings(folder / "settings.toml")  # as the sentence says


@pytest.mark.slow
def test_a_run_that_began_with_the_weights_of_another_begins_anew_with_the_same_ones_only(tmp_path):
    other, _ = run_here(settings(stop={"env_steps": 200}), tmp_path / "other")
    saved = sorted((other.run_dir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    chosen = settings(schedule={"kind": "is"}, run={"init_from": str(other.run_dir)}, stop={"env_steps": 200})
    endless = settings({"stop.env_steps": 10**6}, schedule={"kind": "is"}, run={"init_from": str(other.run_dir)})
    plain, run = run_here(chosen, tmp_path / "plain")
    (begun,) = run.all("init_from")
    assert (begun["path"], begun["checkpoint"]) == (str(other.run_dir), int(saved[-1].name))
    assert begun["weights_hash"] == other.weights_hash
    assert load_settings(plain.run_dir / "settings.toml").run.init_from == str(Path(other.run_dir).resolve())
    folder = killed_before_anything_was_saved(tmp_path, endless)
    about = json.loads((folder / "run.json").read_text())["init_from"]
    assert about == {key: begun[key] for key in about}
    assert check_here(chosen, folder)[-1].startswith(f"begins with   checkpoint {saved[-1].name}, version ")
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert run_here(chosen, resume=folder)[0].weights_hash == plain.weights_hash
    shutil.rmtree(other.run_dir / "checkpoints")
    shutil.copytree(plain.run_dir / "checkpoints", other.run_dir / "checkpoints")
    with pytest.raises(RunFailed, match=r"cannot begin anew: run\.init_from has other weights by now"):
        run_here(chosen, resume=copy)


def test_a_check_of_a_run_without_a_log_makes_none(finished):
    (finished / "log.jsonl").unlink()
    assert check_here(settings(), finished)[-1].endswith("of 0 steps and 0 episodes")
    assert not (finished / "log.jsonl").exists()


def test_a_run_whose_checkpoints_were_removed_does_not_begin_anew(finished):
    shutil.rmtree(finished / "checkpoints")
    with pytest.raises(RunFailed, match="no whole checkpoint"):
        run_here(settings(), resume=finished)


def check_here(chosen, folder):
    """What a check says of going on with a run."""

    async def main():
        return (await Supervisor(chosen, resume=folder).check()).start

    return live_runs.on_loop(main)


def test_a_check_says_what_would_be_used_what_is_spoilt_and_what_would_be_lost(finished):
    numbers = sorted((int(path.name) for path in (finished / "checkpoints").iterdir()), reverse=True)
    manifests = {n: json.loads((finished / "checkpoints" / str(n) / "manifest.json").read_text()) for n in numbers}
    steps = {n: manifests[n]["body"]["facts"]["state"]["counters"]["env_steps"] for n in numbers}
    chosen = settings({"algorithm.learning_rate": 0.01})
    used, changed, lost = check_here(chosen, finished)
    assert used.startswith(f"goes on from  checkpoint {numbers[0]}: version ")
    assert f"{steps[numbers[0]]:,} steps" in used
    assert changed.startswith("changed       algorithm.learning_rate: ")
    assert lost.startswith("lost          0 steps and 0 episodes, of ")
    log = (finished / "log.jsonl").read_bytes()
    (finished / "log.jsonl").write_bytes(log + b'{"torn')
    os.truncate(finished / "checkpoints" / str(numbers[0]) / "memorizer.safetensors", 1000)
    used, spoilt, lost = check_here(settings(), finished)
    assert f"checkpoint {numbers[1]}: " in used
    assert f"checkpoint {numbers[0]}: memorizer.safetensors is 1000 bytes" in spoilt
    assert lost.startswith(f"lost          {steps[numbers[0]] - steps[numbers[1]]:,} steps and ")
    assert (finished / "log.jsonl").read_bytes() == log + b'{"torn'
    for path in (finished / "checkpoints").iterdir():
        os.truncate(path / "learner.safetensors", 10)
    with pytest.raises(RunFailed, match="no whole checkpoint"):
        check_here(settings(), finished)
    with RunFolder.reopen(finished), pytest.raises(RunFolderBusy):
        check_here(settings(), finished)


def lines_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize(
    "torn",
    [
        b'{"ts": "2026-01-01", "seq": 99, "event": "phase", "\xff\x1b[2J',
        *(pytest.param(torn, marks=pytest.mark.slow) for torn in (bytes(5000), b"x" * 2**21)),
    ],
)
def test_a_torn_line_is_cut_off_and_told_so_that_every_line_is_json(finished, torn):
    before = lines_of(finished)
    with (finished / "log.jsonl").open("ab") as file:
        file.write(torn)
    run_here(settings(stop={"env_steps": 500}), resume=finished)
    lines = lines_of(finished)
    assert lines[: len(before)] == before
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    told = lines[len(before)]
    assert told["message"].startswith(f"log.jsonl ended in the middle of a line; its {len(torn)} bytes were cut off: ")
    assert visible(torn[:40].decode(errors="backslashreplace"))[:30] in told["message"]
    assert told["message"].isprintable()
    assert len(told["message"]) < 1000


def test_a_whole_line_that_lacks_its_newline_is_kept(finished):
    before = lines_of(finished)
    os.truncate(finished / "log.jsonl", (finished / "log.jsonl").stat().st_size - 1)
    _, run = run_here(settings(stop={"env_steps": 500}), resume=finished)
    lines = lines_of(finished)
    assert lines[: len(before)] == before
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    assert run.all("run_resume")[0]["previous_run_died"] is False
    assert not run.all("warning")


@pytest.mark.long
def test_other_versions_are_told_and_the_former_ones_kept(finished):
    path = finished / "run.json"
    about = json.loads(path.read_text())
    (first,) = about["sittings"]
    assert first["versions"] == about["versions"]
    numpy = first["versions"].pop("numpy")
    first["versions"]["torch"] = "1.0\x1b[2J"
    path.write_text(json.dumps(about))
    _, run = run_here(settings(stop={"env_steps": 500}), resume=finished)
    (resumed,) = run.all("run_resume")
    assert resumed["versions"] == [f"torch 1.0\\x1b[2J -> {about['versions']['torch']}", f"numpy none -> {numpy}"]
    assert resumed["exact"] is False
    (warning,) = run.all("warning")
    assert warning["message"].startswith(
        "the run goes on under other versions, so that numbers may come out otherwise: "
    )
    assert resumed["versions"][0] in warning["message"]
    former, now = json.loads(path.read_text())["sittings"]
    assert (former["versions"], now["versions"]) == (first["versions"], about["versions"])
    assert former["began"] < now["began"]
    _, run = run_here(settings(stop={"env_steps": 600}), resume=finished)
    assert run.all("run_resume")[0]["versions"] == []
    assert len(json.loads(path.read_text())["sittings"]) == 3


def test_two_do_not_go_on_with_one_run(finished):
    with RunFolder.reopen(finished), pytest.raises(RunFolderBusy):
        run_here(settings(), resume=finished)


def test_a_folder_that_others_may_write_to_is_refused(finished):
    finished.chmod(0o777)
    with pytest.raises(Exception, match="others than the user"):
        run_here(settings(), resume=finished)


@pytest.mark.slow
def test_an_algorithm_without_a_state_goes_on_from_its_weights_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(live_runs.QUICK, "algorithm", {"name": "fake_rollouts:Fake"})
    tables = {"stop": {"env_steps": 300}, "schedule": {"sync": "rollout", "rollout_steps": 32}, **SAVING}
    half, _ = run_here(settings(**tables), tmp_path)
    result, run = run_here(settings(**{**tables, "stop": {"env_steps": 600}}), resume=half.run_dir)
    assert run.all("run_resume")[0]["exact"] is False
    assert any("optimiser starts fresh" in line["message"] for line in run.all("warning"))
    assert checkpoints.load(result.run_dir / "checkpoints")[0]["w"].tolist() == [result.updates] * 4
