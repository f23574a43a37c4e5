"""DQN's switches, C51 and Rainbow in numbers: the steps that a plain computation in double precision takes."""

import itertools

import numpy as np
import pytest
import torch
from plain import Plain, assert_same_way, generator_of, named, tensor

from mlxe_async.algorithms import Acting, Clock, load_algorithm
from mlxe_async.algorithms.c51 import cross_entropy
from mlxe_async.algorithms.parts.replay import tensors_of
from mlxe_async.algorithms.parts.value_fields import FLOOR
from mlxe_async.networks.noisy import draw
from mlxe_async.rows import Spaces

SPACES = Spaces((3,), actions=3)
ROWS = 24
ASKED = {"layers": (7, 6), "discount": 0.8, "n_step": 2, "target_every": 3, "target_rate": 0.4, "learning_rate": 0.02}
ASKED |= {"max_gradient_norm": 0.3, "anneal_steps": 1000, "learning_rate_last": 0.005}
ATOMS = {"v_min": -3.0, "v_max": 5.0, "atoms": 9}
ALL = {"dueling": True, "noisy": True, "prioritised": True}
CASES = [
    ("dqn", {"dueling": True}),
    ("dqn", {"noisy": True, "noise_sigma": 0.9, "double": False}),
    ("dqn", {**ALL, "value_scale": "survival", "average": 0.3}),
    ("dqn", {**ALL, "layers": (), "n_step": 1, "double": False}),
    ("c51", ATOMS | {"average": 0.3}),
    ("c51", {**ATOMS, "double": True, "dueling": True, "prioritised": True, "return_scale": 0.5}),
    ("rainbow", ATOMS),
    ("rainbow", {**ATOMS, "layers": (5,), "average": 0.3, "max_gradient_norm": 0.0}),
    ("rainbow", {**ATOMS, "noisy": False, "double": False}),
]


def agent(name="rainbow", learns=True, seed=3, **changed):
    kind = load_algorithm(name)
    return kind(kind.Settings.model_validate(ASKED | changed), SPACES, seed=seed, learns=learns)


def segment(seed, mark="terminated", length=ROWS):
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(length + 1, 3)).astype(np.float32)
    rows = {name: np.zeros(length, np.uint8) for name in ("terminated", "truncated", "cut")}
    rows[mark][-1] = 1
    rows |= {"obs": obs[:-1], "next_obs": obs[1:].copy(), "action": rng.integers(0, 3, length)}
    reward = rng.choice([-2.0, 0.0, 1.0, 4.0], length)  # whole numbers of atoms beside others
    return rows | {"reward": reward.astype(np.float32)}


def slow_returns(rows, s):
    """partial, coefficient and what is bootstrapped from of each row, by the book."""
    length, found = len(rows["reward"]), []
    survival = getattr(s, "value_scale", "return") == "survival"
    reward = np.full(length, 1 - s.discount) if survival else rows["reward"] * s.return_scale
    for t in range(length):
        count = min(s.n_step, length - t)
        total = sum(s.discount**i * reward[t + i] for i in range(count))
        ended = rows["terminated"][t + count - 1]
        found.append((total, 0.0 if ended else s.discount**count, rows["next_obs"][t + count - 1]))
    return [np.array(column) for column in zip(*found, strict=True)]


def slow_noise(algorithm, rng):
    """Epsilon of each mean by name, layer by layer; Fortunato et al. 2018, eq. 10 and 11."""
    found = {}
    for name, shape in named(algorithm):
        if name.endswith(".weight"):
            q, p = reversed(
                [np.sign(x) * np.sqrt(np.abs(x)) for x in (rng.standard_normal(n, np.float32) for n in shape[::-1])]
            )
            found |= {name: tensor(np.outer(q, p)), name.replace("weight", "bias"): tensor(q)}
    return found


