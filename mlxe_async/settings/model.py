"""The tree of settings: what can be said in a file, with its range and its default.

Strict: `true` is no number, `1.5` is no whole number (`1e3` is), and there are no NaNs. Every key that is not here is a
mistake.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from mlxe_async.cores import left_to_play, usable_cores
from mlxe_async.settings.forms import (
    ALLOWED,
    COSMETIC,
    FORBIDDEN,
    LARGEST,
    AlgorithmName,
    Count,
    Device,
    Folder,
    Limit,
    RunName,
    Seconds,
    Table,
    key,
    listed,
)
from mlxe_async.settings.places import Places
from mlxe_async.settings.schedules import (
    AUTO,
    MOST_EXECUTORS,
    IaSchedule,
    IsSchedule,
    IstbSchedule,
    OaSchedule,
    SerialSchedule,
    left_to_defaults,
)
from mlxe_async.settings.task import Task

ROWS_PER_EXECUTOR = 1024
UNLIMITED_TEST_STEPS = 50_000


class Run(Table):
    """`[run]`: what the run is called and where it is kept."""

    name: RunName = key("run", "Ends the run folder's name; left out, it is the settings file's own.", COSMETIC)
    seed: int = key(0, "All randomness of the run derives from this number.", FORBIDDEN, ge=0, le=LARGEST)
    dir: Folder = key("runs", "Folder in which run folders are made.", COSMETIC)
    python_path: tuple[Folder, ...] = listed(
        "Folders, relative to the settings file, with your own environments and algorithms.", ALLOWED, max_length=16
    )
    allow_modules: tuple[str, ...] | None = key(
        None,
        "Modules that task.env, task.wrappers and algorithm.name may name, those inside them included; left out, any "
        "that are installed or in python_path.",
        COSMETIC,
        strict=False,
        max_length=64,
    )
    init_from: Folder | None = key(
        None, "A run, by its folder or as in runs/, whose saved weights this one begins with.", COSMETIC
    )
    record: bool = key(
        False,
        'Write down what happened in which order, for schedule.kind = "oa", so that `replay RUN` can do it again bit '
        "for bit.",
        COSMETIC,
    )


class Stop(Table):
    """`[stop]`: the first condition to come true ends the run; with none it goes on until you stop it."""

    env_steps: Count | None = key(None, "Environment steps, of all executors together.", COSMETIC)
    episodes: Count | None = key(None, "Finished training episodes, of all executors together.", COSMETIC)
    episode_steps: Count | None = key(
        None, "Steps of one training episode: the first to last so long ends the run.", COSMETIC
    )
    updates: Count | None = key(None, "Updates of the learner.", COSMETIC)
    seconds: Seconds | None = key(None, "Seconds since the start of the run.", COSMETIC)
    solved: bool = key(False, "Three tested versions in a row passed: see [evaluation].", COSMETIC)
    steps_after_solved: Count | None = key(
        None,
        "With solved = true, environment steps to go on for once it is solved, still testing; more show better "
        "whether what was learned is kept.",
        COSMETIC,
    )


class AlgorithmTable(BaseModel):
    """`[algorithm]`: which one, and its own keys, which its own `Settings` judge when the task is probed."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    name: AlgorithmName = key("mlxe", "A built-in one, or your own as package.module:Class.", FORBIDDEN)

    @property
    def table(self) -> dict[str, Any]:
        """The whole table as written, `name` included: what the algorithm's own `Settings` validate."""
        return {"name": self.name, **(self.model_extra or {})}


