"""The MLxE learner: its losses, its targets, its clock, and that it learns."""

import numpy as np
import pytest
import torch
from plain import flat_of_network

from mlxe_async.algorithms import Acting, Clock
from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings, policy_loss, value_loss
from mlxe_async.algorithms.parts.replay import tensors_of
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.maths.normaliser import Moments
from mlxe_async.rows import Spaces, Symmetry

SPACES = Spaces((4,), actions=2, symmetry=Symmetry((-1.0,) * 4, (1, 0)))


def learner(seed=1, spaces=SPACES, **settings):
    return MLxE(MLxESettings(**settings), spaces, seed=seed, learns=True)


def segment(length=40, terminated=True, seed=0):
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(length + 1, 4)).astype(np.float32)
    last = np.zeros(length, np.uint8)
    last[-1] = 1
    return {
        "obs": observations[:-1],
        "next_obs": observations[1:],
        "action": rng.integers(0, 2, length),
        "log_prob": np.full(length, np.log(0.5), np.float32),
        "reward": np.ones(length, np.float32),
        "terminated": last * terminated,
        "truncated": last * (not terminated),
    }


def windows(rows, starts, length):
    chosen = np.minimum(np.asarray(starts) + np.arange(length)[:, None], len(rows["action"]) - 1)
    valid = np.asarray(starts) + np.arange(length)[:, None] < len(rows["action"])
    return {name: column[chosen] for name, column in rows.items()} | {"valid": valid}


def test_a_learner_that_takes_up_published_weights_learns_on_from_them_with_all_networks():
    settings = {"average": 0.3, "target": "every_k"}
    shown, heir = learner(**settings), learner(seed=2, **settings)
    heir.set_weights(shown.weights())
    for network in (heir.network, heir.learned, heir.target):
        torch.testing.assert_close(flat_of_network(network), flat_of_network(shown.network), rtol=0, atol=0)


def test_the_module_that_is_exported_normalises_before_the_layers_that_both_networks_share():
    algorithm = learner(normalise=True, common=(6,), policy=(5,), value=())
    algorithm.set_moments(Moments(np.array([1.0, -2.0, 0.0, 3.0]), np.array([4.0, 0.5, 1.0, 9.0]), 100.0))
    obs = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    with torch.no_grad():
        found = algorithm.module()(torch.from_numpy(obs))
        expected = algorithm.network(torch.from_numpy(obs))
    torch.testing.assert_close((found["actor"], found["critic"]), expected)


def test_the_policy_loss_pushes_by_the_advantage_and_not_through_it():
    log_prob = torch.tensor([-0.5, -1.0], requires_grad=True)
    advantage = torch.tensor([2.0, -3.0], requires_grad=True)
    policy_loss(log_prob, advantage).sum().backward()
    assert log_prob.grad.tolist() == [-2.0, 3.0]
    assert advantage.grad is None


def test_the_value_loss_is_half_the_square_or_the_cross_entropy():
    value, target = torch.tensor([1.0, -40.0, 40.0]), torch.tensor([3.0, 0.5, 0.5])
    assert value_loss(value, target, "return")[0] == pytest.approx(2.0)
    logit, share = torch.tensor([-30.0, 0.3, 30.0]), torch.tensor([0.2, 0.7, 1.0])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logit, share, reduction="none")
    torch.testing.assert_close(value_loss(logit, share, "survival"), expected)


def test_the_entropy_is_largest_for_equal_probabilities():
    log_probs = torch.tensor([[0.5, 0.5], [0.9, 0.1], [1.0, 1e-30]]).log()
    assert Categorical(log_probs).entropy().tolist() == pytest.approx([np.log(2), 0.325083, 0.0], abs=1e-5)


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("settings", [{"n_step": 5}, {"returns": "steps_to_end"}, {"value_scale": "survival"}])
def test_derived_rows_bootstrap_at_a_cut_and_never_past_a_failure(terminated, settings):
    derived = learner(**settings).derive(segment(terminated=terminated))
    reaches_end = derived["cut_obs"][:, 0] == segment()["next_obs"][-1, 0]
    assert reaches_end[-1]
    assert (derived["coefficient"][reaches_end] == 0).all() == terminated
    assert all(column.dtype == np.float32 and len(column) == 40 for column in derived.values())


def test_survival_counts_steps_to_failure_whatever_the_reward():
    rows = segment(length=10)
    rows["reward"][:] = -7
    partial = learner(value_scale="survival", n_step=100, discount=0.9).derive(rows)["partial"]
    np.testing.assert_allclose(partial, 1 - 0.9 ** np.arange(10, 0, -1), rtol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"value_scale": "survival"}, {"return_scale": 0.1}])
