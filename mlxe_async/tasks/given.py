"""Environments given from Python: a class or a function of this program, carried to the processes that make them.

A function, a lambda or a class of a script or a notebook's cell lives in the program that runs it, and environments are
made in others, forked from a process that never ran that program. So it is carried: cloudpickle writes its code and
what it refers to into bytes that all of these processes share, and each reads them when it first makes an environment.
What lies in a module is carried by its name, and the folders in which the program finds modules go along.
"""

from __future__ import annotations

import inspect
import pickle
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from mlxe_async.errors import TaskError
from mlxe_async.tasks.hostile import described, words_of

PREFIX = "python/"
"Begins the `[task] env` of a run whose environment is given from Python."
HANDED = "environment"
"Name of the shared memory that it is carried in."
Maker = Callable[..., gymnasium.Env[Any, Any]]
_LENGTH = struct.Struct("<Q")
_makers: dict[str, Maker] = {}
"By `[task] env`, in this process."
_carried: dict[str, bytes] = {}
"Code that was carried here and is not read yet, likewise."


def name_of(maker: Maker) -> str:
    """Return what `[task] env` calls an environment that is given from Python: `"python/Corridor"`.

    Raises:
        TaskError: it is nothing that makes environments.
    """
    if isinstance(maker, str):
        raise TaskError(
            f"env: got the text {maker!r}, expected a gymnasium.Env class or a function; write it as [task] env"
        )
    if isinstance(maker, gymnasium.Env):
        raise TaskError(
            f"env: got one environment, {described(maker)}, but each process makes its own: give its class, or a "
            "function that makes it, as lambda: Corridor(10)"
        )
    if not callable(maker):
        raise TaskError(f"env: got {described(maker)}, expected a gymnasium.Env class or a function that makes one")
    inner = getattr(maker, "func", maker)  # of functools.partial
    name = getattr(inner, "__name__", type(inner).__name__)
    return PREFIX + re.sub(r"\W", "", name, flags=re.ASCII)


def offer(maker: Maker) -> str:
    """Have this process make environments by it; return what `[task] env` calls them.

    Raises:
        TaskError: it is nothing that makes environments.
    """
    name = name_of(maker)
    _makers[name] = maker
    return name


def packed(maker: Maker) -> bytes:
    """The bytes by which other processes make environments, as `take` reads them.

    Raises:
        TaskError: it cannot be carried, with the reason.
    """
    import cloudpickle  # not needed by runs whose environment is in a file

    name = name_of(maker)
    try:
        code = cloudpickle.dumps(maker)
    except BaseException as error:
        raise TaskError(
            f"env: {name.removeprefix(PREFIX)} cannot be carried to other processes ({words_of(error)}): open files, "
            "locks, threads and windows stay where they were made, so make them in its __init__; or write it into a "
            'file, as envs.py, and name it: task.env = "envs:Name"'
        ) from error
    folders = [str(Path(folder).absolute()) for folder in sys.path]
    told = pickle.dumps({"name": name, "folders": folders, "code": code})
    return _LENGTH.pack(len(told)) + told


def take(memory: memoryview) -> None:
    """Take what another process packed; it is read when an environment is first made."""
    (length,) = _LENGTH.unpack_from(memory)
    told = pickle.loads(memory[_LENGTH.size : _LENGTH.size + length])  # noqa: S301 - the supervisor's own bytes
    sys.path += [folder for folder in told["folders"] if folder not in sys.path]
    _carried[told["name"]] = told["code"]
    _makers.pop(told["name"], None)


def spec_of(env_id: str) -> EnvSpec:
    """The entry of an environment that was given to this process.

    Raises:
        TaskError: none was, or it cannot be read here.
    """
    if env_id in _carried:
        try:
            _makers[env_id] = pickle.loads(_carried[env_id])  # noqa: S301 - see `take`
        except BaseException as error:
            raise TaskError(
                f"task.env: {env_id} cannot be read in another process ({words_of(error)}): what it refers to must be "
                'found there too; write it into a file, as envs.py, and name it: task.env = "envs:Name"'
            ) from error
        del _carried[env_id]
    if env_id not in _makers:
        raise lacking(env_id)
    maker = _makers[env_id]

    def make(**kwargs: Any) -> gymnasium.Env[Any, Any]:  # a copy of the entry copies no data that a maker holds
        if "render_mode" in kwargs and not _takes(maker, "render_mode"):
            raise TaskError(
                f"task.env: {env_id} takes no render_mode, so that nothing can be drawn; give it a parameter "
                "render_mode=None, and to the environment as its attribute"
            )
        made = maker(**kwargs)
        if not isinstance(made, gymnasium.Env):
            raise TaskError(f"task.env: {env_id} returned {described(made)}, expected a gymnasium.Env")
        return made

    return EnvSpec(id=f"{env_id}-v0", entry_point=make)


def lacking(env_id: str) -> TaskError:
    """The error about an environment that was given from Python, and is not."""
    name = env_id.removeprefix(PREFIX)
    return TaskError(
        f'task.env: "{env_id}" is {name} of a Python program, and no file has its code; give it again, by '
        f"Supervisor(settings, resume=RUN, env={name}) or load_policy(RUN, env={name}); commands need it in a file"
    )


def _takes(maker: Maker, name: str) -> bool:
    """Return whether it has a parameter of that name; one that cannot be asked is taken to have it."""
    try:
        known = inspect.signature(maker).parameters
    except (TypeError, ValueError):
        return True
    return name in known or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