class Learner(Table):
    """`[learner]`: where the network is trained."""

    device: Device = key("cpu", '"cpu", "cuda" or "cuda:N".', ALLOWED)
    threads: int = key(0, "Threads of one update; 0 takes the cores that are left.", ALLOWED, ge=0, le=1024)
    own_core: bool | Literal["auto"] = key(
        "auto",
        '"auto": while all wait for the learner and fit on the other cores, it has one to itself, and shares it again '
        "where it has time to spare; true: always; false: never. Without effect on learners with several threads and "
        "on machines with one core.",
        COSMETIC,
    )
    graphs: bool = key(
        False,
        "true: on a GPU, gradient and step are recorded as CUDA graphs, each launched as one operation instead of a "
        "hundred; what cannot be recorded, or comes to something else, is done as without and told in the log. "
        "Without effect on the CPU.",
        ALLOWED,
    )
    fast: bool | Literal["auto"] = key(
        "auto",
        "true: updates of mlxe, dqn, ppo, sac, td3 and ddpg, as long as their files are as they came, are computed by "
        "code that was derived from these, and sequences of recurrent cells by numpy; false: as files are written, "
        'like those of other algorithms, which takes longer. "auto": '
        'false under "serial", so that a debugger stops in the file, else true.',
        ALLOWED,
    )
    products: Literal["auto", "numpy", "torch"] = key(
        "auto",
        "What that code multiplies matrices of dense layers by: torch shares a product among the threads, numpy has "
        'one, but is faster where a side is short, or the processor is of AMD with AVX-512. "auto": the faster one, '
        "which follows from shapes, threads and the processor.",
        ALLOWED,
    )
    audit_every: int = key(
        2000,
        "Updates from one to the next that is done again by the algorithm's own file, and compared, as are the first "
        "and the first steps of the second, fourth and so on. A difference at the start is told, and the run "
        "goes on by that file; a later one ends it. More cost less and notice later, 0 never compares.",
        COSMETIC,
        ge=0,
        le=10**9,
    )
    promote_best: int = key(
        0,
        "Iterations without a better training result after which the learner goes back to the best version so far; "
        "more are more patient, 0 never goes back. Under oa an iteration is over when each executor has finished an "
        "episode.",
        ALLOWED,
        ge=0,
        le=10**6,
    )
    promote_by: Literal["mean_return", "steps"] = key(
        "mean_return",
        "The training result: the mean return of the episodes of an iteration, or the sum of their steps over "
        "all executors. The log tells each.",
        FORBIDDEN,
    )
    keep_state_every: int = key(
        0,
        "Publications from one copy of all that learns but does not act (optimiser, targets, averages, generators) to "
        "the next; a restarted learner goes on from the newest. More cost less time and lose more. 0: each one where "
        "the executors wait for the learner; under oa and ia as often as takes 1 % of the time.",
        COSMETIC,
        ge=0,
        le=10**6,
    )


class Memory(Table):
    """`[memory]`: what is kept for learning, and how rows travel to it."""

    capacity_rows: int | None = key(
        None,
        "Rows kept; left out, what suits algorithm and task, or 1024 for each executor. More forget later.",
        ALLOWED,
        ge=1,
        le=10**12,
    )
    keep_rows: int | None = key(
        None,
        "Rows kept of one rollout of an environment, its last ones; more favour the start. Left out, all of them where "
        "those that wait take less than 256 MiB.",
        ALLOWED,
        ge=1,
        le=10**9,
    )
    block_rows: int = key(
        128, "Rows that travel together; more cost less each but come later.", ALLOWED, ge=1, le=10**6
    )
    lane_slots: int = key(
        64, "Blocks an executor may be ahead of the memorizer before it waits.", ALLOWED, ge=2, le=65_536
    )