def test_on_policy_windows_give_the_targets_of_single_rows(settings):
    single = learner(n_step=5, mirror=False, correction="none", **settings)
    window = learner(n_step=5, mirror=False, correction="vtrace", **settings)
    rows = segment()
    rows["log_prob"] = single.policy(rows["obs"]).log_prob(rows["action"])
    starts = np.arange(40)
    targets = []
    for algorithm, batch in ((single, rows | single.derive(rows)), (window, windows(rows, starts, 5))):
        tensors = tensors_of(algorithm, batch)
        tensors |= algorithm.bootstrapped(tensors)
        value = algorithm.learned.values(tensors["obs"])
        ratio = torch.ones(len(value))
        targets.append(algorithm.targets(tensors, ratio, algorithm.critic.value(value[:, 0].detach()))[0])
    torch.testing.assert_close(targets[1].reshape(5, 40)[0], targets[0], rtol=1e-4, atol=1e-5)


def test_rows_past_the_end_of_a_window_teach_nothing():
    rows, results = segment(length=8), []
    for junk in (0.0, 50.0):
        batch = windows(rows, [2, 6], 4)
        batch["next_obs"] = np.where(batch["valid"][..., None], batch["next_obs"], batch["next_obs"] + junk)
        batch["obs"] = np.where(batch["valid"][..., None], batch["obs"], batch["obs"] + junk)
        algorithm = learner(n_step=4, correction="vtrace")
        algorithm.update(batch, Clock())
        results.append(algorithm.weights())
    np.testing.assert_array_equal(*results)


def test_the_correction_weakens_rows_the_policy_would_not_choose_any_more():
    rows = segment()
    rows["log_prob"] = np.full(40, -1e-6, np.float32)  # the behaviour was sure of what is now a matter of chance
    advantages = {}
    for kind in ("none", "clipped"):
        algorithm = learner(correction=kind, mirror=False)
        tensors = tensors_of(algorithm, rows | algorithm.derive(rows))
        tensors |= algorithm.bootstrapped(tensors)
        ratio = torch.full((40,), 0.25)
        advantages[kind] = algorithm.targets(tensors, ratio, torch.zeros(40))[1]
    torch.testing.assert_close(advantages["clipped"], 0.25 * advantages["none"])


def test_the_learning_rate_decays_with_episodes_down_to_its_minimum_in_the_optimiser():
    algorithm = learner(learning_rate=1e-3, learning_rate_decay=0.5, learning_rate_min=1e-4)
    batch = segment() | algorithm.derive(segment())
    rates = []
    for episodes in (0, 1, 2, 50):
        algorithm.update(batch, Clock(episodes=episodes))
        rates.append(algorithm.optimiser.learning_rate)
    assert rates == pytest.approx([1e-3, 5e-4, 2.5e-4, 1e-4])


@pytest.mark.long
def test_mirrored_tasks_are_learned_from_alike():
    """With both halves of a batch seen, the mirror image of the data gives the same mean gradient."""
    algorithm = learner()
    rows = segment(length=400)
    batch = rows | algorithm.derive(rows)
    image = dict(batch, obs=-batch["obs"], cut_obs=-batch["cut_obs"], action=1 - batch["action"])
    gradients = []
    for data in (batch, image):
        total = 0
        for _ in range(200):
            rows = tensors_of(algorithm, data)
            algorithm.optimiser.zero_grad()
            algorithm.loss(rows | algorithm.bootstrapped(rows))[0].backward()
            total = total + algorithm.optimiser.gradient.numpy().copy() / 200
        gradients.append(total)
    similarity = gradients[0] @ gradients[1] / np.linalg.norm(gradients[0]) / np.linalg.norm(gradients[1])
    assert similarity > 0.98


@pytest.mark.parametrize("correction", ["clipped", "vtrace"])
def test_rows_and_what_follows_them_are_mirrored_as_they_are_and_then_shown_by_the_same_moments(correction):
    algorithm = learner(normalise=True, correction=correction, n_step=3)
    moments = Moments(np.array([1.0, 2.0, -3.0, 0.5]), np.array([4.0, 1.0, 9.0, 0.25]), 50.0)
    algorithm.set_moments(moments)
    rows = segment()
    rows |= algorithm.derive(rows)
    if correction == "vtrace":
        rows = windows(rows, range(20), 3)
    found, mirrored = algorithm.columns(rows), 0
    before = {name: rows[name].reshape(-1, 4) for name in ("obs", algorithm.successor)}
    after = {name: found[name].reshape(-1, 4) for name in before}
    actions = np.stack([rows["action"].ravel(), found["action"].ravel()], -1)
    for row, (taken, shown_as) in enumerate(actions):
        sign = 1 if taken == shown_as else -1
        mirrored += sign < 0
        for name in before:
            wanted = (sign * before[name][row] - moments.mean) / np.sqrt(moments.variance)
            shown = algorithm.learned.see(after[name][row : row + 1])[0]
            np.testing.assert_allclose(shown, wanted.clip(-10, 10), rtol=1e-4, atol=1e-5)
    assert 0 < mirrored < len(actions)


def test_the_published_average_follows_the_learned_weights_and_not_the_target():
    algorithm = learner(average=0.25, target="every_k", target_every=100)
    rows = segment()
    rows |= algorithm.derive(rows)
    for number in range(3):
        before = flat_of_network(algorithm.network)
        algorithm.update(rows, Clock(updates=number))
        target, learned = flat_of_network(algorithm.target), flat_of_network(algorithm.learned)
        torch.testing.assert_close(flat_of_network(algorithm.network), before.lerp(learned, 0.25))
        assert not torch.equal(target, learned)


