"""Updates of SAC, TD3 and DDPG against a plain computation in double precision, written from the papers."""

import math

import numpy as np
import pytest
import torch
from plain import Plain, assert_same_way, flat_of, generator_of, shapes_of, tensor

from mlxe_async.algorithms import Clock, load_algorithm
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.rows import Spaces

ROWS = 24
BOX = Spaces((3,), action_shape=(2,), action_low=(-3.0, 0.0), action_high=(1.0, 8.0))
NUMBERED = Spaces((3,), actions=3)
MADE = {"layers": (7, 5), "discount": 0.8, "return_scale": 0.5, "target_rate": 0.4, "learning_rate": 0.02}
MADE |= {"critic_learning_rate": 0.03}
EXPLORES = {"noise_first": 0.9, "noise_last": 0.2, "noise_steps": 500}


def agent(name, spaces=BOX, **changed):
    kind = load_algorithm(name)
    return kind(kind.Settings.model_validate(MADE | changed), spaces, seed=3, learns=True)


class Doubles(Plain):
    """One network of an algorithm in double precision, or several critics as one, with its optimiser."""

    of_torch = False

    def __init__(self, activation, **network):
        self.parameters, self.activation = shapes_of(**network), getattr(torch, activation)
        self.flat, self.layer_norm = tensor(flat_of(**network)), False
        self.eps, self.kind, self.steps = 1e-8, "adam", 0
        self.first, self.second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)


def segment(seed, spaces, mark="terminated"):
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(ROWS + 1, 3)).astype(np.float32)
    rows = {name: np.zeros(ROWS, np.uint8) for name in ("terminated", "truncated", "cut")}
    rows[mark][-1] = 1
    rows |= {"obs": obs[:-1], "next_obs": obs[1:].copy(), "weight": np.ones(ROWS, np.float32)}
    rows["reward"] = (4 * rng.normal(size=ROWS)).astype(np.float32)
    rows["log_prob"] = (rng.normal(size=ROWS) - 1).astype(np.float32)
    if spaces.actions:
        return rows | {"action": rng.integers(0, spaces.actions, ROWS)}
    raw = rng.normal(size=(ROWS, 2)).astype(np.float32)
    action = np.float32([-3, 0]) + (np.tanh(raw) + 1) / 2 * np.float32([4, 8])
    return rows | {"action": action, "raw_action": raw}


def slow_returns(rows, s, alpha=0.0):
    """Rewards up to s' and alpha times the entropies of the steps between, the discount there, and s' of each row."""
    found = []
    for t in range(ROWS):
        count = min(s.n_step, ROWS - t)
        total = sum(s.discount**i * s.return_scale * rows["reward"][t + i] for i in range(count))
        total -= alpha * sum(s.discount**i * rows["log_prob"][t + i] for i in range(1, count))
        ended = rows["terminated"][t + count - 1]
        found.append((total, 0.0 if ended else s.discount**count, rows["next_obs"][t + count - 1]))
    return [tensor(np.array(column)) for column in zip(*found, strict=True)]


def beside(obs, action):
    return torch.cat([tensor(obs), action], -1)


def normal_of(rng, shape):
    return tensor(rng.standard_normal(shape, np.float32))


def learned_from(algorithm, rows):
    return rows | algorithm.derive(rows)


def drawn(actor, obs, normal, flat=None):
    """tanh(u) of a Gaussian u, and its log-density by the change of variables."""
    mean, log_std = actor("policy", obs, flat).chunk(2, -1)
    raw = mean + log_std.exp() * normal
    density = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw) - (1 - raw.tanh() ** 2).log()
    return raw.tanh(), density.sum(-1)


SAC_OPTIONS = [
    {},
    {"n_step": 3, "activation": "tanh", "temperature": 0.3},
    {"max_gradient_norm": 0.2, "target_entropy": 0.7, "temperature_learning_rate": 0.05},
    {"temperature_learning_rate": 0.0, "temperature": 0.5},
    {"target_entropy": 9.0, "temperature_learning_rate": 0.4},
]


