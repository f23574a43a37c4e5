"""Gradients that travel: workers differentiate the losses of a built-in algorithm, and a server applies them."""

import numpy as np
from parameter_server import ParameterServerA3C

from mlxe_async.algorithms import Acting, Clock
from mlxe_async.rows import Spaces

MATCH = Spaces((2,), actions=2)  # reward 1 if the action is the side on which the observation lies


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
    rng, held = np.random.default_rng(0), [server.vector(), server.vector()]
    for push in range(80):
        turn = push % 2
        worker = workers[turn]
        worker.take(held[turn])
        gradient, _ = worker.differentiate(bandit_batch(worker, rng), Clock())
        server.apply(gradient, held[turn], Clock(version=push))
        held[turn] = server.vector()
    assert matched(server) == 1.0


def test_an_update_is_a_gradient_applied_to_the_weights_it_was_taken_at():
    whole = ParameterServerA3C(parameter_server_settings(), MATCH, seed=1, learns=True)
    parts = ParameterServerA3C(parameter_server_settings(), MATCH, seed=1, learns=True)
    batch = bandit_batch(whole, np.random.default_rng(0))
    whole.update(batch, Clock())
    gradient, _ = parts.differentiate(batch, Clock())
    parts.apply(gradient, parts.vector(), Clock())
    np.testing.assert_array_equal(whole.weights(), parts.weights())
