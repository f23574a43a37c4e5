"""Distributions of actions, once for all algorithms: drawn from with numpy, differentiated by torch.

A distribution is made of what a network says, as numpy arrays or as tensors. Executors call `act` and tests call
`mode`, for which tensors become arrays. A learner calls `log_prob`, `entropy` and `kl` on tensors.

Actions that have bounds (Box) are stored as the environment gets them. The draw before bounds or squashing is called
the raw action: its density is what `log_prob` is of, and an algorithm that needs it declares `raw_action(spaces)` among
its `extra_columns`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mlxe_async.maths import categorical
from mlxe_async.rows import Array, Column, Spaces

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
MASKED = -1e9  # a logit of an action that is not allowed: its probability is exactly 0, and all numbers stay finite


class Distribution(Protocol):
    """A distribution of actions (B, ...) for each of B observations."""

    def act(self, rng: np.random.Generator) -> dict[str, Array]:
        """Draw: `action` (B, ...) as the environment takes it, `log_prob` (B,), and `raw_action` where that differs."""
        ...

    def mode(self) -> Array:
        """The action (B, ...) that tests take."""
        ...

    def log_prob(self, action: Any) -> Any:
        """Log-probability, or density of the raw action, (B,) of actions (B, ...)."""
        ...

    def entropy(self) -> Any:
        """(B,)."""
        ...

    def kl(self, other: Any) -> Any:
        """Kullback-Leibler divergence (B,) from this one to another of its kind: E log(this / other)."""
        ...

    def tempered(self, temperature: float) -> Distribution:
        """The distribution whose probabilities are in proportion to p^(1 / temperature), temperature > 0."""
        ...


def raw_action(spaces: Spaces) -> Column:
    """The column of the action before bounds or squashing."""
    return Column("raw_action", "<f4", spaces.action_shape)


class Categorical:
    """One of A actions, in proportion to exp(logit).

    Args:
        logits: (B, A).
        mask: which actions are allowed (B, A), truth values; None: all.
        normalised: whether the logits are log-probabilities.
    """

    def __init__(self, logits: Any, mask: Any = None, *, normalised: bool = False) -> None:
        self.logits = logits if mask is None else _masked(logits, mask)
        self._log_probs = logits if normalised else None

    @property
    def log_probs(self) -> Any:
        """Log probabilities of all actions (B, A)."""
        if self._log_probs is None:
            is_array = isinstance(self.logits, np.ndarray)
            self._log_probs = categorical.log_softmax(self.logits) if is_array else self.logits.log_softmax(-1)
        return self._log_probs

    def act(self, rng: np.random.Generator) -> dict[str, Array]:
        """Draw `action` (B,) and its `log_prob`."""
        is_array = isinstance(self.logits, np.ndarray)
        log_probs = self.log_probs if is_array else categorical.log_softmax(as_array(self.logits))
        action = categorical.sample(log_probs, rng)
        return {"action": action, "log_prob": categorical.of_action(log_probs, action)}

    def mode(self) -> Array:
        """The most probable action (B,)."""
        return np.asarray(as_array(self.logits).argmax(-1))

    def log_prob(self, action: Any) -> Any:
        """(B,) of actions (B,)."""
        if isinstance(self.logits, np.ndarray):
            return categorical.of_action(self.log_probs, action)
        return self.log_probs.gather(-1, action[..., None].long())[..., 0]

    def entropy(self) -> Tensor:
        """-sum p log p (B,)."""
        log_probs: Tensor = self.log_probs
        return -(log_probs.exp() * log_probs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """E log (p / q) (B,)."""
        log_probs: Tensor = self.log_probs
        distance: Tensor = log_probs.exp() * (log_probs - other.log_probs)
        return distance.sum(-1)

    def tempered(self, temperature: float) -> Categorical:
        """Logits over the temperature: above 1 nearer to even, below 1 nearer to the best. What is masked stays so."""
        # Divided by a large one, a logit that stands for "not allowed" could come near to the others.
        return Categorical(self.logits / temperature, self.logits > MASKED / 2)


class MultiCategorical:
    """Several choices at once, independent of each other.

    Args:
        logits: of all choices, one choice after the other (B, sum of sizes).
        sizes: how many there are of each choice.
        shape: of one action; left out, (number of choices,).
        mask: which are allowed (B, sum of sizes), truth values; None: all.
    """

    def __init__(self, logits: Any, sizes: Sequence[int], shape: tuple[int, ...] = (), mask: Any = None) -> None:
        self.logits = logits if mask is None else _masked(logits, mask)
        self.sizes, self.shape = tuple(sizes), shape or (len(sizes),)
        if logits.shape[-1] != sum(self.sizes):
            raise ValueError(f"MultiCategorical: expected {sum(self.sizes)} logits, got {logits.shape[-1]}")
        ends = np.cumsum(self.sizes)
        parts = zip(ends - np.array(self.sizes), ends, strict=True)
        self.choices = [Categorical(self.logits[..., start:stop]) for start, stop in parts]

    def act(self, rng: np.random.Generator) -> dict[str, Array]:
        """Draw `action` (B, *shape) and the sum of the log-probabilities."""
        drawn = [choice.act(rng) for choice in self.choices]
        return {
            "action": self._shaped(np.stack([one["action"] for one in drawn], -1)),
            "log_prob": np.sum([one["log_prob"] for one in drawn], axis=0),
        }

    def mode(self) -> Array:
        """The most probable action (B, *shape)."""
        return self._shaped(np.stack([choice.mode() for choice in self.choices], -1))

    def _shaped(self, action: Array) -> Array:
        return action.reshape((*action.shape[:-1], *self.shape))

    def log_prob(self, action: Tensor) -> Tensor:
        """(B,) of actions (B, *shape)."""
        each = action.reshape((*action.shape[: action.ndim - len(self.shape)], len(self.choices)))
        found: Tensor = sum(choice.log_prob(each[..., index]) for index, choice in enumerate(self.choices))
        return found

    def entropy(self) -> Tensor:
        """(B,)."""
        return sum(choice.entropy() for choice in self.choices)  # type: ignore[return-value] # never of nothing

    def kl(self, other: MultiCategorical) -> Tensor:
        """(B,)."""
        return sum(one.kl(two) for one, two in zip(self.choices, other.choices, strict=True))  # type: ignore[return-value] # never of nothing

    def tempered(self, temperature: float) -> MultiCategorical:
        """Each choice by its logits over the temperature."""
        found = MultiCategorical(self.logits, self.sizes, self.shape)
        found.choices = [choice.tempered(temperature) for choice in self.choices]
        return found


class Gaussian:
    """Independent normal numbers; what the environment gets is cut to its bounds, where it has some.

    Args:
        mean: (B, D), D entries of a flattened action.
        log_std: (B, D), or (D,) where all rows share it.
        spaces: of the task.
        scaled: whether -1 and 1 are the bounds of an entry, whatever the task calls them; the raw action and its
            density are in these units. An entry without bounds is as it is.
    """

    def __init__(self, mean: Any, log_std: Any, spaces: Spaces, *, scaled: bool = False) -> None:
        self.mean, self.log_std, self.spaces = mean, log_std, spaces
        self._low, self._high = spaces.bounds
        self._scaled = scaled

    def act(self, rng: np.random.Generator) -> dict[str, Array]:
        """Draw `raw_action`, the `action` within its bounds (B, *shape), and the density of the raw one."""
        mean, log_std = as_array(self.mean), as_array(self.log_std)
        noise = rng.standard_normal(mean.shape, np.float32)
        raw = mean + np.exp(log_std) * noise
        log_prob = (-0.5 * np.square(noise) - log_std - HALF_LOG_2PI).sum(-1)
        return {**self._shaped(raw), "log_prob": log_prob.astype(np.float32)}

    def _shaped(self, raw: Array) -> dict[str, Array]:
        shape = (*raw.shape[:-1], *self.spaces.action_shape)
        action = np.clip(in_bounds(raw, self._low, self._high) if self._scaled else raw, self._low, self._high)
        return {"action": action.astype(np.float32).reshape(shape), "raw_action": raw.astype(np.float32).reshape(shape)}

    def mode(self) -> Array:
        """The mean (B, *shape), within its bounds."""
        return self._shaped(as_array(self.mean))["action"]

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density (B,) of raw actions (B, *shape)."""
        raw = action.reshape(self.mean.shape)
        scaled = (raw - self.mean) * _exp(-self.log_std)
        each: Tensor = -0.5 * (scaled * scaled) - self.log_std - HALF_LOG_2PI
        return each.sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy of the raw action (B,)."""
        each: Tensor = self.log_std.expand(self.mean.shape) + 0.5 + HALF_LOG_2PI
        return each.sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        """Return the KL divergence between the raw actions (B,)."""
        ratio = (2 * (self.log_std - other.log_std)).exp()
        apart = ((self.mean - other.mean) * (-other.log_std).exp()).square()
        each: Tensor = 0.5 * (ratio + apart - 1) + other.log_std - self.log_std
        return each.expand(self.mean.shape).sum(-1)

    def tempered(self, temperature: float) -> Gaussian:
        """The variance of the raw action times the temperature: that is the density^(1 / temperature)."""
        wider = as_array(self.log_std) + np.float32(0.5 * math.log(temperature))
        return Gaussian(self.mean, wider, self.spaces, scaled=self._scaled)


class TanhGaussian(Gaussian):
    """Normal numbers squashed into the bounds by tanh (Haarnoja et al. 2018, appendix C).

    The density is of the action that was squashed to (-1, 1), so that bounds change no algorithm's constants.

    Args:
        mean: (B, D).
        log_std: (B, D), or (D,).
        spaces: of the task; each entry needs finite bounds.

    Raises:
        ValueError: an entry of the action has no bounds.
    """

    def __init__(self, mean: Any, log_std: Any, spaces: Spaces) -> None:
        super().__init__(mean, log_std, spaces)
        if not bool((np.abs(self._low) < LARGEST).all() and (np.abs(self._high) < LARGEST).all()):
            raise ValueError("TanhGaussian: expected an action space with finite bounds")

    def act(self, rng: np.random.Generator) -> dict[str, Array]:
        """Draw `raw_action`, the squashed `action` (B, *shape), and the density of the latter."""
        found = super().act(rng)
        raw = found["raw_action"].reshape(as_array(self.mean).shape)
        # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which stays finite for large u
        shrink = 2 * (math.log(2) - raw - np.logaddexp(0, -2 * raw))
        found["log_prob"] = (found["log_prob"] - shrink.sum(-1)).astype(np.float32)
        return found

    def _shaped(self, raw: Array) -> dict[str, Array]:
        shape = (*raw.shape[:-1], *self.spaces.action_shape)
        action = (self._low + 0.5 * (np.tanh(raw) + 1) * (self._high - self._low)).astype(np.float32)
        action = action.clip(self._low, self._high)  # rounding may lead beyond
        return {"action": action.reshape(shape), "raw_action": raw.astype(np.float32).reshape(shape)}

    def tempered(self, temperature: float) -> TanhGaussian:
        """The variance of the number before squashing times the temperature."""
        wider = as_array(self.log_std) + np.float32(0.5 * math.log(temperature))
        return TanhGaussian(self.mean, wider, self.spaces)

    def rsample(self, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Actions in (-1, 1) (B, D) that gradients go through, and their log-density (B,).

        Args:
            noise: standard normal numbers (B, D); left out, they are drawn.
        """
        import torch

        noise = torch.randn_like(self.mean) if noise is None else noise
        raw = self.mean + self.log_std.exp() * noise
        each = -0.5 * noise.square() - self.log_std - HALF_LOG_2PI - 2 * (math.log(2) - raw - _softplus(-2 * raw))
        return raw.tanh(), each.sum(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density (B,) of the squashed actions that belong to raw actions (B, *shape)."""
        raw = action.reshape(self.mean.shape)
        found: Tensor = super().log_prob(raw) - (2 * (math.log(2) - raw - _softplus(-2 * raw))).sum(-1)
        return found

    def entropy(self) -> Tensor:
        """Refused: it has no closed form; take the mean of -log_prob of `rsample`.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("TanhGaussian has no entropy in closed form: take -log_prob of rsample()")


LARGEST = 1e30


def in_bounds(unit: Array, low: Array, high: Array) -> Array:
    """Entries (..., D) whose bounds -1 and 1 are, in the task's own units; those without finite bounds as they are."""
    bounded = (np.abs(low) < LARGEST) & (np.abs(high) < LARGEST)
    middle, reach = np.where(bounded, (low / 2 + high / 2), 0), np.where(bounded, (high / 2 - low / 2), 1)
    return np.asarray(middle + reach * unit, np.float32)


def bounded(unit: Any, spaces: Spaces) -> Any:
    """Tensors (B, D) whose -1 and 1 are the bounds, as actions (B, *shape) that the environment takes; cut to them."""
    low, high = spaces.bounds
    zero = np.zeros_like(low)
    middle, reach = in_bounds(zero, low, high), in_bounds(zero + 1, low, high) - in_bounds(zero, low, high)
    found = unit.new_tensor(middle) + unit.new_tensor(reach) * unit
    found = found.maximum(unit.new_tensor(low)).minimum(unit.new_tensor(high))
    return found.reshape((unit.shape[0], *spaces.action_shape))


def to_unit(action: Any, spaces: Spaces) -> Any:
    """Actions (B, *shape) within finite bounds as numbers in [-1, 1] (B, D); of arrays and tensors alike."""
    low, high = spaces.bounds
    flat = action.reshape((len(action), -1))
    if not isinstance(action, np.ndarray):
        low, high = flat.new_tensor(low), flat.new_tensor(high)
    return 2 * (flat - low) / (high - low) - 1


def _exp(values: Any) -> Any:
    return np.exp(values) if isinstance(values, np.ndarray) else values.exp()


def _softplus(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return np.logaddexp(0, values)
    import torch

    return torch.nn.functional.softplus(values)


def _masked(logits: Any, mask: Any) -> Any:
    if isinstance(logits, np.ndarray):
        return np.where(as_array(mask).astype(bool), logits, np.float32(MASKED))
    import torch

    return logits.masked_fill(~torch.as_tensor(mask).bool(), MASKED)


def as_array(values: Any) -> Array:
    """Return what a network says (B, ...), as numbers of numpy."""
    return values if isinstance(values, np.ndarray) else np.asarray(values.numpy(force=True))
