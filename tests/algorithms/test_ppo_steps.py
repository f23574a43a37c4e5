"""PPO's update in numbers: hand-made rollouts, and the step that a plain computation in double precision takes."""

import itertools

import numpy as np
import pytest
import torch
from plain import Plain, assert_same_way, generator_of, tensor

from mlxe_async.algorithms import Clock
from mlxe_async.algorithms.ppo import PPO, PPOSettings
from mlxe_async.maths.normaliser import Moments
from mlxe_async.maths.returns import normalised as normalised_advantage
from mlxe_async.rows import Spaces

SPACES = Spaces((3,), actions=3)
MODES = [("sequences", 1), ("rows", 2), ("rows", 1), ("sequences", 2)]


def agent(mode, epochs, **changed):
    asked = {"epochs": epochs, "normalise": False, "policy": (5,), "value": (6,), "clip": 0.1, "entropy": 0.05}
    asked |= {"discount": 0.9, "gae_lambda": 0.6, "learning_rate": 0.01, "learning_rate_last": 0.002}
    asked |= {"minibatches": mode}
    algorithm = PPO(PPOSettings.model_validate(asked | changed), SPACES, seed=3, learns=True)
    weights = algorithm.weights()  # larger than fresh ones, so that everything has a slope
    algorithm.set_weights((2 * weights + np.random.default_rng(0).normal(0, 0.2, weights.shape)).astype(np.float32))
    return algorithm


def rollout(seed=0, length=9, width=6, reward=1.0):
    """Failures, truncations, a cut, a gap without a mark, and padding; the behaviour is not the present policy."""
    rng = np.random.default_rng(seed)
    shape = (length, width)
    rows = {name: np.zeros(shape, np.uint8) for name in ("terminated", "truncated", "cut")}
    episode = np.zeros(shape, np.int64)
    rows["terminated"][2, 0] = rows["terminated"][6, 3] = rows["terminated"][-1, 4] = 1
    rows["truncated"][4, 1] = rows["truncated"][5, 3] = 1
    rows["cut"][3, 2] = rows["cut"][-1, 5] = 1
    for t, column in ((2, 0), (4, 1), (5, 3), (6, 3), (3, 2), (5, 5)):
        episode[t + 1 :, column] += 1
    rows["valid"] = np.ones(shape, bool)
    rows["valid"][7:, 2] = rows["valid"][6:, 4] = False
    rows["step"] = np.broadcast_to(np.arange(length)[:, None], shape).copy()
    obs, last = rng.normal(size=(2, *shape, 3)).astype(np.float32)
    continues = np.zeros(shape, bool)
    continues[:-1] = episode[1:] == episode[:-1]
    following = np.where(continues[..., None], np.roll(obs, -1, axis=0), last)
    rows |= {"obs": obs, "next_obs": following, "episode": episode, "action": rng.integers(0, 3, shape)}
    rows["reward"] = (reward * rng.normal(size=shape)).astype(np.float32)
    rows["log_prob"] = np.log(rng.uniform(0.15, 0.6, shape)).astype(np.float32)
    return rows


def ends_of(rows):
    """Row by row: whether the next row of the same column goes on with the same episode."""
    length, width = rows["reward"].shape
    ends = np.ones((length, width), bool)
    for t, b in itertools.product(range(length - 1), range(width)):
        marked = any(rows[name][t, b] for name in ("terminated", "truncated", "cut"))
        follows = rows["valid"][t + 1, b] and rows["episode"][t + 1, b] == rows["episode"][t, b]
        ends[t, b] = marked or not follows or rows["step"][t + 1, b] != rows["step"][t, b] + 1
    return ends


def advantages(plain, rows, discount, lambda_):
    """Eq. 16 as a sum for each row, with the values of the network as it is; and the values."""
    value, following = (plain("value", rows[name])[..., 0].numpy() for name in ("obs", "next_obs"))
    ends, result = ends_of(rows), np.zeros(value.shape)
    length, width = value.shape
    for t, b in itertools.product(range(length), range(width)):
        factor = 1.0
        for i in range(t, length):
            after = 0.0 if rows["terminated"][i, b] else discount * following[i, b]
            result[t, b] += factor * (rows["reward"][i, b] + after - value[i, b])
            factor *= discount * lambda_
            if ends[i, b]:
                break
    return result, value