class Supervision(Table):
    """`[supervision]`: how much may go wrong before the run is given up."""

    restart_limit: int = key(
        5,
        "Restarts of one process without progress in between, within the window below; of the nursery, from which all "
        "are forked, restarts at all. Also lives of one process in a row that may hang, with progress or without.",
        COSMETIC,
        ge=0,
        le=10_000,
    )
    restart_window_s: Seconds = key(
        60.0, "Longer counts older restarts too. A life that goes well for so long forgives earlier hangs.", COSMETIC
    )
    backoff_s: Limit = key(0.1, "Pause before the second restart in a row; it doubles from then on.", COSMETIC)
    backoff_max_s: Limit = key(5.0, "Longest pause before a restart.", COSMETIC)
    start_timeout_s: Limit = key(60.0, "A process that is not ready by then is restarted.", COSMETIC)
    nonfinite: Literal["abort_episode", "reset_env", "stop"] = key(
        "abort_episode",
        "A NaN or infinity from an environment ends the episode, and the environment is made anew or only reset; or "
        "it ends the run.",
        ALLOWED,
    )
    max_executor_rss_mb: int | None = key(
        None,
        "An executor with more MiB in RAM, shared pages included, is replaced between two episodes; higher lets a "
        "leaking environment go on for longer.",
        COSMETIC,
        ge=16,
        le=10**9,
    )
    env_fault_limit: int = key(
        5, "Faults of one environment in the window below; 10 good steps undo one.", COSMETIC, ge=0, le=10**6
    )
    env_fault_window_s: Seconds = key(60.0, "Longer counts older faults too.", COSMETIC)
    on_checkpoint_failure: Literal["continue", "stop"] = key(
        "continue",
        "A run that cannot save, as on a full disk, goes on and tries again, or ends with exit "
        "code 4 after three failures in a row. Where the last weights cannot be saved, it is 4 anyway.",
        COSMETIC,
    )
    on_stdout_closed: Literal["continue", "stop"] = key(
        "continue",
        'A run whose lines have lost their reader, as in "run | head", goes on, or stops and saves '
        "as after its last step.",
        COSMETIC,
    )


class Evaluation(Table):
    """`[evaluation]`: tests of frozen versions with the greedy policy, apart from training."""

    enabled: bool = key(False, "Test a version whenever a training episode finished.", ALLOWED)
    interval_steps: int = key(
        0,
        "Environment steps of training between two tests at least; more leave the cores to learning.",
        ALLOWED,
        ge=0,
        le=10**15,
    )
    rule: Literal["cap", "mean_return"] | None = key(
        None,
        "Pass if all episodes reach max_episode_steps, or if their mean return reaches threshold; left out, "
        "mean_return where there is a threshold, and without one tests are not judged.",
        ALLOWED,
    )
    episodes: int = key(20, "Episodes of one test; more are slower and surer.", ALLOWED, ge=1, le=10_000)
    max_episode_steps: int | None = key(
        None,
        "Test episodes are truncated here; left out, at the id's own limit, else where training's are, else at 50000 "
        "steps.",
        ALLOWED,
        ge=1,
        le=10**9,
    )
    screen_steps: int = key(
        1000, "All episodes go so far before any goes on: weak versions fail cheaply.", ALLOWED, ge=1, le=10**9
    )
    passes: int = key(3, "Versions in a row that must pass to call the task solved.", ALLOWED, ge=1, le=1000)
    threshold: float | None = key(
        None,
        'Mean return to reach, for rule = "mean_return"; left out, the one registered with the id.',
        ALLOWED,
        ge=-1e300,
        le=1e300,
    )
    seed: int = key(20_000, "The tests' own starts: the same for every version.", ALLOWED, ge=0, le=LARGEST)
    in_flight: int = key(4, "Versions tested at the same time; more share the work.", ALLOWED, ge=1, le=1024)

    video: bool = key(
        False,
        "Film an episode of each tested version that is better than all before it, into the run's folder videos; "
        "tests take longer. Needs the extra video.",
        COSMETIC,
    )

    def completed(self, threshold: float | None, limit: int | None) -> Evaluation:
        """Copy the table, with the task's rule, threshold and limits where they were left out.

        Args:
            threshold: mean return at which the task counts as solved, None if its id was registered without one.
            limit: the task's time limit, None if it has none.
        """
        rule, reached = self.rule, self.threshold
        if rule != "cap" and reached is None:
            reached = threshold
        if rule is None and reached is not None:
            rule = "mean_return"
        most = self.max_episode_steps or limit or UNLIMITED_TEST_STEPS
        screen = min(self.screen_steps, most)
        return self.model_copy(
            update={"rule": rule, "threshold": reached, "max_episode_steps": most, "screen_steps": screen}
        )


class Checkpoint(Table):
    """`[checkpoint]`: what is saved on the way."""

    interval_s: float = key(
        30.0, "Seconds between two checkpoints, 0 for none; longer loses more in a crash.", COSMETIC, ge=0, le=1e9
    )
    interval_steps: int = key(
        0,
        "Environment steps between two checkpoints, besides, 0 for none; more lose more in a crash.",
        COSMETIC,
        ge=0,
        le=10**15,
    )
    keep: int = key(
        3, "Newest checkpoints kept; the solved and the best tested one stay besides.", COSMETIC, ge=1, le=10_000
    )


