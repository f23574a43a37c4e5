"""Networks of several heads as plain torch modules: an actor and a critic, or values of actions.

A policy that is exported from a run is made of these, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from mlxe_async.networks.bodies import Body
from mlxe_async.networks.cells import Cells


class ActionValues(nn.Module):
    """Values of all actions (B, A) for observations (B, *O); logits of `atoms` for each (B, A, K), if there are any.

    In two streams (dueling, Wang et al. 2016, eq. 9) Q = V + A - mean A.

    Args:
        see: what observations go through first.
        common: layers that both streams share; left out, none.
        q: layers that end in the values of all actions; or
        value: those that end in the value of a state, and
        advantage: those that end in how much better each action is.
        atoms: outputs of each action; 0: one, which is its value.
    """

    def __init__(
        self,
        see: Body,
        common: nn.Module | None = None,
        *,
        q: nn.Module | None = None,
        value: nn.Module | None = None,
        advantage: nn.Module | None = None,
        atoms: int = 0,
    ) -> None:
        super().__init__()
        self.see: Body = see
        self.common, self.q, self.atoms = common, q, atoms
        self.value: Any = value
        self.advantage: Any = advantage

    def forward(self, obs: Any) -> Any:
        """The same; arrays or tensors."""
        return self.values_of(self.features(obs))

    def features(self, obs: Any) -> Any:
        """Return features (B, n), which all streams share, of observations (B, *O)."""
        return self.see(obs) if self.common is None else self.common(self.see(obs))

    def values_of(self, features: Any) -> Any:
        """Values, or logits, of all actions by features (B, n)."""
        if self.q is not None:
            return self._apart(self.q(features))
        value, advantage = self._apart(self.value(features)), self._apart(self.advantage(features))
        axis = -2 if self.atoms else -1
        return value + advantage - advantage.mean(axis, keepdims=True)

    @property
    def takes_arrays(self) -> bool:
        """True if arrays will do as well as tensors: all parts take them."""
        return all(getattr(one, "takes_arrays", False) for one in self.children())

    def _apart(self, outputs: Any) -> Any:
        """Outputs of all actions, apart by their atoms."""
        return outputs.reshape(*outputs.shape[:-1], -1, self.atoms) if self.atoms else outputs


class RecurrentActionValues(ActionValues):
    """The same behind a recurrent cell, whose states go in and come out: (B, *O) and (B, S) -> `values`, and `memory`.

    Args:
        see: as for `ActionValues`.
        common: layers between that and the cell.
        cell: between `common` and the streams.
        streams: as for `ActionValues`.
    """

    def __init__(self, see: Body, common: nn.Module, cell: Cells, **streams: Any) -> None:
        super().__init__(see, common, **streams)
        self.cell = cell

    def forward(self, obs: Any, state: Any = None) -> dict[str, Any]:
        """Values, or logits, and the states (B, S) after the step; without states, episodes begin."""
        shown = self.features(obs)
        features, after = self.cell(shown, shown.new_zeros(len(shown), self.cell.entries) if state is None else state)
        return {"values": self.values_of(features), "memory": after}

    def unrolled(self, obs: torch.Tensor, state: torch.Tensor, burn_in: int, whole: torch.Tensor) -> torch.Tensor:
        """Features (T B, H) of sequences of observations (T, B, *O) that begin with states (B, S).

        Gradients end before row `burn_in`, but of sequences that are learned from as a `whole` (B,).
        """
        shown = self.features(obs.flatten(0, 1)).unflatten(0, obs.shape[:2])
        if not burn_in:
            found, _ = self.cell(shown, state)
        else:
            first, state = self.cell(shown[:burn_in], state)
            rest, _ = self.cell(shown[burn_in:], state.where(whole[:, None], state.detach()))
            found = torch.cat([first, rest])
        flat: torch.Tensor = found.flatten(0, 1)
        return flat


class ActorCritic(nn.Module):
    """An actor and a critic on what they share.

    Args:
        see: what observations go through first.
        common: layers that both share; it may be none.
        actor: from there to the scores of actions.
        critic: from there to values.
    """

    def __init__(self, see: Body, common: nn.Module, actor: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.see, self.common, self.actor, self.critic = see, common, actor, critic

    def forward(self, obs: Any) -> tuple[Any, Any]:
        """Scores (B, A) and values (B, n) of observations (B, *O)."""
        features = self.common(self.see(obs))
        return self.actor(features), self.critic(features)

    @property
    def takes_arrays(self) -> bool:
        """True if arrays will do as well as tensors: all parts take them."""
        return all(getattr(one, "takes_arrays", False) for one in self.children())

    def scores(self, obs: Any) -> Any:
        """The actor's alone."""
        return self.actor(self.common(self.see(obs)))

    def values(self, obs: Any) -> Any:
        """The critic's alone."""
        return self.critic(self.common(self.see(obs)))


