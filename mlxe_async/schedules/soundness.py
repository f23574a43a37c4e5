"""What is sound under which schedule: a table over what an algorithm states about itself, never over names.

| the algorithm | the schedule | |
|---|---|---|
| learns from rollouts, ignores that an older policy made them | `oa` with a policy lag above 0 | refused |
| learns from rollouts, ignores that an older policy made them | `is` or `serial` with simulated lag | refused |
| learns from rollouts, ignores that another policy made them | a temperature or epsilon by executor | refused |
| takes the end of its rows for the end of the episode | `sync` not `"episode"`, or `ia` that keeps episodes | refused |
| the same, from rollouts | several environments in an executor: the first end cuts the others | refused |
| learns without gradients, as a table does | `gradients = "executors"` | refused |
| learns from rollouts, or draws by priorities that updates left | `oa` with `replay = "local"` | refused |
| replays rows, and the run is recorded | `oa` with `gradients = "executors"` | refused |
| replays rows | `oa` with `combine = "best_score"` | refused |
| replays rows, ignores that an older policy made them | any | told |
| any | `ia` that drops episodes | told |
| all else: rollouts where all wait, replay that is corrected or off-policy by design, ... | any | sound |

Rollouts of `ia` may differ in number and length: they are ended by a cut, whose value is bootstrapped, and every row is
learned from under the version that made it; so they are as sound as those of `is` for an algorithm that bootstraps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Path = tuple[str, ...]
OffPolicy = Literal["learns", "corrects", "ignores"]


@dataclass(frozen=True)
class Facts:
    """What the judgement rests on.

    Args:
        kind: of the schedule.
        memory: `"replay"` or `"rollouts"`.
        off_policy: what rows of an older policy are to the algorithm: what it learns from by design, something it
            corrects for, or something it ignores; None: it does not say, and nothing is held against it.
        bootstraps: whether what follows the end of its rows is valued, where the episode goes on.
        sync: what a rollout is.
        unfinished: what `ia` does with the episodes under way.
        max_policy_lag: the bound of `oa`; None: there is none.
        envs: environments side by side in one executor.
        simulated_lag: versions by which executors act with older weights on purpose.
        exchanges: whether executors make gradients: all take the mean, or under `oa` each pushes its own, which are of
            the very policy that made the rows.
        has_gradients: whether the algorithm learns by gradients.
        local: whether each executor replays its own rows alone.
        prioritised: whether rows are drawn in proportion to priorities that updates left.
        recorded: whether the run is to be replayed, step by step.
        by_score: whether the network of the best episode is what all executors go on from.
        explores_apart: the key by which executors act by other policies than the one that learns; None: they do not.
    """

    kind: str
    memory: str
    off_policy: OffPolicy | None = None
    bootstraps: bool = True
    sync: str = "episode"
    unfinished: str | None = None
    max_policy_lag: int | None = None
    envs: int = 1
    simulated_lag: int = 0
    exchanges: bool = False
    has_gradients: bool = True
    recorded: bool = False
    by_score: bool = False
    local: bool = False
    prioritised: bool = False
    explores_apart: str | None = None


@dataclass(frozen=True)
class Verdict:
    """One row of the table that holds.

    Args:
        refused: whether the run must not start; else it is told once.
        key: the setting that would have to change.
        other: the one it does not go with.
        message: the reason.
    """

    refused: bool
    key: Path
    other: Path
    message: str


_KIND, _SYNC, _NAME = ("schedule", "kind"), ("schedule", "sync"), ("algorithm", "name")
_UNFINISHED, _LAG = ("schedule", "unfinished"), ("schedule", "simulated_lag")
_REPLAY = ("schedule", "replay")
_DROPPING = 'with schedule.unfinished = "drop", '
_Row = tuple[Callable[[Facts], bool], Callable[[Facts], Verdict]]

_TABLE: tuple[_Row, ...] = (
    (
        lambda facts: (
            facts.memory == "rollouts"
            and facts.off_policy == "ignores"
            and facts.kind == "oa"
            and facts.max_policy_lag != 0
            and not facts.exchanges
        ),
        lambda facts: Verdict(
            True,
            _KIND,
            _NAME,
            f'got "oa", where rollouts may be {facts.max_policy_lag} versions old, expected "is", "ia" '
            f"{'' if facts.bootstraps else _DROPPING}or schedule.max_policy_lag = 0: this algorithm learns from "
            "rollouts as if its present policy had made them",
        ),
    ),
    (
        lambda facts: facts.memory == "rollouts" and facts.off_policy == "ignores" and facts.simulated_lag > 0,
        lambda facts: Verdict(
            True,
            _LAG,
            _NAME,
            f"got {facts.simulated_lag}, expected 0: this algorithm learns from rollouts as if its present policy had "
            "made them",
        ),
    ),
    (
        lambda facts: facts.memory == "rollouts" and facts.off_policy == "ignores" and facts.explores_apart is not None,
        lambda facts: Verdict(
            True,
            ("schedule", str(facts.explores_apart)),
            _NAME,
            "got other policies than the present one, expected none: this algorithm learns from rollouts as if its "
            "present policy had made them",
        ),
    ),
    (
        lambda facts: not facts.bootstraps and facts.sync != "episode",
        lambda facts: Verdict(
            True,
            _SYNC,
            _NAME,
            f'got "{facts.sync}", which ends in the middle of episodes, expected "episode": this algorithm gives no '
            "value to what would have followed",
        ),
    ),
    (
        lambda facts: not facts.bootstraps and facts.sync == "episode" and facts.unfinished == "keep",
        lambda _facts: Verdict(
            True,
            _UNFINISHED,
            _NAME,
            'got "keep", which cuts episodes in the middle, expected "drop": this algorithm gives no value to what '
            "would have followed",
        ),
    ),
    (
        lambda facts: (
            not facts.bootstraps and facts.memory == "rollouts" and facts.sync == "episode" and facts.envs > 1
        ),
        lambda facts: Verdict(
            True,
            ("schedule", "envs_per_executor"),
            _NAME,
            f"got {facts.envs}, expected 1: a rollout ends with the first episode of an executor, in the middle of the "
            "others', and this algorithm gives no value to what would have followed",
        ),
    ),
    (
        lambda facts: facts.exchanges and not facts.has_gradients,
        lambda _facts: Verdict(
            True,
            ("schedule", "gradients"),
            _NAME,
            'got "executors", expected "learner": this algorithm learns without gradients, and has none to exchange',
        ),
    ),
    (
        lambda facts: facts.recorded and facts.exchanges and facts.memory == "replay",
        lambda _facts: Verdict(
            True,
            ("run", "record"),
            ("schedule", "gradients"),
            "got true, expected false: replayed rows may be overwritten while an executor reads them",
        ),
    ),
    (
        lambda facts: facts.local and facts.memory == "rollouts",
        lambda _facts: Verdict(True, _REPLAY, _NAME, 'got "local", expected "global": this algorithm replays no rows'),
    ),
    (
        lambda facts: facts.local and facts.prioritised,
        lambda _facts: Verdict(
            True, _REPLAY, _NAME, 'got "local", expected "global": priorities of updates are drawn by over all rows'
        ),
    ),
    (
        lambda facts: facts.by_score and facts.memory == "replay",
        lambda _facts: Verdict(
            True,
            ("schedule", "combine"),
            _NAME,
            'got "best_score", expected "fifo": this algorithm replays rows, and an episode says nothing of a network '
            "that learned from others",
        ),
    ),
    (
        lambda facts: facts.memory == "replay" and facts.off_policy == "ignores",
        lambda _facts: Verdict(
            False,
            _NAME,
            _KIND,
            "replayed rows were made by older policies and this algorithm does not correct for it: an ablation",
        ),
    ),
    (
        lambda facts: facts.unfinished == "drop",
        lambda _facts: Verdict(
            False,
            _UNFINISHED,
            _KIND,
            "episodes under way when the slowest has delivered are thrown away: those learned from are shorter than "
            "those played",
        ),
    ),
)


def verdicts(facts: Facts) -> Iterator[Verdict]:
    """All that is to be refused or told, in the order of the table."""
    for holds, verdict in _TABLE:
        if holds(facts):
            yield verdict(facts)