class Logs(Table):
    """`[logs]`: how often the run tells how it is doing."""

    status_interval_s: Limit = key(1.0, "Seconds between two versions of status.json.", COSMETIC)
    ledger_interval_s: Limit = key(10.0, "Seconds between two accounts of rows made, kept and lost.", COSMETIC)
    max_mb: int = key(
        4096, "MiB for log.jsonl; from half of it on it begins anew, keeping one part.", COSMETIC, ge=2, le=2**20
    )
    progress: bool = key(True, "Show progress on the terminal.", COSMETIC)
    quantiles_every: int = key(
        0,
        "Updates from one account of the quantiles of actions, weights and gradients to the next, which comes with the "
        "next publication; more cost less, 0 tells none.",
        COSMETIC,
        ge=0,
        le=10**9,
    )
    export: tuple[Literal["tensorboard", "wandb", "mlflow", "csv", "parquet"], ...] = listed(
        "Write what the log tells for these while the run goes on, into folders of their names in its own folder, as "
        "`export RUN --to` does afterwards: by a process each beside the run, which goes on alike without it.",
        COSMETIC,
        max_length=8,
    )


class Settings(Table):
    """All settings of a run."""

    run: Run = Field(default_factory=Run, description="Name and place of the run.")
    stop: Stop = Field(default_factory=Stop, description="Conditions that end the run.")
    task: Task = Field(description="The task to learn.")
    schedule: Annotated[
        SerialSchedule | IstbSchedule | IsSchedule | IaSchedule | OaSchedule, Field(discriminator="kind")
    ] = Field(
        default_factory=lambda: IsSchedule(kind="is"), description="Order in which processes wait for each other."
    )
    algorithm: AlgorithmTable = Field(default_factory=AlgorithmTable, description="The learning algorithm.")
    learner: Learner = Field(default_factory=Learner, description="Training of the network.")
    memory: Memory = Field(default_factory=Memory, description="Storage of the rows to learn from.")
    supervision: Supervision = Field(default_factory=Supervision, description="Limits of time, failures and restarts.")
    evaluation: Evaluation = Field(default_factory=Evaluation, description="Tests of frozen versions.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="Checkpoints of the run.")
    logs: Logs = Field(default_factory=Logs, description="Log and progress of the run.")

    _places: Places = PrivateAttr(default_factory=Places)

    @property
    def capacity_rows(self) -> int:
        """Rows the memory holds: as set, or 1024 for each executor."""
        return self.memory.capacity_rows or ROWS_PER_EXECUTOR * self.schedule.executors

    @property
    def may_be_fast(self) -> bool:
        """True if twins may do the updates: `learner.fast`, decided."""
        fast = self.learner.fast
        return self.schedule.kind != "serial" if fast == "auto" else bool(fast)

    def value_of(self, key: str) -> Any:
        """The value of a key, such as `task.cartpole.adverse_x`."""
        return functools.reduce(getattr, key.split("."), self)

    def named_modules(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Key and module of each entry that has code of a module run: `"package.module:Name"`."""
        yield from (
            (path, entry.partition(":")[0])
            for path, entry in (
                (("task", "env"), self.task.env),
                *((("task", "wrappers", index), one.entry) for index, one in enumerate(self.task.wrappers)),
                *(
                    (("task", "stages", number, "wrappers", index), one.entry)
                    for number, stage in enumerate(self.task.stages)
                    for index, one in enumerate(stage.wrappers or ())
                ),
                (("algorithm", "name"), self.algorithm.name),
            )
            if ":" in entry
        )

    def with_algorithm(self, table: Mapping[str, Any]) -> Settings:
        """Copy the settings, with all keys of `[algorithm]` written out, as its own `Settings` completed them."""
        values = {key: value for key, value in table.items() if value is not None}
        return self.model_copy(update={"algorithm": AlgorithmTable(**{**values, "name": self.algorithm.name})})

    def with_defaults(self, defaults: Mapping[str, Mapping[str, Any]]) -> Settings:
        """Copy the settings, with an algorithm's recommendations wherever the file says nothing.

        Args:
            defaults: table -> key -> value; keys that the chosen schedule does not have are passed over.
        """
        tables: dict[str, Any] = {}
        for name, recommended in defaults.items():
            table, values = getattr(self, name), recommended
            if (
                name == "schedule" and self.schedule.gradients == "executors"
            ):  # each push is an update and a publication
                values = {key: value for key, value in recommended.items() if key != "updates_per_publish"}
            free = left_to_defaults(values, dict(table), table.model_fields_set)
            tables[name] = table.model_copy(update=free)
        return self.model_copy(update=tables)

    @property
    def said(self) -> dict[str, list[str]]:
        """The keys that were written, or set since, by table."""
        return {name: sorted(table.model_fields_set) for name, table in self if isinstance(table, BaseModel)}

    def taking(self, other: Settings, keys: Collection[str]) -> Settings:
        """Copy the settings, with the values that some keys have in others, wherever they are not written here.

        Args:
            other: settings of a run, all defaults written out.
            keys: such as `schedule.rollout_steps`; they count as written from then on.
        """
        tables: dict[str, Any] = {}
        for path in keys:
            name, _, field = path.partition(".")
            mine, theirs = tables.get(name, getattr(self, name)), getattr(other, name)
            was = theirs.table if isinstance(theirs, AlgorithmTable) else dict(theirs)
            if isinstance(mine, AlgorithmTable):
                if field not in mine.table and was.get(field) is not None:
                    tables[name] = AlgorithmTable(**{**mine.table, field: was[field]})
            elif field in dict(mine) and field not in mine.model_fields_set and field in theirs.model_fields_set:
                tables[name] = mine.model_copy(update={field: was[field]})
        return self.model_copy(update=tables)

    def of_run(self) -> Settings:
        """Copy the settings as those of a run: all keys count as defaults, and none is refused for lack of effect."""
        same = self.model_copy()
        same._places = self._places.without_words()
        return same

    @property
    def places(self) -> Places:
        """The places where keys were written; `places.line(problem)` is a finished message."""
        return self._places

    def with_env(self, env: str) -> Settings:
        """Copy the settings, with another environment."""
        return self.model_copy(update={"task": self.task.model_copy(update={"env": env})})

    def with_executors(self, executors: int) -> Settings:
        """Copy the settings, with another number of executors."""
        return self.model_copy(update={"schedule": self.schedule.model_copy(update={"executors": executors})})

    @model_validator(mode="wrap")
    @classmethod
    def _fill_schedule(cls, raw: Any, handler: ModelWrapValidatorHandler[Settings]) -> Settings:
        """A schedule without a kind is `is`; several environments per executor deliver rollouts; "auto" is a number."""
        if not isinstance(raw, dict) or not isinstance(raw.get("schedule"), dict):
            return handler(raw)
        schedule = {"kind": "is", **raw["schedule"]}
        several = schedule.get("envs_per_executor")
        if isinstance(several, int | float) and several > 1:
            schedule.setdefault("sync", "rollout")
        if schedule.get("executors") != AUTO:
            return handler({**raw, "schedule": schedule})
        settings = handler({**raw, "schedule": {**schedule, "executors": _automatic(raw)}})
        settings._places.automatic = frozenset({("schedule", "executors")})
        return settings


def _automatic(raw: Mapping[str, Any]) -> int:
    """Executors for "auto": the same under each kind of schedule, so that kinds can be compared."""

    def said(table: str, key: str) -> Any:
        return raw[table].get(key) if isinstance(raw.get(table), dict) else None

    threads, memorizer = said("learner", "threads"), said("schedule", "memorizer")
    return min(
        MOST_EXECUTORS,
        left_to_play(
            usable_cores(),
            learner_threads=threads if type(threads) is int else 1,
            memorizer="learner" if said("run", "record") is True else memorizer or "auto",
        ),
    )
