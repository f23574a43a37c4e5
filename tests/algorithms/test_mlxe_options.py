"""The options of the MLxE learner: whose values make targets, on which scale, how far they reach, what is drawn."""

import itertools

import numpy as np
import pytest
import torch
from plain import flat_of_network
from pydantic import ValidationError

from mlxe_async.algorithms import Acting, Clock, Priorities
from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings, value_loss
from mlxe_async.algorithms.parts.replay import tensors_of
from mlxe_async.maths.normaliser import merge, nothing
from mlxe_async.networks import parameter_count
from mlxe_async.rows import Spaces

LIMITED = Spaces((4,), actions=2, limits=(2.0, None, 0.5, None))


def agent(seed=1, spaces=LIMITED, learns=True, **settings):
    return MLxE(MLxESettings(**{"policy": (16,), "value": (16,)} | settings), spaces, seed=seed, learns=learns)


def segment(length=30, mark="terminated", seed=0):
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(length + 1, 4)).astype(np.float32)
    rows = {name: np.zeros(length, np.uint8) for name in ("terminated", "truncated", "cut")}
    rows[mark][-1] = 1
    rows |= {"obs": observations[:-1], "next_obs": observations[1:].copy(), "action": rng.integers(0, 2, length)}
    return rows | {"log_prob": np.full(length, np.log(0.5), np.float32), "reward": np.ones(length, np.float32)}


def batch(algorithm, **kwargs):
    rows = segment(**kwargs)
    return rows | algorithm.derive(rows)


def windows(rows, length):
    starts = np.arange(len(rows["action"]) - length + 1)
    batch = {name: column[starts + np.arange(length)[:, None]] for name, column in rows.items()}
    return batch | {"valid": np.ones((length, len(starts)), bool)}


# -- the network --


def test_the_shapes_of_mlxe_can_be_written_and_have_its_numbers_of_weights():
    final = MLxESettings(common=(128, 256, 128), policy=(64, 128, 64), value=(64, 128, 64), activation="relu")
    made = MLxE(final, Spaces((5,), actions=2), seed=0, learns=False)
    assert parameter_count(made.parameters) == 116_547
    for name, leaf in made.network.named_parameters():
        if name.endswith("bias"):
            assert not leaf.detach().any()
        else:
            limit = np.sqrt(6 / sum(leaf.shape))
            assert 0.8 * limit < float(leaf.detach().abs().max()) <= limit
    sizes = (5, 128, 258, 512)
    shared = sum((i + 1) * o for i, o in itertools.pairwise(sizes))
    heads = sum((i + 1) * o for i, o in [(512, 256), (256, 128), (128, 64)])
    older = MLxESettings(common=sizes[1:], policy=(256, 128, 64), value=(256, 128, 64))
    made = MLxE(older, Spaces((5,), actions=2), seed=0, learns=False)
    assert parameter_count(made.parameters) == shared + 2 * heads + 65 * 2 + 65


# -- whose values make targets --


def flats(algorithm):
    return flat_of_network(algorithm.target), flat_of_network(algorithm.learned)


def test_targets_follow_every_update_by_default_without_a_second_network():
    algorithm = agent()
    assert algorithm.target is algorithm.network


def test_a_target_for_the_iteration_is_frozen_until_the_version_moves():
    algorithm = agent(target="per_iteration")
    for number, version in enumerate([5, 5, 5, 6, 6, 8]):
        target, learned = flats(algorithm)
        algorithm.update(batch(algorithm), Clock(updates=number, version=version))
        wanted = learned if number in (0, 3, 5) else target
        torch.testing.assert_close(flats(algorithm)[0], wanted, rtol=0, atol=0)
        assert not torch.equal(*flats(algorithm))


def test_a_target_for_k_updates_is_frozen_for_k_updates():
    algorithm = agent(target="every_k", target_every=3)
    for number in range(7):
        target, learned = flats(algorithm)
        algorithm.update(batch(algorithm), Clock(updates=number, version=number))
        torch.testing.assert_close(flats(algorithm)[0], learned if number % 3 == 0 else target, rtol=0, atol=0)


def test_a_restarted_learners_target_begins_with_the_weights_it_was_given():
    algorithm = agent(target="every_k", target_every=100)
    algorithm.update(batch(algorithm), Clock(updates=1))
    algorithm.set_weights(agent(seed=2).weights())
    assert torch.equal(*flats(algorithm))


