"""The verdict: what a run's pace is limited by, one change, and what that change is predicted to bring.

It is made of the time that each process spent in each mode, and of how long it was ready to work but had no core. The
model is small. In rounds, work comes one after the other: the slowest executor, the memorizer, the learner, and tests
that are waited for. Where no process waits, the busiest one sets the pace.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

STAGES = {
    "executors": ("acting", "stepping", "resetting"),
    "memorizer": ("taking_in", "drawing"),
    "learner": ("gathering", "updating", "publishing", "keeping"),
    "evaluator": ("testing",),
}
"""Stage -> the modes in which a process works at it."""
STARVED = 0.25  # of the working time without a core: then cores are what is short
SLOW = 1.6  # times the median: a straggler
WORTH = 1.02  # less than 2 % is no advice
ASLEEP = 0.5  # of the time of executors without a core wanted or used: environments wait for something
PACED = 0.5  # of the time spent between all stages: rounds are too short
SHORT_S = 0.01  # of a round: what is done once in each takes most of it
TESTED = 0.15  # of the CPU time spent on tests, where cores are short: fewer tests pay
FEW_TESTS = 0.05  # of it, after that advice
SAVED = 0.3  # of the time spent on checkpoints, for which all wait: the disk is the limit if nothing takes more
RARER = 10  # times as long between two checkpoints, as advised


@dataclass(frozen=True)
class Spent:
    """The time of one process, or of one thread.

    Args:
        role: of the process, or of the thread.
        idx: which executor.
        seconds: by mode.
        cpu_s: CPU time that it used; None: not known, or that of several threads.
        starved_s: time in which it was ready to run but had no core.
    """

    role: str
    idx: int | None
    seconds: Mapping[str, float]
    cpu_s: float | None = None
    starved_s: float = 0.0

    def at(self, stage: str) -> float:
        """Seconds of work at a stage."""
        return sum(self.seconds.get(mode, 0.0) for mode in STAGES[stage])

    @property
    def lived(self) -> float:
        """Seconds since it was ready."""
        return sum(self.seconds.values()) - self.seconds.get("starting", 0.0)

    @property
    def worked(self) -> float:
        """Seconds of work at anything."""
        return sum(map(self.at, STAGES))


@dataclass(frozen=True)
class Setup:
    """Settings that the verdict reasons about.

    Args:
        kind: of the schedule.
        executors: processes, or threads, that step environments.
        envs: environments of each.
        cores: that the run may use.
        waits_for_tests: tests belong to the rounds.
        own_memorizer: the memorizer has a process of its own.
        rollout_steps: steps of an environment in a rollout; None: rollouts are episodes.
        rounds: number of versions that were learned; 0: not known.
        may_differentiate: executors could make the gradients, and do not yet.
        tests_every: environment steps from one test to the next; 0: not known, or there are none.
        saving_s: seconds in which all waited for whole checkpoints.
        saved_every: the setting that says how often these are made, and its value.
    """

    kind: str
    executors: int
    envs: int
    cores: int
    waits_for_tests: bool = False
    own_memorizer: bool = False
    rollout_steps: int | None = None
    rounds: int = 0
    may_differentiate: bool = False
    tests_every: int = 0
    saving_s: float = 0.0
    saved_every: tuple[str, float] = ("", 0.0)

    @property
    def in_rounds(self) -> bool:
        """True if all wait for each other."""
        return self.kind != "oa"


@dataclass(frozen=True)
class Verdict:
    """The limit of the pace, and what would raise it.

    Args:
        limit: the stage that does, or `cores`, `disk`, `straggler` or `rounds`.
        share: part of the time in which each role worked, from 0 to 1.
        sentence: all of it in words.
        change: settings that are predicted to help.
        predicted: rate after the change, as a multiple of today's; None: not known.
    """

    limit: str
    share: dict[str, float]
    sentence: str
    change: dict[str, object] = field(default_factory=dict)
    predicted: float | None = None


def verdict(spent: Sequence[Spent], setup: Setup) -> Verdict:
    """Judge a run by how its processes spent their time so far."""
    wall = max([one.lived for one in spent] or [0.0])
    totals = {stage: sum(one.at(stage) for one in spent) for stage in STAGES}
    if wall <= 0 or not totals["executors"]:
        return Verdict("executors", {}, "nothing was stepped yet")
    share = {_name(one): round(min(1.0, one.worked / wall), 4) for one in spent}
    lanes = [one for one in spent if one.at("executors") > 0]
    case = _Case(setup, wall, totals, lanes, spent)
    found = case.starved() or case.saving() or case.straggler() or case.slowest()
    sentence = _sentence(*found) + (_OPTION if found[0] == "learner" and setup.may_differentiate else "")
    return Verdict(found[0], share, sentence, dict(found[2]), found[3])


_Found = tuple[str, str, Mapping[str, object], float | None]
"""Limit, what was seen, change, prediction."""


class _Case:
    """A run as far as it is known."""

    def __init__(
        self, setup: Setup, wall: float, totals: Mapping[str, float], lanes: Sequence[Spent], spent: Sequence[Spent]
    ) -> None:
        self._setup, self._wall, self._totals, self._lanes, self._spent = setup, wall, totals, lanes, spent
        # Executors that live in one process take turns there.
        self._lane_seconds = [one.at("executors") for one in lanes]
        self._slowest = max(self._lane_seconds)
        self._path = dict(totals) | {"executors": self._slowest}
        if not setup.waits_for_tests:
            self._path["evaluator"] = 0.0
        self._demand = self._cores_of_an_executor()

    def _cores_of_an_executor(self) -> float:
        """The part of its working time in which an executor uses a core or would; 1 where that is not known.

        What is left its environments wait for something else: a simulator elsewhere, a network, a clock.
        """
        total, beside = self._totals["executors"], 0.0
        if self._setup.kind == "serial" and len(self._lanes) == 1:  # all roles are one process
            beside = self._lanes[0].worked - self._lanes[0].at("executors")
        cpu = [one.cpu_s + one.starved_s for one in self._lanes if one.cpu_s is not None]
        if len(cpu) < len(self._lanes) or self._setup.kind == "istb":
            return 1.0
        return min(1.0, max(0.0, sum(cpu) - beside) / total)

    @property
    def _waiting(self) -> str:
        """A remark on environments that wait; empty where they compute."""
        if self._demand >= ASLEEP:
            return ""
        asleep = f"{1 - self._demand:.0%} of that their environments wait and use no core"
        return f" ({asleep}: more executors than cores pay)"

    def starved(self) -> _Found | None:
        """Processes that were ready had no core."""
        worked, starved = sum(one.worked for one in self._spent), sum(one.starved_s for one in self._spent)
        asleep = (1 - self._demand) * self._totals["executors"]
        if starved <= STARVED * worked or asleep > starved:  # what takes more time is the limit
            return None
        setup, used = self._setup, sum(one.cpu_s or 0.0 for one in self._spent) / self._wall
        seen = f"processes had no core in {min(1.0, starved / worked):.0%} of the time in which they worked"
        tests = sum(one.cpu_s or 0.0 for one in self._spent if one.role == "evaluator") / (used * self._wall or 1.0)
        if setup.tests_every and tests > TESTED and not setup.waits_for_tests:
            every = _round_number(setup.tests_every * tests / FEW_TESTS)
            change = {"evaluation.interval_steps": every}
            seen += f", and tests take {tests:.0%} of the CPU time of this run"
            return "cores", seen, change, 1 / (1 - tests * (1 - setup.tests_every / every))
        if setup.executors > setup.cores:
            # The same work on the same cores.
            change = {"schedule.executors": setup.cores}
            return "cores", f"{seen}: {setup.executors} executors share {setup.cores} cores", change, 1.0
        if used < 0.8 * setup.cores:
            return "cores", f"{seen}, and this run used {used:.1f} of {setup.cores}: other programs take them", {}, None
        return "cores", f"{seen}: this run has work for more than its {setup.cores}", {}, None

    def saving(self) -> _Found | None:
        """Checkpoints, which all wait for, take longer than any work."""
        setup, (key, value) = self._setup, self._setup.saved_every
        if setup.saving_s <= max(SAVED * self._wall, *self._path.values()) or not key:
            return None
        seen = f"saving checkpoints takes {setup.saving_s / self._wall:.0%} of the time, and all wait for the disk"
        after = self._wall - setup.saving_s * (1 - 1 / RARER)
        return "disk", seen, {key: type(value)(RARER * value)}, self._wall / after

    def straggler(self) -> _Found | None:
        """One executor is far slower than the others, which wait for it."""
        seconds = self._lane_seconds
        if not self._setup.in_rounds or len(seconds) < 2:
            return None
        slow = self._lanes[seconds.index(self._slowest)]
        others = statistics.median(one for one in seconds if one != self._slowest) if len({*seconds}) > 1 else 0.0
        if not others or self._slowest < SLOW * others or self._slowest < 0.3 * self._wall:
            return None
        seen = f"executor {slow.idx} takes {self._slowest / others:.1f} times as long as the others, which wait for it"
        return "straggler", seen, {}, self._wall / (self._wall - self._slowest + others)

    def slowest(self) -> _Found:
        """The stage that takes longest decides."""
        setup, path = self._setup, self._path
        if not setup.in_rounds:
            return self._busiest()
        if setup.kind != "serial" and (short := self._short_rounds()) is not None:
            return short
        limit = max(path, key=lambda stage: path[stage])
        who, them = ("executors work", "them") if limit == "executors" else (f"the {limit} works", "it")
        seen = f"{who} {path[limit] / self._wall:.0%} of the time, and the others wait for {them}"
        seen += self._waiting if limit == "executors" else ""
        if setup.kind == "serial":
            # Executors then work side by side, as far as there are cores.
            spread = min(setup.executors, max(setup.cores, int(setup.cores / max(self._demand, 1e-9))))
            after = self._wall - self._totals["executors"] * (1 - 1 / spread)
            return (
                limit,
                seen,
                {"schedule.kind": "is"} if spread > 1 else {},
                self._wall / after if spread > 1 else None,
            )
        if limit == "executors":
            return limit, seen, *self._more_executors()
        return limit, seen, *self._overlapped()

    def _short_rounds(self) -> _Found | None:
        """Most of the time goes into what is done once in each round, however few rows it brings."""
        setup, wall, path = self._setup, self._wall, self._path
        once = wall - path["executors"] - path["evaluator"]
        between = once - path["learner"] - path["memorizer"]
        is_short = setup.rounds > 0 and wall / setup.rounds < SHORT_S and once > PACED * wall
        if between <= PACED * wall and not is_short:
            return None
        if is_short:
            seen = (
                f"rounds take {1e3 * wall / setup.rounds:.1f} ms, {once / wall:.0%} of it for what is done once in each"
            )
        else:
            seen, once = f"{between / wall:.0%} of the time goes into the beginnings and ends of rounds", between
        if setup.rollout_steps is None:
            return "rounds", seen, {}, None
        return "rounds", seen, {"schedule.rollout_steps": 2 * setup.rollout_steps}, wall / (wall - once / 2)

    def _more_executors(self) -> tuple[Mapping[str, object], float | None]:
        """One more executor, if there is a core for it; else more environments in each, if acting is what it costs."""
        setup, demand = self._setup, self._demand
        if (setup.executors + 1) * demand <= setup.cores + 0.1:
            more = setup.executors + 1
            while (more + 1) * demand <= setup.cores + 0.1 and more < 2 * setup.executors:
                more += 1
            after = self._slowest * setup.executors / more
            return {"schedule.executors": more}, self._wall / (self._wall - self._slowest + after)
        acting = max(one.seconds.get("acting", 0.0) for one in self._lanes)
        if acting > 0.3 * self._slowest:
            return {"schedule.envs_per_executor": 2 * setup.envs}, self._wall / (self._wall - acting / 2)
        return {}, None

    def _overlapped(self) -> tuple[Mapping[str, object], float | None]:
        """No process waits: executors play while the learner learns."""
        path, totals = self._path, self._totals
        learning = path["learner"] + (0 if self._setup.own_memorizer else path["memorizer"])
        # Tests then go on all the time, and have their part of the cores, as every process that is busy.
        tests = min(1.0, self._setup.cores / (self._setup.executors + 2)) if path["evaluator"] > 0 else 0.0
        cores = max(1.0, self._setup.cores - tests)
        crowd = (totals["executors"] + totals["learner"] + totals["memorizer"]) / cores
        return {"schedule.kind": "oa"}, self._wall / max(path["executors"], learning, crowd)

    def _busiest(self) -> _Found:
        """No process waits for a phase: the one that works most of the time decides."""
        setup, wall, totals = self._setup, self._wall, self._totals
        use = {
            "executors": statistics.mean(self._lane_seconds) / wall,
            "learner": totals["learner"] / wall,
            "memorizer": totals["memorizer"] / wall,
        }
        together = not setup.own_memorizer
        served = use["learner"] + use["memorizer"] if together else use["learner"]
        room = statistics.mean(one.seconds.get("room", 0.0) for one in self._lanes) / wall
        if max(use["executors"], room) <= served or room > use["executors"]:
            limit = "learner" if use["learner"] >= use["memorizer"] else "memorizer"
            seen = f"the {limit} works {use[limit]:.0%} of the time"
            seen += f", and executors wait for room {room:.0%} of it" if room > 0.02 else ""
            if limit == "memorizer" and together:
                return limit, seen, {"schedule.memorizer": "own"}, served / max(use["learner"], use["memorizer"])
            return limit, seen, {}, None
        seen = f"executors work {use['executors']:.0%} of the time{self._waiting}, the learner {use['learner']:.0%}"
        change, predicted = self._more_executors()
        if "schedule.executors" in change:
            more = int(str(change["schedule.executors"])) / setup.executors
            predicted = min(more, 1 / max(served, 1e-9))
        return "executors", seen, change, predicted


def _round_number(value: float) -> int:
    """Return the next number above that is 1, 2 or 5 times a power of ten."""
    scale = 10 ** math.floor(math.log10(value))
    return next(int(step * scale) for step in (1, 2, 5, 10) if step * scale >= value)


def _name(one: Spent) -> str:
    return one.role if one.idx is None else f"{one.role}-{one.idx}"


_WITHOUT = {
    "executors": "a faster environment would help",
    "memorizer": "larger blocks (schedule.block_rows) would help",
    "learner": "larger minibatches, fewer epochs or smaller layers ([algorithm]) would help, which learn otherwise",
    "evaluator": "fewer or shorter tests would help",
    "cores": "fewer processes beside it would help",
    "straggler": "look at what its environments do",
    "disk": "rarer checkpoints would help",
    "rounds": 'longer rollouts (schedule.sync = "rollout") or schedule.kind = "oa" would help',
}
_OPTION = '; or schedule.gradients = "executors", which has them make the gradients'
_NOTES = {
    "schedule.executors": "updates then have more rows, or other ones",
    "schedule.envs_per_executor": "updates then have more rows, or other ones",
    "schedule.rollout_steps": "each update then learns from more rows",
    "schedule.kind": "what is learned then depends on who is faster",
    "evaluation.interval_steps": "fewer versions are tested",
    "checkpoint.interval_steps": "a run that dies has more to do again",
    "checkpoint.interval_s": "a run that dies has more to do again",
}


def _sentence(limit: str, seen: str, change: Mapping[str, object], predicted: float | None) -> str:
    """All of it in words; a prediction of next to nothing is no advice."""
    if limit == "straggler" and predicted is not None:
        return f"{seen}; {_WITHOUT[limit]}; as fast as the others: predicted {predicted - 1:+.0%}"
    if not change or predicted is None or (predicted < WORTH and limit != "cores"):
        return f"{seen}; {_WITHOUT.get(limit, 'nothing is predicted to help')}"
    (key, value) = next(iter(change.items()))
    asked = f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
    told = f"; {asked}: predicted {'as fast' if predicted == 1.0 else f'{predicted - 1:+.0%}'}"
    note = _NOTES.get(key) if not (key == "schedule.kind" and value == "is") else None
    if limit == "cores" and key == "schedule.executors":
        note = "updates then have fewer rows, unless schedule.envs_per_executor grows"
    return f"{seen}{told}{f' ({note})' if note else ''}"
