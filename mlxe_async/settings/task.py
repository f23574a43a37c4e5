"""`[task]`: what is learned, with CartPole's and Atari's own tables; the same objects say it to `tasks`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, field_validator, model_serializer, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from mlxe_async.errors import TaskError
from mlxe_async.settings.forms import ALLOWED, FORBIDDEN, ActionName, Entry, EnvId, PartName, Pixels, Table, key, listed

ATARI, CARTPOLE = "ALE/", "CartPole"  # how ids of theirs begin
POOL = "envpool"
MOST_STATE_BYTES = 2**15
"""Most state that wrappers of one environment may keep, as text: some 3,000 numbers in arrays."""


class Atari(Table):
    """`[task.atari]`: how games of the Arcade Learning Environment, `task.env = "ALE/..."`, are shown."""

    preprocess: bool = key(True, "Small pictures, several at a time; false leaves the game to your wrappers.")
    frame_skip: int = key(4, "Frames for which an action is repeated; the last two are merged.", ge=1, le=60)
    stack: int = key(4, "Pictures in one observation; more show longer movements.", ge=1, le=64)
    noop_max: int = key(
        30,
        "Largest number of frames without action at the start of an episode; higher varies starts more.",
        ge=0,
        le=10_000,
    )
    sticky: float = key(0.0, "Chance that a frame repeats the last action instead; 0.25 is harder.", ge=0, lt=1)
    life_loss_ends: bool = key(
        False,
        "In training a lost life ends the episode, and the next one goes on with the same game; returns of training "
        "are then of one life. Tests always play on.",
    )
    fire: bool = key(
        False,
        "FIRE is pressed for one step where a game begins, and after a lost life, longer if sticky: some games wait "
        "for it.",
    )
    actions: tuple[ActionName, ...] = listed(
        'Actions to choose from, such as ["NOOP", "RIGHT", "LEFT"]; fewer are learned sooner. Left out, all that the '
        "game has.",
        max_length=18,
    )
    height: int = key(84, "Rows of a picture; more show more, and cost more.", ge=1, le=1024)
    width: int = key(84, "Columns of a picture.", ge=1, le=1024)
    crop: tuple[Pixels, ...] = listed(
        "Pixels cut off the game's picture, of 210 x 160 as a rule, before it is made small: top, bottom, left, right.",
        default=(0, 0, 0, 0),
        min_length=4,
        max_length=4,
    )
    colour: bool = key(
        False,
        "Red, green and blue, (3 * stack, height, width), in place of grey; a replay memory then stores observations "
        "whole.",
    )

    @field_validator("actions")
    @classmethod
    def _names_differ(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise PydanticCustomError("expected", "{wanted}", {"wanted": "each action once"})
        return names


class CartPole(Table):
    """`[task.cartpole]`: the constants of CartPole's adverse starts and of its shaped reward."""

    adverse_x: float = key(1.5, "Adverse starts: the cart so far from the middle; at 2.4 it has left.", ge=0, lt=2.4)
    adverse_angle: float = key(
        0.15, "Angle of the pole at adverse starts, in rad; higher is harder, beyond 0.209 it falls.", ge=0, lt=0.2
    )
    adverse_first: float = key(
        0.2,
        "Probability of each of the four adverse starts at first; at 0.25 no start is left as it is.",
        gt=0,
        le=0.25,
    )
    adverse_least: float = key(0.05, "Below it that probability never falls; higher keeps starts hard.", ge=0, le=0.25)
    adverse_base: float = key(
        5.0, "After E finished episodes it is adverse_first / log E to this base; higher falls later.", gt=1, le=1e9
    )
    failure_reward: float = key(-10.0, "Shaped reward of the fall; lower fears it more.", ge=-1e6, le=1e6)
    centre_weight: float = key(1.0, "Weight of being near the middle in the shaped reward.", ge=0, le=1e6)
    upright_weight: float = key(
        1.0, "Weight of being upright in the shaped reward; both 0: 1 for each step.", ge=0, le=1e6
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


class Stage(Table):
    """`[[task.stages]]`: a stage of a curriculum: keys of `[task]` that are other ones in it, and when it is over."""

    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Arguments that differ; the others stay those of task.kwargs."
    )
    wrappers: tuple[Wrapper, ...] | None = key(
        None, "In place of task.wrappers, such as the same ones with other arguments.", strict=False, max_length=16
    )
    max_episode_steps: int | None = key(None, "In place of task.max_episode_steps.", ge=1, le=10**9)
    until_return: float | None = key(
        None,
        "The stage is over once the mean return of its last over_episodes training episodes is at least so high.",
        ge=-1e300,
        le=1e300,
    )
    over_episodes: int = key(
        100, "Episodes of that mean, all executors together; more are surer and later.", ge=1, le=100_000
    )
    until_steps: int | None = key(None, "Or once it has lasted for this number of environment steps.", ge=1, le=10**15)

    @property
    def has_end(self) -> bool:
        """True if it says when it is over."""
        return self.until_return is not None or self.until_steps is not None


