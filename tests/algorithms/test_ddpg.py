"""DDPG and TD3: their noise, the targets that TD3 smooths, and how little the one differs from the other."""

import math

import numpy as np
import pytest
import torch
from plain import flat_of, generator_of

from mlxe_async.algorithms import Acting, Clock
from mlxe_async.algorithms.ddpg import DDPG, DDPGSettings, actor_loss
from mlxe_async.algorithms.td3 import TD3, TD3Settings, smoothed
from mlxe_async.rows import Spaces

BOX = Spaces((3,), action_shape=(2,), action_low=(-3.0, 0.0), action_high=(1.0, 8.0))
OBS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)


def agent(noise=None, learns=False, **settings):
    algorithm = DDPG(DDPGSettings(layers=(8,), **settings), BOX, seed=1, learns=learns)
    if noise is not None:
        flat = np.random.default_rng(4).normal(size=sum(math.prod(shape) for _, shape in algorithm.parameters))
        algorithm.load(np.append(noise, 0.1 * flat[1:]).astype(np.float32))
    return algorithm


def unit(action):
    return (action - [-1, 4]) / [2, 4]


def batch(rows=64):
    acted = agent().act(OBS[:rows], np.random.default_rng(2), Acting())
    known = {"obs": OBS[:rows], "next_obs": OBS[1 : rows + 1], "reward": np.ones(rows, np.float32)}
    return known | acted | {"terminated": np.zeros(rows, np.uint8)}


def test_the_actors_loss_is_minus_the_mean_value():
    q = torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    loss = actor_loss(q)
    loss.backward()
    assert loss.item() == -3
    assert q.grad.tolist() == pytest.approx([-1 / 3] * 3)


def test_smoothing_cuts_the_noise_and_then_the_action():
    action, normal = torch.tensor([[0.0, 0.9, -0.95, -0.9]]), torch.tensor([[1.0, 9.0, -0.2, -2.0]])
    # 0.2 * (1, 9, -0.2, -2) is cut to 0.5, and the sums to [-1, 1]
    assert smoothed(action, normal, 0.2, 0.5)[0].tolist() == pytest.approx([0.2, 1.0, -0.99, -1.0])
    assert smoothed(action, -normal, 0.2, 0.5)[0].tolist() == pytest.approx([-0.2, 0.4, -0.91, -0.5])


def test_td3_smooths_the_bounded_action_also_where_it_lies_near_its_bounds():
    algorithm = TD3(TD3Settings(layers=(8,), target_noise=0.3, target_noise_clip=0.4), BOX, seed=1, learns=True)
    for one in algorithm.actor_target.parameters():
        one.data.mul_(20)
    obs = torch.as_tensor(OBS)
    mean = algorithm.actor_target(obs).tanh()
    assert (mean.abs() > 0.9).float().mean() > 0.1
    noise = torch.as_tensor(0.3 * generator_of(algorithm).standard_normal((200, 2), np.float32)).clamp(-0.4, 0.4)
    torch.testing.assert_close(algorithm.following_action(obs), (mean + noise).clamp(-1, 1))


def test_gaussian_noise_is_measured_in_actions_of_one_whatever_the_bounds_are():
    algorithm = agent(noise=0.05)
    acted = algorithm.act(np.repeat(OBS[:1], 20_000, 0), np.random.default_rng(0), Acting())
    noise = unit(acted["action"]) - unit(algorithm.greedy(OBS[:1]))
    np.testing.assert_allclose(noise.std(0), 0.05, rtol=0.03)
    np.testing.assert_allclose(noise.mean(0), 0, atol=0.002)
    assert acted["action"].dtype == np.float32
    assert not acted["log_prob"].any()
    assert algorithm.carry == ()


def test_noise_never_leads_beyond_the_bounds():
    action = agent(noise=5.0).act(OBS, np.random.default_rng(0), Acting())["action"]
    assert (action.min(0).tolist(), action.max(0).tolist()) == ([-3, 0], [1, 8])