class Slow:
    """Values of a network by the book, of numbers or distributions, with or without streams and noise."""

    def __init__(self, algorithm):
        self.s, self.c51 = algorithm.settings, hasattr(algorithm, "support")
        self.plain = Plain(algorithm, eps=1.5e-4 if self.c51 else 1e-8)
        if self.c51:
            self.support = torch.linspace(self.s.v_min, self.s.v_max, self.s.atoms, dtype=torch.float64)

    def outputs(self, flat, noise, obs):
        """(M, A), or logits (M, A, K)."""
        each = self.s.atoms if self.c51 else 1
        if self.s.dueling:
            value, advantage = (self.plain(head, obs, flat, noise) for head in ("value", "advantage"))
            value, advantage = value.reshape(len(obs), 1, each), advantage.reshape(len(obs), 3, each)
            found = torch.stack([value[:, 0] + advantage[:, a] - advantage.sum(1) / 3 for a in range(3)], 1)
        else:
            found = self.plain("q", obs, flat, noise).reshape(len(obs), 3, each)
        return found if self.c51 else found[..., 0]

    def mean(self, outputs):
        return (outputs.softmax(-1) * self.support).sum(-1) if self.c51 else outputs

    def targets(self, following, chosen, partial, coefficient):
        """What rows are to become: numbers (M,), or distributions (M, K) by the loop of the paper."""
        taken = following[torch.arange(len(chosen)), chosen]
        if not self.c51:
            return tensor(partial) + tensor(coefficient) * self.scaled(taken)
        result, gap = torch.zeros_like(taken), (self.s.v_max - self.s.v_min) / (self.s.atoms - 1)
        for row, atom in itertools.product(range(len(chosen)), range(self.s.atoms)):
            moved = min(max(partial[row] + coefficient[row] * float(self.support[atom]), self.s.v_min), self.s.v_max)
            b = (moved - self.s.v_min) / gap
            low, high, mass = int(np.floor(b)), int(np.ceil(b)), taken[row].softmax(-1)[atom]
            if low == high:
                result[row, low] += mass
            else:
                result[row, low] += mass * (high - b)
                result[row, high] += mass * (b - low)
        return result

    def scaled(self, q):
        return q.sigmoid() if getattr(self.s, "value_scale", "return") == "survival" else q

    def losses(self, outputs, target):
        if self.c51:
            return -(target * outputs.log_softmax(-1)).sum(-1)
        if getattr(self.s, "value_scale", "return") == "survival":
            return -(target * outputs.sigmoid().log() + (1 - target) * (1 - outputs.sigmoid()).log())
        far = (target - outputs).abs()
        return torch.where(far > 1, far - 0.5, far**2 / 2)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_updates_take_the_steps_of_a_plain_computation(name, settings):
    algorithm = agent(name, **settings)
    s, slow, start = algorithm.settings, Slow(algorithm), algorithm.weights()[:-1]
    plain, every = slow.plain, torch.arange(ROWS)
    frozen, average, noises = plain.flat.clone(), plain.flat.clone(), []
    for number in range(5):
        rows = segment(number, mark=("terminated", "truncated", "cut")[number % 3])
        weight = np.random.default_rng(number).uniform(0.2, 1, ROWS).astype(np.float32)
        partial, coefficient, cut = slow_returns(rows, s)
        rng = generator_of(algorithm)
        of_target, of_learned = ((slow_noise(algorithm, rng) if s.noisy else None) for _ in range(2))
        noises += [of_target, of_learned] if s.noisy else []
        if number % s.target_every == 0:
            frozen = frozen + s.target_rate * (plain.flat - frozen)
        following = slow.outputs(frozen, of_target, cut)
        choosing = slow.outputs(plain.flat, of_learned, cut) if s.double else following
        target = slow.targets(following, slow.mean(choosing).argmax(-1), partial, coefficient)
        action = torch.as_tensor(rows["action"])

        def taken(flat, noise=of_learned, rows=rows, action=action):
            return slow.outputs(flat, noise, rows["obs"])[every, action]

        losses = slow.losses(taken(plain.flat), target)
        value, expected = slow.scaled(slow.mean(taken(plain.flat))), target
        wanted = {"loss": float((losses * tensor(weight)).mean())}
        if slow.c51:
            expected = (target * slow.support).sum(-1)
            wanted["at_ends"] = float((target[:, 0] + target[:, -1]).mean())
        wanted |= {"value": float(value.mean()), "td_error": float((expected - value).abs().mean())}
        wanted["learning_rate"] = 0.02 - 0.015 * min(1, 300 * number / 1000)
        wanted["epsilon"] = 0.0 if s.noisy else 1 - 0.95 * min(1, 300 * number / 10_000)
        wanted["gradient_norm"] = plain.step(
            lambda flat, t=target, w=weight, q=taken: (slow.losses(q(flat), t) * tensor(w)).mean(),
            wanted["learning_rate"],
            s.max_gradient_norm,
        )
        average = average + (s.average or 1.0) * (plain.flat - average)
        metrics, priorities = algorithm.update(
            rows | algorithm.derive(rows) | {"weight": weight}, Clock(env_steps=300 * number, updates=number)
        )
        assert metrics == pytest.approx(wanted, rel=2e-3, abs=1e-5)
        assert_same_way(algorithm.weights()[:-1], average, start, near=5e-3)
        if s.prioritised:
            error = losses if slow.c51 else (target - value).abs()
            np.testing.assert_allclose(priorities, error.detach() + 0.001, rtol=2e-3, atol=1e-4)
        else:
            assert priorities is None
    drawn = [torch.cat([one.reshape(-1) for one in noise.values()]) for noise in noises]
    assert all(not torch.equal(*pair) for pair in itertools.combinations(drawn, 2))
    assert len(noises) == (10 if s.noisy else 0)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_executors_see_the_values_that_are_learned(name, settings):
    """By numpy as by torch; under noise while acting, never in tests; the log-probability is that of the noise."""
    algorithm, obs = agent(name, **settings), segment(0)["obs"]
    flat = algorithm.weights()
    algorithm.load(flat)
    slow = Slow(algorithm)
    quiet = slow.mean(slow.outputs(tensor(flat[:-1]), None, obs)).numpy()
    np.testing.assert_allclose(algorithm.scores(algorithm.network(obs)), quiet, atol=2e-5)
    learned = algorithm.scores(algorithm.learned(torch.as_tensor(obs))).detach().numpy()
    np.testing.assert_allclose(learned, quiet, atol=2e-5)
    np.testing.assert_array_equal(algorithm.greedy(obs), quiet.argmax(-1))
    flats = np.stack([flat, agent(name, seed=4, **settings).weights()])
    both = algorithm.greedy_many(flats, np.stack([obs, obs]))
    np.testing.assert_array_equal(both[0], quiet.argmax(-1))
    assert (both[1] != both[0]).any()
    if not algorithm.settings.noisy:
        return
    for number in range(3):
        noise = slow_noise(algorithm, np.random.default_rng(number))
        loud = slow.mean(slow.outputs(tensor(flat[:-1]), noise, obs)).numpy()
        acted = algorithm.act(obs, np.random.default_rng(number), Acting(steps=number, rollouts=number))
        np.testing.assert_array_equal(acted["action"], loud.argmax(-1))
        assert not acted["log_prob"].any()
        assert np.abs(loud - quiet).max() > 1e-2
        np.testing.assert_array_equal(algorithm.greedy(obs), quiet.argmax(-1))


