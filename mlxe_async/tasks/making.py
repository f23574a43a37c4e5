"""From `[task]` to an environment, and every way in which that can fail, said in a sentence with a way out.

An environment is made without gymnasium's checker, order and time-limit wrappers: `VectorTask` does their work, more
strictly and in a tenth of the time.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import sys
import types
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import FrameStackObservation, NormalizeReward, TransformObservation

from mlxe_async.errors import TaskError
from mlxe_async.parts import FLOATS, Part
from mlxe_async.rows import Spaces
from mlxe_async.settings.task import Task, Wrapper
from mlxe_async.tasks import atari, cartpole, given, installed, pools
from mlxe_async.tasks.help import TaskAids, declared_by, layers_of
from mlxe_async.tasks.hostile import described, one_line
from mlxe_async.tasks.observing import Packing, packing_of
from mlxe_async.tasks.physics import CartPoleSimulator

_MODULE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_IMPORTED_ID = re.compile(rf"(?P<module>{_MODULE}):(?P<name>[\w./-]+)", re.ASCII)
_ENTRY = re.compile(rf"(?P<module>{_MODULE}):(?P<name>[A-Za-z_]\w*)", re.ASCII)

_LARGEST = float(np.finfo(np.float32).max)
SLIP = 0.85
"""Likeness of ids from which on one is a slip of the hand of another."""
BESIDE = ', with [run] python_path = ["."]'
"""The key that settings need for a module that lies beside them."""


def find_spec(env_id: str) -> EnvSpec:
    """The registry's entry for an id, after importing the module that the id names.

    Raises:
        TaskError: unknown id (with the nearest ones), malformed id, or a module that cannot be imported.
    """
    name = env_id
    if env_id.startswith(given.PREFIX):
        return given.spec_of(env_id)
    if ":" in env_id:
        match = _IMPORTED_ID.fullmatch(env_id)
        if match is None:
            raise TaskError(
                f'task.env: got "{env_id}", expected a gymnasium id such as "CartPole-v1" or "module:Id-v0"'
            )
        name = match["name"]
        module = installed.imported("task.env", env_id, match["module"])
        found: Any = getattr(module, name, None)
        if name not in gymnasium.registry and _is_kind(found, gymnasium.Env):
            return EnvSpec(id=f"{name}-v0", entry_point=found)
    if name not in gymnasium.registry:
        installed.register(env_id, name)
    spec = gymnasium.registry.get(name)
    if spec is None:
        raise TaskError(_unknown(name) if name == env_id else _nothing_in(module, name))
    return spec


def unknown_id(env_id: str) -> str:
    """Say that there is no such id, as far as that is known without importing code of other packages; else empty."""
    is_plain = ":" not in env_id and not env_id.startswith(given.PREFIX)
    if not is_plain or env_id in gymnasium.registry or installed.may_register(env_id):
        return ""
    return _unknown(env_id)


def _nothing_in(module: Any, name: str) -> str:
    """That a module has no such environment, and which it has."""
    where = module.__name__
    own = [key for key, one in vars(module).items() if _is_kind(one, gymnasium.Env) and one.__module__ == where]
    near = difflib.get_close_matches(name, own, n=1, cutoff=0.3) or own[:3]
    advice = f"; it has {', '.join(near)}" if near else "; write a gymnasium.Env there, or register the id"
    if callable(vars(module).get(name)):
        advice = f"; {name} is a function: gymnasium.register(id, entry_point={where}.{name}), or Supervisor(env=...)"
    return (
        f'task.env: there is no environment "{name}" in module {where}: no gymnasium.Env and no id is called so{advice}'
    )


def make(task: Task, spec: EnvSpec | None = None, *, evaluation: bool = False) -> gymnasium.Env[Any, Any]:
    """One environment with the user's wrappers, without a time limit; in an evaluation lives do not count as episodes.

    Raises:
        TaskError: the id is unknown or a package is missing.
        BaseException: whatever the environment's constructor raises.
    """
    spec = spec or find_spec(task.env)
    if spec.entry_point is None:
        raise TaskError(
            f"task.env: {spec.id} is registered as a vector alone, expected one environment too, which tests and play "
            "step: give gymnasium.register an entry_point"
        )
    bare = dataclasses.replace(spec, order_enforce=False, disable_env_checker=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kwargs = pools.single_kwargs(task)
            if task.is_preprocessed:
                kwargs = atari.single_kwargs(task.atari, kwargs)
            env = gymnasium.make(bare, max_episode_steps=-1, **kwargs)
            if env.unwrapped.spec is not None:  # what wrappers ask for, such as TimeAwareObservation
                env.unwrapped.spec.max_episode_steps = task.max_episode_steps or spec.max_episode_steps
            if task.is_preprocessed:
                env = atari.preprocessed(env, task.atari, evaluation=evaluation)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise TaskError(f"task.env: {installed.missing(task.env, error)}") from error
        for one in task.wrappers:
            env = _wrapped(env, one)
        _refuse_scaled_rewards(env, task)
        if task.channels_first:
            env = _channels_first(env, task.env)
        if task.hide:
            env = _hiding(env, task)
        if task.history > 1:
            env = _with_history(env, task)
    if type(space := getattr(env.unwrapped, "action_space", None)) is spaces.Discrete:
        space.__class__ = _QuickDiscrete
    return env


def _refuse_scaled_rewards(env: gymnasium.Env[Any, Any], task: Task) -> None:
    """Refuse rewards by running statistics: returns would be told, and tests judged, in units that change."""
    if any(isinstance(layer, NormalizeReward) for layer in layers_of(env)):
        named = any(NormalizeReward.__name__ in str(one) for one in task.wrappers)
        key, where = ("task.wrappers", "") if named else ("task.env", f"{task.env} is made with ")
        raise TaskError(
            f"{key}: {where}NormalizeReward: returns of training, tests and play would be told in units that change on "
            "the way; take it out and set reward_scaling = true in [algorithm] (ppo, a2c, impala, reinforce)"
        )


class _QuickDiscrete(spaces.Discrete):
    """The same space with the same answers, which judges a plain number by two comparisons.

    Many environments ask their space about each action they are given; CartPole spends a third of its step on that.
    """

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a member."""
        if type(x) is int:
            return bool(self.start <= x < self.start + self.n)
        return super().contains(x)


