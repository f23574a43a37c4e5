"""DQN's update in numbers: hand-made rows, and the step that a plain computation in double precision takes."""

import numpy as np
import pytest
import torch
from plain import Plain, assert_same_way, generator_of, tensor

from mlxe_async.algorithms import Clock
from mlxe_async.algorithms.dqn import DQN, DQNSettings
from mlxe_async.rows import Spaces, Symmetry

SIGN, ORDER = np.float32([-1, 1, -1]), np.array([2, 1, 0])
SPACES = Spaces((3,), actions=3, symmetry=Symmetry((-1.0, 1.0, -1.0), (2, 1, 0)))


def agent(spaces=SPACES, **changed):
    asked = {"layers": (7,), "discount": 0.8, "n_step": 2, "return_scale": 0.5, "target_every": 3, "target_rate": 0.4}
    asked |= {"learning_rate": 0.02, "learning_rate_last": 0.005, "anneal_steps": 1000, "max_gradient_norm": 0.3}
    asked |= {"epsilon_first": 0.9, "epsilon_last": 0.2, "epsilon_steps": 500}
    return DQN(DQNSettings.model_validate(asked | changed), spaces, seed=3, learns=True)


def segment(seed, length=24, mark="terminated", reward=4.0):
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(length + 1, 3)).astype(np.float32)
    rows = {name: np.zeros(length, np.uint8) for name in ("terminated", "truncated", "cut")}
    rows[mark][-1] = 1
    rows |= {"obs": obs[:-1], "next_obs": obs[1:].copy(), "action": rng.integers(0, 3, length)}
    return rows | {"reward": (reward * rng.normal(size=length)).astype(np.float32)}


def slow_targets(rows, s):
    """partial, coefficient and cut of each row, as sums of at most n_step rewards."""
    length, found = len(rows["reward"]), []
    reward = np.full(length, 1 - s.discount) if s.value_scale == "survival" else rows["reward"] * s.return_scale
    for t in range(length):
        count = min(s.n_step, length - t)
        total = sum(s.discount**i * reward[t + i] for i in range(count))
        ended = rows["terminated"][t + count - 1]
        found.append((total, 0.0 if ended else s.discount**count, rows["next_obs"][t + count - 1]))
    return [np.array(column) for column in zip(*found, strict=True)]


def scaled(q, s):
    return 1 / (1 + (-q).exp()) if s.value_scale == "survival" else q


def losses_of(q, target, s):
    if s.value_scale == "survival":
        chance = 1 / (1 + (-q).exp())
        return -(target * chance.log() + (1 - target) * (1 - chance).log())
    far = (target - q).abs()
    square = (target - q) ** 2 / 2
    return square if s.loss == "square" else torch.where(far > 1, far - 0.5, square)


