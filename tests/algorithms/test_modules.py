"""An author's torch modules: what is published, loaded, kept, resumed and begun anew."""

import collections
import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from mlxe_async.algorithms import Acting, Algorithm, Clock, Priorities
from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.interface import NoSettings
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.rows import Spaces

SPACES = Spaces((4,), actions=2)
CLOCK = Clock(env_steps=10)


class Noise:
    """A helper with a state of its own."""

    def __init__(self):
        self.level, self.place = 1.0, np.zeros(2)


class Everything(Algorithm):
    """Modules of several dtypes, shared weights, two optimisers, a scheduler, numbers and helpers."""

    def build(self):
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh())
        self.heads = {"policy": nn.Linear(3, 2), "exact": nn.Linear(3, 1, dtype=torch.float64)}
        self.tied = nn.ModuleList([self.body[0]])
        self.scale = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))

    def build_learner(self):
        self.critic = nn.Linear(4, 1)
        self.target = copy.deepcopy(self.critic)
        self.optimiser = torch.optim.AdamW([*self.body.parameters(), *self.heads["policy"].parameters()], 0.1)
        self.other = torch.optim.SGD(self.critic.parameters(), 0.1, momentum=0.9)
        self.third = torch.optim.RMSprop([self.scale], 0.1)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimiser, 1.0, 0.1, 10)
        self.noise, self.best, self.counts = Noise(), None, collections.defaultdict(int, {"seen": 0, "of": [1, 2.5]})

    def policy(self, obs, acting=None):
        return Categorical(self.heads["policy"](self.body(obs)) * self.scale)

    def update(self, batch, clock):
        obs = self.tensors(batch)["obs"]
        policy = self.policy(obs)
        loss = -policy.log_prob(torch.randint(2, (len(obs),))).mean()
        critic = (self.critic(obs)[:, 0] - 1).square().mean()
        for optimiser in (self.optimiser, self.other, self.third):
            optimiser.zero_grad()
        (loss + critic).backward()
        for optimiser in (self.optimiser, self.other, self.third):
            optimiser.step()
        self.scheduler.step()
        self.noise.place += self.rng.normal(size=2)
        self.noise.level *= 0.9
        self.best = loss.item() if self.best is None else min(self.best, loss.item())
        self.counts["seen"] += len(obs)
        self.counts["of"][0] += 1
        return {"loss": loss}


def made(seed=0, learns=True, kind=Everything):
    return kind(NoSettings(), SPACES, seed=seed, learns=learns)


def batch(seed):
    return {"obs": np.random.default_rng(seed).normal(size=(8, 4)).astype(np.float32)}


def test_what_is_published_is_each_parameter_and_buffer_once_and_comes_back_to_the_last_bit():
    one, two = made(), made(seed=1, learns=False)
    for seed in range(3):
        learned(one, batch(seed), CLOCK)
    one.heads["exact"].weight.data.fill_(1 / 3)
    two.load(one.weights())
    names = [name for name, _ in one.parameters]
    assert len(names) == len(set(names))
    assert "body.1.num_batches_tracked" in names
    assert not any(name.startswith(("tied", "critic")) for name in names)
    for mine, theirs in zip(one._modules._published(), two._modules._published(), strict=True):
        assert mine[1].dtype == theirs[1].dtype
        assert torch.equal(mine[1], theirs[1]), mine[0]
    assert two.heads["exact"].weight[0, 0].item() == 1 / 3
    assert two.body[1].num_batches_tracked.item() == 3


def test_a_run_that_goes_on_from_a_state_is_the_one_that_went_on():
    one = made()
    before = one.state()
    for seed in range(3):
        learned(one, batch(seed), CLOCK)
    state = one.state()
    assert {name: (a.dtype, a.shape) for name, a in before.items()} == {n: (a.dtype, a.shape) for n, a in state.items()}
    two = made(seed=7)
    two.restore(state)
    for seed in range(3, 6):
        first, second = (learned(some, batch(seed), CLOCK) for some in (one, two))
        assert first == second
    np.testing.assert_array_equal(one.weights(), two.weights())
    assert (one.noise.level, one.best, one.counts) == (two.noise.level, two.best, two.counts)
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, two.state()[name], err_msg=name)
    two.restore(before)  # before the first step: optimisers know nothing again
    assert not two.optimiser.state
    assert two.best is None