def read_spaces(env: gymnasium.Env[Any, Any], task: Task) -> tuple[Spaces, TaskAids, Packing | None]:
    """Return what the environment shows and takes, in plain types, with the features and the mirror image of `[task]`.

    Returns:
        The spaces; the aids the task offers, as far as they are switched on; what makes stored observations of the
        environment's own, None where they are stored as they are.

    Raises:
        TaskError: a space that no algorithm here can use, by name, or a switch whose part the task does not declare.
    """
    shown = _declared_space(env, task.env, "observation_space")
    takes = _action(task.env, _declared_space(env, task.env, "action_space"))
    if task.action_mask and takes.action_kind == "box":
        raise TaskError(f"task.action_mask: is for actions to choose from, {task.env} takes a {takes.action_name}")
    if task.action_change_cost and takes.action_kind == "box":
        raise TaskError(
            f"task.action_change_cost: is for actions to choose from, {task.env} takes a {takes.action_name}; drop it"
        )
    packing = packing_of(task.env, shown, task.observe, takes.action_sizes if task.action_mask else ())
    shape: tuple[int, ...]
    if packing is None:
        shape, dtype = tuple(map(int, shown.shape)), "|u1" if shown.dtype == np.uint8 else FLOATS
    else:
        shape, dtype = packing.shape, packing.dtype
    parts = packing.parts if packing else ()
    floats = dtype == FLOATS
    aids = TaskAids(_declared_aids(env, task), task.aids, task.env, shape=shape, floats=floats, actions=takes.actions)
    if aids.features:
        shape = (aids.own + aids.features,)
        parts = (*parts, Part("features", (aids.features,), FLOATS, aids.own)) if parts else ()
    frames = 0 if aids.features or packing else _frames(env, shape)
    facts = dataclasses.replace(
        takes,
        observation_shape=shape,
        observation_dtype=dtype,
        symmetry=aids.symmetry,
        limits=aids.limits,
        frames=frames,
        parts=parts,
        masked=task.action_mask,
        observation_sizes=() if packing is None or aids.features else packing.sizes,
    )
    return facts, aids, packing