def test_importance_weights_of_zero_remove_rows():
    results = []
    for seed in (1, 2):
        algorithm = learner(mirror=False)
        first, second = segment(seed=0), segment(seed=seed)
        both = {k: np.concatenate([first[k], second[k]]) for k in first}
        derived = [algorithm.derive(part) for part in (first, second)]
        both |= {k: np.concatenate([d[k] for d in derived]) for k in derived[0]}
        algorithm.update(both | {"weight": np.repeat(np.float32([1, 0]), 40)}, Clock())
        results.append(algorithm.weights())
    np.testing.assert_array_equal(*results)


def test_an_update_returns_no_priorities_and_all_metrics_are_finite_numbers():
    algorithm = learner()
    metrics, priorities = learned(algorithm, segment() | algorithm.derive(segment()), Clock())
    assert priorities is None
    assert all(type(value) is float and np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("correction", ["clipped", "vtrace"])
def test_a_loss_of_ones_own_sees_further_columns_of_the_rows(correction):
    class Margin(MLxE):
        def loss(self, rows):
            loss, found = super().loss(rows)
            return loss, found | {"margin": rows["margin"].mean()}

    algorithm = Margin(MLxESettings(correction=correction, n_step=2), SPACES, seed=1, learns=True)
    rows = segment() | {"margin": np.arange(40, dtype=np.float32)}
    if correction == "vtrace":
        rows = windows(rows, range(0, 40, 2), 2) | {"weight": np.ones(20, np.float32)}
    else:
        rows |= algorithm.derive(rows)
    assert algorithm.update(rows, Clock())["margin"] == pytest.approx(19.5)


def test_a_task_with_a_single_action_has_nothing_to_choose_and_is_learned_from_all_the_same():
    algorithm = learner(spaces=Spaces((4,), actions=1))
    rows = segment()
    single = {"action": np.zeros(len(rows["action"]), np.int64), "log_prob": np.zeros(len(rows["action"]), np.float32)}
    rows = rows | single
    metrics = algorithm.update(rows | algorithm.derive(rows), Clock())
    assert np.isfinite(list(metrics.values())).all()


def test_the_published_average_follows_the_learned_weights_slowly():
    algorithm = learner(average=0.25)
    before = algorithm.weights()
    algorithm.update(segment() | algorithm.derive(segment()), Clock())
    moved = flat_of_network(algorithm.learned).numpy() - before
    np.testing.assert_allclose(algorithm.weights() - before, 0.25 * moved, atol=1e-6)
    assert np.abs(moved).max() > 0


def test_a_learner_goes_on_from_weights_it_is_given():
    first, second = learner(seed=1), learner(seed=2)
    first.update(segment() | first.derive(segment()), Clock())
    second.set_weights(first.weights())
    np.testing.assert_array_equal(first.weights(), second.weights())


def test_the_same_seed_and_batches_give_the_same_weights_bit_for_bit():
    results = []
    for _ in range(2):
        algorithm = learner(average=0.01)
        for k in range(5):
            rows = segment(seed=k)
            algorithm.update(rows | algorithm.derive(rows), Clock(updates=k))
        results.append(algorithm.weights())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"correction": "vtrace", "n_step": 2}, marks=pytest.mark.long),
        {"value_scale": "survival"},
        pytest.param({"layer_norm": True}, marks=pytest.mark.long),
    ],
)
def test_it_learns_to_keep_out_of_the_step_that_ends_the_world(settings):
    """One-step worlds: the action on the side of the observation lives on, the other one ends the episode."""
    algorithm = learner(
        **{"learning_rate": 0.01, "policy": (16,), "value": (16,), "optimiser": "adam"} | {"discount": 0.5} | settings
    )
    rng = np.random.default_rng(0)
    for _ in range(60):
        algorithm.load(algorithm.weights())
        obs = rng.normal(size=(64, 4)).astype(np.float32)
        acted = algorithm.act(obs, rng, Acting())
        dies = (acted["action"] == (obs[:, 0] > 0)).astype(np.uint8)
        rows = {"obs": obs, "next_obs": obs, "action": acted["action"], "log_prob": acted["log_prob"]}
        rows |= {"reward": 1.0 - 2.0 * dies, "terminated": dies, "truncated": 1 - dies}
        if algorithm.window > 1:  # one-step worlds fill only the first row of a window
            batch = {k: np.stack([v, v]) for k, v in rows.items()} | {"valid": np.stack([np.ones(64), np.zeros(64)])}
        else:
            parts = [algorithm.derive({k: v[i : i + 1] for k, v in rows.items()}) for i in range(64)]
            batch = rows | {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
        algorithm.update(batch, Clock())
    algorithm.load(algorithm.weights())
    obs = rng.normal(size=(500, 4)).astype(np.float32)
    assert (algorithm.greedy(obs) == (obs[:, 0] <= 0)).mean() > 0.9
