"""Tables are moved as independent computations in double precision move theirs, and refused where they do not fit."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces

from mlxe_async.algorithms import Acting, Clock, load_algorithm
from mlxe_async.algorithms.parts import tabular
from mlxe_async.rows import Spaces
from mlxe_async.tasks.observing import packing_of

STATES, ACTIONS = 5, 3
SPACES = Spaces((STATES,), actions=ACTIONS, observation_sizes=(STATES,))
LENGTH, ENVS = 14, 3


def agent(name, spaces=SPACES, **fields):
    algorithm = load_algorithm(name)
    settings = algorithm.Settings.model_validate({"discount": 0.9, "learning_rate": 0.3, **fields})
    return algorithm(settings, spaces, seed=1, learns=True)


def rollout(seed=0):
    """Rows (T, B) of three environments: ends of both kinds, a gap after a fault, padding, and a cut at the end."""
    rng = np.random.default_rng(seed)
    state = rng.integers(STATES, size=(LENGTH + 1, ENVS))
    terminated, truncated = np.zeros((2, LENGTH, ENVS), np.uint8)
    terminated[4, 0] = terminated[0, 1] = truncated[7, 1] = truncated[6, 2] = terminated[6, 2] = 1
    valid = np.ones((LENGTH, ENVS), bool)
    valid[-3:, 2] = False
    cut = np.zeros((LENGTH, ENVS), np.uint8)
    cut[-1, :2] = cut[-4, 2] = 1
    over = (terminated | truncated).astype(int)
    episode = np.cumsum(over, axis=0) - over
    episode[10:, 0] += 1  # the environment of rows 5 to 9 had to be made anew
    step = np.zeros((LENGTH, ENVS), np.int32)
    for t in range(1, LENGTH):
        step[t] = np.where(episode[t] == episode[t - 1], step[t - 1] + 1, 0)
    eye = np.eye(STATES, dtype=np.float32)
    rows = {"obs": eye[state[:-1]], "next_obs": eye[rng.permutation(STATES)][state[1:]]}
    rows |= {"action": rng.integers(ACTIONS, size=(LENGTH, ENVS)), "reward": rng.normal(size=(LENGTH, ENVS))}
    rows["reward"] = rows["reward"].astype(np.float32)
    return rows | {
        "terminated": terminated, "truncated": truncated, "cut": cut, "valid": valid, "episode": episode, "step": step
    }  # fmt: skip


def ends_at(rows, t, b):
    """Whether nothing follows row t of environment b in these rows."""
    if t == LENGTH - 1 or rows["terminated"][t, b] or rows["truncated"][t, b] or rows["cut"][t, b]:
        return True
    return rows["episode"][t + 1, b] != rows["episode"][t, b] or not rows["valid"][t + 1, b]


def tables_after(rows, discount, rate, target):
    """What a table of zeros becomes, and the errors, where `target(table, t, b)` says what each row is moved to."""
    table, errors = [[0.0] * ACTIONS for _ in range(STATES)], []
    for b in range(ENVS):
        for t in range(LENGTH):
            if rows["valid"][t, b]:
                state, action = int(rows["obs"][t, b].argmax()), int(rows["action"][t, b])
                errors.append(target(table, t, b) - table[state][action])
                table[state][action] += rate * errors[-1]
    return np.array(table), np.array(errors)


@pytest.mark.parametrize("discount", [0.9, 0.0])
def test_q_learning_is_watkins(discount):
    rows = rollout()

    def target(table, t, b):
        best = max(table[int(rows["next_obs"][t, b].argmax())])
        return float(rows["reward"][t, b]) + (0.0 if rows["terminated"][t, b] else discount * best)

    table, errors = tables_after(rows, discount, 0.3, target)
    algorithm = agent("q_learning", discount=discount)
    measured = algorithm.update(rows, Clock())
    np.testing.assert_allclose(algorithm.values, table, rtol=1e-12, atol=0)
    np.testing.assert_array_equal(algorithm.table.numpy(), table.astype(np.float32))
    assert measured["td_error"] == pytest.approx(np.abs(errors).mean())
    assert measured["loss"] == pytest.approx(0.5 * (errors**2).mean())
    assert measured["value"] == algorithm.values.max() > algorithm.values.min()


def greedily(values, epsilon):
    return epsilon * sum(values) / ACTIONS + (1 - epsilon) * max(values)


def softly(values, temperature):
    shares = [math.exp((value - max(values)) / temperature) for value in values]
    return sum(share * value for share, value in zip(shares, values, strict=True)) / sum(shares)


@pytest.mark.parametrize("n", [1, 3, 50])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"epsilon_first": 0.4, "epsilon_last": 0.4}, lambda values: greedily(values, 0.4)),
        ({"behaviour": "softmax", "temperature": 0.7}, lambda values: softly(values, 0.7)),
    ],
)
def test_n_step_sarsa_counts_n_rewards_and_then_what_was_done_or_is_expected(n, fields, expected):
    rows = rollout()

    def target(table, t, b):
        total, factor = 0.0, 1.0
        for k in range(t, t + n):
            total += factor * float(rows["reward"][k, b])
            factor *= 0.9
            if rows["terminated"][k, b]:
                return total
            if ends_at(rows, k, b):  # truncated, cut, or the next row is of another life
                return total + factor * expected(table[int(rows["next_obs"][k, b].argmax())])
        return total + factor * table[int(rows["obs"][t + n, b].argmax())][int(rows["action"][t + n, b])]

    table, _ = tables_after(rows, 0.9, 0.3, target)
    algorithm = agent("sarsa", n_step=n, **fields)
    algorithm.update(rows, Clock())
    np.testing.assert_allclose(algorithm.values, table, rtol=1e-6)


def test_sarsa_expects_what_the_epsilon_that_acted_would_do_and_not_the_next_one():
    falls, stays, low = (
        agent("sarsa", epsilon_first=first, epsilon_last=last, epsilon_steps=100)
        for first, last in ((0.9, 0.1), (0.9, 0.9), (0.1, 0.1))
    )
    for number, other in enumerate((stays, low)):
        other.values[:] = falls.values
        for one in (falls, other):
            one.update(rollout(number), Clock(env_steps=100))
        np.testing.assert_array_equal(falls.values, other.values)
    assert not np.array_equal(stays.values, low.values)


def test_rates_and_epsilon_fall_with_environment_steps_and_epsilon_travels():
    fields = {"learning_rate": 0.5, "learning_rate_last": 0.1, "anneal_steps": 100}
    algorithm = agent("q_learning", **fields, epsilon_first=1.0, epsilon_last=0.0, epsilon_steps=200)
    measured = algorithm.update(rollout(), Clock(env_steps=50))
    assert measured["learning_rate"] == pytest.approx(0.3)
    assert measured["epsilon"] == pytest.approx(0.75)
    acting = load_algorithm("q_learning")(algorithm.settings, SPACES, seed=0, learns=False)
    acting.load(algorithm.weights())
    probability = np.exp(acting.policy(np.eye(STATES, dtype=np.float32)).log_probs)
    assert probability.max(-1) == pytest.approx(0.25 + 0.75 / ACTIONS)
    assert (probability.argmax(-1) == algorithm.values.astype(np.float32).argmax(-1)).all()
    assert (acting.greedy(np.eye(STATES, dtype=np.float32)) == algorithm.values.argmax(-1)).all()


def test_weights_that_are_learned_on_from_become_doubles_of_the_learners_own():
    first = agent("q_learning")
    first.update(rollout(), Clock())
    buffer = first.weights()
    heir = agent("q_learning")
    heir.set_weights(buffer)
    kept = buffer.copy()
    np.testing.assert_array_equal(heir.values, first.values.astype(np.float32))
    heir.update(rollout(1), Clock())
    np.testing.assert_array_equal(buffer, kept)
    assert heir.values.dtype == np.float64
    buffer[:] = 7
    assert not (heir.values == 7).any()


@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_a_state_that_is_kept_is_gone_on_with_exactly(name):
    first, again = agent(name), agent(name)
    first.update(rollout(0), Clock(env_steps=10))
    again.restore(first.state())
    for algorithm in (first, again):
        algorithm.update(rollout(1), Clock(env_steps=20))
    assert first.values.tobytes() == again.values.tobytes()
    assert not np.array_equal(first.values, first.weights()[:-1].reshape(STATES, ACTIONS))  # doubles are kept


def test_several_versions_are_asked_at_once():
    algorithm = load_algorithm("q_learning")
    acting = algorithm(algorithm.Settings(), SPACES, seed=0, learns=False)
    flats = np.random.default_rng(2).normal(size=(3, STATES * ACTIONS + 1)).astype(np.float32)
    seen = np.eye(STATES, dtype=np.float32)[[[0, 1], [2, 3], [4, 0]]]
    best = flats[:, :-1].reshape(3, STATES, ACTIONS).argmax(-1)
    assert acting.greedy_many(flats, seen).tolist() == [
        best[0, :2].tolist(),
        best[1, 2:4].tolist(),
        best[2][[4, 0]].tolist(),
    ]


SPACE = gym_spaces.Tuple((gym_spaces.Discrete(3, start=5), gym_spaces.MultiDiscrete([2, 4])))


def test_observations_of_several_integers_are_numbered_without_gaps():
    packing = packing_of("Own-v0", SPACE, (), ())
    spaces = Spaces(packing.shape, packing.dtype, 2, parts=packing.parts, observation_sizes=packing.sizes)
    assert packing.sizes == (3, 2, 4)
    stored = [
        packing.take((5 + i, np.array([j, k])), {}, over=False)[0].copy()
        for i in range(3)
        for j in range(2)
        for k in range(4)
    ]
    algorithm = agent("sarsa", spaces)
    assert algorithm.states(np.array(stored)).tolist() == list(range(24))
    assert algorithm.table.shape == (24, 2)
    assert algorithm.states(np.array(stored).reshape(6, 4, 9)).shape == (6, 4)


@pytest.mark.parametrize(
    ("space", "observe", "mask", "sizes"),
    [
        (gym_spaces.Discrete(7), (), (), (7,)),
        (gym_spaces.Discrete(7), (), (2,), ()),
        (gym_spaces.MultiBinary(3), (), (), ()),
        (gym_spaces.Dict(a=gym_spaces.Discrete(2), b=gym_spaces.Box(0, 1, (1,))), (), (), ()),
        (gym_spaces.Dict(a=gym_spaces.Discrete(2), b=gym_spaces.Box(0, 1, (1,))), ("a",), (), (2,)),
    ],
)
def test_which_observations_are_integers_alone(space, observe, mask, sizes):
    assert packing_of("Own-v0", space, observe, mask).sizes == sizes


@pytest.mark.parametrize(
    ("spaces", "said"),
    [
        (Spaces((4,), actions=2), "needs observations of integers alone"),
        (Spaces((9,), action_shape=(1,), observation_sizes=(9,)), "needs a task with discrete actions"),
        (Spaces((4000,), actions=3, observation_sizes=(2000, 2000)), "table of 4000000 states and 3 actions"),
    ],
)
def test_other_spaces_are_refused_by_name(spaces, said):
    with pytest.raises(ValueError, match=r"^algorithm\.name: ") as refused:
        agent("q_learning", spaces)
    assert said in str(refused.value)


def test_among_several_best_actions_any_is_as_likely():
    algorithm = agent("q_learning", epsilon_first=0.3)
    algorithm.table[0] = torch.tensor([1.0, 2.0, 2.0])
    probability = np.exp(algorithm.policy(np.eye(STATES, dtype=np.float32)).log_probs)
    np.testing.assert_allclose(probability[0], [0.1, 0.45, 0.45], rtol=1e-6)
    np.testing.assert_allclose(probability[1:], 1 / ACTIONS, rtol=1e-6)


def test_acting_draws_what_its_log_probability_says():
    algorithm = agent("sarsa", epsilon_first=0.3, epsilon_last=0.3)
    algorithm.table[:] = torch.from_numpy(np.random.default_rng(3).normal(size=(STATES, ACTIONS)))
    obs = np.eye(STATES, dtype=np.float32)[np.zeros(30_000, int)]
    rows = algorithm.act(obs, np.random.default_rng(4), Acting())
    for action in range(ACTIONS):
        chosen = rows["action"] == action
        assert np.exp(rows["log_prob"][chosen]).mean() == pytest.approx(chosen.mean(), abs=0.01)


def test_a_table_holds_as_many_entries_as_it_may_and_not_one_more(monkeypatch):
    monkeypatch.setattr(tabular, "MOST_ENTRIES", STATES * ACTIONS)
    assert agent("sarsa").values.shape == (STATES, ACTIONS)
    monkeypatch.setattr(tabular, "MOST_ENTRIES", STATES * ACTIONS - 1)
    with pytest.raises(ValueError, match="5 states and 3 actions, expected at most 14 entries"):
        agent("sarsa")