def minibatch_loss(plain, flat, rows, s):
    """Total loss, its three parts and two measures of how far it is from the behaviour, of flat rows (M, ...)."""
    log_probs = plain("policy", rows["obs"], flat).log_softmax(-1)
    log_prob = log_probs[torch.arange(len(log_probs)), torch.as_tensor(rows["action"])]
    ratio = (log_prob - tensor(rows["log_prob"])).exp()
    advantage = tensor(rows["advantage"])
    advantage = (advantage - advantage.mean()) / (((advantage - advantage.mean()) ** 2).mean().sqrt() + 1e-8)
    bounded = torch.where(ratio > 1 + s.clip, 1 + s.clip, torch.where(ratio < 1 - s.clip, 1 - s.clip, ratio))
    gain = torch.stack([ratio * advantage, bounded * advantage]).amin(0)
    actor = -gain.sum() / len(gain)
    critic = 0.5 * ((plain("value", rows["obs"], flat)[:, 0] - tensor(rows["target"])) ** 2).mean()
    chance = torch.distributions.Categorical(logits=log_probs).entropy().mean()
    moved = (log_prob - tensor(rows["log_prob"])).detach()
    kl = (moved.exp() - 1 - moved).mean()
    clipped = ((ratio > 1 + s.clip) | (ratio < 1 - s.clip)).double().mean()
    return actor + s.value_coefficient * critic - s.entropy * chance, (actor, critic, chance, kl, clipped), float(kl)


def ready(plain, rows, s):
    """The valid rows, flat, with advantages by the network as it is."""
    advantage, value = advantages(plain, rows, s.discount, s.gae_lambda)
    rows = rows | {"advantage": advantage, "target": advantage + value}
    return {name: rows[name][rows["valid"]] for name in ("obs", "action", "log_prob", "advantage", "target")}


def pieces(plain, rows, mode, epochs, s, rng):
    """The minibatches in the order in which they are learned from; each is made when it is asked for."""
    count = int(rows["valid"].sum())
    if mode == "rows":
        everything = ready(plain, rows, s)
        for _ in range(epochs):
            order = rng.permutation(count)
            for part in np.array_split(order, max(1, round(count / s.minibatch))):
                yield {name: column[part] for name, column in everything.items()}
        return
    width = rows["valid"].shape[1]
    for _ in range(epochs):
        for part in np.array_split(np.arange(width), min(width, max(1, round(count / s.minibatch)))):
            yield ready(plain, {name: column[:, part] for name, column in rows.items()}, s)


def expected_update(plain, rows, mode, epochs, s, rng, rate):
    """What the update must do, and the means of what its minibatches measured."""
    seen = []
    for piece in pieces(plain, rows, mode, epochs, s, rng):
        _, measured, kl = minibatch_loss(plain, plain.flat, piece, s)
        seen.append([*(float(one) for one in measured), len(piece["action"])])
        if s.max_kl and kl > s.max_kl:
            break
        plain.step(lambda flat, piece=piece: minibatch_loss(plain, flat, piece, s)[0], rate, s.max_gradient_norm)
    return np.array(seen)