@pytest.mark.parametrize("settings", [{}, {"correction": "vtrace", "n_step": 3}])
def test_what_is_bootstrapped_is_the_targets_value(settings):
    """Targets stand still while the learned network changes, and are those of a learner with the target's weights."""
    algorithm, frozen = agent(target="every_k", mirror=False, **settings), agent(mirror=False, **settings)
    rows = windows(segment(), 3) if settings else batch(algorithm)
    algorithm.update(rows, Clock(updates=0))
    frozen.set_weights(flat_of_network(algorithm.target).numpy())
    targets = []
    for each in (algorithm, frozen):
        tensors = tensors_of(each, rows)
        tensors |= each.bootstrapped(tensors)
        value = each.critic.value(each.learned.values(tensors["obs"])[:, 0].detach())
        targets.append(each.targets(tensors, torch.ones(len(value)), value)[0])
    torch.testing.assert_close(*targets)
    assert not torch.equal(*flats(algorithm))


# -- on which scale --


def test_the_categorical_loss_is_the_cross_entropy_and_spares_the_target():
    logits = torch.tensor([[0.0, 0.0], [np.log(3.0), 0.0]], requires_grad=True)
    target = torch.tensor([[0.5, 0.5], [1.0, 0.0]], requires_grad=True)
    loss = value_loss(logits, target, "categorical")
    assert loss.tolist() == pytest.approx([np.log(2), np.log(4 / 3)])
    loss.sum().backward()
    assert target.grad is None
    assert logits.grad[1].tolist() == pytest.approx([-0.25, 0.25])


def test_a_categorical_critic_moves_to_the_projected_return_and_its_mean_is_the_advantages_base():
    algorithm = agent(value_scale="categorical", atoms=11, value_low=0.0, value_high=10.0, n_step=2, mirror=False)
    assert dict(algorithm.parameters)["network.critic.2.weight"] == (11, 16)
    rows = batch(algorithm, length=6)
    tensors = tensors_of(algorithm, rows)
    tensors |= algorithm.bootstrapped(tensors)
    outputs = algorithm.learned.values(tensors["obs"]).detach()
    value = algorithm.critic.value(outputs)
    probability = torch.softmax(outputs, -1)
    torch.testing.assert_close(value, probability @ torch.arange(11.0))
    target, advantage = algorithm.targets(tensors, torch.ones(6), value)
    assert target.shape == (6, 11)
    torch.testing.assert_close(target.sum(-1), torch.ones(6))
    assert target[-1].tolist() == pytest.approx([0, 1] + [0] * 9)  # one reward of 1 and the end
    assert target[-2].tolist() == pytest.approx([0, 0.01, 0.99] + [0] * 8, abs=1e-6)  # 1 + 0.99
    torch.testing.assert_close(advantage, target @ torch.arange(11.0) - value)


def test_a_categorical_critic_learns_returns():
    algorithm = agent(
        value_scale="categorical", atoms=21, value_low=0.0, value_high=10.0, optimiser="adam", learning_rate=0.02
    )
    obs = np.eye(4, dtype=np.float32)[np.arange(60) % 4]
    partial = np.array([1.0, 9.0, 2.3, 5.0], np.float32)[np.arange(60) % 4]
    rows = {"obs": obs, "cut_obs": obs, "action": np.zeros(60, np.int64), "log_prob": np.zeros(60, np.float32)}
    rows |= {"partial": partial, "coefficient": np.zeros(60, np.float32)}
    for number in range(200):
        algorithm.update(rows, Clock(updates=number))
    algorithm.load(algorithm.weights())
    np.testing.assert_allclose(algorithm.appraise(rows)["td_error"], 0, atol=0.2)


# -- how far they reach --


def test_state_discounts_fall_towards_the_declared_limits():
    algorithm = agent(returns="state")
    rows = segment(length=3)
    rows["obs"] = np.array([[0, 9, 0, 9], [1.0, 0, 0.1, 0], [0.2, 0, -0.6, 0]], np.float32)
    derived = algorithm.derive(rows)
    first, second = 0.99, 0.5 + 0.49 * 0.5  # in the middle; half-way to the limit of the first entry
    assert derived["partial"].tolist() == pytest.approx([1 + first * (1 + second), 1 + second, 1.0], rel=1e-6)
    assert derived["coefficient"].tolist() == [0, 0, 0]
    rows["terminated"][-1], rows["truncated"][-1] = 0, 1
    third = 0.5  # beyond a limit
    derived = algorithm.derive(rows)
    assert derived["coefficient"].tolist() == pytest.approx([first * second * third, second * third, third], rel=1e-6)
    np.testing.assert_array_equal(derived["cut_obs"], np.repeat(rows["next_obs"][-1:], 3, 0))
    lower = agent(returns="state", discount_low=0.0, discount=0.9).derive(rows)
    assert lower["partial"].tolist() == pytest.approx([1 + 0.9 * (1 + 0.45), 1.45, 1.0], rel=1e-6)


@pytest.mark.parametrize("spaces", [Spaces((4,), actions=2), Spaces((4,), actions=2, limits=(None,) * 4)])
def test_state_discounts_need_a_task_with_limits(spaces):
    with pytest.raises(ValueError, match=r'algorithm\.returns: "state" needs a task that declares'):
        agent(spaces=spaces, returns="state")


