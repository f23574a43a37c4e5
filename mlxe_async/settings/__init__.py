"""The settings of a run: the tree, reading it with all mistakes at once, writing it back.

Imports pydantic and the standard library only: a mistake is shown in half a second, before anything is started. What
follows from the algorithm is judged last: the class of a built-in one is imported for it, without torch.

    model, task, schedules, forms, combining    the tree: what a file may say, with ranges and defaults
    loading, reading, places, toml_places       from a file and `--set` to checked settings, with each key's line
    problems                                    mistakes as sentences: key, got, expected, did you mean
    synonyms, translating                       names of other packages: their table; the answer by keys that fit here
    rules, effects, resuming, trust             rules between keys; no effect; what may change; whose code
    suites, searching                           files of suites and of sweeps
    writing                                     settings as TOML text, and the JSON schema
"""

from mlxe_async.settings.loading import algorithm_problems, load_settings
from mlxe_async.settings.model import (
    AlgorithmTable,
    Checkpoint,
    Evaluation,
    Learner,
    Logs,
    Memory,
    Run,
    Settings,
    Stop,
    Supervision,
)
from mlxe_async.settings.places import Places
from mlxe_async.settings.problems import Problem, describe
from mlxe_async.settings.schedules import IaSchedule, IsSchedule, IstbSchedule, OaSchedule, SerialSchedule
from mlxe_async.settings.task import Task
from mlxe_async.settings.writing import as_tables, dump_settings, settings_schema, toml_value

__all__ = [
    "AlgorithmTable",
    "Checkpoint",
    "Evaluation",
    "IaSchedule",
    "IsSchedule",
    "IstbSchedule",
    "Learner",
    "Logs",
    "Memory",
    "OaSchedule",
    "Places",
    "Problem",
    "Run",
    "SerialSchedule",
    "Settings",
    "Stop",
    "Supervision",
    "Task",
    "algorithm_problems",
    "as_tables",
    "describe",
    "dump_settings",
    "load_settings",
    "settings_schema",
    "toml_value",
]