class Heads(nn.Module):
    """Several networks on shared layers: observations (B, *O) -> outputs of each by name (B, n).

    Args:
        see: what observations go through first; copied, as all others.
        common: what the networks share.
        heads: networks, or parameters, which are the same for all observations.
    """

    def __init__(self, see: nn.Module, common: nn.Module, heads: Mapping[str, Any]) -> None:
        super().__init__()
        self.see, self.common = copy.deepcopy(see), copy.deepcopy(common)
        found = {name: copy.deepcopy(head) for name, head in heads.items()}
        self.heads = nn.ModuleDict({name: head for name, head in found.items() if isinstance(head, nn.Module)})
        self.free = nn.ParameterDict({name: head for name, head in found.items() if name not in self.heads})

    def forward(self, obs: Any) -> dict[str, torch.Tensor]:
        """Outputs by head; observations of several parts may come as these parts, name -> (B, *shape)."""
        features = self.common(self.see(obs))
        found = {name: head(features) for name, head in self.heads.items()}
        return found | {name: numbers.expand(features.shape[0], -1) for name, numbers in self.free.items()}


class RecurrentHeads(Heads):
    """The same behind recurrent cells, whose states go in and come out: (B, *O) and (B, S) -> outputs, and `memory`.

    Args:
        see: as for `Heads`.
        common: as for `Heads`.
        heads: as for `Heads`; of two cells the second is the `critic`'s.
        cells: between `common` and the heads.
    """

    def __init__(self, see: nn.Module, common: nn.Module, heads: Mapping[str, Any], cells: Cells) -> None:
        super().__init__(see, common, heads)
        self.cells = copy.deepcopy(cells)

    def forward(self, obs: Any, state: Any = None) -> dict[str, torch.Tensor]:
        """Outputs by head, and the states (B, S) after the step; without states, episodes begin."""
        shown = self.common(self.see(obs))
        features, after = self.cells(shown, shown.new_zeros(len(shown), self.cells.entries) if state is None else state)
        actors, critics = self.cells.apart(features)
        found = {name: head(critics if name == "critic" else actors) for name, head in self.heads.items()}
        return found | {name: one.expand(shown.shape[0], -1) for name, one in self.free.items()} | {"memory": after}


class Deterministic(nn.Module):
    """A network, and what is made of its outputs: observations (B, *O) -> actions (B, ...).

    Args:
        network: outputs by head, or one tensor.
        chosen: asked with something that gives the outputs (B, ...) of named heads, and with the observations.
        entries: S, of the states of a recurrent network, which go in and come out; 0: there are none.
    """

    def __init__(
        self, network: nn.Module, chosen: Callable[[Any, torch.Tensor], torch.Tensor], entries: int = 0
    ) -> None:
        super().__init__()
        self.network, self._chosen, self.entries = network, chosen, entries

    def forward(self, obs: Any, state: torch.Tensor | None = None) -> Any:
        """Actions; of a recurrent network also the states (B, S) after the step, zero before it where none are given.

        Observations of several parts may come as these parts, name -> (B, *shape).
        """
        memory: list[torch.Tensor] = []

        def outputs(seen: Any, *heads: str) -> tuple[torch.Tensor, ...]:
            found = self.network(seen, state) if self.entries else self.network(seen)
            if isinstance(found, torch.Tensor):
                return (found,)
            memory.extend([found["memory"]] if self.entries else [])
            return tuple(found[head] for head in heads)

        action = self._chosen(outputs, obs)
        return (action, memory[0]) if self.entries else action
