"""Losses and networks that somebody might write in an own file, each a change of a built-in algorithm."""

import numpy as np
import torch

from mlxe_async.algorithms import dqn, ppo
from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.interface import Priorities
from mlxe_async.algorithms.mlxe import paper as mlxe
from mlxe_async.networks import TorchNetwork

NASTY = {}


def nasty(base):
    def add(change):
        NASTY[change.__name__] = (base, change)
        return change

    return add


def extra(base):
    """A class with one more term in its loss."""

    def add(term):
        def loss(self, rows):
            loss, *more = super(kind, self).loss(rows)
            return (loss + term(self, rows), *more)

        kind = type(term.__name__, (base,), {"loss": loss})
        NASTY[term.__name__] = (base, kind)
        return term

    return add


PPO, MLxE, DQN = ppo.PPO, mlxe.MLxE, dqn.DQN


@extra(PPO)
def weight_decay(self, _rows):
    return 0.1 * sum(leaf.square().sum() for leaf in self.network.leaves.values())


@extra(MLxE)
def weight_decay_on_biases(self, _rows):
    return sum(leaf.abs().sum() for name, leaf in self.network.leaves.items() if "bias" in name)


@extra(DQN)
def residual_gradient(self, rows):
    return 0.5 * self.scores(self.network, rows["cut_obs"]).max(-1).values.square().mean()


@extra(PPO)
def second_look_at_the_same_rows(self, rows):
    return self.network(rows["obs"], "value")[0].mean() * self.network(rows["obs"], "value")[0].std()


@extra(PPO)
def gradient_penalty(self, rows):
    obs = rows["obs"].clone().requires_grad_()
    (slope,) = torch.autograd.grad(self.network(obs, "value")[0].sum(), obs, create_graph=True)
    return slope.square().sum(-1).mean()


@extra(MLxE)
def smoothness_to_mirrored_rows(self, rows):
    return (self.network(rows["obs"], "policy")[0] - self.network(-rows["obs"], "policy")[0]).square().mean()


@extra(DQN)
def conservative_values(self, rows):
    return self.scores(self.network, rows["obs"]).logsumexp(-1).mean()


@extra(PPO)
def only_where_large(self, rows):
    value = self.network(rows["obs"], "value")[0]
    return torch.where(value.abs() > value.abs().median(), value, torch.zeros_like(value)).sum()


@extra(PPO)
def tiny(self, rows):
    return 1e-3 * self.network(rows["obs"], "policy")[0].mean()


@extra(PPO)
def huge(self, rows):
    return 1e3 * self.network(rows["obs"], "value")[0].mean()


@extra(MLxE)
def by_another_column(self, rows):
    return (rows["step"].float() * self.network(rows["obs"], "value")[0][:, 0]).mean()


@extra(DQN)
def by_flags(self, rows):
    return ((1 - rows["terminated"]) * self.scores(self.network, rows["obs"])[:, 0]).mean()


@extra(PPO)
def after_so_many_calls(self, rows):
    self.calls = getattr(self, "calls", 0) + 1
    return self.calls * self.network(rows["obs"], "value")[0].mean()


@extra(PPO)
def with_a_detour_through_double(self, rows):
    return self.network(rows["obs"], "value")[0].double().exp().log().float().mean()


@extra(PPO)
def with_views(self, rows):
    return self.network(rows["obs"], "policy")[0].T[0].flip(0)[::2].sum()


@extra(MLxE)
def sorted_values(self, rows):
    return self.network(rows["obs"], "value")[0].sort(0).values[:3].sum()


@extra(DQN)
def quantile(self, rows):
    return self.scores(self.network, rows["obs"]).quantile(0.9)


@extra(PPO)
def complex_numbers(self, rows):
    return torch.fft.rfft(self.network(rows["obs"], "value")[0][:, 0]).abs().mean()


@extra(PPO)
def drawn_anew(self, rows):
    keep = torch.rand(len(rows["obs"]), generator=torch.Generator().manual_seed(3)) < 0.5
    return self.network(rows["obs"], "value")[0][keep].sum()


@extra(DQN)
def straight_through(self, rows):
    values = self.scores(self.network, rows["obs"])
    return (values + (values.round() - values).detach()).square().mean()


@extra(MLxE)
def through_a_checkpoint(self, rows):
    look = lambda obs: self.network(obs, "value")[0].square().mean()  # noqa: E731 - as somebody would write it
    return torch.utils.checkpoint.checkpoint(look, rows["obs"], use_reentrant=False)


@nasty(PPO)
class EntropyByTheClock(PPO):
    def update(self, batch, clock):
        self._weight = 0.5 / (1 + clock.updates)
        return super().update(batch, clock)

    def loss(self, rows):
        loss, found = super().loss(rows)
        logits = self.network(rows["obs"], "policy")[0].log_softmax(-1)
        return loss - self._weight * Categorical(logits).entropy().mean(), found


