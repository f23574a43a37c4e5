"""Ids of environments that are known here: gymnasium's registry, packages that register themselves, and EnvPool."""

from __future__ import annotations

import fnmatch
import importlib.util
import re
from typing import NamedTuple

import gymnasium

from mlxe_async.errors import TaskError
from mlxe_async.settings.task import POOL
from mlxe_async.tasks import pools
from mlxe_async.tasks.installed import register_installed


class Listed(NamedTuple):
    """An environment that a settings file may name.

    Args:
        env: its id.
        ways: values of `task.vectorize` that it can be stepped by, beside `"single"`.
        limit: steps after which its episodes are truncated; None: never.
        threshold: mean return at which it counts as solved; None: it has none.
    """

    env: str
    ways: tuple[str, ...]
    limit: int | None
    threshold: float | None


def listed(pattern: str = "") -> list[Listed]:
    """Environments whose ids match, in alphabetical order.

    Args:
        pattern: with `*`, `?` or `[` the form of a whole id; otherwise a part of one. Small letters stand for large.
    """
    register_installed()
    found: dict[str, Listed] = {}
    for env, spec in gymnasium.registry.items():
        ways = ("native",) if spec.vector_entry_point is not None else ()
        found[env] = Listed(env, ways, spec.max_episode_steps, spec.reward_threshold)
    for env in _of_the_pool():
        known = found.get(env)
        found[env] = known._replace(ways=(*known.ways, POOL)) if known else Listed(env, (POOL,), None, None)
    return sorted(one for one in found.values() if _matches(one.env, pattern))


def _of_the_pool() -> list[str]:
    if importlib.util.find_spec(POOL) is None:
        return []
    try:
        return sorted(pools.ids())
    except TaskError:  # it is there and cannot be imported: only who asks for it is told why
        return []


def _matches(env: str, pattern: str) -> bool:
    form = pattern.lower() if re.search(r"[*?\[]", pattern) else f"*{pattern.lower()}*"
    return fnmatch.fnmatchcase(env.lower(), form)