_SEED_RANGE = re.compile(r"(\d{1,10})\.\.(\d{1,10})", re.ASCII)
MOST_SEED, MOST_SEEDS, LONGEST_LIST = 2**32 - 1, 10_000_000, 10_000


def _seed_set(value: Any) -> Any:
    """A range is text, and a list becomes a tuple; both are judged."""
    if isinstance(value, str) and (match := _SEED_RANGE.fullmatch(value)):
        first, last = int(match[1]), int(match[2])
        if first <= last <= MOST_SEED and last - first < MOST_SEEDS:
            return value
    elif isinstance(value, list | tuple) and 0 < len(value) <= LONGEST_LIST:
        known = {one for one in value if type(one) is int and 0 <= one <= MOST_SEED}
        if len(known) == len(value):
            return tuple(value)
    wanted = f'"A..B" with 0 <= A <= B <= {MOST_SEED}, both included, or a list of different whole numbers'
    raise PydanticCustomError("expected", "{wanted}", {"wanted": wanted})


SeedSet = Annotated[str | tuple[int, ...], BeforeValidator(_seed_set)]


def seeds_in(told: str | Sequence[int]) -> Sequence[int]:
    """Return the seeds of a set that was checked; a range takes no memory."""
    if not isinstance(told, str):
        return told
    first, last = told.split("..")
    return range(int(first), int(last) + 1)


class Seeds(Table):
    """`[task.seeds]`: seeds that environments are reset with, as of procedural levels."""

    train: SeedSet = key(..., "Seeds that training episodes are drawn from.", examples=["0..199"])
    test: SeedSet = key(
        ..., "Seeds of tests, play and eval, one after the other; none of train.", examples=["10000..10099"]
    )

    @model_validator(mode="after")
    def _apart(self) -> Seeds:
        train, test = seeds_in(self.train), seeds_in(self.test)
        few, many = (train, test) if len(train) <= len(test) else (test, train)
        known = many if isinstance(many, range) else set(many)
        both = next((seed for seed in few if seed in known), None)
        if both is not None:
            why = f"got the seed {both} in train and in test, expected sets that are apart"
            raise PydanticCustomError("value_error", "{why}", {"why": why})
        return self