def test_noise_is_drawn_anew_with_each_step_or_less_often():
    obs = segment(0)["obs"]
    for every, changes in ((1, [True] * 4), (3, [False, False, True, False]), (0, [False] * 4)):
        algorithm, seen = agent(noise_every=every), []
        clock, rng = Acting(steps=9), np.random.default_rng(0)
        for _ in range(5):
            algorithm.act(obs, rng, clock)
            seen.append(algorithm.network(obs))
            clock.steps += 1
        assert [bool((a != b).any()) for a, b in itertools.pairwise(seen)] == changes


def test_sigmas_begin_as_they_are_told_and_convolutions_have_none():
    kind, pictures = load_algorithm("rainbow"), Spaces((1, 36, 36), "|u1", 2)
    algorithm = kind(kind.Settings(body="nature", layers=(8,), noise_sigma=0.3), pictures, seed=0, learns=True)
    arrays = {name: leaf.detach().numpy() for name, leaf in algorithm.network.named_parameters()}
    sigmas = {name for name in arrays if name.endswith("sigma")}
    assert sigmas == {f"{head}.{k}.{part}_sigma" for head in ("value", "advantage") for k in (0, 2)
                      for part in ("weight", "bias")}  # fmt: skip
    np.testing.assert_allclose(arrays["value.0.weight_sigma"], 0.3 / 8, rtol=1e-6)  # 64 features
    np.testing.assert_allclose(arrays["value.2.bias_sigma"], 0.3 / np.sqrt(8), rtol=1e-6)
    assert np.abs(arrays["value.0.weight"]).max() <= 1 / 8
    obs = np.random.default_rng(0).integers(0, 256, (5, 1, 36, 36), dtype=np.uint8)
    seen = torch.as_tensor(obs)
    quiet = algorithm.scores(algorithm.network(obs))
    np.testing.assert_allclose(algorithm.scores(algorithm.learned(seen)).detach(), quiet, atol=1e-4)
    draw(algorithm.network, np.random.default_rng(7))
    loud = algorithm.scores(algorithm.network(obs))
    np.testing.assert_allclose(algorithm.scores(algorithm.network(seen)).detach(), loud, atol=1e-4)
    assert np.abs(loud - quiet).max() > 1e-3


