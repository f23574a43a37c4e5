"""The tree of settings: what can be said in a file, with its range and its default.

Strict: `true` is no number, `1.5` is no whole number (`1e3` is), and there are no NaNs. Every key that is not here is a
mistake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from mlxe_async.cores import left_to_play, usable_cores
from mlxe_async.settings.forms import (
    LARGEST,
    ActionName,
    AlgorithmName,
    Count,
    Device,
    Entry,
    EnvId,
    Folder,
    Limit,
    PartName,
    Pixels,
    RunName,
    Seconds,
    Table,
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

ROWS_PER_EXECUTOR = 1024
UNLIMITED_TEST_STEPS = 50_000


class Run(Table):
    """`[run]`: what the run is called and where it is kept."""

    name: RunName = Field(
        default="run", description="Ends the run folder's name; left out, it is the settings file's own."
    )
    seed: int = Field(default=0, ge=0, le=LARGEST, description="All randomness of the run derives from this number.")
    dir: Folder = Field(default="runs", description="Folder in which run folders are made.")
    python_path: tuple[Folder, ...] = listed(
        max_length=16, description="Folders, relative to the settings file, with your own environments and algorithms."
    )
    allow_modules: tuple[str, ...] | None = Field(
        default=None,
        strict=False,
        max_length=64,
        description="Modules that task.env, task.wrappers and algorithm.name may name, those inside them included; "
        "left out, any that are installed or in python_path.",
    )
    init_from: Folder | None = Field(
        default=None, description="A run, by its folder or as in runs/, whose saved weights this one begins with."
    )
    record: bool = Field(
        default=False,
        description='Write down what happened in which order, for schedule.kind = "oa", so that `replay RUN` can do it '
        "again bit for bit.",
    )


class Stop(Table):
    """`[stop]`: the first condition to come true ends the run; with none it goes on until you stop it."""

    env_steps: Count | None = Field(default=None, description="Environment steps, of all executors together.")
    episodes: Count | None = Field(default=None, description="Finished training episodes, of all executors together.")
    episode_steps: Count | None = Field(
        default=None, description="Steps of one training episode: the first to last so long ends the run."
    )
    updates: Count | None = Field(default=None, description="Updates of the learner.")
    seconds: Seconds | None = Field(default=None, description="Seconds since the start of the run.")
    solved: bool = Field(default=False, description="Three tested versions in a row passed: see [evaluation].")
    steps_after_solved: Count | None = Field(
        default=None,
        description="With solved = true, environment steps to go on for once it is solved, still testing; "
        "more show better whether what was learned is kept.",
    )


class Atari(Table):
    """`[task.atari]`: how games of the Arcade Learning Environment, `task.env = "ALE/..."`, are shown."""

    preprocess: bool = Field(
        default=True, description="Small pictures, several at a time; false leaves the game to your wrappers."
    )
    frame_skip: int = Field(
        default=4, ge=1, le=60, description="Frames for which an action is repeated; the last two are merged."
    )
    stack: int = Field(default=4, ge=1, le=64, description="Pictures in one observation; more show longer movements.")
    noop_max: int = Field(
        default=30, ge=0, le=10_000, description="Episodes begin with up to so many frames of doing nothing."
    )
    sticky: float = Field(
        default=0.0, ge=0, lt=1, description="Chance that a frame repeats the last action instead; 0.25 is harder."
    )
    life_loss_ends: bool = Field(
        default=False,
        description="In training a lost life ends the episode, and the next one goes on with the same game; returns of "
        "training are then of one life. Tests always play on.",
    )
    fire: bool = Field(
        default=False,
        description="FIRE is pressed for one step where a game begins, and after a lost life, longer if sticky: some "
        "games wait for it.",
    )
    actions: tuple[ActionName, ...] = listed(
        max_length=18,
        description='Actions to choose from, such as ["NOOP", "RIGHT", "LEFT"]; fewer are learned sooner. Left out, '
        "all that the game has.",
    )
    height: int = Field(default=84, ge=1, le=1024, description="Rows of a picture; more show more, and cost more.")
    width: int = Field(default=84, ge=1, le=1024, description="Columns of a picture.")
    crop: tuple[Pixels, ...] = listed(
        (0, 0, 0, 0),
        min_length=4,
        max_length=4,
        description="Pixels cut off the game's picture, of 210 x 160 as a rule, before it is made small: top, bottom, "
        "left, right.",
    )
    colour: bool = Field(
        default=False,
        description="Red, green and blue, (3 * stack, height, width), in place of grey; a replay memory then stores "
        "observations whole.",
    )

    @field_validator("actions")
    @classmethod
    def _names_differ(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise PydanticCustomError("expected", "{wanted}", {"wanted": "each action once"})
        return names


class CartPole(Table):
    """`[task.cartpole]`: the constants of CartPole's adverse starts and of its shaped reward."""

    adverse_x: float = Field(
        default=1.5, ge=0, lt=2.4, description="Adverse starts: the cart so far from the middle; at 2.4 it has left."
    )
    adverse_angle: float = Field(
        default=0.15, ge=0, lt=0.2, description="Adverse starts: the pole leans by so many rad; beyond 0.209 it falls."
    )
    adverse_first: float = Field(
        default=0.2,
        gt=0,
        le=0.25,
        description="Probability of each of the four adverse starts at first; at 0.25 no start is left as it is.",
    )
    adverse_least: float = Field(
        default=0.05, ge=0, le=0.25, description="Below it that probability never falls; higher keeps starts hard."
    )
    adverse_base: float = Field(
        default=5.0,
        gt=1,
        le=1e9,
        description="After E finished episodes it is adverse_first / log E to this base; higher falls later.",
    )
    failure_reward: float = Field(
        default=-10.0, ge=-1e6, le=1e6, description="Shaped reward of the fall; lower fears it more."
    )
    centre_weight: float = Field(
        default=1.0, ge=0, le=1e6, description="Weight of being near the middle in the shaped reward."
    )
    upright_weight: float = Field(
        default=1.0, ge=0, le=1e6, description="Weight of being upright in the shaped reward; both 0: 1 for each step."
    )


