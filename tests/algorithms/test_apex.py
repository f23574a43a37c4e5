"""Ape-X in numbers: its ladder, the priorities that executors give, its steps, and how many of them are due."""

import numpy as np
import pytest
import torch
from plain import Plain, assert_same_way, tensor

from mlxe_async.algorithms import Acting, Clock
from mlxe_async.algorithms.apex import FLOOR, ApeX, ApeXSettings, ladder
from mlxe_async.rows import Spaces

SPACES, ACTIONS = Spaces((3,), actions=3), 3


def agent(learns=True, **changed):
    asked = {"layers": (7, 5), "discount": 0.8, "n_step": 2, "return_scale": 0.5, "target_every": 3, "target_rate": 0.4}
    asked |= {"learning_rate": 0.02, "learning_rate_last": 0.005, "anneal_steps": 1000, "max_gradient_norm": 0.3}
    return ApeX(ApeXSettings.model_validate(asked | changed), SPACES, seed=3, learns=learns)


def values(plain, obs, flat=None):
    """Q (..., A) of the dueling heads, in double precision."""
    advantage = plain("advantage", obs, flat)
    return plain("value", obs, flat) + advantage - advantage.sum(-1, keepdim=True) / ACTIONS


def segment(algorithm, seed, length=12, mark="terminated", reward=4.0):
    """Rows of one episode that an executor acted; the last is marked, or nobody lived to mark it."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(length + 1, 3)).astype(np.float32)
    rows = {name: np.zeros(length, np.uint8) for name in ("terminated", "truncated", "cut")}
    rows |= {"obs": obs[:-1], "next_obs": obs[1:].copy(), "q_after": np.zeros(length, np.float32)}
    rows["reward"] = (reward * rng.normal(size=length)).astype(np.float32)
    rows |= {name: np.stack([column[0] for column in columns]) for name, columns in acted(algorithm, obs[:-1]).items()}
    if mark:
        rows[mark][-1] = 1
        rows["q_after"][-1:] = algorithm.at_stop(obs[-1:])["q_after"] * (mark != "terminated")
    return rows


def acted(algorithm, obs):
    answers = [algorithm.act(one[None], np.random.default_rng(k), Acting()) for k, one in enumerate(obs)]
    return {name: [answer[name] for answer in answers] for name in answers[0]}


def slow_targets(rows, s):
    """partial, coefficient and the row where the sum stops, of each row."""
    length, found = len(rows["reward"]), []
    for t in range(length):
        count = min(s.n_step, length - t)
        total = sum(s.discount**i * s.return_scale * float(rows["reward"][t + i]) for i in range(count))
        found.append((total, 0.0 if rows["terminated"][t + count - 1] else s.discount**count, t + count - 1))
    return [np.array(column) for column in zip(*found, strict=True)]


def test_the_ladder_is_that_of_the_paper():
    whole = [0.4 ** (1 + 7 * i / 7) for i in range(8)]
    np.testing.assert_allclose(ladder(0, 8, 8, 0.4, 7.0), whole, rtol=1e-15)
    np.testing.assert_allclose(ladder(4, 4, 8, 0.4, 7.0), whole[4:], rtol=1e-15)
    np.testing.assert_allclose(ladder(0, 2, 2, 0.4, 7.0), [0.4, 0.4**8], rtol=1e-15)
    assert ladder(0, 1, 1, 0.4, 7.0).tolist() == [0.4]


@pytest.mark.parametrize("executor", [0, 2])
def test_environments_of_all_executors_stand_on_one_ladder(executor):
    algorithm, envs = agent(learns=False), 4
    obs = np.random.default_rng(1).normal(size=(envs, 3)).astype(np.float32)
    probability = np.exp(algorithm.policy(obs, Acting(executor=executor, executors=3)).log_probs)
    best = algorithm.greedy(obs)
    for b in range(envs):
        epsilon = 0.4 ** (1 + 7 * (executor * envs + b) / 11)
        expected = np.full(ACTIONS, epsilon / ACTIONS)
        expected[best[b]] += 1 - epsilon
        np.testing.assert_allclose(probability[b], expected, rtol=1e-6)


@pytest.mark.parametrize("mark", ["terminated", "truncated", "cut", None])
@pytest.mark.parametrize("n", [1, 3, 40])
def test_first_priorities_are_the_errors_by_the_weights_that_acted(n, mark):
    algorithm = agent(n_step=n)
    plain, rows = Plain(algorithm, eps=1e-8), segment(algorithm, 5, mark=mark)
    partial, coefficient, cut = slow_targets(rows, algorithm.settings)
    q = values(plain, rows["obs"]).numpy()
    after = values(plain, rows["next_obs"]).numpy().max(-1)
    if mark is None:  # nobody valued what the last step led to: the value before counts
        after[-1] = q[-1].max()
    error = partial + coefficient * after[cut] - q[np.arange(12), rows["action"]]
    np.testing.assert_allclose(algorithm.derive(rows)["initial_priority"], np.abs(error) + FLOOR, rtol=1e-5)


def test_of_several_environments_each_stores_the_values_of_its_own_observation_and_action():
    algorithm, obs = agent(), np.random.default_rng(5).normal(size=(8, 3)).astype(np.float32)
    plain = Plain(algorithm, eps=1e-8)
    q = values(plain, obs).numpy()
    found = algorithm.act(obs, np.random.default_rng(0), Acting())
    assert len(set(found["action"].tolist())) > 1
    taken = [row[action] for row, action in zip(q, found["action"], strict=True)]
    np.testing.assert_allclose(found["q_taken"], taken, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["q_best"], q.max(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(algorithm.at_stop(obs)["q_after"], q.max(-1), rtol=1e-4, atol=1e-5)
    probability = np.exp(algorithm.policy(obs, Acting()).log_probs)
    np.testing.assert_allclose(np.exp(found["log_prob"]), probability[np.arange(8), found["action"]], rtol=1e-5)


def test_segments_are_derived_together_as_each_alone():
    algorithm = agent()
    parts = [segment(algorithm, 1, 7), segment(algorithm, 2, 1, "truncated"), segment(algorithm, 3, 5, None)]
    together = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    found, alone = algorithm.derive_many(together, np.array([7, 1, 5])), [algorithm.derive(part) for part in parts]
    for name, column in found.items():
        np.testing.assert_array_equal(column, np.concatenate([part[name] for part in alone]))


@pytest.mark.parametrize(
    "settings",
    [{}, {"loss": "square", "max_gradient_norm": 0.0}, {"target_every": 1, "activation": "tanh", "average": 0.3}],
)
def test_updates_take_the_steps_of_a_plain_computation_and_return_the_errors(settings):
    algorithm = agent(**settings)
    s, start, plain = algorithm.settings, algorithm.weights(), Plain(algorithm, eps=1e-8)
    frozen, average = plain.flat.clone(), plain.flat.clone()
    for number in range(4):
        rows = segment(
            algorithm, number, mark="truncated" if number % 2 else "terminated", reward=(1.0, 9.0)[number % 2]
        )
        weight = np.random.default_rng(number).uniform(0.2, 1, 12).astype(np.float32)
        partial, coefficient, cut = slow_targets(rows, s)
        if number % s.target_every == 0:
            frozen = frozen + s.target_rate * (plain.flat - frozen)
        after = rows["next_obs"][cut]
        best = values(plain, after).argmax(-1)
        target = tensor(partial) + tensor(coefficient) * values(plain, after, frozen)[torch.arange(12), best]
        error = target - values(plain, rows["obs"])[torch.arange(12), torch.as_tensor(rows["action"])]

        def loss(flat, rows=rows, target=target, weight=weight):
            q = values(plain, rows["obs"], flat)[torch.arange(12), torch.as_tensor(rows["action"])]
            far, square = (target - q).abs(), (target - q) ** 2 / 2
            each = square if s.loss == "square" else torch.where(far > 1, far - 0.5, square)
            return (each * tensor(weight)).mean()

        wanted = {"loss": float(loss(plain.flat)), "td_error": float(error.abs().mean())}
        wanted["value"] = float((target - error).mean())
        wanted["learning_rate"] = 0.02 - 0.015 * min(1, 300 * number / 1000)
        wanted["gradient_norm"] = plain.step(loss, wanted["learning_rate"], s.max_gradient_norm)
        average = average + (s.average or 1.0) * (plain.flat - average)
        batch = rows | algorithm.derive(rows) | {"weight": weight}
        measured, priorities = algorithm.update(batch, Clock(env_steps=300 * number, updates=number))
        assert {name: measured[name] for name in wanted} == pytest.approx(wanted, rel=2e-3, abs=1e-5)
        np.testing.assert_allclose(priorities, np.abs(error.numpy()) + FLOOR, rtol=1e-3, atol=1e-4)
        assert_same_way(algorithm.weights()[:-1], average, start[:-1], near=5e-3)


def test_updates_are_due_in_proportion_to_the_rows_after_the_first():
    algorithm = agent(batch=8, start_rows=100, replay_ratio=3.0)
    due = [algorithm.updates_due(rows=held, new_rows=32, new_segments=1) for held in range(32, 320, 32)]
    assert due[:3] == [0, 0, 0]
    assert np.cumsum(due).tolist() == [int(max(0, rows - 100) * 3 / 8) for rows in range(32, 320, 32)]
    small = agent(batch=8, start_rows=100, replay_ratio=3.0)  # of a memory that never holds so many rows at once
    assert [small.updates_due(rows=min(64, seen), new_rows=32, new_segments=1) for seen in range(32, 320, 32)] == due
    assert agent(replay_ratio=0.5, batch=4).updates_due(rows=2000, new_rows=20, new_segments=1) == 2  # many are held


def test_what_is_left_of_a_batch_counts_the_next_time():
    algorithm = agent(start_rows=1, batch=64, replay_ratio=3.0)
    algorithm.updates_due(rows=1, new_rows=1, new_segments=0)
    due = [algorithm.updates_due(rows=1, new_rows=5, new_segments=0) for _ in range(64)]
    assert sum(due) == 64 * 5 * 3 // 64
    assert set(due) == {0, 1}


def test_the_replay_ratio_that_is_told_is_that_of_the_run_so_far():
    algorithm = agent(start_rows=100)
    rows = segment(algorithm, 1)
    batch = rows | algorithm.derive(rows)
    measured, _ = algorithm.update(batch, Clock(env_steps=356, updates=7))
    assert measured["replay_ratio"] == 64 * 8 / 256
    for env_steps in (100, 101):  # the very first rows, which nothing may be divided by 0 for
        measured, _ = algorithm.update(batch, Clock(env_steps=env_steps, updates=7))
        assert measured["replay_ratio"] == 64 * 8
