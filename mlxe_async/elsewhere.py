"""Names that people know from other packages, and what they are here: for imports and for methods.

`from mlxe_async import PPO` and `policy.predict(obs)` are the first lines that many type. The error says what to write.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., Any])

_RUN = (
    'Supervisor(load_settings({{"task": {{"env": "CartPole-v1"}}, "algorithm": {{"name": "{}"}}, '
    '"stop": {{"env_steps": 100_000}}}})).run_sync()'
)
_VECTORS = "environments are made by executors: schedule.executors, schedule.envs_per_executor and task.vectorize"
IMPORTS: dict[str, str] = {
    **{name.upper(): _RUN.format(name) for name in ("ppo", "a2c", "dqn", "sac", "td3", "ddpg", "c51", "impala")},
    **{f"{name}Config": _RUN.format(name.lower()) for name in ("PPO", "DQN", "SAC", "IMPALA")},
    **dict.fromkeys(("APPO", "APPOConfig"), _RUN.format("ppo")),
    "RecurrentPPO": 'algorithm name = "ppo" with cell = "lstm"',
    "MaskablePPO": 'algorithm name = "ppo" with task.action_mask = true',
    "QRDQN": 'algorithm name = "c51" or "rainbow", which learn distributions',
    "Algorithm": "from mlxe_async.algorithms import Algorithm",
    "make": "Supervisor(settings, env=...) or [task] env; gymnasium.make makes one environment",
    "make_vec_env": _VECTORS,
    "make_env": _VECTORS,
    "DummyVecEnv": _VECTORS,
    "SubprocVecEnv": _VECTORS,
    "VecNormalize": "normalise and reward_scaling of [algorithm], which are saved, tested and resumed",
    "VecFrameStack": "task.history, or task.atari.stack",
    "VecMonitor": "the log has each episode: read_log(RUN)",
    "Monitor": "the log has each episode: read_log(RUN)",
    "EvalCallback": "evaluation.enabled = true, interval_steps and episodes",
    "CheckpointCallback": "checkpoint.interval_steps and keep",
    "StopTrainingOnRewardThreshold": "stop.solved = true and evaluation.threshold",
    "BaseCallback": "Supervisor.subscribe(callback), or Supervisor.events() in a loop",
    "ReplayBuffer": 'memory.capacity_rows; an own algorithm says memory = "replay"',
    "evaluate_policy": "load_policy(RUN).test()",
    "train": "Supervisor(load_settings(FILE)).run_sync()",
    "run_rl": "Supervisor(load_settings(FILE)).run_sync()",
    "load": "load_policy(RUN)",
    "load_model": "load_policy(RUN)",
    "load_config": "load_settings(FILE)",
    "tune": "python -m mlxe_async tune FILE.toml",
    "Trainer": "Supervisor(load_settings(FILE))",
    "Config": "load_settings(FILE), or of nested dictionaries",
}
"""Imports from other packages, by name -> what is written here."""

RUNS: dict[str, str] = {
    **dict.fromkeys(("learn", "train", "fit", "start", "step", "build"), "run_sync(), or await run() in a loop"),
    **dict.fromkeys(("save", "save_checkpoint"), "nothing: the run's folder has checkpoints; load_policy(RUN)"),
    **dict.fromkeys(("predict", "act", "get_policy", "policy"), "load_policy(result.run_dir).act(obs)"),
    **dict.fromkeys(("evaluate", "eval"), "load_policy(result.run_dir).test()"),
    **dict.fromkeys(("stop", "close"), "request_stop()"),
    **dict.fromkeys(("add_callback", "callbacks", "on_step"), "subscribe(callback)"),
    "restore": "Supervisor(settings, resume=RUN)",
}
"""Methods of what trains elsewhere, and what is called of a Supervisor."""


def told_of(name: str) -> str:
    """Say what a name of another package is here; empty where it is none."""
    return f"mlxe_async has no {name}; write: {IMPORTS[name]}" if name in IMPORTS else ""


def answering(values: str, **hints: str) -> Callable[[_Method], _Method]:
    """Have a method answer arguments of other packages, in a `TypeError`.

    Args:
        values: the answer to more values without a name than it takes.
        hints: the answer to an argument of this name.
    """

    def decorated(method: _Method) -> _Method:
        known = inspect.signature(method).parameters
        unnamed = sum(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in known.values())

        @functools.wraps(method)
        def called(*given: Any, **named: Any) -> Any:
            if len(given) > unnamed:
                raise TypeError(f"{method.__qualname__}: got {len(given) - 1} values without a name; {values}")
            if (odd := next((name for name in named if name not in known), None)) is not None:
                hint = hints.get(odd, f"expected {', '.join([*known][1:])}")
                raise TypeError(f"{method.__qualname__}: got {odd}=; {hint}")
            return method(*given, **named)

        return cast("_Method", called)

    return decorated


class Answering:
    """A class that is asked for methods of other packages, and says which of its own they are."""

    elsewhere: ClassVar[Mapping[str, str]] = {}
    "Method elsewhere -> what to call here."

    if not TYPE_CHECKING:  # for a type checker, only what is there is there

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            hint = f"; call {kind.elsewhere[name]}" if name in kind.elsewhere else ""
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)
