"""Losses and networks that somebody might write in an own file, each a change of a built-in algorithm."""

import numpy as np
import torch

from mlxe_async.algorithms import dqn, ppo
from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.interface import Priorities
from mlxe_async.algorithms.mlxe import paper as mlxe
from mlxe_async.algorithms.parts.replay import tensors_of
from mlxe_async.networks.bodies import Dense

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


def parts(self):
    """What observations go through, and each head."""
    if isinstance(self, PPO):
        return lambda obs: self.common(self.see(obs)), {"actor": self.actor, "critic": self.critic}
    net = self.learned
    if isinstance(self, DQN):
        return net.see, {"q": net.q}
    return lambda obs: net.common(net.see(obs)), {"actor": net.actor, "critic": net.critic}


def outputs(self, head, obs):
    shared, heads = parts(self)
    return heads[head](shared(obs))


def value(self, obs):
    """V (M, 1)."""
    return outputs(self, "critic", obs)


def logits(self, obs):
    """Logits (M, A)."""
    return outputs(self, "actor", obs)


def values(self, obs):
    """Q (M, A)."""
    return outputs(self, "q", obs)


def leaves(self):
    """All weights by name."""
    if isinstance(self, PPO):
        modules = {"common": self.common, "actor": self.actor, "critic": self.critic}
        return {f"{name}.{key}": leaf for name, one in modules.items() for key, leaf in one.named_parameters()}
    return dict(self.learned.named_parameters())


@extra(PPO)
def weight_decay(self, _rows):
    return 0.1 * sum(leaf.square().sum() for leaf in leaves(self).values())


@extra(MLxE)
def weight_decay_on_biases(self, _rows):
    return sum(leaf.abs().sum() for name, leaf in leaves(self).items() if "bias" in name)


@extra(DQN)
def residual_gradient(self, rows):
    return 0.5 * values(self, rows["cut_obs"]).max(-1).values.square().mean()


@extra(PPO)
def second_look_at_the_same_rows(self, rows):
    return value(self, rows["obs"]).mean() * value(self, rows["obs"]).std()


@extra(PPO)
def gradient_penalty(self, rows):
    obs = rows["obs"].clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(self, obs).sum(), obs, create_graph=True)
    return slope.square().sum(-1).mean()


@extra(MLxE)
def smoothness_to_mirrored_rows(self, rows):
    return (logits(self, rows["obs"]) - logits(self, -rows["obs"])).square().mean()


@extra(DQN)
def conservative_values(self, rows):
    return values(self, rows["obs"]).logsumexp(-1).mean()


@extra(PPO)
def only_where_large(self, rows):
    judged = value(self, rows["obs"])
    return torch.where(judged.abs() > judged.abs().median(), judged, torch.zeros_like(judged)).sum()


@extra(PPO)
def tiny(self, rows):
    return 1e-3 * logits(self, rows["obs"]).mean()


@extra(PPO)
def huge(self, rows):
    return 1e3 * value(self, rows["obs"]).mean()


@extra(MLxE)
def by_another_column(self, rows):
    return (rows["step"].float() * value(self, rows["obs"])[:, 0]).mean()


@extra(DQN)
def by_flags(self, rows):
    return ((1 - rows["terminated"]) * values(self, rows["obs"])[:, 0]).mean()


@extra(PPO)
def after_so_many_calls(self, rows):
    self.calls = getattr(self, "calls", 0) + 1
    return self.calls * value(self, rows["obs"]).mean()


@extra(PPO)
def with_a_detour_through_double(self, rows):
    return value(self, rows["obs"]).double().exp().log().float().mean()


@extra(PPO)
def with_views(self, rows):
    return logits(self, rows["obs"]).T[0].flip(0)[::2].sum()


@extra(MLxE)
def sorted_values(self, rows):
    return value(self, rows["obs"]).sort(0).values[:3].sum()


@extra(DQN)
def quantile(self, rows):
    return values(self, rows["obs"]).quantile(0.9)


@extra(PPO)
def complex_numbers(self, rows):
    return torch.fft.rfft(value(self, rows["obs"])[:, 0]).abs().mean()


@extra(PPO)
def drawn_anew(self, rows):
    keep = torch.rand(len(rows["obs"]), generator=torch.Generator().manual_seed(3)) < 0.5
    return value(self, rows["obs"])[keep].sum()


@extra(DQN)
def straight_through(self, rows):
    found = values(self, rows["obs"])
    return (found + (found.round() - found).detach()).square().mean()


@extra(MLxE)
def through_a_checkpoint(self, rows):
    look = lambda obs: value(self, obs).square().mean()  # noqa: E731 - as somebody would write it
    return torch.utils.checkpoint.checkpoint(look, rows["obs"], use_reentrant=False)


@nasty(PPO)
class EntropyByTheClock(PPO):
    def update(self, batch, clock):
        self._weight = 0.5 / (1 + clock.updates)
        return super().update(batch, clock)

    def loss(self, rows):
        loss, found = super().loss(rows)
        scores = logits(self, rows["obs"]).log_softmax(-1)
        return loss - self._weight * Categorical(scores).entropy().mean(), found


@nasty(PPO)
class AdaptiveKL(PPO):
    """The coefficient starts at 0, and is there from the second update on."""

    coefficient = 0.0

    def update(self, batch, clock):
        self.coefficient = 5.0 * clock.updates
        return super().update(batch, clock)

    def loss(self, rows):
        loss, found = super().loss(rows)
        log_prob = logits(self, rows["obs"]).log_softmax(-1).gather(-1, rows["action"][:, None])[:, 0]
        return loss + self.coefficient * ppo.correction.approximate_kl(log_prob, rows["log_prob"]), found


