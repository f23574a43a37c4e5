"""Defaults that follow the task: one table of rules, each with its reason and the keys that it sets.

A rule looks at spaces, the registry's entry, how long the run is to be and what random play measures, never at an id.
It sets a key only where the settings do not write it and no rule above it has. What was chosen is kept in the run's
folder: a resumed run, a replay and a process that is started again take exactly these values.

The rules are those of built-in algorithms; one's own has the defaults that its author gave it, and a replay memory that
suits what it learns from. `mlxe` has those of `[task]` alone: its other defaults are its paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from mlxe_async.networks.mixed import pictures_in
from mlxe_async.networks.pictures import BODIES, image_of
from mlxe_async.rows import Spaces
from mlxe_async.tasks.measured import MOST_STEPS, Measured

ROLLOUTS = frozenset({"a2c", "impala", "ppo", "reinforce"})
VALUES = frozenset({"apex", "c51", "dqn", "rainbow"})
BOUNDED = frozenset({"ddpg", "sac", "td3"})
TABLES = frozenset({"q_learning", "sarsa"})
ALL = ROLLOUTS | VALUES | BOUNDED | TABLES

NEAR_ONE = (0.2, 5.0)
"""Deviation of the discounted return that losses and steps are made for."""
FEW = 4
"""Numbers of an action up to which a wide first deviation reaches all of them."""
SHORT = 500
"""Steps of an episode up to which a run of the default discount, 0.99, looks too far ahead."""
ROWS = 2048
"""Rows of an update for actions that are numbers."""
NEAREST = 0.9
"""Least discount that is chosen."""
DENSE = 0.9
"""Share of steps with a reward of their own from which rewards tell at once how well it goes."""
UNEVEN = 20.0
"""Deviation of an entry of an observation beyond which layers see little else."""
RARE = 0.01
"""Share of steps with a reward of their own below which rewards are rare."""
HELD_STEPS = 16
"""Steps for which a random action is held then."""
SMALL = 8
"""Numbers of observation and action together up to which narrow layers do."""
LARGEST_MEMORY = 1 << 30
"""Bytes of observations that a default memory may take."""
REPLAYED_ROWS = 100_000
"""Rows of a default memory that is learned from however old they are, as DQN's."""