def test_who_draws_torch_numbers_elsewhere_changes_nothing_in_what_is_learned():
    one, two = made(), made()
    for seed in range(3):
        learned(one, batch(seed), CLOCK)
        torch.manual_seed(seed)
        torch.randn(100)
        learned(two, batch(seed), CLOCK)
    np.testing.assert_array_equal(one.weights(), two.weights())


def test_acting_by_the_modules_of_an_executor_leaves_torchs_numbers_to_others():
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    made(learns=False)
    assert torch.equal(torch.randn(3), expected)


class DrawsByTorch(Everything):
    def act(self, obs, rng, acting):
        with torch.no_grad():
            drawn = torch.distributions.Categorical(logits=self.policy(torch.from_numpy(obs)).logits.float())
            action = drawn.sample()
            return {"action": action.numpy(), "log_prob": drawn.log_prob(action).numpy()}


def test_draws_of_torch_in_a_rollout_follow_from_its_generator():
    executor, obs = made(learns=False, kind=DrawsByTorch), np.zeros((50, 4), np.float32)
    drawn = []
    for seed in (1, 1, 2):
        rng = np.random.default_rng(seed)
        executor.begin_rollout(rng)
        drawn.append(executor.act(obs, rng, Acting())["action"].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_learning_on_from_weights_forgets_moments_and_keeps_what_only_learns():
    one = made()
    learned(one, batch(0), CLOCK)
    critic, flat = one.critic.weight.clone(), one.weights()
    learned(one, batch(1), CLOCK)
    one.critic.load_state_dict({"weight": critic, "bias": one.critic.bias.detach()})
    one.set_weights(flat)
    np.testing.assert_array_equal(one.weights(), flat)
    assert not one.optimiser.state
    assert torch.equal(one.critic.weight, critic)


def test_moments_that_became_infinite_cost_nothing_else():
    one = made()
    learned(one, batch(0), CLOCK)
    flat, critic = one.weights(), one.critic
    one.optimiser.state[one.body[0].weight]["exp_avg"].fill_(np.nan)
    one.set_weights(flat)
    assert one.critic is critic
    assert not one.optimiser.state


def test_what_became_infinite_begins_anew():
    one = made()
    flat = one.weights()
    one.critic.weight.data.fill_(np.inf)
    one.set_weights(flat)
    assert torch.isfinite(one.critic.weight).all()
    learned(one, batch(0), CLOCK)
    assert np.isfinite(one.weights()).all()


def test_a_number_of_64_bits_that_is_not_finite_is_not_published_as_one_that_is():
    one = made()
    one.heads["exact"].weight.data[0, 0] = np.nan
    assert np.isnan(one.weights()).any()


def test_several_versions_act_each_by_its_own():
    one, flats = made(learns=False), [made(seed=seed).weights() for seed in range(3)]
    obs = np.random.default_rng(0).normal(size=(3, 20, 4)).astype(np.float32)
    together = one.greedy_many(np.stack(flats), obs)
    for version, flat in enumerate(flats):
        one.load(flat)
        np.testing.assert_array_equal(together[version], one.greedy(obs[version]))


class Forgets(Everything):
    def build_learner(self):
        super().build_learner()
        self.history, self.names = collections.deque(), {"a", "b"}


def test_what_no_state_can_hold_is_named():
    assert made(kind=Forgets)._modules.forgotten == ["history (deque)", "names (set)"]
    assert made()._modules.forgotten == []


class Huge(Everything):
    def build_learner(self):
        super().build_learner()
        self.big = 2**70


def test_a_number_that_is_too_large_is_refused_by_name():
    with pytest.raises(OverflowError, match="big: expected a whole number of at most 64 bits"):
        made(kind=Huge).state()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "returned a NoneType, expected what was measured"),
        (({}, None, None), "returned a tuple"),
        ({"mood": "good"}, "measured 'mood' as a str"),
    ],
)
def test_an_update_that_returns_something_else_is_told(found, words):
    class Odd(Everything):
        def update(self, batch, clock):
            return found

    with pytest.raises(TypeError, match=words):
        learned(made(kind=Odd), batch(0), CLOCK)


def test_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="Everything loading: expected"):
        made().load(np.zeros(3, np.float32))