def test_ou_noise_keeps_its_direction_and_has_the_variance_of_the_process():
    algorithm, envs = ou(0.02, pull=0.25), 2000
    acting = Acting().start(algorithm.carry, envs)
    rng, before = np.random.default_rng(0), np.zeros((envs, 2))
    obs, best = np.repeat(OBS[:1], envs, 0), unit(algorithm.greedy(OBS[:1]))
    twin = np.random.default_rng(0)
    for _ in range(30):
        noise = unit(algorithm.act(obs, rng, acting)["action"]) - best
        expected = 0.75 * before + np.float32(0.02) * twin.standard_normal((envs, 2), np.float32)
        np.testing.assert_allclose(noise, expected, atol=1e-5)
        np.testing.assert_allclose(acting.carry["noise"], expected, atol=1e-5)
        before = expected
    assert before.std() == pytest.approx(0.02 / math.sqrt(1 - 0.75**2), rel=0.05)
    acting.begin(np.arange(envs) < 10)  # as an executor does where episodes begin
    assert not acting.carry["noise"][:10].any()
    assert acting.carry["noise"][10:].all()


def ou(noise, pull):
    algorithm = DDPG(DDPGSettings(layers=(8,), noise="ou", noise_pull=pull), BOX, seed=1, learns=False)
    flat = algorithm.weights()
    flat[0] = noise
    algorithm.load(flat)
    return algorithm


def test_noise_falls_with_environment_steps_and_travels_with_the_weights():
    learner, actor = agent(learns=True, noise_first=0.8, noise_last=0.2, noise_steps=1000), agent()
    assert (learner.noise, actor.noise) == (-1, -1)
    for steps, noise in ((0, 0.8), (500, 0.5), (5000, 0.2)):
        metrics = learner.update(batch(), Clock(env_steps=steps))
        actor.load(learner.weights())
        assert float(actor.noise) == pytest.approx(noise)
        assert metrics["noise"] == pytest.approx(noise)
    assert actor.parameters[0] == ("noise", (1,))


def test_before_the_first_update_actions_are_uniform_without_a_density():
    acted = agent().act(np.repeat(OBS, 50, 0), np.random.default_rng(0), Acting())
    np.testing.assert_allclose(np.histogram(acted["action"][:, 1], 4, (0, 8))[0] / 10_000, 0.25, atol=0.02)
    assert not acted["log_prob"].any()


def test_td3_moves_actor_and_targets_in_every_second_update_only():
    algorithm = TD3(TD3Settings(layers=(8,)), BOX, seed=1, learns=True)
    parts = [{"policy": algorithm.actor}, {"policy": algorithm.actor_target}, {"critics": algorithm.critic_targets}]
    for number, moves in enumerate((True, False, True, False)):
        before = [flat_of(**one) for one in parts]
        critics = flat_of(critics=algorithm.critics)
        metrics = algorithm.update(batch(), Clock(updates=number))
        assert [not torch.equal(flat_of(**one), was) for one, was in zip(parts, before, strict=True)] == [moves] * 3
        assert not torch.equal(flat_of(critics=algorithm.critics), critics)
        assert ("actor_loss" in metrics) == moves


def test_td3_differs_from_ddpg_by_what_the_paper_changes():
    def own(kind):
        return {name for name, member in vars(kind).items() if callable(member) and not isinstance(member, type)}

    assert own(TD3) - own(DDPG) == {"following_action"}
    pair = [kind(kind.Settings(layers=(8,)), BOX, seed=1, learns=True) for kind in (DDPG, TD3)]
    assert [len(one.critics) for one in pair] == [1, 2]
    assert set(TD3Settings.model_fields) - set(DDPGSettings.model_fields) == {
        "policy_delay", "target_noise", "target_noise_clip",
    }  # fmt: skip


def test_the_actor_begins_near_the_middle_of_its_bounds():
    assert np.abs(unit(agent().greedy(OBS))).max() < 0.1
