"""What a run saved: loaded in Python, played and tested by a new process."""

import subprocess
import sys

import live_runs
import numpy as np
import pytest
import torch
from resume_tools import run_here, settings

from mlxe_async import load_policy, policy
from mlxe_async.errors import NotFound
from mlxe_async.parts import laid_out, stored_as
from mlxe_async.rows import Spaces
from mlxe_async.storage import checkpoints

SOLVING = {
    "stop": {"solved": True, "env_steps": 100_000},
    "task": {"env": "CartPole-v1", "max_episode_steps": 500, "mirror": True, "squared_position": True},
    "algorithm": {"min_updates": 64, "batch": 256, "entropy": 0.3, "activation": "tanh"},
    "evaluation": {
        "enabled": True,
        "rule": "cap",
        "max_episode_steps": 300,
        "screen_steps": 50,
        "episodes": 4,
        "passes": 2,
    },
}


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    result, run = run_here(settings(**SOLVING), tmp_path_factory.mktemp("solved"))
    assert result.solved
    assert result.reason == "solved"
    return result, run


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "mlxe_async", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_version_that_solved_the_task_is_saved_loaded_played_and_tested(solved):
    result, run = solved
    (told,) = run.all("solved")
    passed = [line["version"] for line in run.all("evaluation", passed=True)]
    assert told["version"] in passed
    assert passed.index(told["version"]) + 1 < len(passed)

    loaded = load_policy(result.run_dir)
    assert loaded.version == told["version"]
    one = loaded.act(np.array([0.0, 0.0, 0.1, 0.0]))
    several = loaded.act(np.array([[0.0, 0.0, 0.1, 0.0], [0.0, 0.0, -0.1, 0.0]]))
    assert one == 1
    assert several.tolist() == [1, 0]
    assert loaded.test().passed
    with pytest.raises(ValueError, match=r"expected observations of shape \(5,\), got \(3,\)"):
        loaded.act(np.zeros(3))

    out = command("play", str(result.run_dir), "--episodes", "2", "--max-steps", "200")
    for one in loaded.play(2, max_episode_steps=200):
        assert f"return {one.episode_return} in {one.steps} steps" in out
    assert f"version {loaded.version} passed: 4 episodes, 1,200 steps" in command("eval", str(result.run_dir))


@pytest.mark.long
def test_the_result_has_the_mean_return_and_the_best_score_of_all_tests(solved):
    result, run = solved
    returns = [line["episode_return"] for line in run.all("episode_end")]
    assert result.mean_return == pytest.approx(np.mean(returns[-100:]))
    assert result.score == max(line["return_mean"] for line in run.all("evaluation"))


@pytest.mark.long
def test_each_learn_event_has_the_environment_steps_at_which_it_began(solved):
    _, run = solved
    learned = run.all("phase", phase="learn")
    steps = [line["env_steps"] for line in learned]
    assert steps == sorted(steps)
    rows, known = 0, {}
    for line in run.lines:
        if line["event"] == "phase" and line["phase"] == "generate":
            rows += line["rows"]
            assert line["env_steps"] >= rows  # several may be counted before the first of them is told
            known[line["env_steps"]] = True
    assert set(steps) <= set(known)
    assert len(set(steps)) > 1


def test_a_policy_that_does_not_exist_is_refused_by_name(tmp_path):
    with pytest.raises(NotFound, match="there is no run"):
        load_policy(tmp_path / "nothing")


def test_where_nothing_solved_the_task_the_last_version_is_taken(tmp_path):
    spaces = Spaces((4,), actions=2).to_json()
    for number in (1, 2):
        facts = {"version": number, "parameters": [["w", [2]]], "spaces": spaces}
        checkpoints.save(tmp_path, number, {"w": np.full(2, number, np.float32)}, facts, keep=3)
    told = []
    assert policy._loaded(tmp_path, "auto", told.append)[1]["number"] == 2
    (tmp_path / "2" / "tensors.safetensors").write_bytes(b"")
    assert policy._loaded(tmp_path, "auto", told.append)[1]["number"] == 1
    assert len(told) == 1
    assert "checkpoint 2 is damaged" in told[0]


PARTS = laid_out([("x", (2,), "<f4"), ("picture", (2, 3), "|u1"), ("action_mask", (2,), "|u1")])


@pytest.mark.parametrize(
    "change",
    [
        lambda spaces: spaces["parts"][0].update(offset=4),
        lambda spaces: spaces["parts"][1].update(shape=[3, 3]),
        lambda spaces: spaces["parts"].pop(),
        lambda spaces: spaces["parts"][2].update(name="mask"),
        lambda spaces: spaces.update(action_sizes=[3]),
        lambda spaces: spaces.update(observation_dtype="<f4"),
        lambda spaces: spaces.update(parts=[]),
    ],
)
def test_parts_that_make_up_no_observation_are_damage(tmp_path, change):
    spaces = Spaces(*stored_as(PARTS), actions=2, parts=PARTS, masked=True)
    for number in (1, 2):
        told = spaces.to_json()
        if number == 2:
            change(told)
        facts = {"version": number, "parameters": [["w", [2]]], "spaces": told}
        checkpoints.save(tmp_path, number, {"w": np.full(2, number, np.float32)}, facts, keep=3)
    told = []
    _, facts = policy._loaded(tmp_path, "auto", told.append)
    assert (facts["number"], Spaces.from_json(facts["spaces"])) == (1, spaces)
    assert "checkpoint 2 is damaged" in told[0]
    assert "spaces.parts: got" in told[0]
    assert "expected parts that make up an observation" in told[0]


