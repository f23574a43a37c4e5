"""The algorithms, each in one readable file, found by name."""

from __future__ import annotations

import difflib
import importlib
import traceback

from mlxe_async.algorithms.interface import ActingClock, Algorithm, Clock, Distributed, Priorities
from mlxe_async.errors import SettingsError, raised_at

__all__ = ["REGISTRY", "ActingClock", "Algorithm", "Clock", "Distributed", "Priorities", "load_algorithm"]

REGISTRY = {
    "a3c": "mlxe_async.algorithms.a3c:A3C",
    "dqn": "mlxe_async.algorithms.dqn:DQN",
    "ppo": "mlxe_async.algorithms.ppo:PPO",
}
"""Built-in algorithms; the module is imported only when its name is asked for."""

_NAMES_ELSEWHERE = {
    "a2c": "a3c",
    "actor_critic": "a3c",
    "appo": "ppo",
    "ppo2": "ppo",
    "ddqn": "dqn",
    "double_dqn": "dqn",
}


def load_algorithm(name: str) -> type[Algorithm]:
    """The class behind a built-in name or behind the user's own `"package.module:Class"`.

    Raises:
        SettingsError: there is no such algorithm, its module cannot be imported (with the line), or the class is no
            algorithm.
    """
    path = REGISTRY.get(name, name)
    module_name, colon, class_name = path.partition(":")
    if not colon:
        meant = _NAMES_ELSEWHERE.get(name.lower().replace("-", "_"), name.lower())
        near = difflib.get_close_matches(meant, REGISTRY, 1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        known = ", ".join(sorted(REGISTRY))
        raise _problem(f'got "{name}", expected one of {known} or "package.module:Class"{hint}')
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        last = traceback.format_exception_only(error)[-1].strip()
        place = f" ({at})" if (at := raised_at(error)) else ""
        raise _problem(f'got "{name}", but importing {module_name} failed: {last}{place}') from error
    algorithm = getattr(module, class_name, None)
    if not isinstance(algorithm, type):
        raise _problem(f'got "{name}", but {module_name} has no class {class_name}')
    missing = [member for member in _MEMBERS if not hasattr(algorithm, member)]
    if missing:
        raise _problem(f'got "{name}", but {class_name} is no algorithm: it lacks {", ".join(missing)}')
    return algorithm


def _problem(text: str) -> SettingsError:
    return SettingsError([f"algorithm.name: {text}"])


_MEMBERS = (
    *("Settings", "memory", "load", "act", "greedy", "greedy_many", "behaviour_log_prob"),
    *("derive", "updates_due", "update", "weights", "set_weights"),
)