class Task(Table):
    """`[task]`: the environment."""

    env: EnvId = key(
        ...,
        "A gymnasium id, or one of EnvPool's; module:Name-v0 imports the module first.",
        FORBIDDEN,
        examples=["CartPole-v1"],
    )
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Arguments for the environment's constructor.", json_schema_extra=FORBIDDEN
    )
    max_episode_steps: int | None = key(
        None, "Training episodes are truncated here; left out, the id's own limit holds.", ALLOWED, ge=1, le=10**9
    )
    wrappers: tuple[Wrapper, ...] = listed(
        "Your gymnasium wrappers or functions, innermost first; the time limit lies outside them. With arguments: "
        '{entry = "module:Name", kwargs = {size = 4}}.',
        FORBIDDEN,
        max_length=16,
    )
    channels_first: bool = key(False, "Show pictures (H, W, C) as (C, H, W), as convolutions take them.", FORBIDDEN)
    history: int = key(
        1,
        "Newest observations of an episode that are shown as one, the first one repeated at its start: (history, "
        "...), of pictures (history * C, H, W). More tell how things move, and make inputs larger.",
        FORBIDDEN,
        ge=1,
        le=128,
    )
    hide: tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...] = listed(
        "Entries of an observation of numbers, counted from 0, that are not shown, so that a task needs memory: [1, 3] "
        "are the velocities of CartPole.",
        FORBIDDEN,
        max_length=1024,
    )
    adverse_starts: bool = key(
        False,
        "Some episodes start in hard places: on CartPole close to failure, fewer later on, elsewhere as the "
        "environment's mlxe_help says.",
        ALLOWED,
    )
    shaped_reward: bool = key(
        False,
        "Learn from a reward for being near the centre and upright on CartPole, elsewhere from that of the "
        "environment's mlxe_help.",
        ALLOWED,
    )
    squared_position: bool = key(False, "CartPole: the square of the position as a fifth input.", FORBIDDEN)
    mirror: bool = key(
        False,
        "Declare the task's mirror image, left and right on CartPole, elsewhere that of mlxe_help; batches may then "
        "be mirrored.",
        ALLOWED,
    )
    features: bool = key(
        False, "Further inputs, computed from the observation as the environment's mlxe_help says.", FORBIDDEN
    )
    vectorize: Literal["single", "native", "auto", "envpool"] = key(
        "single",
        "native steps all environments of an executor by one call, which needs gymnasium's own vector of them and is "
        "many times faster, with other episodes; auto: where there is one. envpool: EnvPool's environments, in C++.",
        ALLOWED,
    )
    clip_rewards: bool = key(
        False,
        "Learn from rewards cut to -1 and 1, as usual for Atari games; results and tests count them whole.",
        ALLOWED,
    )
    action_change_cost: float = key(
        0.0,
        "Taken off the reward that is learned from wherever a discrete action differs from the one before it in the "
        "episode, after clipping; higher holds actions for longer. Returns and tests do not know of it; the log tells "
        "how often it was taken.",
        ALLOWED,
        ge=0,
        le=1e6,
    )
    cartpole: CartPole = Field(
        default_factory=CartPole, description="Constants of CartPole's starts and reward.", json_schema_extra=ALLOWED
    )
    atari: Atari = Field(
        default_factory=Atari, description="Preprocessing of Atari games.", json_schema_extra=FORBIDDEN
    )
    observe: tuple[PartName, ...] = listed(
        "Parts of Dict observations that are used, by key, or of a Tuple, by index; left out, all. Parts that are no "
        "numbers of a fixed size, such as text, must be left out.",
        FORBIDDEN,
        max_length=1024,
    )
    action_mask: bool = key(
        False,
        'Keep info["action_mask"], 1 for each allowed action, with the observations; every reset and step must give '
        "it.",
        FORBIDDEN,
    )

    stages: tuple[Stage, ...] = listed(
        "A curriculum, [[task.stages]]: training begins with the first stage and goes on to the next ones; weights and "
        "statistics are kept. Tests are of the task as [task] says, without any stage.",
        FORBIDDEN,
        max_length=100,
    )
    seeds: Seeds | None = Field(
        default=None,
        description="Seeds of procedural levels, those of training apart from those of tests.",
        json_schema_extra=FORBIDDEN,
    )
    reset_options: str | None = key(
        None,
        "A file of JSON objects, one a line, as seen from this one: training episode i is reset with options = item "
        "i, shared by all executors, each item once in a pass.",
        FORBIDDEN,
        min_length=1,
        max_length=1024,
    )
    shuffle_options: bool = key(False, "Each pass takes the items in another order, which the seed decides.", FORBIDDEN)
    test_options: str | None = key(
        None,
        "The same for tests, play and eval: test s takes item s, modulo their number; left out, those of training.",
        FORBIDDEN,
        max_length=1024,
    )

    @property
    def single_only(self) -> str:
        """The first key that only environments that are stepped one by one can follow; empty if there is none."""
        names = ("stages", "seeds", "reset_options", "test_options")
        return next((name for name in names if getattr(self, name)), "")

    def in_stage(self, number: int) -> Task:
        """Copy the table as it is in one of its stages; without stages it is as it stands."""
        if not self.stages:
            return self
        stage = self.stages[number]
        changed: dict[str, Any] = {"kwargs": {**self.kwargs, **stage.kwargs}}
        if stage.wrappers is not None:
            changed["wrappers"] = stage.wrappers
        if stage.max_episode_steps is not None:
            changed["max_episode_steps"] = stage.max_episode_steps
        return self.model_copy(update=changed)

    @property
    def is_preprocessed(self) -> bool:
        """True if this is an Atari game, shown as `[task.atari]` says."""
        return self.atari.preprocess and self.env.startswith(ATARI)

    @property
    def aids(self) -> tuple[str, ...]:
        """Names of the switches that are on of those which need the task's aids."""
        names = ("adverse_starts", "shaped_reward", "squared_position", "mirror", "features")
        return tuple(name for name in names if getattr(self, name))


def task_of(table: Mapping[str, Any]) -> Task:
    """Read a `[task]` table; the settings file was validated before, so only the shape is looked at here.

    Raises:
        TaskError: a key is unknown, or there is no environment.
    """
    given = {key: value for key, value in table.items() if value is not None}
    cartpole, atari = (dict(given.get(name, {})) for name in ("cartpole", "atari"))
    for name, model, keys in (("", Task, table), (".cartpole", CartPole, cartpole), (".atari", Atari, atari)):
        if unknown := sorted(set(keys) - set(model.model_fields)):
            raise TaskError(f"task{name}: unknown keys {', '.join(unknown)}")
    if "env" not in table:
        raise TaskError("task: env is missing")
    for keys, name in ((given, "observe"), (given, "hide"), (atari, "actions"), (atari, "crop")):
        if name in keys:
            keys[name] = tuple(keys[name])
    given["wrappers"] = _wrappers(given.get("wrappers", ()))
    given["stages"] = tuple(_stage(one) for one in given.get("stages", ()))
    if isinstance(seeds := given.get("seeds"), Mapping):
        given["seeds"] = Seeds.model_construct(**seeds)
    parts = {"cartpole": CartPole.model_construct(**cartpole), "atari": Atari.model_construct(**atari)}
    return Task.model_construct(**given | parts)


def _wrappers(told: Sequence[Any]) -> tuple[Wrapper, ...]:
    """Entries of a table as they were dumped."""
    return tuple(Wrapper.model_construct(**({"entry": one} if isinstance(one, str) else one)) for one in told)


def _stage(told: Mapping[str, Any]) -> Stage:
    given = {key: value for key, value in told.items() if value is not None}
    if "wrappers" in given:
        given["wrappers"] = _wrappers(given["wrappers"])
    return Stage.model_construct(**given)