@pytest.mark.parametrize("settings", SAC_OPTIONS)
@pytest.mark.parametrize("spaces", [BOX, NUMBERED], ids=["box", "discrete"])
def test_sac_takes_the_steps_of_a_plain_computation(spaces, settings):
    algorithm = agent("sac", spaces, **settings)
    s = algorithm.settings
    actor, critics = Doubles(s.activation, policy=algorithm.actor), Doubles(s.activation, critics=algorithm.critics)
    heat = Doubles(s.activation, policy=algorithm.actor)
    heat.flat = torch.tensor([math.log(s.temperature)], dtype=torch.float64)
    heat.first, heat.second = torch.zeros(2, 1, dtype=torch.float64)
    aim = s.target_entropy if s.target_entropy != "auto" else 0.98 * math.log(3) if spaces.actions else -2.0
    start, began, slow = actor.flat.clone(), critics.flat.clone(), critics.flat.clone()
    assert torch.equal(tensor(flat_of(critics=algorithm.critic_targets)), slow)

    def considered(obs, normal, judges, flat=None, judged_by=None):
        """E[Q], E[log pi] and what is optimised over the actions of the policy, each (M,)."""
        if spaces.actions:
            logs = actor("policy", obs, flat).log_softmax(-1)
            q = torch.minimum(judges("q1", obs, judged_by), judges("q2", obs, judged_by))
            return (logs.exp() * q).sum(-1), (logs.exp() * logs).sum(-1)
        action, logs = drawn(actor, obs, normal, flat)
        pair = [judges(head, beside(obs, action), judged_by)[:, 0] for head in ("q1", "q2")]
        return torch.minimum(*pair), logs

    def values(obs, rows, flat):
        if spaces.actions:
            return [critics(q, obs, flat)[torch.arange(ROWS), torch.as_tensor(rows["action"])] for q in ("q1", "q2")]
        taken = tensor(rows["raw_action"]).tanh()
        return [critics(q, beside(obs, taken), flat)[:, 0] for q in ("q1", "q2")]

    for number in range(4):
        rows = segment(number, spaces, "truncated" if number % 2 else "terminated")
        rng, obs, alpha = generator_of(algorithm), rows["obs"], float(heat.flat.exp())
        partial, coefficient, after = slow_returns(rows, s, alpha)
        first, second = (None, None) if spaces.actions else (normal_of(rng, (ROWS, 2)) for _ in range(2))
        q, logs = considered(after, first, critics, None, slow)
        target = partial + coefficient * (q - alpha * logs)

        def critic_loss(flat, obs=obs, rows=rows, target=target):
            return sum(((q - target) ** 2).mean() / 2 for q in values(obs, rows, flat))

        wanted = {"critic_loss": float(critic_loss(critics.flat)), "temperature": alpha, "noise": 0.0}
        wanted["value"] = float(torch.stack(values(obs, rows, critics.flat)).mean())
        wanted["gradient_norm"] = critics.step(critic_loss, 0.03, s.max_gradient_norm)

        def actor_loss(flat, obs=obs, second=second, alpha=alpha):
            q, logs = considered(obs, second, critics, flat)
            return (alpha * logs - q).mean()

        wanted["actor_loss"] = float(actor_loss(actor.flat))
        entropy = -considered(obs, second, critics)[1].mean()
        wanted["entropy"] = float(entropy)
        actor.step(actor_loss, 0.02, s.max_gradient_norm)
        if s.temperature_learning_rate:
            heat.step(lambda flat, e=entropy: flat[0] * (e - aim), s.temperature_learning_rate, 0)
        slow = slow + 0.4 * (critics.flat - slow)
        metrics, priorities = learned(algorithm, learned_from(algorithm, rows), Clock(env_steps=9, updates=number))
        assert priorities is None
        assert metrics == pytest.approx({name: one for name, one in wanted.items() if name != "noise"}, rel=3e-3)
        assert_same_way(flat_of(policy=algorithm.actor), actor.flat, start, near=5e-3)
        assert_same_way(flat_of(critics=algorithm.critics), critics.flat, began, near=5e-3)
        assert_same_way(flat_of(critics=algorithm.critic_targets), slow, began, near=5e-3)
        assert float(algorithm.log_temperature.detach()) == pytest.approx(float(heat.flat), rel=1e-3, abs=1e-6)
        assert algorithm.weights()[0] == 0


DDPG_OPTIONS = [
    ("ddpg", {}),
    ("ddpg", {"n_step": 3, "critic_decay": 0.3, "max_gradient_norm": 0.2, "activation": "tanh"}),
    ("td3", {}),
    ("td3", {"policy_delay": 3, "target_noise": 0.4, "target_noise_clip": 0.3, "n_step": 2}),
    ("td3", {"policy_delay": 1, "target_noise": 0.0}),
]


