"""SAC: its formulas in numbers, how it acts, and that its temperature goes where the entropy is to be."""

import math

import numpy as np
import pytest
import torch
from plain import generator_of

from mlxe_async.algorithms import Acting, Clock, load_algorithm
from mlxe_async.algorithms.distributions import TanhGaussian
from mlxe_async.algorithms.parts.continuous import td_target
from mlxe_async.algorithms.parts.soft import considered, earned, halves
from mlxe_async.algorithms.sac import SAC, SACSettings, soft_value, temperature_loss
from mlxe_async.algorithms.state import as_written
from mlxe_async.rows import Spaces

BOX = Spaces((3,), action_shape=(2,), action_low=(-3.0, 0.0), action_high=(1.0, 8.0))
NUMBERED = Spaces((3,), actions=4)
OBS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
RNG = np.random.default_rng(1)


def agent(spaces=BOX, learns=False, seed=1, **settings):
    return SAC(SACSettings(layers=(8,), **settings), spaces, seed=seed, learns=learns)


def learned(spaces=BOX, **settings):
    """An object that acts by weights that something was learned with."""
    algorithm = agent(spaces, **settings)
    flat = np.random.default_rng(4).normal(size=sum(math.prod(shape) for _, shape in algorithm.parameters))
    algorithm.load(np.append(0, flat[1:]).astype(np.float32))
    return algorithm


def squashed(mean, log_std, normal):
    return TanhGaussian(mean, log_std, BOX).rsample(normal)


def outputs(algorithm, obs):
    return algorithm.actor(algorithm.see(obs))


def batch(spaces=BOX, rows=64, **columns):
    rng = np.random.default_rng(2)
    acted = agent(spaces).act(OBS[:rows], rng, Acting())
    zeros = np.zeros(rows, np.uint8)
    known = {"obs": OBS[:rows], "next_obs": OBS[1 : rows + 1], "reward": np.ones(rows, np.float32), "terminated": zeros}
    return known | acted | columns


