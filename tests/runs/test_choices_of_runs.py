"""Runs keep what followed from their task: in their folder, when they go on, and when a process is started again."""

import json
import tomllib

import pytest
from resume_tools import run_here

from mlxe_async.settings import load_settings

TWO_LINES = {"task": {"env": "Pendulum-v1"}, "algorithm": {"name": "ppo"}}


def two_lines(**more):
    return load_settings(
        {**TWO_LINES, "schedule": {"kind": "serial", "executors": 1}, "stop": {"env_steps": 2048}}, more
    )


@pytest.mark.long
def test_a_run_keeps_what_was_chosen_and_takes_it_up_whatever_would_be_chosen_now(tmp_path):
    first, _ = run_here(two_lines(), tmp_path)
    folder = first.run_dir
    kept = tomllib.loads((folder / "settings.toml").read_text())
    assert kept["algorithm"]["anneal_steps"] == 2048
    assert (kept["algorithm"]["reward_scaling"], kept["schedule"]["rollout_steps"]) == (True, 512)
    chosen = {one["setting"]: one["why"] for one in json.loads((folder / "run.json").read_text())["facts"]["chosen"]}
    assert chosen["algorithm.anneal_steps"] == "the learning rate falls until stop.env_steps"
    again, run = run_here(two_lines(**{"stop.env_steps": 4096}), resume=folder)
    assert again.steps >= 4096
    (resumed,) = run.all("run_resume")
    assert not [change for change in resumed["changed"] if "algorithm" in change or "schedule" in change]
    assert run.supervisor.settings.algorithm.table["anneal_steps"] == 2048
    written = two_lines(**{"stop.env_steps": 6144, "algorithm.anneal_steps": 9000})
    _, run = run_here(written, resume=folder)
    assert run.supervisor.settings.algorithm.table["anneal_steps"] == 9000


@pytest.mark.long
def test_two_lines_and_the_settings_written_out_are_the_same_run(tmp_path):
    first, _ = run_here(two_lines(), tmp_path / "two")
    again, run = run_here(load_settings(first.run_dir / "settings.toml", of_run=True), tmp_path / "whole")
    assert again.weights_hash == first.weights_hash
    assert run.supervisor.settings.algorithm.table["discount"] == 0.95