def test_an_algorithm_without_modules_imports_no_torch():
    code = """
import sys, numpy as np
from mlxe_async.algorithms import Acting, Algorithm, load_algorithm
from mlxe_async.algorithms.interface import NoSettings
from mlxe_async.rows import Spaces
class Coin(Algorithm):
    def act(self, obs, rng, acting):
        return {"action": rng.integers(2, size=len(obs)), "log_prob": np.full(len(obs), np.log(0.5))}
    def update(self, batch, clock):
        return {}
coin = Coin(NoSettings(), Spaces((4,), actions=2), seed=0, learns=True)
coin.act(np.zeros((3, 4)), np.random.default_rng(0), Acting())
coin.load(coin.weights()); coin.restore(coin.state()); coin.set_weights(coin.weights())
for name in ("mlxe", "dqn", "ppo"):
    load_algorithm(name)
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


class One(Algorithm):
    def build(self):
        self.network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))

    def policy(self, obs, acting=None):
        return Categorical(self.network(obs))

    def update(self, batch, clock):
        return {}


def test_what_acts_is_handed_out_as_a_module_of_its_own():
    one = made(kind=One, learns=False)
    module = one.module()
    assert type(module) is nn.Sequential
    assert module is not one.network
    assert torch.equal(module[0].weight, one.network[0].weight)
    several = made().module()
    names = {name for name, _ in several.named_parameters()} | {name for name, _ in several.named_buffers()}
    assert {"body.0.weight", "heads.exact.weight", "scale", "body.1.running_mean"} <= names
    assert not any(name.startswith("critic") for name in names)


def test_importance_weights_may_be_annealed_by_environment_steps():
    how = Priorities("td", correction=0.4, correction_last=1.0, correction_steps=100)
    assert [how.correction_at(steps) for steps in (0, 50, 100, 1000)] == pytest.approx([0.4, 0.7, 1.0, 1.0])
    assert Priorities("td", correction=0.3).correction_at(10**6) == 0.3
    assert Priorities("uniform").correction_at(5) == 0.0
    with pytest.raises(ValueError, match="correction_steps of at least 1"):
        Priorities("td", correction_last=1.0)
    with pytest.raises(ValueError, match="largest_decay above 0"):
        Priorities("td", largest_decay=0.0)


class Agent:
    """An object of the author's own around its networks, which can be called."""

    def __init__(self):
        self.nets = [nn.Linear(4, 2)]
        self.itself, self.torch, self.count = self, torch, 0

    def __call__(self, obs):
        return self.nets[0](obs)


class Wrapped(One):
    def build(self):
        self.agent = Agent()
        self.network = self.agent.nets[0]

    def build_learner(self):
        self.optimiser = torch.optim.SGD(self.agent.nets[0].parameters(), 0.1)

    def policy(self, obs, acting=None):
        return Categorical(self.agent(obs))

    def update(self, batch, clock):
        self.optimiser.zero_grad()
        loss = self.policy(self.tensors(batch)["obs"]).logits.square().mean()
        loss.backward()
        self.optimiser.step()
        self.agent.count += 1
        return {"loss": loss}


def test_modules_within_an_object_of_the_authors_own_are_found():
    one, two = made(kind=Wrapped), made(seed=1, kind=Wrapped)
    assert [name for name, _ in one.parameters] == ["agent.nets.0.weight", "agent.nets.0.bias"]
    first = one.weights()
    learned(one, batch(0), CLOCK)
    assert not np.array_equal(one.weights(), first)
    two.restore(one.state())
    np.testing.assert_array_equal(one.weights(), two.weights())
    assert two.agent.count == 1


class Replaces(One):
    def update(self, batch, clock):
        self.network = nn.Sequential(*self.network) if clock.updates else nn.Linear(4, 2)
        return {}


def test_a_network_that_is_put_in_the_place_of_another_is_published_or_refused():
    one = made(kind=Replaces)
    one.network[0].weight.data.fill_(7.0)
    learned(one, batch(0), Clock(updates=1))
    assert (one.weights()[:12] == 7).all()
    one.network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))  # another one of the same shape
    np.testing.assert_array_equal(one.weights()[:12], one.network[0].weight.detach().numpy().ravel())
    learned(one, batch(0), Clock(updates=0))
    with pytest.raises(ValueError, match="expected the parameters and buffers that build made, got others of"):
        one.weights()