def test_the_log_density_is_that_of_the_squashed_action():
    """By the change of variables in double precision: N(u) and the logarithm of what tanh does to lengths."""
    mean, log_std, normal = (RNG.normal(size=(50, 2)) for _ in range(3))
    action, log_prob = squashed(*(torch.as_tensor(one, dtype=torch.float32) for one in (mean, log_std, normal)))
    raw = mean + np.exp(log_std) * normal
    gauss = -0.5 * ((raw - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    expected = (gauss - np.log(1 - np.tanh(raw) ** 2)).sum(-1)
    np.testing.assert_allclose(action, np.tanh(raw), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("raw", [20.0, -20.0, 60.0])
def test_the_log_density_is_right_far_out_where_tanh_is_one(raw):
    mean, zero = torch.tensor([[raw]]), torch.zeros(1, 1)
    _, log_prob = squashed(mean, zero, zero)
    # log(1 - tanh(u)^2) = log 4 - 2 |u| for large |u|
    assert float(log_prob) == pytest.approx(-0.5 * math.log(2 * math.pi) - (math.log(4) - 2 * abs(raw)), rel=1e-6)


def test_gradients_go_through_the_drawn_action_and_its_density():
    mean = torch.tensor([[0.3, -0.2]], dtype=torch.float64, requires_grad=True)
    log_std = torch.tensor([[-0.5, 0.1]], dtype=torch.float64, requires_grad=True)
    normal = torch.tensor([[0.7, -1.1]], dtype=torch.float64)
    for part in (0, 1):
        assert torch.autograd.gradcheck(lambda *args, part=part: squashed(*args, normal)[part], (mean, log_std))


def test_the_value_of_a_drawn_action_counts_its_surprise():
    q, log_prob = torch.tensor([[2.0], [3.0]]), torch.tensor([[-1.0], [0.5]])
    assert soft_value(1.0, log_prob, q, torch.tensor(0.4)).tolist() == pytest.approx([2.4, 2.8])


def test_the_value_of_discrete_actions_is_the_mean_over_all():
    share = torch.tensor([[0.25, 0.75]])
    q = torch.tensor([[4.0, 8.0]])
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert soft_value(share, share.log(), q, torch.tensor(0.5)).tolist() == pytest.approx([7 + 0.5 * entropy])


@pytest.mark.parametrize(("entropy", "slope"), [(1.0, -2.0), (5.0, 2.0), (3.0, 0.0)])
def test_the_temperature_rises_below_its_target_and_falls_above(entropy, slope):
    log_temperature, entropies = torch.zeros(1, requires_grad=True), torch.full((4,), entropy, requires_grad=True)
    temperature_loss(log_temperature, entropies, 3.0).backward()
    assert float(log_temperature.grad) == slope
    assert entropies.grad is None


@pytest.mark.parametrize(
    ("spaces", "settings", "target"),
    [
        (BOX, {}, -2.0),
        (NUMBERED, {}, 0.98 * math.log(4)),
        (BOX, {"target_entropy": -0.5}, -0.5),
        (NUMBERED, {"target_entropy": 0.3}, 0.3),
    ],
)
def test_the_target_entropy_follows_the_actions_unless_it_is_told(spaces, settings, target):
    algorithm = agent(spaces, learns=True, temperature_learning_rate=0.1, batch=64, **settings)
    assert algorithm.target_entropy == pytest.approx(target)
    first, second = (as_written.learned(algorithm, batch(spaces), Clock(updates=k))[0] for k in (0, 1))
    assert (second["temperature"] > first["temperature"]) == (first["entropy"] < target)
    assert second["temperature"] == pytest.approx(math.exp(0.1 * np.sign(target - first["entropy"])), rel=1e-3)


def at_the_fixed_point(spaces, n_step, temperature=0.5, discount=0.8):
    """A learner of a world without rewards and without end, whose policy and critics say the same everywhere.

    Actions are drawn by this policy. Critics say Q = discount * temperature * entropy / (1 - discount), what is right.
    """
    told = {"temperature": temperature, "temperature_learning_rate": 0.0, "discount": discount, "n_step": n_step}
    algorithm = agent(spaces, learns=True, critic_learning_rate=1e-30, **told)
    algorithm.load(np.zeros_like(algorithm.weights()))  # means of 0 and deviations of 1, or equal shares
    rng, length = np.random.default_rng(3), 4000
    obs = np.zeros((length, 3), np.float32)
    rows = {name: np.zeros(length, np.uint8) for name in ("terminated", "truncated", "cut")}
    rows |= {"obs": obs, "next_obs": obs, "reward": np.zeros(length, np.float32)}
    rows |= algorithm.act(obs, rng, Acting())
    q = discount * temperature * -rows["log_prob"].astype(float).mean() / (1 - discount)
    for critic in (*algorithm.critics, *algorithm.critic_targets):
        for value in critic.parameters():
            value.data.zero_()
        critic[-1].bias.data.fill_(q)
    return algorithm, rows, q


@pytest.mark.parametrize("n_step", [1, 2, 5])
@pytest.mark.parametrize("spaces", [BOX, NUMBERED], ids=["box", "discrete"])
def test_the_entropies_of_the_steps_between_count_so_that_more_steps_have_the_same_values(spaces, n_step, monkeypatch):
    from mlxe_async.algorithms import sac

    algorithm, rows, q = at_the_fixed_point(spaces, n_step)
    targets = []

    def remembered(partial, coefficient, value):
        targets.append(td_target(partial, coefficient, value))
        return targets[-1]

    monkeypatch.setattr(sac, "td_target", remembered)
    found, _ = as_written.learned(algorithm, rows | algorithm.derive(rows), Clock())
    assert found["value"] == pytest.approx(q, rel=1e-5)
    assert float(targets[0].mean()) == pytest.approx(q, rel=0.02)


def test_entropies_are_those_after_a_row_up_to_its_cut_discounted_and_as_old_as_the_row():
    algorithm = agent(n_step=3, discount=0.5)
    rows = batch(rows=4, log_prob=np.float32([-100, -2, -4, -8]), truncated=np.zeros(4, np.uint8))
    assert algorithm.derive(rows)["entropies"].tolist() == [1 + 1, 2 + 2, 4, 0]
    assert [column.name for column in algorithm.derived_columns] == ["partial", "coefficient", "cut_obs", "entropies"]
    many = algorithm.derive_many(rows, np.array([2, 2]))
    assert many["entropies"].tolist() == [1, 0, 4, 0]
    assert agent().derive(rows) == {}


def test_the_temperature_of_now_weighs_the_entropies():
    rows = {"partial": np.float32([1, 2]), "entropies": np.float32([10, 20])}
    assert earned(rows, 0.5).tolist() == [6, 12]
    assert earned({"partial": rows["partial"]}, 0.5).tolist() == [1, 2]


def test_what_is_stored_is_the_density_of_the_action_that_is_stored():
    algorithm = learned()
    acted = algorithm.act(OBS, np.random.default_rng(0), Acting())
    mean, log_std = np.split(outputs(algorithm, OBS), 2, -1)
    policy = TanhGaussian(torch.as_tensor(mean), torch.as_tensor(log_std).clamp(-20, 2), BOX)
    np.testing.assert_allclose(
        acted["log_prob"], policy.log_prob(torch.as_tensor(acted["raw_action"])), rtol=1e-3, atol=1e-3
    )
    unit = (acted["action"] - [-1, 4]) / [2, 4]
    np.testing.assert_allclose(unit, np.tanh(acted["raw_action"]), atol=1e-5)
    assert [column.name for column in algorithm.extra_columns] == ["raw_action"]


def test_discrete_actions_are_drawn_by_their_probabilities():
    algorithm = learned(NUMBERED)
    many = np.repeat(OBS[:1], 20_000, 0)
    acted = algorithm.act(many, np.random.default_rng(0), Acting())
    logits = outputs(algorithm, OBS[:1])[0].astype(float)
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(acted["action"], minlength=4) / 20_000, expected, atol=0.015)
    np.testing.assert_allclose(np.exp(acted["log_prob"]), expected[acted["action"]], rtol=1e-4)
    assert algorithm.extra_columns == ()


@pytest.mark.parametrize(("spaces", "density"), [(BOX, 0.25), (NUMBERED, 0.25)])
def test_before_the_first_update_actions_are_uniform_and_after_it_the_policy(spaces, density):
    learner, actor = agent(spaces, learns=True), agent(spaces, seed=2)
    actor.load(learner.weights())
    acted = actor.act(np.repeat(OBS, 50, 0), np.random.default_rng(0), Acting())
    np.testing.assert_allclose(np.exp(acted["log_prob"]), density, rtol=1e-6)
    if spaces is BOX:
        for column, (low, high) in zip(acted["action"].T, ((-3, 1), (0, 8)), strict=True):
            counts, _ = np.histogram(column, 4, (low, high))
            np.testing.assert_allclose(counts / len(column), 0.25, atol=0.02)
        np.testing.assert_allclose(actor.bounded(np.tanh(acted["raw_action"])), acted["action"], atol=1e-4)
    else:
        np.testing.assert_allclose(np.bincount(acted["action"]) / 10_000, 0.25, atol=0.02)
    learner.update(batch(spaces), Clock())
    actor.load(learner.weights())
    assert len(np.unique(actor.act(OBS, np.random.default_rng(0), Acting())["log_prob"])) > 100


def test_tests_take_the_mean_within_the_bounds_or_the_most_probable_action():
    algorithm = learned()
    mean = outputs(algorithm, OBS)[:, :2]
    expected = np.array([-1, 4]) + np.tanh(mean) * [2, 4]
    np.testing.assert_allclose(algorithm.greedy(OBS), expected, rtol=1e-5, atol=1e-5)
    algorithm = learned(NUMBERED)
    np.testing.assert_array_equal(algorithm.greedy(OBS), outputs(algorithm, OBS).argmax(-1))


def test_the_deviation_is_bounded_while_it_is_learned_too():
    """Drawn with one deviation far above and one far below; neither can be learned any farther."""
    algorithm = agent(learns=True, discount=0.5, temperature=0.3, n_step=1)
    algorithm.load(np.zeros_like(algorithm.weights()))
    bias = algorithm.actor[-1].bias
    bias.data.copy_(torch.tensor([0.2, -0.1, 9.0, -90.0]))
    normal = generator_of(algorithm).standard_normal((64, 2), np.float32)
    share, log_prob, _ = considered(algorithm, algorithm.critics, torch.as_tensor(OBS[:64]))
    raw = np.float64([0.2, -0.1]) + np.exp([2.0, -20.0]) * normal
    shrink = 2 * (math.log(2) - raw - np.logaddexp(0, -2 * raw))
    wanted = (-0.5 * normal.astype(float) ** 2 - [2, -20] - 0.5 * math.log(2 * math.pi) - shrink).sum(-1)
    assert share == 1.0
    np.testing.assert_allclose(log_prob.detach()[:, 0], wanted, rtol=1e-5)
    log_prob.sum().backward()
    assert bias.grad[2:].tolist() == [0, 0]
    assert (bias.grad[:2] != 0).all()


def test_the_deviation_stays_within_its_limits():
    algorithm = agent()
    flat = np.zeros(sum(math.prod(shape) for _, shape in algorithm.parameters), np.float32)
    flat[-2:] = 9, -90  # biases of both log deviations
    algorithm.load(flat)
    assert algorithm.policy(OBS[:1]).log_std.tolist() == [[2, -20]]


@pytest.mark.parametrize(
    ("spaces", "words"),
    [
        (Spaces((3,), action_shape=(1,)), "sac needs actions with finite bounds, got no bounds"),
        (
            Spaces((3,), action_shape=(2,), action_kind="multi_discrete", action_sizes=(3, 2)),
            r"sac needs actions with finite bounds, got MultiDiscrete\(\[3 2\]\)",
        ),
    ],
)
def test_other_actions_are_refused(spaces, words):
    with pytest.raises(ValueError, match=rf"^algorithm\.name: {words}"):
        agent(spaces)


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_acting_on_the_cpu_asks_nothing_of_torch_but_where_numbers_are(name, monkeypatch):
    """Observations stay arrays from the first layer to the action."""
    kind = load_algorithm(name)
    algorithm = kind(kind.Settings(layers=(8,), normalise=True), BOX, seed=1, learns=False)
    algorithm.greedy(OBS)  # where its layers' numbers are is found out in the first call
    for function in ("from_numpy", "as_tensor", "tensor", "inference_mode"):
        monkeypatch.setattr(torch, function, None)
    for noise in (-1, 0.5):
        algorithm.noise.fill_(noise)
        assert algorithm.act(OBS, np.random.default_rng(0), Acting())["action"].shape == (200, 2)
    assert algorithm.greedy(OBS).shape == (200, 2)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("SAC", "sac"), ("sac_discrete", "sac"), ("soft-actor-critic", "sac"), ("TD3", "td3"), ("DDPG", "ddpg")],
)
def test_it_is_found_by_its_other_names(typed, meant):
    from mlxe_async.errors import SettingsError

    with pytest.raises(SettingsError, match=f'did you mean "{meant}"'):
        load_algorithm(typed)


def test_outputs_are_halved_along_the_last_axis_whatever_lies_before_it():
    outputs = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    first, second = halves(outputs)
    np.testing.assert_array_equal(first, outputs[:, :, :2])
    np.testing.assert_array_equal(second, outputs[:, :, 2:])
