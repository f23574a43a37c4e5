"""Toy worlds that one switch solves and DQN without it does not, or much later."""

import itertools

import numpy as np
import pytest
from toys import Practice

from mlxe_async.algorithms import Clock

TABLE = {"layers": (), "loss": "square", "n_step": 1, "max_gradient_norm": 0.0, "start_rows": 1}


def constant(rate):
    return {"learning_rate": rate, "learning_rate_last": rate}


def bias(double, seed):
    """How much a state is overestimated from which ten actions are open, each worth noise of mean 0 and deviation 1."""
    asked = {**TABLE, **constant(0.05), "discount": 1.0, "batch": 64, "target_every": 100, "double": double}
    practice, rng, found = Practice("dqn", 2, 10, seed=seed, **asked), np.random.default_rng(seed), []
    for update in range(1500):
        state = rng.integers(0, 2, 64)  # 0 leads to 1 for nothing
        rows = {"obs": practice.seen[state], "cut_obs": practice.seen[np.ones(64, int)]}
        rows |= {"action": np.where(state == 0, 0, rng.integers(0, 10, 64))}
        rows |= {"partial": np.where(state == 0, 0, rng.normal(size=64)).astype("<f4")}
        rows |= {"coefficient": (state == 0).astype("<f4")}
        practice.learner.update(rows, Clock(updates=update))
        if update >= 500 and update % 20 == 0:
            found.append(practice.values()[0, 0])
    return float(np.mean(found))


@pytest.mark.slow
def test_double_dqn_overestimates_less_than_half_as_much():
    plain, double = (bias(switch, seed=1) for switch in (False, True))
    assert plain > 0.1
    assert abs(double) < plain / 2


CLIFF = 10


def updates_to_know_the_cliff_walk(seed, **more):
    """Of a walk where one action of two goes on and the last earns 1; all episodes there are lie in the memory."""
    asked = {**TABLE, **constant(0.003), "discount": 1 - 1 / CLIFF, "double": False, "batch": 16, "target_every": 1}
    practice = Practice("dqn", CLIFF, 2, seed=seed, keep=4096, **asked, **more)
    practice.learner.set_weights(np.zeros_like(practice.learner.weights()))
    right = np.arange(CLIFF) % 2
    episodes = list(itertools.product((0, 1), repeat=CLIFF))
    np.random.default_rng(seed).shuffle(episodes)
    for episode in map(np.array, episodes):
        wrong = np.flatnonzero(episode != right)
        length = int(wrong[0]) + 1 if len(wrong) else CLIFF
        states, rewards = np.arange(length), np.zeros(length)
        rewards[-1] = not len(wrong)
        practice.keep(states, episode[:length], rewards, np.minimum(states + 1, CLIFF - 1), terminated=True)
    known = np.zeros((CLIFF, 2))
    known[np.arange(CLIFF), right] = (1 - 1 / CLIFF) ** np.arange(CLIFF - 1, -1, -1)
    while np.square(practice.values() - known).mean() > 1e-2:
        practice.learn(20)
        assert practice.updates < 10_000
    return practice.updates


@pytest.mark.slow
def test_prioritised_replay_solves_the_blind_cliff_walk_in_a_third_of_the_updates():
    how = {"priority_exponent": 1.0, "priority_correction": 0.0, "priority_correction_last": 0.0}
    evenly = [updates_to_know_the_cliff_walk(seed) for seed in range(2)]
    by_error = [updates_to_know_the_cliff_walk(seed, prioritised=True, **how) for seed in range(2)]
    assert sum(by_error) <= sum(evenly) / 3


CHAIN = 20


def along(state, action):
    """A step to the right or to the left; the end earns 1."""
    state = max(0, state + (1 if action else -1))
    return (1.0, None) if state == CHAIN - 1 else (0.0, state)


def steps_to_solve_the_chain(n_step, seed):
    """Steps of a random walk until the best actions go straight to the end."""
    asked = {**TABLE, **constant(0.01), "discount": 0.97, "batch": 64, "target_every": 10, "n_step": n_step}
    practice = Practice("dqn", CHAIN, 2, seed=seed, epsilon_first=1.0, epsilon_last=1.0, **asked)
    while not practice.best_return(along, 0, most=CHAIN):
        before = practice.steps
        practice.play(along, 0, most=400)
        practice.learn((practice.steps - before) // 4)
        assert practice.steps < 20_000
    return practice.steps


@pytest.mark.slow
def test_five_steps_solve_the_chain_in_three_quarters_of_the_steps():
    one, five = ([steps_to_solve_the_chain(n, seed) for seed in range(8)] for n in (1, 5))
    assert sum(five) <= sum(one) * 0.75


DEEP = 8


def sea(place, action):
    """Down by a row, to the right or to the left; only who goes right eight times finds 1, and left is paid at once."""
    row, column = divmod(place, DEEP)
    reward = 0.0 if action else 0.01 / DEEP
    reward += bool(action) and row == column == DEEP - 1
    column = min(DEEP - 1, column + 1) if action else max(0, column - 1)
    return reward, None if row == DEEP - 1 else (row + 1) * DEEP + column


def finds_the_treasure(seed, **how):
    """Whether the best actions lead to it within a hundred episodes; a random walk finds it once in 256."""
    asked = {**TABLE, **constant(0.005), "layers": (32,), "loss": "huber", "batch": 32, "target_every": 16}
    practice = Practice("dqn", DEEP * DEEP, 2, seed=seed, **asked, **how)
    for number in range(100):
        practice.play(sea, 0, most=DEEP)
        practice.learn(4)
        if number % 10 == 9 and practice.best_return(sea, 0, most=DEEP) > 0.5:
            return True
    return False


@pytest.mark.slow
def test_noisy_networks_find_what_lies_deep_where_random_actions_do_not():
    noisy = [finds_the_treasure(seed, noisy=True, noise_every=0) for seed in range(6)]
    random = [finds_the_treasure(seed, epsilon_first=0.1, epsilon_last=0.1) for seed in range(6)]
    assert sum(noisy) >= 5
    assert sum(random) <= 3
