"""`study`: moving averages of training episodes, and what a solved policy does."""

import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from mlxe_async.analysis.pictures import moving_average, moving_averages
from mlxe_async.cli import main
from mlxe_async.cli.study import behaviour_of, in_words
from mlxe_async.errors import TaskError
from mlxe_async.settings import load_settings
from mlxe_async.tasks.cartpole import X_LIMIT
from mlxe_async.tasks.vector import VectorTask

sys.path.insert(0, str(Path(__file__).parents[1] / "export"))

from policies_to_export import policy_of


@pytest.fixture(scope="module", autouse=True)
def drawn():
    """Drawn once; matplotlib keeps the files of its fonts open for good."""
    return moving_averages({"is": [list(range(1, 30)), [5]], "oa": [[7]]}, 8)


def test_a_moving_average_is_of_the_newest_episodes():
    assert moving_average([1, 2, 3, 10], 2) == [1.5, 2.5, 6.5]
    assert moving_average([1, 2], 3) == []


def test_runs_with_too_few_episodes_are_left_out(drawn):
    assert moving_averages({"is": [[1, 2, 3]]}, 8) is None
    assert drawn.svg.startswith(b"<?xml")
    assert drawn.png.startswith(b"\x89PNG")


class Policy:
    """Pushes the cart to where the pole leans."""

    version, wrappers = 7, None

    def __init__(self, env):
        self.settings = load_settings({"task": {"env": env, "squared_position": env == "CartPole-v1"}})

    def reset(self):
        pass

    def chosen(self, obs):
        assert obs.shape[1] == 5
        return (obs[:, 2] + obs[:, 3] > 0).astype(int)


def test_what_a_policy_does_is_told_of_whole_episodes(monkeypatch):
    monkeypatch.setattr("mlxe_async.policy.load_policy", lambda *_, **_more: Policy("CartPole-v1"))
    told = behaviour_of("latest", starts=3, steps=100)
    assert (told["version"], told["episodes"], told["steps"]) == (7, 3, 300)
    assert 0 < told["lean"]["mean"] < told["lean"]["worst"] < 1
    assert told["switching_rate"] == told["changes"] / 297
    assert in_words(told).startswith("version 7, 3 episodes of 300 steps in all: the cart is ")


def by_hand(policy, episodes, steps):
    """Mean share of the way to the edge, of what each episode's cart does under `Policy.act`."""
    farthest = []
    for number in range(episodes):
        env = gymnasium.make("CartPole-v1", max_episode_steps=steps)
        vector = VectorTask(policy.settings.task.model_dump(), 1, evaluation=True, max_episode_steps=steps)
        obs, _ = env.reset(seed=policy.settings.evaluation.seed + number)
        shown = vector.reset(0, policy.settings.evaluation.seed + number)
        policy.reset()
        over, places = False, []
        while not over:
            action = policy.chosen(shown[None])[0]
            obs, _, terminated, truncated, _ = env.step(int(action))
            shown = vector.step(np.array([action])).next_obs[0]
            over = terminated or truncated
            places.append(abs(obs[0]) / X_LIMIT)
        farthest.append(max(places))
        vector.close()
        env.close()
    return max(farthest)


@pytest.mark.parametrize(
    ("task", "algorithm"),
    [({"hide": [1, 3]}, {"cell": "gru"}), ({}, {"cell": "lstm"}), ({"history": 3}, {})],
    ids=["hidden", "memory", "history"],
)
def test_what_policies_with_memory_hidden_entries_or_history_do_is_told(monkeypatch, task, algorithm):
    policy = policy_of({"env": "CartPole-v1", **task}, scale=3.0, **algorithm)
    monkeypatch.setattr("mlxe_async.policy.load_policy", lambda *_, **_more: policy)
    told = behaviour_of("latest", starts=4, steps=60)
    assert told["edge"]["worst"] == pytest.approx(by_hand(policy, 4, 60), abs=1e-6)
    assert told == behaviour_of("latest", starts=4, steps=60)


def test_the_edge_of_other_tasks_is_not_known(monkeypatch):
    monkeypatch.setattr("mlxe_async.policy.load_policy", lambda *_, **_more: Policy("Acrobot-v1"))
    with pytest.raises(TaskError, match="knows the edge of CartPole alone"):
        behaviour_of("latest")


def log_of_lengths(folder, name, lengths):
    folder.mkdir()
    head = {"ts": "", "mono_ns": 1, "run": "x", "role": "supervisor", "idx": None}
    lines = [{**head, "event": "run_start", "settings": {"run": {"name": name}}}]
    lines += [{**head, "event": "episode_end", "length": length} for length in lengths]
    (folder / "log.jsonl").write_text("".join(json.dumps({**line, "seq": n}) + "\n" for n, line in enumerate(lines)))
    return str(folder)


def test_the_figure_and_the_steps_are_put_into_a_folder(tmp_path, capsys):
    runs = [log_of_lengths(tmp_path / name, name[:-1], np.arange(1, 12).tolist()) for name in ("is1", "is2", "oa1")]
    assert main(["study", *runs, "--out", str(tmp_path / "out")]) == 0
    assert [line.rpartition("/")[2] for line in capsys.readouterr().out.split()] == [
        "moving.svg",
        "moving.png",
        "steps.csv",
    ]
    lines = (tmp_path / "out" / "steps.csv").read_text().splitlines()
    assert lines[:3] == ["settings,run,episode,steps", "is,is1,1,1", "is,is1,2,2"]
    assert len(lines) == 1 + 3 * 11


def test_too_few_episodes_are_told(tmp_path, capsys):
    run = log_of_lengths(tmp_path / "is", "is", [1, 2])
    assert main(["study", run, "--out", str(tmp_path / "out")]) == 3
    assert "expected a run of at least 8 finished episodes" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wrong", [["--games", "0"], ["--json"]])
def test_what_makes_no_sense_is_refused(tmp_path, wrong):
    run = log_of_lengths(tmp_path / "is", "is", [1, 2])
    try:
        code = main(["study", run, *wrong])
    except SystemExit as error:
        code = error.code
    assert code == 2
