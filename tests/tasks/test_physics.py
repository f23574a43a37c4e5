"""The vectorised cart and pole equals gymnasium's, bit for bit."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mlxe_async.tasks.physics import BLOCK, CartPolePhysics, start_state

LINEAR = np.array([0.1, 0.3, 1.0, 0.4], np.float32)


def gym_cartpole(state=None):
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    if state is not None:
        env.state = np.array(state, np.float64)
    return env


def plausible_states(rows):
    bounds = np.array([2.4, 5.0, 0.25, 5.0])
    return hnp.arrays(np.float64, (rows, 4), elements=st.floats(-1, 1, width=64)).map(lambda unit: unit * bounds)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(data=st.data(), rows=st.integers(1, 41))
def test_one_tick_from_any_state_gives_the_same_bits(data, rows):
    states = data.draw(plausible_states(rows))
    actions = data.draw(hnp.arrays(np.int64, rows, elements=st.integers(0, 1)))
    physics = CartPolePhysics(states)
    physics.tick(actions)
    physics.observe()
    fallen = physics.fallen()
    for row in range(rows):
        env = gym_cartpole(states[row])
        obs, _, terminated, _, _ = env.step(int(actions[row]))
        assert env.state.tobytes() == physics.state[row].tobytes()
        assert obs.tobytes() == physics.obs[row].tobytes()
        assert fallen[row] == (0 if terminated else -1)


@pytest.mark.parametrize("rows", [1, 3, 20, 33])
def test_long_rollouts_stay_equal_to_the_last_bit(rows):
    """1,500 ticks under a balancing policy: a difference in the last bit would have grown by then."""
    physics = CartPolePhysics(np.stack([start_state(seed) for seed in range(rows)]))
    envs = [gym_cartpole(start_state(seed)) for seed in range(rows)]
    for tick in range(1500):
        physics.observe()
        actions = (physics.obs @ LINEAR > 0).astype(np.int64)
        physics.tick(actions)
        for row, env in enumerate(envs):
            env.step(int(actions[row]))
        if tick % BLOCK == BLOCK - 1:
            assert (physics.fallen() == -1).all()
    assert np.array_equal(physics.state, np.stack([env.state for env in envs]))


@pytest.mark.parametrize("width", [8, 20, 100])
def test_random_pushes_fall_in_the_same_tick_as_in_gymnasium(width):
    rng = np.random.default_rng(width)
    actions = rng.integers(0, 2, (BLOCK, width))
    physics = CartPolePhysics(np.stack([start_state(seed) for seed in range(width)]))
    for tick in range(BLOCK):
        physics.tick(actions[tick])
    expected = []
    for row in range(width):
        env = gym_cartpole(start_state(row))
        ends = (tick for tick in range(BLOCK) if env.step(int(actions[tick, row]))[2])
        expected.append(next(ends, -1))
    assert physics.fallen().tolist() == expected
    assert max(expected) > 0


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**40])
def test_start_states_are_those_of_a_seeded_reset(seed):
    env = gymnasium.make("CartPole-v1").unwrapped
    obs, _ = env.reset(seed=seed)
    assert env.state.tobytes() == start_state(seed).tobytes()
    assert CartPolePhysics(start_state(seed)[None]).obs[0].tobytes() == obs.tobytes()


def test_five_features_add_the_squared_position_and_leave_the_rest():
    states = np.stack([start_state(seed) for seed in range(6)])
    four, five = CartPolePhysics(states), CartPolePhysics(states, features=5)
    for physics in (four, five):
        physics.tick(np.array([0, 1, 0, 1, 1, 1]))
        physics.observe()
    assert np.array_equal(five.obs[:, :4], four.obs)
    assert np.array_equal(five.obs[:, 4], four.obs[:, 0] ** 2)


def test_the_same_array_shows_the_observations_throughout():
    physics = CartPolePhysics(np.zeros((2, 4)))
    shown = physics.obs
    physics.tick(np.array([0, 1]))
    physics.observe()
    assert shown is physics.obs
    assert shown[0, 1] == -shown[1, 1] != 0


def test_a_row_placed_elsewhere_starts_there_and_others_stay():
    physics = CartPolePhysics(np.stack([start_state(seed) for seed in range(3)]))
    physics.place(np.array([1]), start_state(9)[None])
    assert np.array_equal(physics.state, np.stack([start_state(0), start_state(9), start_state(2)]))


def test_an_action_that_is_neither_left_nor_right_is_refused():
    with pytest.raises(IndexError):
        CartPolePhysics(np.zeros((1, 4))).tick(np.array([2]))


def test_a_block_that_is_full_must_be_looked_at_first():
    physics = CartPolePhysics(np.zeros((1, 4)))
    for _ in range(BLOCK):
        physics.tick(np.array([1]))
    with pytest.raises(IndexError):
        physics.tick(np.array([1]))
    physics.fallen()
    physics.tick(np.array([1]))


@pytest.mark.slow
def test_fifty_thousand_ticks_of_twenty_rows_stay_equal():
    physics = CartPolePhysics(np.stack([start_state(seed) for seed in range(20)]))
    envs = [gym_cartpole(start_state(seed)) for seed in range(20)]
    for tick in range(50_000):
        physics.observe()
        actions = (physics.obs @ LINEAR > 0).astype(np.int64)
        physics.tick(actions)
        for env, action in zip(envs, actions.tolist(), strict=True):
            assert not env.step(action)[2]
        if tick % BLOCK == BLOCK - 1:
            assert (physics.fallen() == -1).all()
    assert np.array_equal(physics.state, np.stack([env.state for env in envs]))
