"""What SAC, TD3 and DDPG share: targets at the ends of rows, updates that are due, moments, versions side by side."""

import math

import numpy as np
import pytest
import torch
from plain import flat_of

from mlxe_async.algorithms import Acting, Clock, load_algorithm
from mlxe_async.algorithms.parts.continuous import critic_loss, td_target
from mlxe_async.maths import normaliser
from mlxe_async.rows import Spaces

NAMES = ("sac", "td3", "ddpg")
BOX = Spaces((3,), action_shape=(2,), action_low=(-3.0, 0.0), action_high=(1.0, 8.0))
OBS = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)


def agent(name, learns=False, spaces=BOX, seed=1, **settings):
    kind = load_algorithm(name)
    return kind(kind.Settings(layers=(8,), **settings), spaces, seed=seed, learns=learns)


def segment(algorithm, mark, length=4):
    rows = {one: np.zeros(length, np.uint8) for one in ("terminated", "truncated", "cut")}
    rows[mark][-1] = 1
    acted = algorithm.act(OBS[:length], np.random.default_rng(0), Acting())
    rows |= {"obs": OBS[:length], "next_obs": OBS[10 : 10 + length], "reward": np.float32([1, 2, 4, 8])[:length]}
    return rows | acted


def test_the_loss_of_critics_is_half_the_mean_square_of_each_added_up():
    q, target = torch.tensor([[1.0, 2.0], [3.0, 0.0]], requires_grad=True), torch.tensor([0.0, 4.0], requires_grad=True)
    loss = critic_loss(q, target)
    loss.backward()
    assert loss.item() == pytest.approx((1 + 4) / 4 + (9 + 16) / 4)
    assert q.grad.flatten().tolist() == pytest.approx([0.5, -1, 1.5, -2])
    assert target.grad is None


def test_a_target_is_the_reward_and_the_discounted_value_and_has_no_gradient():
    value = torch.tensor([10.0, 20.0], requires_grad=True)
    target = td_target(torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.0]), value)
    assert target.tolist() == pytest.approx([10.0, 2.0])
    assert not target.requires_grad


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mark", ["terminated", "truncated", "cut"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_only_termination_has_no_future(name, mark, n_step):
    algorithm = agent(name, learns=True, discount=0.5, n_step=n_step, return_scale=2.0)
    rows = segment(algorithm, mark)
    columns = algorithm.columns(rows | algorithm.derive(rows))
    ended = mark == "terminated"
    if n_step == 1:
        assert columns["partial"].tolist() == [2, 4, 8, 16]
        assert columns["coefficient"].tolist() == [0.5, 0.5, 0.5, 0.0 if ended else 0.5]
        np.testing.assert_array_equal(columns["following"], rows["next_obs"])
        assert algorithm.derived_columns == ()
        assert algorithm.derive(rows) == {}
    else:
        assert columns["partial"].tolist() == [2 + 2 + 2, 4 + 4 + 4, 8 + 8, 16]
        later = [0, 0, 0] if ended else [0.125, 0.25, 0.5]
        assert columns["coefficient"].tolist() == [0.125, *later]
        np.testing.assert_array_equal(columns["following"], rows["next_obs"][[2, 3, 3, 3]])


@pytest.mark.parametrize("name", NAMES)
def test_updates_are_due_from_the_first_start_rows_on_and_remainders_are_kept(name):
    for calls, wanted in (
        ([(9, 9), (9, 1), (9, 3)], [0, 0, 2]),  # ten were seen; one and three make one round of two
        ([(10, 3), (10, 6)], [0, 4]),  # ten are held; three and six make two rounds, and one is left
    ):
        algorithm = agent(name, start_rows=10, train_every=4, updates_each=2)
        assert [algorithm.updates_due(rows=rows, new_rows=new, new_segments=0) for rows, new in calls] == wanted
    assert agent(name, start_rows=5).updates_due(rows=32, new_rows=32, new_segments=2) == 32