@pytest.mark.parametrize("mark", ["terminated", "truncated", "cut"])
@pytest.mark.parametrize("settings", [{}, {"value_scale": "survival"}, {"n_step": 1}])
def test_derived_targets_are_the_slow_sums(settings, mark):
    algorithm, rows = agent(**settings), segment(1, mark=mark)
    derived = algorithm.derive(rows)
    partial, coefficient, cut = slow_targets(rows, algorithm.settings)
    np.testing.assert_allclose(derived["partial"], partial, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(derived["coefficient"], coefficient, rtol=1e-6)
    np.testing.assert_array_equal(derived["cut_obs"], cut)


def test_segments_are_derived_together_as_each_alone():
    algorithm, parts = agent(), [segment(1, 7), segment(2, 1, "truncated"), segment(3, 5, "cut")]
    together = algorithm.derive_many(
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, np.array([7, 1, 5])
    )
    alone = [algorithm.derive(part) for part in parts]
    for name, column in together.items():
        np.testing.assert_array_equal(column, np.concatenate([part[name] for part in alone]))


OPTIONS = [
    {},
    {"double": False, "mirror": False},
    {"loss": "square", "max_gradient_norm": 0.0, "mirror": False},
    {"value_scale": "survival", "average": 0.3},
    {"value_scale": "survival", "double": False, "max_gradient_norm": 0.0, "layer_norm": False},
    {"target_every": 1, "activation": "tanh", "max_gradient_norm": 5.0},
]


@pytest.mark.parametrize("settings", OPTIONS)
def test_updates_take_the_steps_of_a_plain_computation(settings):
    algorithm = agent(**settings)
    s, start = algorithm.settings, algorithm.weights()
    plain = Plain(algorithm, eps=1e-8)
    frozen, average = plain.flat.clone(), plain.flat.clone()
    for number in range(5):
        rows = segment(number, mark="truncated" if number % 2 else "terminated", reward=(1.0, 9.0)[number % 2])
        weight = np.random.default_rng(number).uniform(0.2, 1, 24).astype(np.float32)
        partial, coefficient, cut = slow_targets(rows, s)
        obs, action = rows["obs"], rows["action"]
        if s.mirror:
            flipped = generator_of(algorithm).random(24) < 0.5
            assert 0 < flipped.sum() < 24
            obs, cut = (np.where(flipped[:, None], some * SIGN, some) for some in (obs, cut))
            action = np.where(flipped, ORDER[action], action)
        if number % s.target_every == 0:
            frozen = frozen + s.target_rate * (plain.flat - frozen)
        judging = plain("q", cut, frozen)
        choosing = plain("q", cut) if s.double else judging
        following = scaled(judging[torch.arange(24), choosing.argmax(-1)], s)
        target = tensor(partial) + tensor(coefficient) * following
        taken = plain("q", obs)[torch.arange(24), torch.as_tensor(action)]

        def loss(flat, obs=obs, action=action, target=target, weight=weight):
            q = plain("q", obs, flat)[torch.arange(24), torch.as_tensor(action)]
            return (losses_of(q, target, s) * tensor(weight)).mean()

        wanted = {"loss": float(loss(plain.flat)), "value": float(scaled(taken, s).mean())}
        wanted["td_error"] = float((target - scaled(taken, s)).abs().mean())
        wanted["learning_rate"] = 0.02 - 0.015 * min(1, 300 * number / 1000)
        wanted["epsilon"] = 0.9 - 0.7 * min(1, 300 * number / 500)
        wanted["gradient_norm"] = plain.step(loss, wanted["learning_rate"], s.max_gradient_norm)
        average = average + (s.average or 1.0) * (plain.flat - average)
        metrics, priorities = algorithm.update(
            rows | algorithm.derive(rows) | {"weight": weight}, Clock(env_steps=300 * number, updates=number)
        )
        assert priorities is None
        assert metrics == pytest.approx(wanted, rel=2e-3, abs=1e-5)
        assert_same_way(algorithm.weights()[:-1], average, start[:-1], near=5e-3)
        assert algorithm.weights()[-1] == pytest.approx(wanted["epsilon"])


def test_rows_without_weights_weigh_one_and_a_task_without_a_symmetry_has_no_mirror():
    results = []
    for more in ({}, {"weight": np.ones(24, np.float32)}):
        algorithm = agent(spaces=Spaces((3,), actions=3))
        before = algorithm.state()["rng"]
        rows = segment(1)
        algorithm.update(rows | algorithm.derive(rows) | more, Clock())
        results.append(algorithm.weights())
        np.testing.assert_array_equal(algorithm.state()["rng"], before)
    np.testing.assert_array_equal(*results)


def test_updates_are_due_from_the_first_start_rows_on_whether_held_or_seen():
    s = {"start_rows": 10, "train_every": 4}
    for calls, wanted in (
        ([(9, 9), (9, 1), (9, 3)], [0, 0, 1]),  # ten were seen
        ([(10, 3), (10, 6)], [0, 2]),  # ten are held; three and six make two, and one is left
        ([(3, 3), (12, 9), (12, 4)], [0, 2, 1]),
    ):
        algorithm = agent(**s)
        due = [algorithm.updates_due(rows=rows, new_rows=new, new_segments=0) for rows, new in calls]
        assert due == wanted
    algorithm = agent(**s, min_updates=5)
    due = [algorithm.updates_due(rows=r, new_rows=r, new_segments=n) for r, n in ((9, 2), (10, 2), (10, 0))]
    assert due == [0, 10, 0]