def test_choices_of_a_saved_policy_are_counted_as_the_environment_does():
    from mlxe_async.algorithms import load_algorithm
    from mlxe_async.settings import load_settings

    chosen = load_settings({"task": {"env": "CartPole-v1"}, "algorithm": {"name": "ppo"}})
    kind = load_algorithm("ppo")
    for more, shape in (({"actions": 3, "action_starts": (5,)}, ()), (SEVERAL_STARTED, (2,))):
        spaces = Spaces((4,), **more)
        made = kind(kind.Settings(), spaces, seed=0, learns=False)
        acted = policy.Policy(chosen, spaces, made.weights(), 1)
        for rng in (None, np.random.default_rng(0)):
            found = acted.act(np.zeros((20, 4), np.float32), rng=rng)
            assert found.shape == (20, *shape)
            assert (found >= 5).all()
            assert (found < 8).all()
        assert acted.chosen(np.zeros((20, 4), np.float32)).max() < 3
        again = Spaces.from_json(spaces.to_json())
        assert again == spaces
        assert again.fits_together


SEVERAL_STARTED = {
    "action_shape": (2,),
    "action_kind": "multi_discrete",
    "action_sizes": (3, 2),
    "action_starts": (5, 6),
}


REMEMBERING = {
    "stop": {"solved": False, "env_steps": 400},
    "task": {"env": "CartPole-v1", "hide": [1, 3], "max_episode_steps": 100},
    "schedule": {"sync": "rollout", "rollout_steps": 20, "envs_per_executor": 2},
    "evaluation": {"enabled": False},
}


@pytest.mark.parametrize(
    ("ask", "kind", "says"),
    [
        (
            lambda policy: policy.act([0.0], deterministic=True),
            TypeError,
            "got deterministic=; actions are the best ones",
        ),
        (lambda policy: policy.act([0.0], state=None), TypeError, "got state=; a policy with memory carries its state"),
        (lambda policy: policy.act([0.0], None), TypeError, "got 2 values without a name; it takes obs alone"),
        (lambda policy: policy.act([0.0], seed=3), TypeError, "got seed=; expected obs, mask, rng"),
        (lambda policy: policy.predict([0.0]), AttributeError, "call act"),
        (lambda policy: policy.rnn_states, AttributeError, "carries its state itself until reset"),
    ],
)
def test_arguments_and_methods_of_other_packages_are_answered(ask, kind, says):
    with pytest.raises(kind, match=says):
        ask(object.__new__(policy.Policy))


@pytest.mark.long
def test_a_saved_policy_remembers_until_it_is_reset_as_its_plain_module_does(tmp_path, monkeypatch):
    quick = {"name": "ppo", "cell": "lstm", "cell_size": 8, "epochs": 2, "normalise": True}
    monkeypatch.setitem(live_runs.QUICK, "algorithm", quick)
    result, _ = run_here(settings(**REMEMBERING), tmp_path)
    loaded, rows = load_policy(result.run_dir), np.random.default_rng(3).normal(size=(40, 3, 2)).astype(np.float32)
    module, state, acted = loaded.module(), None, []
    for obs in rows:
        acted.append(loaded.act(obs))
        found = module(torch.from_numpy(obs), state)
        state = found["memory"]
        assert acted[-1].tolist() == found["actor"].argmax(-1).tolist()
    loaded.reset()
    assert [loaded.act(obs).tolist() for obs in rows] == [one.tolist() for one in acted]
    assert not all((loaded.act(obs) == one).all() for obs, one in zip(rows, acted, strict=True))
    loaded.reset()
    with pytest.raises(ValueError, match=r"got done of bool .*, expected act first"):
        loaded.reset(np.array([True]))
    whole = np.full((40, 3, 4), 7, np.float32)
    whole[..., [0, 2]] = rows  # as the environment gives them, velocities among them
    assert [loaded.act(obs).tolist() for obs in whole] == [one.tolist() for one in acted]
    loaded.reset()
    assert [loaded.act(obs[0].tolist()) for obs in whole] == [one[0] for one in acted]
    loaded.reset()
    with pytest.raises(ValueError, match=r"expected observations of shape \(2,\), got \(3,\)"):
        loaded.act([0.0, 0.0, 0.0])
    state = None
    for number, obs in enumerate(rows):
        chosen, over = loaded.act(obs), np.arange(3) == number % 5
        found = module(torch.from_numpy(obs), state)
        assert chosen.tolist() == found["actor"].argmax(-1).tolist()
        state = torch.where(torch.from_numpy(over)[:, None], 0.0, found["memory"])
        loaded.reset(over)
    with pytest.raises(ValueError, match=r"Policy.reset: got done of int64 \(1,\), expected 3 truth values"):
        loaded.reset([0])
    best, state = loaded.module(deterministic=True), None
    for obs, one in zip(rows, acted, strict=True):
        action, state = best(torch.from_numpy(obs), state)
        assert action.tolist() == one.tolist()