@pytest.mark.parametrize("minibatch", [1000, 16])
@pytest.mark.parametrize(("mode", "epochs"), MODES)
def test_updates_take_the_steps_of_a_plain_computation(mode, epochs, minibatch):
    algorithm = agent(mode, epochs, minibatch=minibatch)
    plain, start = Plain(algorithm, eps=1e-5), algorithm.weights()
    for number, reward in enumerate((0.1, 3.0)):  # short gradients, then long ones
        rows = rollout(number, reward=reward)
        rate = 0.01 - 0.008 * min(1, 200_000 * number / 500_000)
        seen = expected_update(plain, rows, mode, epochs, algorithm.settings, generator_of(algorithm), rate)
        metrics = algorithm.update(rows, Clock(env_steps=200_000 * number, updates=number))
        assert metrics["minibatches"] == len(seen)
        assert metrics["learning_rate"] == pytest.approx(rate)
        for k, name in enumerate(("policy_loss", "value_loss", "entropy", "approximate_kl", "clipped_share")):
            assert metrics[name] == pytest.approx(seen[:, k].mean(), rel=1e-3, abs=1e-5)
        assert_same_way(algorithm.weights(), plain.flat, start)


@pytest.mark.parametrize(("mode", "epochs"), MODES[:2])
def test_long_gradients_are_cut_to_the_bound_and_no_bound_cuts_none(mode, epochs):
    """Adam takes no notice of the length of its first gradients, but of those that follow."""
    for longest in (0.0, 0.05):
        algorithm = agent(mode, epochs, minibatch=1000, max_gradient_norm=longest)
        plain, start = Plain(algorithm, eps=1e-5), algorithm.weights()
        for number, reward in enumerate((0.05, 20.0, 0.05)):
            rows, s = rollout(number, reward=reward), algorithm.settings
            expected_update(plain, rows, mode, epochs, s, generator_of(algorithm), 0.01)
            algorithm.update(rows, Clock(updates=number))
        assert_same_way(algorithm.weights(), plain.flat, start)


def test_an_update_ends_before_the_first_step_beyond_the_largest_kl():
    algorithm = agent("rows", 6, minibatch=16, max_kl=0.005)
    algorithm.load(algorithm.weights())
    rows = rollout()
    rows["log_prob"] = algorithm.policy(rows["obs"].reshape(-1, 3)).log_prob(rows["action"].reshape(-1))
    rows["log_prob"] = rows["log_prob"].reshape(rows["action"].shape)
    plain, start = Plain(algorithm, eps=1e-5), algorithm.weights()
    plain_seen = expected_update(plain, rows, "rows", 6, algorithm.settings, generator_of(algorithm), 0.01)
    metrics = algorithm.update(rows, Clock())
    assert 2 < len(plain_seen) < 18
    assert metrics["minibatches"] == len(plain_seen)
    assert_same_way(algorithm.weights(), plain.flat, start)


@pytest.mark.parametrize(("mode", "epochs"), MODES)
def test_observations_are_shown_as_the_moments_before_the_update_say_and_counted_after_it(mode, epochs):
    settings = {"minibatch": 1000, "max_gradient_norm": 0.0}
    algorithm, raw = agent(mode, epochs, normalise=True, **settings), agent(mode, epochs, **settings)
    weights, mean, deviation = raw.weights(), np.float32([1, -2, 0.5]), np.float32([2, 0.5, 1])
    algorithm.see.normaliser.put(Moments(mean, deviation**2, 50.0))
    moments = len(algorithm.weights()) - len(weights)
    algorithm.set_weights(np.concatenate([algorithm.weights()[:moments], weights]))
    rows = rollout()
    shown = rows | {name: (rows[name] - mean) / deviation for name in ("obs", "next_obs")}
    for one, what in ((algorithm, rows), (raw, shown)):
        one.update(what, Clock())
    assert_same_way(algorithm.weights()[moments:], raw.weights(), weights)
    seen = rows["obs"][rows["valid"]]
    together = (50 * mean + len(seen) * seen.mean(0)) / (50 + len(seen))
    found = algorithm.see.normaliser.moments
    np.testing.assert_allclose(found.mean, together, rtol=1e-5)
    assert found.rows == 50 + len(seen)


def test_advantages_that_hardly_differ_are_not_blown_up():
    shown = normalised_advantage(torch.tensor([0.0, 2e-8], dtype=torch.float64))  # a deviation of 1e-8, and 1e-8 more
    assert shown.tolist() == pytest.approx([-0.5, 0.5])