class Wrapper(Table):
    """An entry of `[task] wrappers`; written as a text it has no arguments."""

    entry: Entry = Field(description="A gymnasium.Wrapper, or a function that takes and returns an environment.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments beside the environment.")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"entry": value} if isinstance(value, str) else value

    @model_serializer
    def _to_text(self) -> Any:
        return {"entry": self.entry, "kwargs": self.kwargs} if self.kwargs else self.entry

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        table = handler.resolve_ref_schema(handler(schema["schema"]))
        return {"anyOf": [table["properties"]["entry"], table]}


class Task(Table):
    """`[task]`: the environment."""

    env: EnvId = Field(description="A gymnasium id; module:Name-v0 imports the module first.", examples=["CartPole-v1"])
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments for the environment's constructor.")
    max_episode_steps: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="Training episodes are truncated here; left out, the id's own limit holds.",
    )
    wrappers: tuple[Wrapper, ...] = listed(
        max_length=16,
        description="Your gymnasium wrappers or functions, innermost first; the time limit lies outside them. With "
        'arguments: {entry = "module:Name", kwargs = {size = 4}}.',
    )
    channels_first: bool = Field(
        default=False, description="Show pictures (H, W, C) as (C, H, W), as convolutions take them."
    )
    history: int = Field(
        default=1,
        ge=1,
        le=128,
        description="Show the newest so many observations of an episode in one, the first one repeated at its "
        "start: (history, ...), of pictures (history * C, H, W). More tell how things move, and make inputs larger.",
    )
    adverse_starts: bool = Field(
        default=False,
        description="Some episodes start in hard places: on CartPole close to failure, fewer later on, elsewhere as "
        "the environment's mlxe_help says.",
    )
    shaped_reward: bool = Field(
        default=False,
        description="Learn from a reward for being near the centre and upright on CartPole, elsewhere from that of the "
        "environment's mlxe_help.",
    )
    squared_position: bool = Field(default=False, description="CartPole: the square of the position as a fifth input.")
    mirror: bool = Field(
        default=False,
        description="Declare the task's mirror image, left and right on CartPole, elsewhere that of mlxe_help; batches "
        "may then be mirrored.",
    )
    features: bool = Field(
        default=False, description="Further inputs, computed from the observation as the environment's mlxe_help says."
    )
    vectorize: Literal["single", "native", "auto"] = Field(
        default="single",
        description="native steps all environments of an executor by one call, which needs gymnasium's own vector of "
        "them and is many times faster, with other episodes; auto: where there is one.",
    )
    clip_rewards: bool = Field(
        default=False,
        description="Learn from rewards cut to -1 and 1, as usual for Atari games; results and tests count them whole.",
    )
    action_change_cost: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="Taken off the reward that is learned from wherever a discrete action differs from the one before "
        "it in the episode, after clipping; higher holds actions for longer. Returns and tests do not know of it; the "
        "log tells how often it was taken.",
    )
    cartpole: CartPole = Field(default_factory=CartPole, description="Constants of CartPole's starts and reward.")
    atari: Atari = Field(default_factory=Atari, description="How Atari games are shown.")
    observe: tuple[PartName, ...] = listed(
        max_length=1024,
        description="Which parts of Dict observations are used, by key, or of a Tuple, by index; left out, all. Parts "
        "that are no numbers of a fixed size, such as text, must be left out.",
    )
    action_mask: bool = Field(
        default=False,
        description='Keep info["action_mask"], 1 for each allowed action, with the observations; every reset and step '
        "must give it.",
    )