@pytest.mark.parametrize("settings", [{"n_step": 2}, {"returns": "steps_to_end"}, {"returns": "state"}])
def test_faithful_truncation_forgets_the_future_only_where_it_was_truncated(settings):
    for mark in ("terminated", "truncated", "cut"):
        honest, faithful = (agent(faithful_truncation=flag, **settings).derive(segment(mark=mark)) for flag in (0, 1))
        np.testing.assert_array_equal(honest["partial"], faithful["partial"])
        reaches_end = (honest["cut_obs"] == segment()["next_obs"][-1]).all(-1)
        assert (honest["coefficient"][reaches_end] > 0).all() == (mark != "terminated")
        assert (faithful["coefficient"][reaches_end] > 0).all() == (mark == "cut")
        np.testing.assert_array_equal(honest["coefficient"][~reaches_end], faithful["coefficient"][~reaches_end])


def test_faithful_truncation_of_mlxe_is_the_discounted_sum_by_99_hundredths():
    derived = agent(faithful_truncation=True, returns="steps_to_end").derive(segment(length=3, mark="truncated"))
    assert derived["partial"].tolist() == pytest.approx([1 + 0.99 * 1.99, 1.99, 1.0])
    assert not derived["coefficient"].any()


def test_faithful_truncation_holds_for_vtrace_too():
    for flag, discount in ((True, 0.0), (False, 0.9)):
        algorithm = agent(correction="vtrace", n_step=2, discount=0.9, faithful_truncation=flag)
        rows = windows(segment(length=4, mark="truncated"), 2)
        assert tensors_of(algorithm, rows)["discount"].tolist() == pytest.approx([0.9] * 5 + [discount])


# -- what is drawn, and how often --


def test_priorities_are_told_to_the_memory():
    assert agent().priorities == Priorities()
    algorithm = agent(
        priorities=("risk", "td"), priority_exponent=0.5, priority_exponent_growth=0.001, priority_correction=0.25
    )
    assert algorithm.priorities == Priorities("factors", ("risk", "td"), 0.5, 0.001, 0.25)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("scale", ["return", "survival", "categorical"])
@pytest.mark.parametrize("mark", ["terminated", "truncated"])
def test_appraisals_are_the_returns_and_errors_of_a_slow_computation(scale, mark, normalise):
    algorithm = agent(value_scale=scale, n_step=4, normalise=normalise, priorities=("td",), mirror=False)
    rows = batch(algorithm, mark=mark)
    if normalise:
        algorithm.set_moments(merge(nothing(4), rows["obs"]))
    algorithm.update(rows, Clock())
    algorithm.load(algorithm.weights())
    arrays = {name: leaf.detach().double() for name, leaf in algorithm.network.named_parameters()}
    mean, variance = rows["obs"].astype(np.float64).mean(0), rows["obs"].astype(np.float64).var(0)

    def value(obs):
        x = torch.tensor(obs, dtype=torch.float64)
        x = (x - torch.tensor(mean)) / torch.tensor(variance + 1e-8).sqrt() if normalise else x
        x = torch.tanh(x @ arrays["critic.0.weight"].T + arrays["critic.0.bias"])
        x = x @ arrays["critic.2.weight"].T + arrays["critic.2.bias"]
        if scale == "categorical":
            return x.softmax(-1) @ torch.linspace(-10, 100, 51, dtype=torch.float64)
        return x[:, 0].sigmoid() if scale == "survival" else x[:, 0]

    reward = 0.01 if scale == "survival" else 1.0
    returned = []
    for t in range(30):
        stop = min(t + 4, 30)
        total = sum(0.99**i * reward for i in range(stop - t))
        if stop < 30 or mark == "truncated":
            total += 0.99 ** (stop - t) * float(value(rows["next_obs"][stop - 1 : stop])[0])
        returned.append(total)
    judged = algorithm.appraise(rows)
    rtol, atol = 1e-4, 1e-4 if scale == "categorical" else 1e-5
    np.testing.assert_allclose(judged["return"], returned, rtol, atol)
    np.testing.assert_allclose(judged["td_error"], np.array(returned) - value(rows["obs"]).numpy(), rtol, atol)


def test_windows_can_be_appraised_too():
    algorithm = agent(correction="vtrace", n_step=3, priorities=("risk",))
    assert [column.name for column in algorithm.derived_columns] == ["partial", "coefficient", "cut_obs"]
    judged = algorithm.appraise(batch(algorithm))
    assert judged["return"].shape == judged["td_error"].shape == (30,)
    assert agent(correction="vtrace", n_step=3).derive(segment()) == {}


