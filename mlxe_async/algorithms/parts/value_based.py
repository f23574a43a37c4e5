"""Code of DQN, C51, Rainbow and Ape-X: a network with values of all actions, its target, and acting by it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mlxe_async.algorithms.distributions import Categorical, as_array
from mlxe_async.algorithms.interface import Acting, Algorithm, Clock, Rows, Tensors
from mlxe_async.algorithms.parts import recurrent, sequences, value_networks
from mlxe_async.algorithms.parts.exploration import Behaviour, NoiseRenewal, mixture
from mlxe_async.algorithms.parts.layers import of_pictures, polyak, words_of
from mlxe_async.algorithms.parts.policies import number_of_actions
from mlxe_async.algorithms.parts.replay import ends_of, mirrored, stored, target_columns, tensors_of
from mlxe_async.algorithms.parts.value_fields import FLOOR
from mlxe_async.maths import annealing, categorical, returns
from mlxe_async.networks import Parameters
from mlxe_async.networks.seen import seen_of
from mlxe_async.rows import Array, Spaces

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mlxe_async.networks.cells import Cells
    from mlxe_async.networks.heads import ActionValues


class ValueBased(Algorithm):
    """Acts by its values, mostly greedily; `build`, `build_learner` and `update` are the algorithm's own."""

    settings: Any
    memory, off_policy, takes_arrays = "replay", "learns", True
    of_pictures: ClassVar = {"body": "nature", "layers": (512,), "layer_norm": False}
    """Defaults for tasks that show pictures of bytes, alone or among other parts."""
    defaults: ClassVar = {
        "schedule": {"envs_per_executor": 4, "sync": "rollout", "rollout_steps": 32}
        | {"updates_per_publish": 32, "max_owed_updates": 256},
        "memory": {"capacity_rows": 100_000},
    }
    network: ActionValues
    """The network that acts and is published: the learned one, or its running average."""
    learned: ActionValues
    target: ActionValues
    epsilon: torch.Tensor
    """Share of random actions (1,); it is published with the weights."""
    rows_seen: int
    unused: int

    @classmethod
    def defaults_for(cls, spaces: Spaces, written: Mapping[str, Any]) -> dict[str, Any]:
        """Pictures of bytes go through convolutions, Mnih et al. 2015, and what goes with them."""
        return of_pictures(cls, spaces, written) | sequences.defaults_for(cls, written)

    @classmethod
    def parameters_for(cls, settings: Any, spaces: Spaces) -> Parameters:
        """Return what `build` publishes, told without torch; see `interface.Algorithm.parameters_for`."""
        heads, noisy = cls.heads_of(settings, spaces), cls.is_noisy(settings)
        return (*value_networks.parameters_of("network", settings, spaces, heads, noisy=noisy), ("epsilon", (1,)))

    @classmethod
    def heads_of(cls, s: Any, spaces: Spaces) -> dict[str, tuple[int, ...]]:
        """Each stream, and the sizes of its layers."""
        actions, each, dueling = number_of_actions(cls, spaces), cls.outputs_of(s), cls.is_dueling(s)
        own = s.layers[len(value_networks.common_of(s, dueling=dueling)) :]
        return {name: (*own, n * each) for name, n in value_networks.streams_of(actions, dueling=dueling).items()}

    @classmethod
    def outputs_of(cls, settings: Any) -> int:  # noqa: ARG003 - of some it depends on the settings
        """Numbers that say what an action is worth."""
        return 1

    @classmethod
    def is_dueling(cls, settings: Any) -> bool:
        """Return whether there are two streams."""
        return bool(settings.dueling)

    @classmethod
    def is_noisy(cls, settings: Any) -> bool:
        """Return whether layers are under noise."""
        return bool(settings.noisy)

    def build(self) -> None:
        """Tell the memory how to draw, and make counters; an author has made `network` before."""
        import torch

        s = self.settings
        sizes = value_networks.sizes_of(s, self.heads_of(s, self.spaces))
        self.words = words_of(seen_of(self.spaces, s), **sizes)
        self.derived_columns, self.priorities = target_columns(self.spaces), s.how_to_draw
        if self.cell is not None:
            sequences.prepare(self)
        self.rows_seen = self.unused = 0
        self.epsilon, self.noise = torch.tensor([self.exploring(0)]), NoiseRenewal()

    def build_learner(self) -> None:
        """Make the learned network, if another is published, and the target; an author adds an optimiser."""
        self.learned = copy.deepcopy(self.network) if self.settings.average else self.network
        self.target = copy.deepcopy(self.network)

    def reloaded(self) -> None:
        """Learn on from what was published."""
        for network in (self.learned, self.target):
            polyak(network, self.network, 1.0)

    @property
    def cell(self) -> Cells | None:
        """The recurrent cell of the network that acts, if there is one."""
        found: Cells | None = getattr(self.network, "cell", None)
        return found

    def scores(self, outputs: Any) -> Any:
        """Return the values (B, A) that the best action maximises, by a network's outputs; arrays or tensors."""
        return outputs

    # -- acting --

    def exploring(self, env_steps: int) -> float:
        """Epsilon after `env_steps` environment steps."""
        s = self.settings
        return 0.0 if s.noisy else annealing.linear(s.epsilon_first, s.epsilon_last, s.epsilon_steps, env_steps)

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
        """Draw from the policy, under noise if the network is noisy."""
        if self.is_noisy(self.settings):
            self.noise.renew(self.network, self.settings.noise_every, rng, acting)
        return super().act(obs, rng, acting)

    def acted(self, obs: Any, acting: Acting | None) -> Any:
        """Scores (B, A) of actions, as an array; a state that is carried moves on."""
        if self.cell is None:
            return as_array(self.scores(self.network(obs)))
        features = recurrent.step(self.cell, self.network.features(obs), acting)
        return as_array(self.scores(self.network.values_of(features)))

    def policy(self, obs: Any, acting: Acting | None = None) -> Categorical:
        """softmax(Q / temperature), or epsilon / A + (1 - epsilon) [action = best]; the best under noise."""
        s, q, acting = self.settings, self.acted(obs, acting), acting or Acting()
        log_probs = categorical.log_softmax(q / np.float32(s.temperature))
        behaviour: Behaviour = "epsilon_greedy" if s.noisy else s.behaviour
        share = self.epsilon.item()
        if s.noisy:
            acting.asked.add("noise")
        elif behaviour == "epsilon_greedy":
            share = acting.share(share)
        return Categorical(mixture(log_probs, behaviour, share), normalised=True)

    def greedy(self, obs: Array, acting: Acting | None = None) -> Array:
        """The action with the highest value, without noise."""
        from mlxe_async.networks.noisy import without_noise

        with self.inference(), without_noise(self.network, noisy=self.is_noisy(self.settings)):
            return np.asarray(self.acted(self.observed(obs), acting).argmax(-1))

    def module(self) -> nn.Module:
        """Return what acts, without noise: `ActionValues` of observations (B, *O), or `RecurrentActionValues`."""
        from mlxe_async.networks import sequential
        from mlxe_async.networks.noisy import quiet

        found = quiet(copy.deepcopy(self.network))
        sequential.act_by_torch([found])
        return found

    def deterministic_module(self) -> nn.Module:
        """The same, and behind it the best actions as the environment takes them; with a cell also its states."""
        from mlxe_async.networks.heads import Deterministic

        entries = 0 if self.cell is None else self.cell.entries
        take, scores = self.spaces.for_environment, self.scores
        return Deterministic(self.module(), lambda out, obs: take(scores(out(obs, "values")[0]).argmax(-1)), entries)

    # -- the memory --

    def derive(self, segment: Rows) -> Rows:
        """The derived columns (L, ...) of a closed segment."""
        return self.derive_many(segment, np.array([len(segment["reward"])]))

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Each row's target as partial + coefficient * Q'(cut_obs), so that it can be replayed alone."""
        s, (ended, _) = self.settings, ends_of(segments, lengths)
        split = returns.n_step_many(self.scaled(segments["reward"]), lengths, ended, s.discount, s.n_step)
        return stored(split, segments["next_obs"]) if self.cell is None else sequences.stored(s, split, lengths)

    def scaled(self, reward: Array) -> Array:
        """Rewards as values count them."""
        return np.asarray(reward * self.settings.return_scale)

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:
        """`min_updates` per new segment, or one per `train_every` new rows, remainders kept; from `start_rows` on."""
        s, self.rows_seen = self.settings, self.rows_seen + new_rows
        if max(self.rows_seen, rows) < s.start_rows:
            return 0
        due, self.unused = divmod(self.unused + new_rows, s.train_every)
        return int(s.min_updates * new_segments if s.min_updates else due)

    # -- learning --

    def columns(self, batch: Rows) -> Rows:
        """Return what the loss needs of a batch (M, ...): half of the samples mirrored, and weights."""
        obs, following, action = mirrored(self, batch, "cut_obs")
        rows = {"obs": obs, "cut_obs": following, "action": action}
        rows["weight"] = batch.get("weight", np.ones(action.shape[-1]))
        return rows | {name: batch[name] for name in ("partial", "coefficient")}

    def rows(self, batch: Rows) -> Tensors:
        """Return what the loss needs: rows (M, ...), or sequences and which of their rows (N,) are learned from."""
        return tensors_of(self, batch) if self.cell is None else sequences.rows_of(self, batch)

    def evaluated(self, rows: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs (M, A, ...) of the learned network; at s', of the target network and of what chooses there."""
        import torch

        if self.cell is not None:
            return sequences.evaluated(self, rows)
        with torch.no_grad():
            following = self.target(rows["cut_obs"])
            choosing = self.learned(rows["cut_obs"]) if self.settings.double else following
        return self.learned(rows["obs"]), following, choosing

    def prepare(self, clock: Clock) -> None:
        """Move the target network if that is due, and draw new noise for both, each its own."""
        from mlxe_async.networks.noisy import draw

        if clock.updates % self.settings.target_every == 0:
            polyak(self.target, self.learned, self.settings.target_rate)
        for network in (self.target, self.learned):
            draw(network, self.rng)

    def publish(self, clock: Clock) -> None:
        """Have what acts follow what is learned, and epsilon its clock."""
        if self.learned is not self.network:
            polyak(self.network, self.learned, self.settings.average)
        self.epsilon.fill_(self.exploring(clock.env_steps))

    def rate(self, clock: Clock) -> float:
        """The learning rate now."""
        s = self.settings
        return annealing.linear(s.learning_rate, s.learning_rate_last, s.anneal_steps, clock.env_steps)

    def judged(self, error: torch.Tensor, rows: Tensors | None = None) -> Array | None:
        """Priorities (M,) of rows, or of sequences, with these errors of rows (N,), where samples are drawn by them."""
        if not self.settings.prioritised or self.priorities == sequences.EVENLY:
            return None
        errors = error.abs().numpy(force=True)
        if self.cell is not None and rows is not None:
            errors = sequences.priorities(errors, rows["learned"].numpy(force=True))
        return errors + FLOOR
