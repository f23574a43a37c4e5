"""What may be different when a run goes on from a checkpoint, key by key.

| class | what happens |
|---|---|
| cosmetic | it is different from now on; what is learned does not depend on it |
| allowed | it is different from now on, which the log says; the run is no longer that of its first settings |
| forbidden | the run does not go on: what was learned is of no use, or is something else |

The keys of `[algorithm]` are its own. Those whose field says `json_schema_extra={"on_resume": "forbidden"}` are
forbidden, and so is `name`; all others are allowed, as long as the network keeps its shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlxe_async.settings.model import Settings
from mlxe_async.settings.problems import Path
from mlxe_async.settings.writing import as_tables, toml_value
from mlxe_async.storage.safe_text import redact, visible

Effect = Literal["cosmetic", "allowed", "forbidden"]

_KEYS: dict[Effect, dict[str, str]] = {
    "cosmetic": {
        "run": "name dir init_from allow_modules record",
        "stop": "env_steps episodes episode_steps updates seconds solved steps_after_solved",
        "schedule": "min_executors memorizer step_timeout_s reset_timeout_s update_timeout_s",
        "learner": "own_core audit_every keep_state_every",
        "supervision": "restart_limit restart_window_s backoff_s backoff_max_s start_timeout_s env_fault_limit "
        "env_fault_window_s max_executor_rss_mb on_checkpoint_failure on_stdout_closed",
        "evaluation": "video",
        "checkpoint": "interval_s interval_steps keep",
        "logs": "status_interval_s ledger_interval_s max_mb progress",
    },
    "allowed": {
        "run": "python_path",
        "task": "max_episode_steps adverse_starts shaped_reward mirror vectorize clip_rewards action_change_cost "
        "cartpole",
        "schedule": "kind executors sync rollout_steps flavour unfinished max_rollouts max_policy_lag simulated_lag "
        "updates_per_publish max_owed_updates",
        "learner": "device threads graphs fast promote_best",
        "memory": "capacity_rows keep_rows block_rows lane_slots",
        "supervision": "nonfinite",
        "evaluation": "enabled interval_steps rule episodes max_episode_steps screen_steps passes threshold seed "
        "in_flight",
    },
    "forbidden": {
        "run": "seed",
        "task": "env kwargs wrappers channels_first history squared_position features atari observe action_mask",
        "schedule": "envs_per_executor",
        "learner": "promote_by",
        "algorithm": "name",
    },
}

CLASSES: dict[tuple[str, str], Effect] = {
    (table, key): kind for kind, tables in _KEYS.items() for table, keys in tables.items() for key in keys.split()
}
"""Class of every key but those of `[algorithm]`."""


@dataclass(frozen=True)
class Change:
    """A key that is different now.

    Args:
        path: the key.
        old: its value in the run so far; None where it was not set.
        new: its value from now on.
        kind: what is thought of that.
    """

    path: tuple[str, str]
    old: Any
    new: Any
    kind: Effect

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {_said(self.old)} -> {_said(self.new)}"


def changes(
    old: Settings, new: Settings, forbidden: Collection[str] = (), idle: Collection[Path] = ()
) -> Iterator[Change]:
    """All that is different, key by key; secrets are not compared.

    Args:
        old: settings of the run so far, all defaults written out.
        new: settings it is to go on with, likewise.
        forbidden: keys of `[algorithm]` that must stay.
        idle: keys that have no effect now; a run's settings need not tell of them.
    """
    before, after = redact(as_tables(old)), redact(as_tables(new))
    for table in dict.fromkeys((*before, *after)):
        was, now = before.get(table, {}), after.get(table, {})
        # A schedule of another kind has other keys; their coming and going says no more than the kind does.
        both = table == "schedule" and was["kind"] != now["kind"]
        for key in dict.fromkeys((*was, *now)):
            is_told = key in was and key in now
            if was.get(key) == now.get(key) or (not is_told and (both or (table, key) in idle)):
                continue
            yield Change((table, key), was.get(key), now.get(key), _class_of(table, key, forbidden))


def _class_of(table: str, key: str, forbidden: Collection[str]) -> Effect:
    if table == "algorithm" and key != "name":
        return "forbidden" if key in forbidden else "allowed"
    return CLASSES[table, key]


def forbidden_fields(fields: Mapping[str, Any]) -> list[str]:
    """Names of the fields of an algorithm's `Settings` that say of themselves that they must stay."""
    return [name for name, field in fields.items() if (field.json_schema_extra or {}).get("on_resume") == "forbidden"]


def _said(value: Any) -> str:
    return "nothing" if value is None else visible(toml_value(value), 60)
