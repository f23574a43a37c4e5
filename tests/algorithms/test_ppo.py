"""PPO: its losses in numbers, its advantages across ends, what travels with the weights, and that it learns."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from mlxe_async.algorithms import Acting, Clock
from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.ppo import PPO, PPOSettings, policy_loss, value_loss
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.maths.returns import normalised
from mlxe_async.rows import Spaces

SPACES = Spaces((4,), actions=3)


def agent(seed=1, spaces=SPACES, learns=True, **settings):
    return PPO(PPOSettings(**settings), spaces, seed=seed, learns=learns)


def rollout(algorithm, length=16, width=3, seed=0, scale=1.0):
    """One episode in each column, cut by the end of the rollout, as the algorithm would have acted."""
    rng = np.random.default_rng(seed)
    observations = (scale * rng.normal(size=(length + 1, width, 4))).astype(np.float32)
    acted = algorithm.act(observations[:-1].reshape(-1, 4), rng, Acting())
    rows = {name: np.zeros((length, width), np.uint8) for name in ("terminated", "truncated", "cut")}
    rows["cut"][-1] = 1
    rows |= {
        "obs": observations[:-1],
        "next_obs": observations[1:].copy(),
        "reward": np.ones((length, width), np.float32),
    }
    rows |= {name: column.reshape(length, width) for name, column in acted.items()}
    rows |= {"valid": np.ones((length, width), bool), "episode": np.zeros((length, width), np.int64)}
    return rows | {"step": np.broadcast_to(np.arange(length)[:, None], (length, width)).copy()}


def test_the_policy_loss_gains_nothing_beyond_the_clip_and_pays_in_full_for_mistakes():
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    loss = policy_loss(ratio.log(), torch.zeros(5), advantage, 0.2)
    assert loss == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 + 2.2) / 5)


def test_the_policy_loss_has_no_gradient_where_it_is_clipped():
    log_prob = torch.tensor([1.5, 1.5, 0.5, 1.0]).log().requires_grad_()
    policy_loss(log_prob, torch.zeros(4), torch.tensor([1.0, -1.0, -1.0, 1.0]), 0.2).backward()
    assert log_prob.grad.tolist() == pytest.approx([0.0, 1.5 / 4, 0.0, -1.0 / 4])


def test_value_loss_and_entropy_in_numbers():
    target = torch.tensor([3.0, 0.0], requires_grad=True)
    loss = value_loss(torch.tensor([1.0, 1.0], requires_grad=True), target, torch.zeros(2), 0.0)
    loss.backward()
    assert loss.item() == pytest.approx((2.0 + 0.5) / 2)
    assert target.grad is None
    policy = Categorical(torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log())
    assert policy.entropy().tolist() == pytest.approx([np.log(2), 0.325083])


def test_normalised_advantages_have_mean_zero_and_deviation_one_also_when_all_are_equal():
    shown = normalised(torch.tensor([1.0, 2.0, 6.0]))
    assert shown.tolist() == pytest.approx([-0.92582, -0.46291, 1.38873], abs=1e-4)
    assert normalised(torch.tensor([7.0])).tolist() == [0.0]


def prepared(algorithm, rows):
    """Advantages back in the shape (T, B) of a rollout without padding."""
    return algorithm.with_advantages(rows)["advantage"].reshape(rows["action"].shape).numpy()


def values(algorithm, obs):
    return algorithm.value_of(obs).astype(np.float32)


@pytest.mark.parametrize("mark", ["terminated", "truncated", "cut"])
def test_a_failure_is_worth_nothing_and_every_other_end_the_value_of_its_true_last_observation(mark):
    algorithm = agent(discount=0.9, gae_lambda=0.8)
    rows = rollout(algorithm, length=6, width=1)
    rows[mark][2], rows["episode"][3:], rows["step"][3:, 0] = 1, 1, [0, 1, 2]
    rows["next_obs"][2] = 5.0  # the last observation of the episode is not the first one of the next
    v, last = values(algorithm, rows["obs"])[:, 0], values(algorithm, rows["next_obs"])[:, 0]
    bootstrap = 0.0 if mark == "terminated" else 0.9 * last[2]
    expected = [0.0, 0.0, 1 + bootstrap - v[2]]
    for t in (1, 0):
        expected[t] = 1 + 0.9 * v[t + 1] - v[t] + 0.72 * expected[t + 1]
    np.testing.assert_allclose(prepared(algorithm, rows)[:3, 0], expected, atol=1e-5)


def test_padding_teaches_nothing():
    results = []
    for junk in (0.0, 50.0):
        algorithm = agent()
        rows = rollout(algorithm)
        rows["valid"][10:, 1] = False
        for name in ("obs", "next_obs", "reward"):
            rows[name][10:, 1] = junk
        algorithm.update(rows, Clock())
        results.append(algorithm.weights())
    np.testing.assert_array_equal(*results)


def test_targets_are_advantages_plus_values():
    algorithm = agent()
    rows = rollout(algorithm)
    ready = algorithm.with_advantages(rows)
    value = (ready["target"] - ready["advantage"]).numpy()
    np.testing.assert_allclose(value, values(algorithm, rows["obs"]).reshape(-1), atol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.5, None])
def test_advantages_may_be_asked_for_with_another_lambda_than_that_of_the_settings(lambda_):
    algorithm = agent(gae_lambda=0.9)
    rows = rollout(algorithm)
    other = agent(gae_lambda=0.9 if lambda_ is None else lambda_)
    found, expected = algorithm.with_advantages(rows, lambda_), other.with_advantages(rows)
    torch.testing.assert_close(found["advantage"], expected["advantage"])
    assert torch.equal(found["advantage"], algorithm.with_advantages(rows)["advantage"]) == (lambda_ is None)


def test_the_explained_variance_is_that_of_the_rows_it_learned_from():
    algorithm = agent(epochs=1, minibatch=1000)
    rows = rollout(algorithm)
    rows["valid"][10:, 1] = False
    ready = algorithm.with_advantages(rows)
    target, advantage = (ready[name].numpy().astype(np.float64) for name in ("target", "advantage"))
    metrics = learned(algorithm, rows, Clock())[0]
    assert metrics["explained_variance"] == pytest.approx(1 - advantage.var() / target.var(), abs=1e-4)


def test_the_first_minibatch_sees_the_policy_that_acted():
    algorithm = agent(epochs=1, minibatch=1000)
    for _ in range(3):  # also after the normalisation has moved
        algorithm.load(algorithm.weights())
        metrics, priorities = learned(algorithm, rollout(algorithm, scale=30.0), Clock())
        assert metrics["approximate_kl"] == pytest.approx(0, abs=1e-6)
        assert metrics["clipped_share"] == 0
        assert priorities is None


def test_an_update_makes_several_passes_and_ends_early_beyond_the_largest_kl():
    rows = rollout(agent(), length=32, width=4)
    done = {}
    for bound in (0.0, 1e-3):
        algorithm = agent(epochs=10, minibatch=32, max_kl=bound, learning_rate=0.01)
        done[bound] = algorithm.update(rows, Clock())["minibatches"]
    assert done[0.0] == 40
    assert 1 < done[1e-3] < 40


def test_the_normalisation_travels_with_the_weights_and_survives_a_restart():
    algorithm, heir = agent(), agent(seed=2)
    rows = rollout(algorithm, scale=20.0)
    algorithm.update(rows, Clock())
    flat = algorithm.weights()
    assert flat.shape == (sum(int(np.prod(shape)) for _, shape in algorithm.parameters),)
    seen = rows["obs"].reshape(-1, 4)
    heir.set_weights(flat)
    moments = heir.see.normaliser.moments
    np.testing.assert_allclose(moments.mean, seen.mean(0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(moments.variance, seen.var(0, dtype=np.float64), rtol=1e-6)
    assert moments.rows == len(seen)
    np.testing.assert_array_equal(heir.weights(), flat)
    heir.load(flat)
    algorithm.load(flat)
    np.testing.assert_array_equal(heir.greedy(seen), algorithm.greedy(seen))


def test_stored_log_probabilities_are_recomputed_within_rounding():
    algorithm = agent(learns=False)
    obs = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    acted = [algorithm.act(row[None], np.random.default_rng(i), Acting()) for i, row in enumerate(obs)]
    again = algorithm.policy(obs).log_prob(np.array([a["action"][0] for a in acted]))
    np.testing.assert_allclose(again, [a["log_prob"][0] for a in acted], atol=1e-5)


def test_many_versions_act_like_each_alone_also_when_they_change():
    algorithm = agent()
    obs = 5 + np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    for count in (2, 3):
        flats = []
        for seed in range(count):
            other = agent(seed)
            other.update(rollout(other, seed=seed, scale=1.0 + seed), Clock())
            flats.append(other.weights())
        together = algorithm.greedy_many(np.stack(flats), np.broadcast_to(obs, (count, *obs.shape)))
        for flat, actions in zip(flats, together, strict=True):
            algorithm.load(flat)
            np.testing.assert_array_equal(algorithm.greedy(obs), actions)


def test_the_learning_rate_falls_with_environment_steps():
    algorithm = agent(learning_rate=1e-3, learning_rate_last=1e-4, anneal_steps=1000)
    rates = []
    for steps in (0, 500, 5000):
        algorithm.update(rollout(algorithm), Clock(env_steps=steps))
        rates.append(algorithm.optimiser.learning_rate)
    assert rates == pytest.approx([1e-3, 5.5e-4, 1e-4])


def test_the_first_policy_is_nearly_uniform():
    obs = 10 * np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    log_prob = agent(learns=False).policy(obs).log_prob(np.zeros(100, int))
    np.testing.assert_allclose(log_prob, np.log(1 / 3), atol=0.05)


def test_it_learns_which_action_fits_the_observation():
    algorithm = agent(spaces=Spaces((4,), actions=2), epochs=4, minibatch=32, learning_rate=3e-3)
    for number in range(12):
        algorithm.load(algorithm.weights())
        rows = rollout(algorithm, length=32, width=4, seed=number)
        rows["reward"] = (rows["action"] == (rows["obs"][..., 0] > 0)).astype(np.float32)
        rows["terminated"][:] = 1
        algorithm.update(rows, Clock())
    algorithm.load(algorithm.weights())
    obs = np.random.default_rng(99).normal(size=(300, 4)).astype(np.float32)
    assert (algorithm.greedy(obs) == (obs[:, 0] > 0)).mean() > 0.95


@pytest.mark.parametrize("wrong", [{"clip": 0}, {"epochs": 0}, {"gae_lambda": 1.5}, {"clips": 0.2}, {"policy": [0]}])
def test_settings_that_cannot_be_meant_are_refused_naming_the_key(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        PPOSettings(**wrong)


def test_every_setting_says_what_raising_it_does():
    assert all((field.description or "").endswith(".") for field in PPOSettings.model_fields.values())


def ragged(algorithm, **size):
    """A rollout with a failure, an episode that was truncated, and a column that is shorter."""
    rows = rollout(algorithm, **size)
    rows["terminated"][3, 0] = rows["truncated"][5, 1] = 1
    for end, column in ((3, 0), (5, 1)):
        rows["episode"][end + 1 :, column] += 1
        rows["step"][end + 1 :, column] -= end + 1
        rows["next_obs"][end, column] += 1.0
    rows["valid"][12:, 2] = False
    rows["cut"][11, 2] = 1
    return rows


@pytest.mark.parametrize("normalise", [False, True])
def test_one_pass_over_all_rows_is_the_same_step_by_rows_and_by_sequences(normalise):
    settings = {"epochs": 1, "minibatch": 1000, "common": (8,), "policy": (6,), "value": (), "normalise": normalise}
    sequences, by_rows = agent(**settings, minibatches="sequences"), agent(**settings)
    rows = ragged(sequences)
    first, second = sequences.update(rows, Clock()), by_rows.update(rows, Clock())
    assert first == pytest.approx(second, abs=1e-5)
    assert np.allclose(sequences.weights(), by_rows.weights(), atol=1e-5)
    assert not np.allclose(sequences.weights(), agent(**settings).weights(), atol=1e-5)


def test_sequences_stay_whole_and_are_judged_by_the_network_as_it_is_just_then():
    algorithm = agent(epochs=2, minibatch=30, minibatches="sequences", normalise=False, learning_rate=0.01)
    rows = rollout(algorithm, width=6)
    metrics = algorithm.update(rows, Clock())
    assert metrics["minibatches"] == 6
    seen, judged = [], []
    for some in algorithm.minibatches(rows, 2):
        seen.append(some["obs"].numpy())
        judged.append((some["target"] - some["advantage"]).numpy())
        np.testing.assert_allclose(judged[-1], values(algorithm, seen[-1]), atol=1e-4)
        algorithm.update(rows, Clock())
    first, again = (np.concatenate([x.reshape(16, -1, 4) for x in half], axis=1) for half in (seen[:3], seen[3:]))
    np.testing.assert_array_equal(first, rows["obs"])
    np.testing.assert_array_equal(again, rows["obs"])
    assert not np.allclose(judged[0], judged[3])


def test_advantages_are_made_once_where_rows_are_shuffled():
    algorithm = agent(epochs=2, minibatch=16, normalise=False)
    rows, targets = rollout(algorithm), []
    for some in algorithm.minibatches(rows, 2):
        targets.append(some["target"].sort().values.numpy())
        algorithm.set_weights(agent(seed=9, normalise=False).weights())
    half = len(targets) // 2
    np.testing.assert_array_equal(np.sort(np.concatenate(targets[:half])), np.sort(np.concatenate(targets[half:])))
