"""`[task]`: what is learned, with CartPole's and Atari's own tables; the same objects say it to `tasks`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_serializer, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from mlxe_async.errors import TaskError
from mlxe_async.settings.forms import ALLOWED, FORBIDDEN, ActionName, Entry, EnvId, PartName, Pixels, Table, key, listed

ATARI, CARTPOLE = "ALE/", "CartPole"  # how ids of theirs begin
POOL = "envpool"


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
    wrappers = ({"entry": one} if isinstance(one, str) else one for one in given.get("wrappers", ()))
    given["wrappers"] = tuple(Wrapper.model_construct(**one) for one in wrappers)
    parts = {"cartpole": CartPole.model_construct(**cartpole), "atari": Atari.model_construct(**atari)}
    return Task.model_construct(**given | parts)