def test_updates_are_owed_for_each_segment_or_for_the_iteration():
    per = {unit: agent(min_updates=64, batch=256, updates_per=unit).updates_due for unit in ("segment", "iteration")}
    for due in per.values():
        assert due(rows=0, new_rows=0, new_segments=1) == 0
        assert due(rows=500, new_rows=20, new_segments=0) == 0
        assert due(rows=100_000, new_rows=20, new_segments=1) == 100_000 // 256 + 1
    assert per["segment"](rows=500, new_rows=20, new_segments=3) == 192
    assert per["iteration"](rows=500, new_rows=20, new_segments=3) == 64
    small = agent(min_updates=1, batch=256, updates_per="iteration").updates_due
    assert [small(rows=n, new_rows=5, new_segments=2) for n in (100, 255, 256, 511, 512)] == [2, 2, 2, 2, 3]


@pytest.mark.parametrize("episodes", [0, 1, 17, 345, 10_000])
def test_the_optimisers_learning_rate_is_that_of_the_formula(episodes):
    algorithm = agent(learning_rate=1e-4, learning_rate_decay=0.998, learning_rate_min=1e-6)
    algorithm.update(batch(algorithm), Clock(episodes=episodes))
    assert algorithm.optimiser.learning_rate == max(1e-6, 1e-4 * 0.998**episodes)


# -- what the network is shown --


def test_normalisation_is_as_told_however_often_rows_are_replayed_and_travels_with_the_weights():
    algorithm, heir = agent(normalise=True, mirror=False), agent(seed=2, normalise=True)
    rows = batch(algorithm)
    rows["obs"] = rows["obs"] * 20 + 7
    told = merge(nothing(4), rows["obs"])
    algorithm.set_moments(told)
    for _ in range(5):
        algorithm.update(rows, Clock())
    flat = algorithm.weights()
    for found in (algorithm.learned.see.normaliser.moments, algorithm.moments_in(flat)):
        assert [array.tolist() for array in found[:2]] == [pytest.approx(array.tolist()) for array in told[:2]]
        assert found.rows == 30
    assert flat.shape == (parameter_count(algorithm.parameters),)
    heir.set_weights(flat)
    np.testing.assert_array_equal(heir.weights(), flat)
    seen = torch.as_tensor(rows["obs"][:1])
    np.testing.assert_allclose(heir.network.scores(rows["obs"][:1]), algorithm.learned.scores(seen).detach(), atol=1e-4)


def test_normalised_observations_of_several_axes_are_flattened():
    square = Spaces((2, 2), actions=2)
    algorithm = agent(spaces=square, normalise=True)
    rows = segment()
    rows |= {name: rows[name].reshape(-1, 2, 2) for name in ("obs", "next_obs")}
    algorithm.update(rows | algorithm.derive(rows), Clock())
    algorithm.load(algorithm.weights())
    assert algorithm.act(rows["obs"], np.random.default_rng(0), Acting())["action"].shape == (30,)


# -- refusals --


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"value_scale": "categorical", "correction": "vtrace"},
            'value_scale = "categorical" needs another correction',
        ),
        ({"value_scale": "survival", "returns": "state"}, 'value_scale = "survival" needs returns = "n_step"'),
        ({"correction": "vtrace", "returns": "state"}, 'correction = "vtrace" makes its own targets'),
        ({"value_low": 1.0, "value_high": 1.0}, r"value_low: got 1\.0, expected less than value_high = 1\.0"),
        ({"priorities": ("td", "td")}, "priorities: expected each factor once, got td, td"),
        ({"priorities": ("luck",)}, "priorities"),
        ({"atoms": 1}, "atoms"),
        ({"target": "never"}, "target"),
        ({"target_every": 0}, "target_every"),
        ({"updates_per": "step"}, "updates_per"),
        ({"discount_low": -0.1}, "discount_low"),
        ({"sampling": "td"}, "sampling"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_naming_the_key(settings, named):
    with pytest.raises(ValidationError, match=named):
        MLxESettings(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"noisy": True},
        {"normalise": True},
        {"target": "per_iteration"},
        {"target": "every_k", "correction": "vtrace"},
        {"value_scale": "categorical", "priorities": ("age", "risk", "td")},
        {"returns": "state", "faithful_truncation": True},
        {"noisy": True, "value_scale": "categorical", "target": "every_k", "normalise": True, "layer_norm": True},
    ],
)
def test_the_same_seed_and_batches_give_the_same_finite_weights(settings):
    results = []
    for _ in range(2):
        algorithm = agent(average=0.1, **settings)
        for number in range(3):
            rows = segment(seed=number)
            rows = windows(rows, algorithm.window) if algorithm.window > 1 else rows | algorithm.derive(rows)
            metrics = algorithm.update(rows, Clock(updates=number, version=number))
            assert all(type(value) is float and np.isfinite(value) for value in metrics.values())
        results.append(algorithm.weights())
    np.testing.assert_array_equal(*results)
    assert np.isfinite(results[0]).all()