def _action(env_id: str, space: Any) -> Spaces:
    """Return what the environment takes, as spaces that show nothing yet."""
    if isinstance(space, spaces.Discrete):
        return Spaces((), actions=int(space.n), action_starts=_starts(space))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(map(int, space.nvec.ravel()))
        shape, starts = space.nvec.shape, _starts(space)
        return Spaces((), action_shape=shape, action_kind="multi_discrete", action_sizes=sizes, action_starts=starts)
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(map(int, space.shape))
        return Spaces((), action_shape=shape, action_kind="multi_binary", action_sizes=(2,) * int(np.prod(shape)))
    if not isinstance(space, spaces.Box) or space.dtype is None or space.dtype.kind != "f" or not space.shape:
        raise TaskError(
            f"task.env: {env_id}: action space {one_line(str(space))} is not supported, expected Discrete, "
            "MultiDiscrete, MultiBinary or a Box of floats"
        )
    low, high = (np.nan_to_num(b.ravel(), posinf=_LARGEST, neginf=-_LARGEST) for b in (space.low, space.high))
    return Spaces((), action_shape=space.shape, action_low=tuple(low.tolist()), action_high=tuple(high.tolist()))


def _starts(space: Any) -> tuple[int, ...]:
    """Return where each entry of integers begins to count; empty where all do at 0."""
    found = tuple(np.ravel(space.start).astype(np.int64).tolist())
    return found if any(found) else ()


def simulator_of(env: gymnasium.Env[Any, Any], task: Task) -> CartPoleSimulator | None:
    """The task's own simulator, if it has one: gymnasium's CartPole itself, without subclass, arguments or wrappers."""
    is_changed = task.wrappers or task.kwargs or task.hide or task.history > 1 or task.single_only
    is_plain = type(env.unwrapped) is CartPoleEnv and not is_changed
    return CartPoleSimulator() if is_plain else None