class AlgorithmTable(BaseModel):
    """`[algorithm]`: which one, and its own keys, which its own `Settings` judge when the task is probed."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    name: AlgorithmName = Field(default="mlxe", description="A built-in one, or your own as package.module:Class.")

    @property
    def table(self) -> dict[str, Any]:
        """The whole table as written, `name` included: what the algorithm's own `Settings` validate."""
        return {"name": self.name, **(self.model_extra or {})}


class Learner(Table):
    """`[learner]`: where the network is trained."""

    device: Device = Field(default="cpu", description='"cpu", "cuda" or "cuda:N".')
    threads: int = Field(
        default=0, ge=0, le=1024, description="Threads of one update; 0 takes the cores that are left."
    )
    own_core: bool | Literal["auto"] = Field(
        default="auto",
        description='"auto": while all wait for the learner and fit on the other cores, it has one to itself, and '
        "shares it again where it has time to spare; true: always; false: never. Without effect on learners with "
        "several threads and on machines with one core.",
    )
    graphs: bool = Field(
        default=False,
        description="true: on a GPU, gradient and step are recorded as CUDA graphs, each launched as one operation "
        "instead of a hundred; what cannot be recorded, or comes to something else, is done as without and told in "
        "the log. Without effect on the CPU.",
    )
    fast: bool | Literal["auto"] = Field(
        default="auto",
        description="true: updates of a built-in algorithm, as long as its file is as it came, are computed by code "
        "that was derived from it; false: as the file is written, like those of other algorithms, which takes longer. "
        '"auto": false under "serial", so that a debugger stops in the file, else true.',
    )
    audit_every: int = Field(
        default=2000,
        ge=0,
        le=10**9,
        description="Of so many updates that were done fast, one is done again as it is written, and compared, as are "
        "the first and, of large rollouts in part, the second, fourth and so on. A difference at the start is told, "
        "and the run goes on as it is written; a later one ends it. More cost less and notice later, 0 never compares.",
    )
    promote_best: int = Field(
        default=0,
        ge=0,
        le=10**6,
        description="Iterations without a better training result after which the learner goes back to the best version "
        "so far; more are more patient, 0 never goes back. Under oa an iteration is over when each executor has "
        "finished an episode.",
    )
    promote_by: Literal["mean_return", "steps"] = Field(
        default="mean_return",
        description="What a training result is: the mean return of the episodes of an iteration, or the sum of their "
        "steps over all executors. The log tells each.",
    )
    keep_state_every: int = Field(
        default=0,
        ge=0,
        le=10**6,
        description="Publications from one copy of all that learns but does not act (optimiser, targets, averages, "
        "generators) to the next; a restarted learner goes on from the newest. More cost less time and lose more. "
        "0: each one where the executors wait for the learner; under oa and ia as often as takes 1 % of the time.",
    )


class Memory(Table):
    """`[memory]`: what is kept for learning, and how rows travel to it."""

    capacity_rows: int | None = Field(
        default=None, ge=1, le=10**12, description="Rows kept; left out, 1024 for each executor. More forget later."
    )
    keep_rows: int = Field(
        default=256, ge=1, le=10**9, description="Rows kept of one episode, its last ones; more favour the start."
    )
    block_rows: int = Field(
        default=128, ge=1, le=10**6, description="Rows that travel together; more cost less each but come later."
    )
    lane_slots: int = Field(
        default=64, ge=2, le=65_536, description="Blocks an executor may be ahead of the memorizer before it waits."
    )