def test_the_memory_is_told_how_to_draw():
    how = agent("dqn", prioritised=True, priority_exponent=0.7, priority_correction_steps=200).priorities
    assert (how.kind, how.exponent, how.largest_decay) == ("td", 0.7, 0.99)
    assert [how.correction_at(steps) for steps in (0, 100, 500)] == pytest.approx([0.4, 0.7, 1.0])
    assert agent("rainbow").priorities.exponent == 0.5
    assert agent("dqn").priorities.kind == agent("c51").priorities.kind == "uniform"


def test_atoms_out_of_order_are_refused():
    with pytest.raises(ValueError, match=r"v_min: got 2\.0, expected less than v_max = 2\.0"):
        agent("c51", v_min=2.0, v_max=2.0)


def test_streams_share_all_layers_but_the_last_hidden_one():
    def sizes(**asked):
        found = agent(asked.pop("name", "dqn"), **asked).network
        chains = {name: getattr(found, name) for name in ("common", "q", "value", "advantage")}
        layers = {
            name: [one for one in chain if isinstance(one, torch.nn.Linear)] for name, chain in chains.items() if chain
        }
        return {name: tuple(layer.out_features for layer in chain) for name, chain in layers.items()}

    assert sizes(dueling=True, layers=(9, 8, 7)) == {"common": (9, 8), "value": (7, 1), "advantage": (7, 3)}
    assert sizes(name="c51", layers=(9,), dueling=True, atoms=5) == {"value": (9, 5), "advantage": (9, 15)}
    assert sizes(layers=(9, 8)) == {"q": (9, 8, 3)}


@pytest.mark.parametrize("prioritised", [False, True])
def test_errors_that_have_a_gradient_are_priorities_too(prioritised):
    algorithm = agent("dqn", prioritised=prioritised)
    found = algorithm.judged(torch.tensor([-2.0, 0.5], requires_grad=True))
    if prioritised:
        np.testing.assert_allclose(found, np.array([2.0, 0.5]) + FLOOR, rtol=1e-6)
    else:
        assert found is None


def test_the_cross_entropy_moves_what_is_learned_and_not_its_target():
    target, learned = (torch.full((2, 3), 1 / 3, requires_grad=True) for _ in range(2))
    cross_entropy(target, learned).sum().backward()
    assert target.grad is None
    np.testing.assert_allclose(learned.grad, -np.full((2, 3), 1 / 3), rtol=1e-6)


def test_what_is_told_of_a_loss_of_distributions_has_no_gradient():
    algorithm = agent("c51", **ATOMS)
    rows = segment(0)
    batch = rows | algorithm.derive(rows) | {"weight": np.ones(ROWS, np.float32)}
    loss, losses, found = algorithm.loss(tensors_of(algorithm, batch))
    assert loss.requires_grad
    assert not any(one.requires_grad for one in (losses, *found.values()))