def has_own_rewards(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether rewards come as the environment gives them: no wrapper is there to change them."""
    return not any(isinstance(layer, (gymnasium.RewardWrapper, NormalizeReward)) for layer in layers_of(env))


def _declared_space(env: gymnasium.Env[Any, Any], env_id: str, name: str) -> Any:
    """A space, which is an attribute that the environment may have forgotten, or a property that is foreign code."""
    try:
        return getattr(env, name)
    except BaseException as error:
        raise TaskError(f"task.env: {env_id}: asking for its {name} {installed.ended(error)}") from error


def _frames(env: gymnasium.Env[Any, Any], shape: tuple[int, ...]) -> int:
    """Frames in one observation, if one of the wrappers stacks that number.

    A wrapper around that one may still change them; who uses this looks at what really comes.
    """
    stacks = (layer.stack_size for layer in layers_of(env) if isinstance(layer, FrameStackObservation))
    size = next(stacks, getattr(env.unwrapped, "stacked_frames", 0))
    return int(size) if size == shape[0] else 0


def _declared_aids(env: gymnasium.Env[Any, Any], task: Task) -> Any:
    """Return what the environment declares, or CartPole's own aids, which fit only if nothing is wrapped around it."""
    if task.history > 1 or task.hide:
        return None  # what is declared is of single observations, and of all entries
    declared = declared_by(env)
    if declared is None and type(env.unwrapped) is CartPoleEnv:
        if task.features:
            raise TaskError("task.features: CartPole's feature is task.squared_position; switch that on instead")
        if not task.wrappers:
            return cartpole.CartPoleHelp(task.cartpole)
        if task.aids:
            raise TaskError(
                f"task.{task.aids[0]}: changes CartPole itself and cannot be combined with task.wrappers; drop one of "
                "them"
            )
    elif task.squared_position:
        raise TaskError(f'task.squared_position: is for CartPole, got task.env = "{task.env}"; switch it off')
    return declared


def _wrapped(env: gymnasium.Env[Any, Any], one: Wrapper) -> gymnasium.Env[Any, Any]:
    """The environment in one more wrapper, or whatever a function made of it."""
    wrapped = _wrapper(one.entry)(env, **one.kwargs)
    if not isinstance(wrapped, gymnasium.Env):
        raise TaskError(f"task.wrappers: {one.entry} returned {described(wrapped)}, expected a gymnasium.Env")
    return wrapped


def _wrapper(entry: str) -> Any:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise TaskError(f'task.wrappers: got "{entry}", expected "module:Wrapper" or "module:function"')
    found: Any = getattr(installed.imported("task.wrappers", entry, match["module"]), match["name"], None)
    own = isinstance(found, types.FunctionType) and match["module"].partition(".")[0] not in sys.stdlib_module_names
    if not own and not _is_kind(found, gymnasium.Wrapper):
        module, name = match["module"], match["name"]
        raise TaskError(f'task.wrappers: module {module} has no gymnasium.Wrapper and no function of its own "{name}"')
    return found


def _channels_first(env: gymnasium.Env[Any, Any], env_id: str) -> gymnasium.Env[Any, Any]:
    """Pictures with their last axis first."""
    space = _declared_space(env, env_id, "observation_space")
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        raise TaskError(f"task.channels_first: expected pictures (H, W, C), {env_id} shows {space}; take it out")
    first = functools.partial(np.moveaxis, source=-1, destination=0)
    return TransformObservation(env, first, spaces.Box(first(space.low), first(space.high), dtype=space.dtype.type))


def _hiding(env: gymnasium.Env[Any, Any], task: Task) -> gymnasium.Env[Any, Any]:
    """Without the entries of its observations that `hide` names."""
    space = _declared_space(env, task.env, "observation_space")
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise TaskError(
            f"task.hide: expected observations that are a vector of numbers, {task.env} shows {one_line(str(space))}; "
            "take it out, or leave out parts by task.observe"
        )
    count, hidden = space.shape[0], sorted(set(task.hide))
    if hidden[-1] >= count or len(hidden) == count:
        expected = f"some of 0 to {count - 1}, not all" if count > 1 else "nothing: there is one entry"
        raise TaskError(f"task.hide: expected {expected}, as {task.env} shows {count} numbers, got {list(task.hide)}")
    if task.aids:
        raise TaskError(f"task.{task.aids[0]}: is for observations as {task.env} has them, got task.hide; drop one")
    shown = np.setdiff1d(np.arange(count), hidden)
    box = spaces.Box(space.low[shown], space.high[shown], dtype=space.dtype.type)
    return TransformObservation(env, lambda obs: obs[shown], box)


def _with_history(env: gymnasium.Env[Any, Any], task: Task) -> gymnasium.Env[Any, Any]:
    """The newest observations in one, the first of an episode repeated before it; nothing goes from one to the next."""
    space = _declared_space(env, task.env, "observation_space")
    if not isinstance(space, spaces.Box):
        raise TaskError(
            f"task.history: expected observations that are a Box, {task.env} shows {one_line(str(space))}; take it out"
        )
    if task.is_preprocessed:
        raise TaskError(f"task.history: {task.env} shows the newest pictures already; set task.atari.stack instead")
    if task.aids:
        raise TaskError(f"task.{task.aids[0]}: is for observations as {task.env} has them, got task.history; drop one")
    # The stack keeps what it is shown, which an environment may change in place.
    env = TransformObservation(env, np.array, space)
    stacked = FrameStackObservation(env, task.history, padding_type="reset")
    shown: spaces.Box = stacked.observation_space  # type: ignore[assignment]  # a stack of Boxes is one
    if len(space.shape) != 3:
        return stacked
    # Pictures (C, H, W): convolutions take the channels of all of them side by side.
    shape = (-1, *space.shape[1:])
    low, high = (bound.reshape(shape) for bound in (shown.low, shown.high))
    side_by_side = spaces.Box(low, high, dtype=space.dtype.type)
    return TransformObservation(stacked, lambda obs: obs.reshape(shape), side_by_side)


def _is_kind(found: Any, kind: type) -> bool:
    return isinstance(found, type) and issubclass(found, kind)


def _unknown(name: str) -> str:
    namespace, slash, _ = name.rpartition("/")
    extra = installed.EXTRAS.get(namespace.lower())
    if extra is None and re.search(r"NoFrameskip|Deterministic", name):
        extra = installed.EXTRAS["ale"]
    if slash and extra and not any(known.startswith(f"{namespace}/") for known in gymnasium.registry):
        return f'task.env: "{name}" needs a package that is not installed: pip install "{extra}"'
    lowered = {known.lower(): known for known in gymnasium.registry}
    nearest = [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)]
    advice = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    if extra:
        advice += f' (Atari games: pip install "{extra}")'
    elif not slash and not difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=SLIP):
        advice += f'{"" if advice else ";"} one that my_task.py registers is "my_task:{name}"{BESIDE}'
    return f'task.env: there is no environment "{name}"{advice}'