class Supervision(Table):
    """`[supervision]`: how much may go wrong before the run is given up."""

    restart_limit: int = Field(
        default=5,
        ge=0,
        le=10_000,
        description="Restarts of one process without progress in between, within the window below; of the nursery, "
        "from which all are forked, restarts at all. Also lives of one process in a row that may hang, with progress "
        "or without.",
    )
    restart_window_s: Seconds = Field(
        default=60.0,
        description="Longer counts older restarts too. A life that goes well for so long forgives earlier hangs.",
    )
    backoff_s: Limit = Field(
        default=0.1, description="Pause before the second restart in a row; it doubles from then on."
    )
    backoff_max_s: Limit = Field(default=5.0, description="Longest pause before a restart.")
    start_timeout_s: Limit = Field(default=60.0, description="A process that is not ready by then is restarted.")
    nonfinite: Literal["abort_episode", "reset_env", "stop"] = Field(
        default="abort_episode",
        description="A NaN or infinity from an environment ends the episode, and the environment is made anew or only "
        "reset; or it ends the run.",
    )
    max_executor_rss_mb: int | None = Field(
        default=None,
        ge=16,
        le=10**9,
        description="An executor with more MiB in RAM, shared pages included, is replaced between two episodes; "
        "higher lets a leaking environment go on for longer.",
    )
    env_fault_limit: int = Field(
        default=5, ge=0, le=10**6, description="Faults of one environment in the window below; 10 good steps undo one."
    )
    env_fault_window_s: Seconds = Field(default=60.0, description="Longer counts older faults too.")
    on_checkpoint_failure: Literal["continue", "stop"] = Field(
        default="continue",
        description="What becomes of a run that cannot save, as on a full disk: it goes on and tries again, or ends "
        "with exit code 4 after three failures in a row. Where the last weights cannot be saved, it is 4 anyway.",
    )
    on_stdout_closed: Literal["continue", "stop"] = Field(
        default="continue",
        description='What becomes of a run whose lines nobody reads any more, as in "run | head": it goes on, or stops '
        "and saves as after its last step.",
    )