@pytest.mark.parametrize(("name", "settings"), DDPG_OPTIONS)
def test_ddpg_and_td3_take_the_steps_of_a_plain_computation(name, settings):
    algorithm = agent(name, **EXPLORES, **settings)
    s, heads = algorithm.settings, ("q1", "q2")[: 1 + (name == "td3")]
    actor, critics = Doubles(s.activation, policy=algorithm.actor), Doubles(s.activation, critics=algorithm.critics)
    start, began = actor.flat.clone(), critics.flat.clone()
    slow_actor, slow_critics = actor.flat.clone(), critics.flat.clone()
    delay = s.policy_delay if name == "td3" else 1
    for number in range(5):
        rows = segment(number, BOX, "truncated" if number % 2 else "terminated")
        del rows["raw_action"]
        partial, coefficient, after = slow_returns(rows, s)
        following = actor("policy", after, slow_actor).tanh()
        if name == "td3":
            noise = s.target_noise * normal_of(generator_of(algorithm), (ROWS, 2))
            following = (following + noise.clip(-s.target_noise_clip, s.target_noise_clip)).clip(-1, 1)
        judged = [critics(head, beside(after, following), slow_critics)[:, 0] for head in heads]
        target = partial + coefficient * torch.stack(judged).min(0).values
        # Bounds are (-3, 1) and (0, 8).
        taken = tensor(rows["action"]) / tensor([2, 4]) + tensor([0.5, -1])

        def critic_loss(flat, rows=rows, taken=taken, target=target):
            each = [critics(head, beside(rows["obs"], taken), flat)[:, 0] for head in heads]
            return sum(((q - target) ** 2).mean() / 2 for q in each)

        def decayed(flat, loss=critic_loss):
            return loss(flat) + s.critic_decay / 2 * (flat**2).sum()

        def actor_loss(flat, obs=rows["obs"]):
            return -critics("q1", beside(obs, actor("policy", obs, flat).tanh())).mean()

        each = [critics(head, beside(rows["obs"], taken)).mean() for head in heads]
        wanted = {"critic_loss": float(critic_loss(critics.flat)), "value": float(torch.stack(each).mean())}
        wanted["gradient_norm"] = critics.step(decayed, 0.03, s.max_gradient_norm)
        wanted["noise"] = 0.9 - 0.7 * min(1, 200 * number / 500)
        if number % delay == 0:
            wanted["actor_loss"] = float(actor_loss(actor.flat))
            actor.step(actor_loss, 0.02, s.max_gradient_norm)
            slow_actor = slow_actor + 0.4 * (actor.flat - slow_actor)
            slow_critics = slow_critics + 0.4 * (critics.flat - slow_critics)
        clock = Clock(env_steps=200 * number, updates=number)
        metrics, priorities = learned(algorithm, learned_from(algorithm, rows), clock)
        assert priorities is None
        assert metrics == pytest.approx(wanted, rel=3e-3, abs=1e-6)
        assert_same_way(flat_of(policy=algorithm.actor), actor.flat, start, near=5e-3)
        assert_same_way(flat_of(critics=algorithm.critics), critics.flat, began, near=5e-3)
        assert_same_way(flat_of(critics=algorithm.critic_targets), slow_critics, began, near=5e-3)
        assert_same_way(flat_of(policy=algorithm.actor_target), slow_actor, start, near=5e-3)
        assert algorithm.weights()[0] == pytest.approx(wanted["noise"])


@pytest.mark.parametrize(("name", "spaces"), [("sac", BOX), ("sac", NUMBERED), ("ddpg", BOX), ("td3", BOX)])
def test_the_actors_loss_adds_nothing_to_the_gradients_of_the_critics(name, spaces):
    algorithm = agent(name, spaces)
    metrics, _ = learned(algorithm, learned_from(algorithm, segment(1, spaces)), Clock())
    assert float(algorithm.critic_optimiser.gradient.norm()) == pytest.approx(metrics["gradient_norm"], rel=1e-6)
    assert algorithm.actor_optimiser.gradient.norm() > 0
    assert all(one.grad is None for one in algorithm.critic_targets.parameters())