@nasty(PPO)
class DualClip(PPO):
    def loss(self, rows):
        judged = value(self, rows["obs"])
        log_prob = logits(self, rows["obs"]).log_softmax(-1).gather(-1, rows["action"][:, None])[:, 0]
        ratio, advantage = (log_prob - rows["log_prob"]).exp(), rows["advantage"]
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        gain = torch.where(advantage < 0, torch.maximum(gain, 3 * advantage), gain)
        return -gain.mean() + 0.5 * (judged[:, 0] - rows["target"]).square().mean(), {
            "policy_loss": gain.mean().detach()
        }


@nasty(PPO)
class ClippedValue(PPO):
    def loss(self, rows):
        loss, found = super().loss(rows)
        judged, old = value(self, rows["obs"])[:, 0], rows["target"] - rows["advantage"]
        bounded = old + (judged - old).clamp(-0.2, 0.2)
        more = torch.maximum((judged - rows["target"]).square(), (bounded - rows["target"]).square()).mean()
        return loss + more, found


@nasty(PPO)
class NoCritic(PPO):
    def loss(self, rows):
        log_probs = logits(self, rows["obs"]).log_softmax(-1)
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
        judged = value(self, rows["obs"])[:, 0]
        judged = judged.mul(2).sub_(rows["target"]).square_()
        return judged.mean(), {"value_loss": judged.mean().detach()}


@nasty(MLxE)
class HugeHuber(MLxE):
    def loss(self, rows):
        loss, found = super().loss(rows)
        judged = value(self, rows["obs"])[:, 0]
        return loss + torch.nn.functional.huber_loss(judged, torch.full_like(judged, 3.0), delta=10.0), found


@nasty(MLxE)
class WideClamp(MLxE):
    def loss(self, rows):
        log_prob = logits(self, rows["obs"]).log_softmax(-1).gather(-1, rows["action"][:, None])[:, 0]
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
            error = self.loss(tensors_of(self, batch))[1]
        return metrics, error.abs().numpy() + 0.01


@nasty(DQN)
class Munchausen(DQN):
    def loss(self, rows):
        log_pi = (values(self, rows["obs"]) / 0.1).log_softmax(-1).detach()
        bonus = log_pi.gather(-1, rows["action"][:, None])[:, 0].clamp(-1, 0)
        return super().loss(rows | {"partial": rows["partial"] + 0.9 * bonus})


@nasty(DQN)
class CrossEntropy(DQN):
    def loss(self, rows):
        loss = torch.nn.functional.cross_entropy(values(self, rows["obs"]), rows["action"])
        return loss, rows["partial"], {"loss": loss.detach()}


@nasty(DQN)
class Soft(DQN):
    def loss(self, rows):
        q = values(self, rows["obs"])
        with torch.no_grad():
            following = 0.2 * (self.target(rows["cut_obs"]) / 0.2).logsumexp(-1)
        error = rows["partial"] + rows["coefficient"] * following - q.gather(-1, rows["action"][:, None])[:, 0]
        return error.square().mean(), error.detach(), {"loss": error.square().mean().detach()}


class Frozen:
    def set_weights(self, flat):
        super().set_weights(flat)
        for name, leaf in leaves(self).items():
            leaf.requires_grad_(not name.endswith("0.weight"))


class Hooked:
    def set_weights(self, flat):
        super().set_weights(flat)
        for leaf in leaves(self).values():
            leaf.register_hook(lambda slope: slope.clamp(-0.01, 0.01))


class DoublingLayers(Dense):
    def forward(self, x):
        return 2 * super().forward(x)


class DroppingLayers(Dense):
    def forward(self, x):
        keep = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.5
        return super().forward(x * keep)


class ResidualLayers(Dense):
    def forward(self, x):
        found = super().forward(x)
        return found + x[:, : found.shape[-1]]


class SharingLayers(Dense):
    """The first layer of one head is used in all."""

    def forward(self, x):
        return super().forward(x) + (x @ self.shared.T).mean(-1, keepdim=True)


class CountingLayers(Dense):
    """A number that every call changes."""

    def forward(self, x):
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return super().forward(x - self.mean)


def with_layers(base, layers):
    def build_learner(self):
        if base is not PPO:
            super(kind, self).build_learner()
        _, heads = parts(self)
        first = next(iter(heads.values()))[0].weight
        for one in heads.values():
            one.__class__ = layers
            one.mean = torch.zeros(one[0].in_features)
            vars(one)["shared"] = first  # no parameter of another name
        if base is PPO:
            super(kind, self).build_learner()

    kind = type(f"{base.__name__}{layers.__name__}", (base,), {"build_learner": build_learner})
    NASTY[kind.__name__] = (base, kind)


for base in (PPO, MLxE, DQN):
    for layers in (DoublingLayers, DroppingLayers, ResidualLayers, SharingLayers, CountingLayers):
        with_layers(base, layers)
for base in (PPO, MLxE, DQN):
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
        return value(self, rows["obs"]), {}


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
        return torch.as_tensor(np.square(value(self, rows["obs"]).numpy())).mean(), {}


@refused(PPO, "inplace operation")
class ChangesWhatIsNeeded(PPO):
    def loss(self, rows):
        judged = value(self, rows["obs"]).exp()
        loss = judged.square().mean()
        judged.zero_()
        return loss, {}


@refused(PPO, "nasty.py", "size of tensor")
class OtherShapes(PPO):
    def loss(self, rows):
        return (logits(self, rows["obs"]) - rows["target"][:-1]).mean(), {}