@nasty(PPO)
class AdaptiveKL(PPO):
    """The coefficient starts at 0, and is there from the second update on."""

    coefficient = 0.0

    def update(self, batch, clock):
        self.coefficient = 5.0 * clock.updates
        return super().update(batch, clock)

    def loss(self, rows):
        loss, found = super().loss(rows)
        log_prob = self.network(rows["obs"], "policy")[0].log_softmax(-1).gather(-1, rows["action"][:, None])[:, 0]
        return loss + self.coefficient * ppo.correction.approximate_kl(log_prob, rows["log_prob"]), found


@nasty(PPO)
class DualClip(PPO):
    def loss(self, rows):
        logits, value = self.network(rows["obs"], "policy", "value")
        log_prob = logits.log_softmax(-1).gather(-1, rows["action"][:, None])[:, 0]
        ratio, advantage = (log_prob - rows["log_prob"]).exp(), rows["advantage"]
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        gain = torch.where(advantage < 0, torch.maximum(gain, 3 * advantage), gain)
        return -gain.mean() + 0.5 * (value[:, 0] - rows["target"]).square().mean(), {
            "policy_loss": gain.mean().detach()
        }


@nasty(PPO)
class ClippedValue(PPO):
    def loss(self, rows):
        loss, found = super().loss(rows)
        value, old = self.network(rows["obs"], "value")[0][:, 0], rows["target"] - rows["advantage"]
        bounded = old + (value - old).clamp(-0.2, 0.2)
        more = torch.maximum((value - rows["target"]).square(), (bounded - rows["target"]).square()).mean()
        return loss + more, found


@nasty(PPO)
class NoCritic(PPO):
    def loss(self, rows):
        log_probs = self.network(rows["obs"], "policy")[0].log_softmax(-1)
        chosen = log_probs.gather(-1, rows["action"][:, None])[:, 0]
        loss = -(chosen * rows["advantage"]).mean()
        return loss, {"policy_loss": loss.detach()}


@nasty(PPO)
class OtherMetrics(PPO):
    def loss(self, rows):
        loss, _ = super().loss(rows)
        return loss, {"my_loss": loss.detach(), "constant": 3.0}


@nasty(PPO)
class NoMetrics(PPO):
    def loss(self, rows):
        return super().loss(rows)[0], {}


@nasty(PPO)
class InPlace(PPO):
    def loss(self, rows):
        value = self.network(rows["obs"], "value")[0][:, 0]
        value = value.mul(2).sub_(rows["target"]).square_()
        return value.mean(), {"value_loss": value.mean().detach()}


@nasty(MLxE)
class HugeHuber(MLxE):
    def loss(self, rows):
        loss, found = super().loss(rows)
        value = self.network(rows["obs"], "value")[0][:, 0]
        return loss + torch.nn.functional.huber_loss(value, torch.full_like(value, 3.0), delta=10.0), found


@nasty(MLxE)
class WideClamp(MLxE):
    def loss(self, rows):
        log_prob = self.network(rows["obs"], "policy")[0].log_softmax(-1).gather(-1, rows["action"][:, None])[:, 0]
        loss = -(log_prob * rows["partial"].clamp(-10, 10)).mean()
        return loss, {"loss": loss.detach()}


@nasty(MLxE)
class OwnTargets(MLxE):
    def targets(self, rows, ratio, value):
        target, advantage = super().targets(rows, ratio, value)
        return target + 1, advantage.clamp(-0.1, 0.1)


@nasty(MLxE)
class OwnBootstrap(MLxE):
    def bootstrapped(self, rows):
        return {name: 0.5 * value for name, value in super().bootstrapped(rows).items()}


@nasty(MLxE)
class OwnColumns(MLxE):
    def columns(self, batch):
        return super().columns(batch) | {"partial": 2 * batch["partial"]}


@nasty(MLxE)
class Weighted(MLxE):
    def loss(self, rows):
        return super().loss(rows | {"weight": rows["weight"].square()})


@nasty(DQN)
class TwiceTheTarget(DQN):
    def value(self, q):
        return 2 * q


@nasty(DQN)
class Prioritised(DQN):
    priorities = Priorities("td")

    def update(self, batch, clock):
        metrics, _ = super().update(batch, clock)
        with torch.no_grad():
            error = self.loss(self.tensors_of(batch))[1]
        return metrics, error.abs().numpy() + 0.01


@nasty(DQN)
class Munchausen(DQN):
    def loss(self, rows):
        log_pi = (self.scores(self.network, rows["obs"]) / 0.1).log_softmax(-1).detach()
        bonus = log_pi.gather(-1, rows["action"][:, None])[:, 0].clamp(-1, 0)
        return super().loss(rows | {"partial": rows["partial"] + 0.9 * bonus})


