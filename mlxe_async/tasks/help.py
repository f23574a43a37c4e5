"""What a task may offer a learner beside observation, action and reward, each part a switch of `[task]`.

CartPole's aids are built in. Any other environment declares its own in an attribute `mlxe_help`, of itself or of one of
`[task] wrappers`; the outermost counts. It is an object with any of these parts, and needs nothing imported from here:

    class Aids:
        # The task mirrored: factor per observation entry, and which action mirrors action 0, 1, 2. `mirror = true`.
        symmetry = {"observation_sign": [-1, -1], "action_order": [2, 1, 0]}

        # |entry| at which the task counts as failed, None where there is no such limit. No switch: just facts.
        limits = [1.0, None]

        # Further inputs (B, K) of observations (B, O), behind them, after resets and steps alike. `features = true`.
        def features(self, obs):
            return obs[:, :1] ** 2

        # Rewards (B,) to learn from instead of the environment's own. `shaped_reward = true`.
        def shaped_reward(self, obs, action, next_obs, reward, terminated):
            return reward - abs(next_obs[:, 0])

        # The first observation (O,) after moving an environment that was just reset to a hard place; None: left as it
        # is. The environment's own generator makes it repeatable. `adverse_starts = true`.
        def adverse_start(self, env, finished_episodes):
            return env.unwrapped.put(0.9) if env.unwrapped.np_random.random() < 0.2 else None

All environments of a process are served by one such object, whole batches at a time, so it keeps nothing about any of
them. Arrays that its functions are given can only be read, for rows are made of them. Observations that they are shown
include the features where these are on, except in `features` itself; the signs (and limits) of features stand behind
those of the observation's own entries. Tests of frozen versions keep the features, which the network needs, and neither
starts nor rewards. Features, mirror images and limits are for observations that are vectors of floats. Observations of
other spaces than a Box are shown as they are stored (see `observing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from mlxe_async.errors import TaskError
from mlxe_async.rows import Array, Symmetry
from mlxe_async.tasks.hostile import described, words_of

ATTRIBUTE = "mlxe_help"
PARTS = {
    "mirror": "symmetry",
    "features": "features",
    "squared_position": "features",
    "shaped_reward": "shaped_reward",
    "adverse_starts": "adverse_start",
}


def declared_by(env: gymnasium.Env[Any, Any]) -> Any:
    """The aids that an environment or the outermost of its wrappers that has one declares, or None."""
    return next((found for layer in layers_of(env) if (found := getattr(layer, ATTRIBUTE, None)) is not None), None)


def layers_of(env: gymnasium.Env[Any, Any]) -> Iterator[Any]:
    """The wrappers of an environment, the outermost first, and the environment inside them."""
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        yield layer
        layer = layer.env
    yield layer


class TaskAids:
    """The parts of declared aids that are switched on, each checked.

    Args:
        declared: the object that an environment declares, or None.
        switches: names of the switches of `[task]` that are on.
        env_id: the environment's name, for messages.
        shape: shape of one observation as the environment shows it.
        floats: whether its numbers are floats.
        actions: number of discrete actions, or None.

    Attributes:
        features: number of features K added to each observation.
        symmetry: the mirror image, if it is switched on.
        limits: failure limits per entry, features included, or None.

    Raises:
        TaskError: a switch is on whose part is not declared, or a part is not of the form above.
    """

    def __init__(
        self,
        declared: Any,
        switches: Sequence[str],
        env_id: str,
        *,
        shape: tuple[int, ...],
        floats: bool,
        actions: int | None,
    ) -> None:
        self._declared, self._env_id = declared, env_id
        for switch in switches:
            if getattr(declared, PARTS[switch], None) is None:
                raise TaskError(
                    f"task.{switch}: {env_id} declares no {PARTS[switch]}: give the environment, or a wrapper in "
                    f"task.wrappers, an attribute {ATTRIBUTE} that has one (pydoc mlxe_async.tasks.help), or switch it "
                    "off"
                )
        vector = len(shape) == 1 and floats
        for switch in ("mirror", "features"):
            if switch in switches and not vector:
                raise TaskError(f"task.{switch}: is for observations that are vectors of floats, got shape {shape}")
        self.own = shape[0] if vector else 0
        self.features = 0
        if "features" in switches or "squared_position" in switches:
            self._key = "features" if "features" in switches else "squared_position"
            self.features = self._count_features()
        entries = self.own + self.features
        self.symmetry = self._symmetry(entries, actions) if "mirror" in switches else None
        self.limits = self._limits(entries) if vector else None

    def add_features(self, obs: Array) -> None:
        """Fill the last K entries of observations (B, O + K) from the others, in place."""
        more = np.asarray(self._call(self._key, self._declared.features, _locked(obs[:, : self.own])))
        if more.shape != (len(obs), self.features):
            raise self._wrong(self._key, f"{len(obs)} rows of {self.features}", more)
        with np.errstate(all="ignore"):  # what does not fit float32 is found with everything that is not finite
            obs[:, self.own :] = more

    def features_of(self, obs: Any) -> Any:
        """The declared features (B, K) of observations (B, O), of torch tensors as well as arrays.

        Raises:
            TaskError: the declared function raised, or does not return what it was given.
        """
        more = self._call(self._key, self._declared.features, obs)
        if type(more) is not type(obs) or more.shape[1:] != (self.features,):
            raise self._wrong(self._key, f"a {type(obs).__name__} of {self.features} for each row it is given", more)
        return more

    def shaped_reward(self, obs: Array, action: Array, next_obs: Array, reward: Array, terminated: Array) -> Array:
        """Rewards (B,) float32 to learn from; perhaps not finite, which is for the caller to find.

        Raises:
            TaskError: the declared function raised or returned something else.
        """
        given = map(_locked, (obs, action, next_obs, reward, terminated))
        shaped = np.asarray(self._call("shaped_reward", self._declared.shaped_reward, *given))
        if shaped.shape != reward.shape or shaped.dtype.kind not in "fiu":
            raise self._wrong("shaped_reward", f"{len(reward)} numbers", shaped)
        with np.errstate(all="ignore"):
            return shaped.astype(np.float32)

    def adverse_start(self, env: gymnasium.Env[Any, Any], finished_episodes: int) -> Any:
        """Whatever the declared function returns or raises; it is a part of the reset."""
        return self._declared.adverse_start(env, finished_episodes)

    def adverse_starts(self, vector: Any, began: Array, finished_episodes: int) -> Array:
        """What those of a vector that `began` (B,) show now (M, O), some of them in hard places; CartPole's alone."""
        shown: Array = self._declared.adverse_starts(vector, began, finished_episodes)
        return shown

    # -- what is declared -------------------------------------------------------------------------------------------

    def _count_features(self) -> int:
        more = np.asarray(self._call(self._key, self._declared.features, _locked(np.zeros((2, self.own), np.float32))))
        if more.ndim != 2 or len(more) != 2 or not more.shape[1] or more.dtype.kind not in "fiu":
            raise self._wrong(self._key, "2 rows of numbers", more)
        return int(more.shape[1])

    def _symmetry(self, entries: int, actions: int | None) -> Symmetry:
        declared = self._declared.symmetry
        if isinstance(declared, Symmetry):
            sign, order = declared.observation_sign, declared.action_order
        else:
            if not isinstance(declared, Mapping) or set(declared) != {"observation_sign", "action_order"}:
                raise self._form("mirror", "symmetry as observation_sign and action_order", declared)
            sign, order = declared["observation_sign"], declared["action_order"]
        if actions is None:
            raise TaskError(f"task.mirror: {self._env_id}: a mirror image is declared for discrete actions only")
        factors = self._numbers("mirror", "observation_sign", sign, entries)
        if not all(abs(factor) == 1 for factor in factors):
            raise self._form("mirror", "observation_sign of 1 and -1", sign)
        which = self._numbers("mirror", "action_order", order, actions)
        orders = tuple(int(action) for action in which)
        if sorted(orders) != list(range(actions)) or any(orders[orders[action]] != action for action in range(actions)):
            raise self._form("mirror", f"action_order to pair the actions 0 to {actions - 1}", order)
        return Symmetry(tuple(float(factor) for factor in factors), orders)

    def _limits(self, entries: int) -> tuple[float | None, ...] | None:
        declared = getattr(self._declared, "limits", None)
        if declared is None:
            return None
        if not isinstance(declared, Sequence) or isinstance(declared, str) or len(declared) < self.own:
            raise self._form("env", f"limits as a list of {self.own}", declared)
        for limit in declared:
            number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if limit is not None and not (number and 0 < limit < np.inf):
                raise self._form("env", "each of limits to be None or positive", declared)
        padded = [*declared[:entries], *[None] * (entries - len(declared))]
        return tuple(None if limit is None else float(limit) for limit in padded)

    def _numbers(self, switch: str, name: str, values: Any, count: int) -> Sequence[float]:
        plain = isinstance(values, Sequence) and not isinstance(values, str) and len(values) >= count
        if not plain or not all(isinstance(value, int | float) for value in values):
            raise self._form(switch, f"{name} with {count} numbers", values)
        cut: Sequence[float] = values[:count]  # signs of features stand last and are cut where these are off
        return cut

    def _call(self, switch: str, function: Callable[..., Any], *given: Any) -> Any:
        try:
            return function(*given)
        except BaseException as error:  # exit and Ctrl-C come from foreign code here, not to us
            part = PARTS[switch]
            raise TaskError(f"task.{switch}: {ATTRIBUTE}.{part} of {self._env_id} raised {words_of(error)}") from error

    def _wrong(self, switch: str, expected: str, got: Any) -> TaskError:
        return self._form(switch, f"{PARTS[switch]} to return {expected}", got)

    def _form(self, switch: str, expected: str, got: Any) -> TaskError:
        return TaskError(f"task.{switch}: {ATTRIBUTE} of {self._env_id}: expected {expected}, got {described(got)}")


def _locked(array: Array) -> Array:
    """The same numbers, for reading only: what foreign code is shown becomes part of rows."""
    view = array.view()
    view.flags.writeable = False
    return view