class Evaluation(Table):
    """`[evaluation]`: tests of frozen versions with the greedy policy, apart from training."""

    enabled: bool = Field(default=False, description="Test a version whenever a training episode finished.")
    interval_steps: int = Field(
        default=0,
        ge=0,
        le=10**15,
        description="Environment steps of training between two tests at least; more leave the cores to learning.",
    )
    rule: Literal["cap", "mean_return"] | None = Field(
        default=None,
        description="Pass if all episodes reach max_episode_steps, or if their mean return reaches threshold; left "
        "out, mean_return where there is a threshold, and without one tests are not judged.",
    )
    episodes: int = Field(default=20, ge=1, le=10_000, description="Episodes of one test; more are slower and surer.")
    max_episode_steps: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="Test episodes are truncated here; left out, at the id's own limit, else where training's are, "
        "else at 50000 steps.",
    )
    screen_steps: int = Field(
        default=1000,
        ge=1,
        le=10**9,
        description="All episodes go so far before any goes on: weak versions fail cheaply.",
    )
    passes: int = Field(
        default=3, ge=1, le=1000, description="Versions in a row that must pass to call the task solved."
    )
    threshold: float | None = Field(
        default=None,
        ge=-1e300,
        le=1e300,
        description='Mean return to reach, for rule = "mean_return"; left out, the one registered with the id.',
    )
    seed: int = Field(
        default=20_000, ge=0, le=LARGEST, description="The tests' own starts: the same for every version."
    )
    in_flight: int = Field(
        default=4, ge=1, le=1024, description="Versions tested at the same time; more share the work."
    )

    video: bool = Field(
        default=False,
        description="Film an episode of each tested version that is better than all before it, into the run's folder "
        "videos; tests take longer. Needs the extra video.",
    )

    def completed(self, threshold: float | None, limit: int | None) -> Evaluation:
        """The same table where rule, threshold and limits that were left out are the task's.

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

    interval_s: float = Field(
        default=30.0,
        ge=0,
        le=1e9,
        description="Seconds between two checkpoints, 0 for none; longer loses more in a crash.",
    )
    interval_steps: int = Field(
        default=0,
        ge=0,
        le=10**15,
        description="Environment steps between two checkpoints, besides, 0 for none; more lose more in a crash.",
    )
    keep: int = Field(
        default=3,
        ge=1,
        le=10_000,
        description="Newest checkpoints kept; the solved and the best tested one stay besides.",
    )


class Logs(Table):
    """`[logs]`: how often the run tells how it is doing."""

    status_interval_s: Limit = Field(default=1.0, description="Seconds between two versions of status.json.")
    ledger_interval_s: Limit = Field(
        default=10.0, description="Seconds between two accounts of rows made, kept and lost."
    )
    max_mb: int = Field(
        default=4096,
        ge=2,
        le=2**20,
        description="MiB for log.jsonl; from half of it on it begins anew, keeping one part.",
    )
    progress: bool = Field(default=True, description="Show progress on the terminal.")


class Settings(Table):
    """All settings of a run."""

    run: Run = Field(default_factory=Run, description="Name and place of the run.")
    stop: Stop = Field(default_factory=Stop, description="When to stop.")
    task: Task = Field(description="What to learn.")
    schedule: Annotated[
        SerialSchedule | IstbSchedule | IsSchedule | IaSchedule | OaSchedule, Field(discriminator="kind")
    ] = Field(default_factory=lambda: IsSchedule(kind="is"), description="Who waits for whom.")
    algorithm: AlgorithmTable = Field(default_factory=AlgorithmTable, description="How to learn.")
    learner: Learner = Field(default_factory=Learner, description="Where the network is trained.")
    memory: Memory = Field(default_factory=Memory, description="What is kept for learning.")
    supervision: Supervision = Field(default_factory=Supervision, description="What may go wrong.")
    evaluation: Evaluation = Field(default_factory=Evaluation, description="Tests of frozen versions.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="What is saved on the way.")
    logs: Logs = Field(default_factory=Logs, description="What is told on the way.")

    _places: Places = PrivateAttr(default_factory=Places)

    @property
    def capacity_rows(self) -> int:
        """Rows the memory holds: as set, or 1024 for each executor."""
        return self.memory.capacity_rows or ROWS_PER_EXECUTOR * self.schedule.executors

    @property
    def may_be_fast(self) -> bool:
        """Whether twins may do the updates: `learner.fast`, decided."""
        fast = self.learner.fast
        return self.schedule.kind != "serial" if fast == "auto" else bool(fast)

    def named_modules(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Key and module of each entry that has code of a module run: `"package.module:Name"`."""
        yield from (
            (path, entry.partition(":")[0])
            for path, entry in (
                (("task", "env"), self.task.env),
                *((("task", "wrappers", index), one.entry) for index, one in enumerate(self.task.wrappers)),
                (("algorithm", "name"), self.algorithm.name),
            )
            if ":" in entry
        )

    def with_algorithm(self, table: Mapping[str, Any]) -> Settings:
        """The same settings with all keys of `[algorithm]` written out, as its own `Settings` completed them."""
        values = {key: value for key, value in table.items() if value is not None}
        return self.model_copy(update={"algorithm": AlgorithmTable(**{**values, "name": self.algorithm.name})})

    def with_defaults(self, defaults: Mapping[str, Mapping[str, Any]]) -> Settings:
        """The same settings with what an algorithm recommends, wherever the file says nothing.

        Args:
            defaults: table -> key -> value; keys that the chosen schedule does not have are passed over.
        """
        tables: dict[str, Any] = {}
        for name, values in defaults.items():
            table = getattr(self, name)
            free = left_to_defaults(values, dict(table), table.model_fields_set)
            tables[name] = table.model_copy(update=free)
        return self.model_copy(update=tables)

    def of_run(self) -> Settings:
        """The same settings as those of a run: nobody wrote a key, so none is refused for being without effect."""
        same = self.model_copy()
        same._places = self._places.without_words()
        return same

    @property
    def places(self) -> Places:
        """Where each key was written; `places.line(problem)` is a finished message."""
        return self._places

    def with_executors(self, executors: int) -> Settings:
        """The same settings with so many executors."""
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