@nasty(DQN)
class CrossEntropy(DQN):
    def loss(self, rows):
        loss = torch.nn.functional.cross_entropy(self.scores(self.network, rows["obs"]), rows["action"])
        return loss, rows["partial"], {"loss": loss.detach()}


@nasty(DQN)
class Soft(DQN):
    def loss(self, rows):
        q = self.scores(self.network, rows["obs"])
        with torch.no_grad():
            following = 0.2 * (self.scores(self.target, rows["cut_obs"]) / 0.2).logsumexp(-1)
        error = rows["partial"] + rows["coefficient"] * following - q.gather(-1, rows["action"][:, None])[:, 0]
        return error.square().mean(), error.detach(), {"loss": error.square().mean().detach()}


class Frozen:
    def set_weights(self, flat):
        super().set_weights(flat)
        for name, leaf in self.network.leaves.items():
            leaf.requires_grad_(not name.endswith("0.weight"))


class Hooked:
    def set_weights(self, flat):
        super().set_weights(flat)
        for leaf in self.network.leaves.values():
            leaf.register_hook(lambda slope: slope.clamp(-0.01, 0.01))


class Doubling(TorchNetwork):
    def __call__(self, observation, *heads):
        return tuple(2 * one for one in super().__call__(observation, *heads))


class Dropping(TorchNetwork):
    def __call__(self, observation, *heads):
        keep = torch.rand(observation.shape, generator=torch.Generator().manual_seed(1)) < 0.5
        return super().__call__(observation * keep, *heads)


class Residual(TorchNetwork):
    def __call__(self, observation, *heads):
        return tuple(one + observation[:, : one.shape[-1]] for one in super().__call__(observation, *heads))


class Sharing(TorchNetwork):
    """The first layer of one head is used in all."""

    def __init__(self, *given):
        super().__init__(*given)
        first = next(name for name in self.leaves if name.endswith("0.weight"))
        self.shared = self.leaves[first]

    def __call__(self, observation, *heads):
        shift = (observation @ self.shared).mean(-1, keepdim=True)
        return tuple(one + shift for one in super().__call__(observation, *heads))


class Counting(TorchNetwork):
    """A buffer that every call changes."""

    def __init__(self, *given):
        super().__init__(*given)
        self.mean = torch.zeros(self.shape.inputs)

    def __call__(self, observation, *heads):
        self.mean.lerp_(observation.detach().mean(0), 0.1)
        return super().__call__(observation - self.mean, *heads)


def with_network(base, network):
    def set_weights(self, flat):
        super(kind, self).set_weights(flat)
        self.network.__class__ = network
        if network is Sharing:
            name = next(name for name in self.network.leaves if name.endswith("0.weight"))
            self.network.shared = self.network.leaves[name]
        if network is Counting:
            self.network.mean = torch.zeros(self.shape.inputs)
        if getattr(self, "target", None) not in (None, self.network):
            self.target.__class__ = TorchNetwork

    kind = type(f"{base.__name__}{network.__name__}", (base,), {"set_weights": set_weights})
    NASTY[kind.__name__] = (base, kind)


for base in (PPO, MLxE, DQN):
    for network in (Doubling, Dropping, Residual, Sharing, Counting):
        with_network(base, network)
    for way in (Frozen, Hooked):
        kind = type(f"{base.__name__}{way.__name__}", (way, base), {})
        NASTY[kind.__name__] = (base, kind)


# -- what cannot be learned from, and the words that must be in the sentence --

REFUSED = {}


def refused(base, *words):
    def add(change):
        REFUSED[change.__name__] = (base, change, words)
        return change

    return add


@refused(PPO, "nasty.py")
class NamesWhatIsNotThere(PPO):
    def loss(self, rows):
        return super().loss(rows | {"obs": rows["observation"]})


@refused(PPO, "scalar")
class ALossOfEachRow(PPO):
    def loss(self, rows):
        return self.network(rows["obs"], "value")[0], {}


@refused(PPO, "nasty.py")
class ANumber(PPO):
    def loss(self, rows):
        return float(super().loss(rows)[0]), {}


@refused(DQN, "does not require grad")
class Detached(DQN):
    def loss(self, rows):
        loss, *more = super().loss(rows)
        return (loss.detach(), *more)


@refused(MLxE, "nasty.py", "requires grad")
class ThroughNumpy(MLxE):
    def loss(self, rows):
        return torch.as_tensor(np.square(self.network(rows["obs"], "value")[0].numpy())).mean(), {}


@refused(PPO, "inplace operation")
class ChangesWhatIsNeeded(PPO):
    def loss(self, rows):
        value = self.network(rows["obs"], "value")[0].exp()
        loss = value.square().mean()
        value.zero_()
        return loss, {}


@refused(PPO, "nasty.py", "size of tensor")
class OtherShapes(PPO):
    def loss(self, rows):
        return (self.network(rows["obs"], "policy")[0] - rows["target"][:-1]).mean(), {}