@pytest.mark.parametrize("name", NAMES)
def test_versions_are_judged_side_by_side_as_each_alone(name):
    algorithm = agent(name, normalise=True)
    size = sum(math.prod(shape) for _, shape in algorithm.parameters)
    flats = np.random.default_rng(3).uniform(0.1, 0.6, (2, size)).astype(np.float32)
    obs = np.stack([OBS, OBS[::-1]])
    many = algorithm.greedy_many(flats, obs)
    assert many.shape == (2, 64, 2)
    for flat, seen, found in zip(flats, obs, many, strict=True):
        algorithm.load(flat)
        np.testing.assert_allclose(algorithm.greedy(seen), found, rtol=1e-5, atol=1e-5)
    again = flats[::-1].copy()
    np.testing.assert_allclose(algorithm.greedy_many(again, obs[::-1]), many[::-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_moments_travel_with_the_weights_and_networks_see_by_them(name):
    learner, actor = agent(name, learns=True, normalise=True), agent(name, normalise=True, seed=2)
    moments = normaliser.Moments(np.array([1.0, 2, 3]), np.array([4.0, 1, 9]), 100.0)
    learner.set_moments(moments)
    rows = segment(learner, "cut")
    shown = learner.see(torch.as_tensor(rows["obs"]))
    np.testing.assert_allclose(shown, (rows["obs"] - [1, 2, 3]) / [2, 1, 3], rtol=1e-5)
    np.testing.assert_allclose(learner.see(rows["obs"]), shown, rtol=1e-5)
    learner.update(rows, Clock())
    flat = learner.weights()
    found = learner.moments_in(flat)
    np.testing.assert_array_equal(found.mean, moments.mean)
    np.testing.assert_array_equal(found.variance, moments.variance)
    assert found.rows == 100
    actor.load(flat)
    own = learner.actor(shown).detach().numpy()
    np.testing.assert_allclose(actor.actor(actor.see(rows["obs"])), own, rtol=1e-4, atol=1e-5)
    assert actor.noise == learner.noise
    assert actor.noise >= 0
    heir = agent(name, learns=True, normalise=True, seed=3)
    heir.set_weights(flat)
    np.testing.assert_array_equal(heir.weights(), flat)


@pytest.mark.parametrize("name", NAMES)
def test_actions_have_the_shape_of_the_space(name):
    spaces = Spaces((3,), action_shape=(2, 2), action_low=(-1.0,) * 4, action_high=(1.0, 2.0, 3.0, 4.0))
    algorithm = agent(name, learns=True, spaces=spaces)
    rows = segment(algorithm, "cut")
    assert rows["action"].shape == (4, 2, 2)
    algorithm.update(rows, Clock())
    algorithm.load(algorithm.weights())
    for action in (algorithm.act(OBS, np.random.default_rng(0), Acting())["action"], algorithm.greedy(OBS)):
        assert action.shape == (64, 2, 2)
        assert action.dtype == np.float32
        assert (action >= -1).all()
        assert (action <= np.array([[1, 2], [3, 4]])).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("spaces", "what"),
    [
        (Spaces((3,), action_shape=(1,), action_low=(-1.0,), action_high=(1e31,)), "no bounds"),
        (Spaces((3,), action_shape=(1,), action_low=(1.0,), action_high=(1.0,)), "none that differ"),
    ],
)
def test_actions_without_bounds_are_refused(name, spaces, what):
    with pytest.raises(ValueError, match=rf"algorithm\.name: {name} needs actions with finite bounds, got .*{what}"):
        agent(name, spaces=spaces)


@pytest.mark.parametrize("name", ["td3", "ddpg"])
def test_deterministic_actors_refuse_discrete_actions(name):
    with pytest.raises(ValueError, match=rf"algorithm\.name: {name} needs actions with finite bounds, got Discrete"):
        agent(name, spaces=Spaces((3,), actions=2))


@pytest.mark.parametrize("name", NAMES)
def test_critics_begin_apart_and_their_targets_alike(name):
    algorithm = agent(name, learns=True)
    assert torch.equal(flat_of(critics=algorithm.critics), flat_of(critics=algorithm.critic_targets))
    if name != "ddpg":
        q1, q2 = algorithm.judged(algorithm.critics, torch.as_tensor(OBS), torch.zeros(64, 2))
        assert not torch.allclose(q1, q2)
    other = agent(name, learns=True, seed=2)
    assert not torch.equal(flat_of(critics=other.critics), flat_of(critics=algorithm.critics))


@pytest.mark.parametrize(("name", "last"), [("sac", 0.1), ("td3", 0.02), ("ddpg", 0.02)])
def test_weights_begin_uniform_as_glorot_has_them_and_those_of_the_last_layer_of_actors_smaller(name, last):
    kind = load_algorithm(name)
    made = kind(kind.Settings(layers=(64,)), BOX, seed=1, learns=True)
    for network, share in ((made.actor, last), *((critic, 1.0) for critic in made.critics)):
        for layer, factor in zip((one for one in network if hasattr(one, "weight")), (1.0, share), strict=True):
            bound = factor * math.sqrt(6 / sum(layer.weight.shape))
            assert 0.8 * bound < layer.weight.abs().max() <= bound
            assert not layer.bias.any()


def test_no_action_is_rounded_beyond_its_bounds():
    """Of so many bounds some are missed by low + (high - low) in single precision."""
    low, high = np.random.default_rng(0).uniform((-9, 0), (0, 9), (500, 2)).astype(np.float32).T
    spaces = Spaces((3,), action_shape=(500,), action_low=tuple(low.tolist()), action_high=tuple(high.tolist()))
    assert (low + (high - low) > high).any()
    action = agent("ddpg", spaces=spaces).bounded(np.array([np.full(500, -1.0), np.full(500, 1.0)], np.float32))
    np.testing.assert_array_equal(action[0], low)
    assert (action[1] <= high).all()
    np.testing.assert_allclose(action[1], high, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_random_actions_at_the_start_are_held_and_an_episode_begins_with_a_new_one(name):
    kind = load_algorithm(name)
    spaces = Spaces((2,), action_shape=(2,), action_low=(-1.0, -3.0), action_high=(1.0, 5.0))
    algorithm = kind(kind.Settings(layers=(4,), hold_steps=3), spaces, seed=0, learns=False)
    acting, rng = Acting().start(algorithm.carry, 1), np.random.default_rng(0)
    obs = np.zeros((1, 2), np.float32)
    drawn = [tuple(algorithm.act(obs, rng, acting)["action"][0].tolist()) for _ in range(7)]
    assert [drawn.index(action) for action in drawn] == [0, 0, 0, 3, 3, 3, 6]
    acting.carry["held"][:] = 0  # an episode begins
    assert tuple(algorithm.act(obs, rng, acting)["action"][0].tolist()) not in drawn
    free = kind(kind.Settings(layers=(4,)), spaces, seed=0, learns=False)
    assert "held" not in {column.name for column in free.carry}