@dataclass(frozen=True)
class Known:
    """All that a rule may look at.

    Args:
        algorithm: its name.
        fields: names of its keys.
        written: the `[algorithm]` table as far as it was written.
        spaces: of the task.
        limit: steps after which episodes are truncated; None: never.
        may_be_turned: whether pictures can be shown with their channels first; native vectors show them as they are.
        executors: processes that step environments.
        steps: environment steps of the whole run, if `stop.env_steps` says so.
        measure: plays at random, once and only if a rule asks.
        history: observations in one, stacked along the first axis.
        is_tempered: whether executors draw by temperatures other than 1.
        usual_rows: rows of its memory if no rule says how many, where it replays rows however old and its class does
            not say either; 0 elsewhere.
    """

    algorithm: str
    fields: Collection[str]
    written: Mapping[str, Any]
    spaces: Spaces
    limit: int | None
    may_be_turned: bool
    executors: int
    steps: int | None
    measure: Callable[[], Measured]
    history: int = 1
    is_tempered: bool = False
    usual_rows: int = 0

    @cached_property
    def measured(self) -> Measured:
        """Facts that random play showed."""
        return self.measure()

    @property
    def is_picture(self) -> bool:
        """True if convolutions see the observation, or a part of it."""
        return self.is_small_picture or bool(pictures_in(self.spaces))

    @property
    def is_small_picture(self) -> bool:
        """True of one array (H, W, C) or (C, H, W) of 3 to 35 pixels a side, such as a grid of cells."""
        shape = self.spaces.observation_shape
        if len(shape) != len("CHW") or self.spaces.parts:
            return False
        sides = image_of(shape)[0][1:]
        return BODIES["small"].smallest <= min(sides) and max(sides) < BODIES["nature"].smallest

    @property
    def has_channels_last(self) -> bool:
        """True of one array (H, W, C)."""
        shape = self.spaces.observation_shape
        if len(shape) != len("HWC") or self.spaces.parts:
            return False
        return image_of((shape[0] // self.history, *shape[1:]))[1]

    @property
    def has_body(self) -> bool:
        """True if convolutions were asked for by name, or refused."""
        return "body" in self.written

    @property
    def is_integers(self) -> bool:
        """True of observations that are integers alone, which a network is shown as one-hot."""
        return bool(self.spaces.observation_sizes)

    @property
    def numbers(self) -> int:
        """Numbers of an action; 0 of choices."""
        return len(self.spaces.bounds[0]) if self.spaces.action_kind == "box" else 0

    @property
    def remembers(self) -> bool:
        """True if the policy has a recurrent cell."""
        return bool(self.written.get("cell", "none") != "none")

    def share(self, part: float, least: int, most: int) -> int:
        """A part of the whole run, in steps."""
        return max(least, min(most, round(part * (self.steps or 0))))


Value = Callable[[Known], Any]


class Rule(NamedTuple):
    """A row of the table.

    Args:
        name: of what it looks at.
        why: the reason, as it is told.
        algorithms: to which it applies; None: to each, one's own too.
        holds: whether it applies to this task.
        sets: `table.key` -> its value, or a function of what is known.
    """

    name: str
    why: str
    algorithms: frozenset[str] | None
    holds: Callable[[Known], bool]
    sets: Mapping[str, Any]


class Choice(NamedTuple):
    """A key that was chosen.

    Args:
        setting: its key, `table.key`.
        value: its value.
        rule: name of the rule.
        why: its reason.
    """

    setting: str
    value: Any
    rule: str
    why: str

    def to_json(self) -> dict[str, Any]:
        """The same as a plain mapping."""
        return self._asdict()

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Choice:
        """The inverse of `to_json`."""
        value = told["value"]
        return cls(told["setting"], tuple(value) if isinstance(value, list) else value, told["rule"], told["why"])


def _has_end(known: Known) -> bool:
    return known.steps is not None


def _never_ends(known: Known) -> bool:
    return known.limit is None and known.measured.complete and not known.measured.episodes


def _small_picture(known: Known) -> bool:
    is_first = known.may_be_turned or not known.has_channels_last
    return known.is_small_picture and not known.has_body and is_first


def _last_channels(known: Known) -> bool:
    has_convolutions = known.written.get("body", "") != "none" and known.algorithm not in BOUNDED | TABLES
    return known.has_channels_last and known.is_picture and has_convolutions and known.may_be_turned


def _numbers(known: Known) -> bool:
    return bool(known.numbers) and not known.remembers


def _plain(known: Known) -> bool:
    return not known.remembers


def _wide(known: Known) -> bool:
    return known.numbers > FEW


def _rollout(known: Known) -> int:
    """Steps by which all executors, of four environments each, together deliver some 2,048 rows."""
    return max(32, min(512, ROWS // (4 * known.executors)))


def _far_from_one(known: Known) -> bool:
    least, most = NEAR_ONE
    return not least <= known.measured.return_deviation <= most and known.measured.return_deviation > 0


def _only_time_ends(known: Known) -> bool:
    """A dense reward for as long as a short time limit lets it go on."""
    found = known.measured
    short = known.limit is not None and known.limit <= SHORT
    return bool(known.numbers and short and found.episodes and not found.terminated and found.rewarded >= DENSE)


def _leads_nowhere(known: Known) -> bool:
    found = known.measured
    return bool(known.numbers and found.complete and not found.terminated and found.return_deviation < 1)


def _uneven(known: Known) -> bool:
    largest = known.measured.largest_deviation
    return not known.is_picture and not known.is_integers and largest is not None and largest > UNEVEN


def _row_bytes(known: Known) -> int:
    """Bytes of the two observations of a row."""
    return 2 * known.spaces.entries * (1 if known.spaces.observation_dtype == "|u1" else 4)


def _fits_memory(known: Known) -> bool:
    return known.steps is not None and _row_bytes(known) * known.steps <= LARGEST_MEMORY


def _many_rows(known: Known) -> int:
    return min(REPLAYED_ROWS, LARGEST_MEMORY // max(1, _row_bytes(known)))


def _more_rows_fit(known: Known) -> bool:
    return 0 < known.usual_rows < _many_rows(known)


RULES: tuple[Rule, ...] = (
    # what the task itself lacks
    Rule(
        "episodes do not end",
        f"no episode of random play ended in {MOST_STEPS:,} steps, and there is no time limit",
        ALL | {"mlxe"},
        _never_ends,
        {"task.max_episode_steps": MOST_STEPS},
    ),
    # pictures
    Rule(
        "channels last",
        "convolutions take the channels of a picture first",
        ALL | {"mlxe"},
        _last_channels,
        {"task.channels_first": True},
    ),
    Rule(
        "small picture",
        "a picture of fewer than 36 pixels a side is too small for the convolutions of larger ones",
        ROLLOUTS,
        _small_picture,
        {
            "algorithm.body": "small",
            "algorithm.common": (128,),
            "algorithm.policy": (),
            "algorithm.value": (),
            "algorithm.activation": "relu",
        },
    ),
    Rule(
        "small picture",
        "a picture of fewer than 36 pixels a side is too small for the convolutions of larger ones",
        VALUES,
        _small_picture,
        {"algorithm.body": "small", "algorithm.layers": (128,), "algorithm.layer_norm": False},
    ),
    Rule(
        "pictures",
        "an update through convolutions is costly: fewer and smaller ones, as in the paper of DQN",
        VALUES - {"apex"},
        lambda known: known.is_picture and not known.has_body,
        {"algorithm.batch": 32, "algorithm.train_every": 4},
    ),
    # scales of rewards and observations
    Rule(
        "scale of rewards",
        "discounted returns of random play are not near 1, for which the losses are made",
        ROLLOUTS - {"reinforce"},
        lambda known: _plain(known) and _far_from_one(known),
        {"algorithm.reward_scaling": True},
    ),
    Rule(
        "scale of observations",
        "entries of the observation vary by more than 20, beside which layers see little else",
        BOUNDED,
        _uneven,
        {"algorithm.normalise": True},
    ),
    # actions that are numbers
    Rule(
        "time alone ends episodes",
        "each step has its reward, and short episodes end by their time limit alone: a tenth of it is far enough ahead",
        ROLLOUTS,
        _only_time_ends,
        {"algorithm.discount": lambda known: round(max(NEAREST, 1 - 10 / (known.limit or SHORT)), 4)},
    ),
    Rule(
        "many numbers",
        "noise on each of many numbers adds up",
        ROLLOUTS,
        _wide,
        {"algorithm.log_std": -0.5},
    ),
    Rule(
        "actions are numbers",
        "long rollouts and several passes over each; the deviation explores, so that no entropy bonus is needed",
        frozenset({"ppo"}),
        _numbers,
        {
            "schedule.envs_per_executor": 4,
            "schedule.rollout_steps": _rollout,
            "algorithm.epochs": 10,
            "algorithm.minibatch": 64,
            "algorithm.entropy": 0.0,
            "algorithm.learning_rate": 7e-4,
            "algorithm.learning_rate_last": 5e-5,
        },
    ),
    Rule(
        "numbers, bounded",
        "an update that has moved a policy of numbers far is over",
        frozenset({"ppo"}),
        lambda known: _numbers(known) and not known.is_tempered,
        {"algorithm.max_kl": 0.05},
    ),
    Rule(
        "many numbers",
        "an actor of many numbers is steadier at the published rate",
        frozenset({"sac"}),
        _wide,
        {"algorithm.learning_rate": 3e-4},
    ),
    Rule(
        "random play leads nowhere",
        "random play ended no episode, and its rewards hardly differ: random actions that are held lead farther",
        BOUNDED,
        _leads_nowhere,
        {"algorithm.hold_steps": HELD_STEPS},
    ),
    # networks
    Rule(
        "few numbers",
        "a task of at most 8 numbers needs no wide layers, and updates are several times as fast",
        BOUNDED,
        lambda known: known.spaces.entries + known.numbers <= SMALL,
        {"algorithm.layers": (64, 64), "algorithm.batch": 128},
    ),
    Rule(
        "few numbers",
        "a task of at most 16 numbers needs no wide layers, and updates are several times as fast",
        BOUNDED,
        lambda known: known.spaces.entries + known.numbers <= 2 * SMALL,
        {"algorithm.layers": (128, 128), "algorithm.batch": 128},
    ),
    Rule(
        "rare rewards",
        "rewards are rare, and steps that chance chose lead elsewhere than the best ones: each step counts alone",
        VALUES - {"apex"},
        lambda known: known.is_integers and not known.remembers and known.measured.rewarded < RARE,
        {"algorithm.n_step": 1},
    ),
    # small and frequent updates
    Rule(
        "each rollout is learned from once",
        "short rollouts of few environments lead to more updates",
        frozenset({"a2c"}),
        _plain,
        {
            "schedule.envs_per_executor": 4,
            "schedule.rollout_steps": 8,
            "algorithm.learning_rate": 2e-3,
        },
    ),
    # what depends on how long the run is
    Rule(
        "length of the run",
        "the learning rate falls until stop.env_steps",
        ALL,
        _has_end,
        {"algorithm.anneal_steps": lambda known: known.steps},
    ),
    Rule(
        "length of the run",
        "an eighth of stop.env_steps explores more and more rarely",
        VALUES | TABLES,
        _has_end,
        {"algorithm.epsilon_steps": lambda known: known.share(0.12, 500, 250_000)},
    ),
    Rule(
        "length of the run",
        "importance weights are whole at stop.env_steps",
        VALUES,
        _has_end,
        {"algorithm.priority_correction_steps": lambda known: known.steps},
    ),
    Rule(
        "length of the run",
        "a twentieth of stop.env_steps is random actions, at most 10,000",
        BOUNDED,
        _has_end,
        {"algorithm.start_rows": lambda known: known.share(0.05, 500, 10_000)},
    ),
    Rule(
        "length of the run",
        "noise begins wide and falls within a tenth of stop.env_steps",
        BOUNDED - {"sac"},
        _has_end,
        {"algorithm.noise_first": 0.3, "algorithm.noise_steps": lambda known: known.share(0.1, 500, 100_000)},
    ),
    Rule(
        "length of the run",
        "the memory holds the whole run, where it takes less than a GiB",
        BOUNDED,
        _fits_memory,
        {"memory.capacity_rows": lambda known: max(20_000, known.steps or 0)},
    ),
    Rule(
        "replay of one's own",
        "what learns from rows however old is given many, where they take less than a GiB",
        None,
        _more_rows_fit,
        {"memory.capacity_rows": _many_rows},
    ),
    Rule(
        "length of the run",
        "a table learns in large steps first, and in small ones when chance is to be averaged out",
        TABLES,
        _has_end,
        {"algorithm.learning_rate": 0.5, "algorithm.learning_rate_last": 0.02},
    ),
)
"""In order: a key that a rule has set is not set again by one below it."""


def chosen(known: Known, written: Mapping[str, Collection[str]]) -> Iterator[Choice]:
    """The keys that rules set for an algorithm and a task.

    Args:
        known: what rules may look at.
        written: keys that the settings write, by table; a rule never sets these.
    """
    taken: set[str] = set()
    for rule in RULES:
        if rule.algorithms is not None and known.algorithm not in rule.algorithms:
            continue
        free = [key for key in rule.sets if key not in taken and _is_free(key, known, written)]
        if not free or not rule.holds(known):
            continue
        for key in free:
            taken.add(key)
            value = rule.sets[key]
            yield Choice(key, value(known) if callable(value) else value, rule.name, rule.why)


def _is_free(key: str, known: Known, written: Mapping[str, Collection[str]]) -> bool:
    table, _, name = key.partition(".")
    return name not in written.get(table, ()) and (table != "algorithm" or name in known.fields)


def by_table(choices: Collection[Choice]) -> dict[str, dict[str, Any]]:
    """Table -> key -> value."""
    found: dict[str, dict[str, Any]] = {}
    for choice in choices:
        table, _, name = choice.setting.partition(".")
        found.setdefault(table, {})[name] = choice.value
    return found
