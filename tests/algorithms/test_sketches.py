"""The interface fits an on-policy, a value-based and a gradient-pushing algorithm, and each learns something small."""

import numpy as np
import pytest
from sketches.dqn import DQN
from sketches.parameter_server import ParameterServerA3C
from sketches.ppo import PPO

from mlxe_async.algorithms import Acting, Clock
from mlxe_async.algorithms.interface import Algorithm
from mlxe_async.rows import Spaces

MATCH = Spaces((2,), actions=2)  # reward 1 if the action is the side on which the observation lies
CHAIN = Spaces((5,), actions=2)  # walk right along five places, reward 1 at the end


def sides(rng, shape):
    side = rng.integers(0, 2, shape)
    return np.stack([2.0 * side - 1, np.ones(shape)], -1).astype(np.float32), side


def matching_rows(algorithm, rng, length, width):
    obs, side = sides(rng, (length, width))
    acted = algorithm.act(obs.reshape(-1, 2), rng, Acting())
    action = acted["action"].reshape(length, width)
    zero, one = np.zeros((length, width), np.uint8), np.ones((length, width), np.uint8)
    return {
        "obs": obs,
        "action": action,
        "log_prob": acted["log_prob"].reshape(length, width),
        "reward": (action == side).astype(np.float32),
        "terminated": one,
        "truncated": zero,
        "next_obs": obs,
        "valid": one,
    }


def matched(algorithm):
    obs, side = sides(np.random.default_rng(99), (200,))
    algorithm.load(algorithm.weights())
    return float((algorithm.greedy(obs) == side).mean())


def test_ppo_learns_from_rollouts_used_once():
    algorithm: Algorithm = PPO(PPO.Settings(), MATCH, seed=1, learns=True)
    rng, clock = np.random.default_rng(0), Clock()
    assert algorithm.updates_due(rows=127, new_rows=127, new_segments=1) == 0
    assert algorithm.updates_due(rows=128, new_rows=1, new_segments=1) == 1
    for _ in range(15):
        algorithm.load(algorithm.weights())
        algorithm.update(matching_rows(algorithm, rng, 32, 4), clock)
    assert matched(algorithm) == 1.0


def chain_episode(algorithm, rng):
    places, rows = np.eye(5, dtype=np.float32), []
    place = 0
    for step in range(40):
        acted = algorithm.act(places[place][None], rng, Acting())
        following = max(0, place + (1 if acted["action"][0] else -1))
        done = following == 4
        rows.append(
            (
                places[place],
                acted["action"][0],
                acted["log_prob"][0],
                float(done),
                done,
                step == 39 and not done,
                places[following],
            )
        )
        place = following
        if done:
            break
    names = ("obs", "action", "log_prob", "reward", "terminated", "truncated", "next_obs")
    segment = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return segment | algorithm.derive(segment)


def test_dqn_learns_from_replay_with_exploration_under_the_weights_version():
    algorithm: Algorithm = DQN(DQN.Settings(), CHAIN, seed=1, learns=True)
    executor = DQN(DQN.Settings(), CHAIN, seed=1, learns=False)
    rng, memory, updates = np.random.default_rng(0), None, 0
    while updates < 400:
        executor.load(algorithm.weights())
        segment = chain_episode(executor, rng)
        np.testing.assert_allclose(executor.behaviour_log_prob(segment["obs"], segment["action"]), segment["log_prob"])
        memory = segment if memory is None else {k: np.concatenate([memory[k], v]) for k, v in segment.items()}
        rows = len(memory["action"])
        for _ in range(algorithm.updates_due(rows=rows, new_rows=len(segment["action"]), new_segments=1)):
            drawn = rng.integers(0, rows, algorithm.batch_rows)
            batch = {k: v[drawn] for k, v in memory.items()} | {"weight": np.ones(len(drawn), np.float32)}
            _, priorities = algorithm.update(batch, Clock(updates=updates))
            assert priorities.shape == (len(drawn),)
            updates += 1
    executor.load(algorithm.weights())
    assert executor.epsilon == pytest.approx(0.05)
    assert executor.greedy(np.eye(5, dtype=np.float32)[:4]).tolist() == [1, 1, 1, 1]
    flats = np.stack([algorithm.weights()] * 3)
    assert algorithm.greedy_many(flats, np.broadcast_to(np.eye(5, dtype=np.float32), (3, 5, 5))).shape == (3, 5)


def bandit_batch(algorithm, rng):
    rows = matching_rows(algorithm, rng, 1, 64)
    batch = {name: column[0] for name, column in rows.items() if name != "valid"}
    pieces = [algorithm.derive({k: v[i : i + 1] for k, v in batch.items()}) for i in range(64)]
    return batch | {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}


def parameter_server_settings():
    return ParameterServerA3C.Settings(optimiser="adam", learning_rate=0.01, policy=(16,), value=(16,))


def test_pushed_gradients_of_two_stale_workers_learn():
    server = ParameterServerA3C(parameter_server_settings(), MATCH, seed=1, learns=True)
    workers = [ParameterServerA3C(parameter_server_settings(), MATCH, seed=2 + i, learns=True) for i in range(2)]
    rng, held = np.random.default_rng(0), [server.weights(), server.weights()]
    for push in range(80):
        turn = push % 2
        worker = workers[turn]
        worker.load(held[turn])
        worker.take(held[turn])
        gradient, _ = worker.differentiate(bandit_batch(worker, rng), Clock())
        server.apply(gradient, held[turn], Clock(version=push))
        held[turn] = server.weights()
    assert matched(server) == 1.0


def test_an_update_is_a_gradient_applied_to_the_weights_it_was_taken_at():
    whole = ParameterServerA3C(parameter_server_settings(), MATCH, seed=1, learns=True)
    parts = ParameterServerA3C(parameter_server_settings(), MATCH, seed=1, learns=True)
    batch = bandit_batch(whole, np.random.default_rng(0))
    whole.update(batch, Clock())
    gradient, _ = parts.differentiate(batch, Clock())
    parts.apply(gradient, parts.weights(), Clock())
    np.testing.assert_array_equal(whole.weights(), parts.weights())
