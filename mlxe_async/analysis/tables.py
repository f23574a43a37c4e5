"""The tables of a study: one row per settings, one per pair of settings, one per run; as Markdown or as HTML."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlxe_async.analysis import breakout_study, scores
from mlxe_async.analysis.outcomes import Groups, Outcome, is_timed
from mlxe_async.analysis.statistics import (
    FEWEST_RUNS,
    SurvivalCurve,
    bootstrap,
    compare_paired,
    iqm,
    kaplan_meier,
    median,
    share_bound,
)

FAILED, UNKNOWN = "failed", "-"

# What is compared: attribute of an outcome, and its name in tables. Less is better in each.
QUANTITIES: dict[str, str] = {
    "episodes": "episodes",
    "env_steps": "env steps",
    "updates": "updates",
    "cpu_seconds": "CPU s",
    "seconds_to_publication": "s to publication",
    "seconds_to_exit": "s to exit",
}
COUNTED = ("episodes", "env_steps", "updates")
STARTS = {"episodes": "episodes", "env_steps": "env steps", "updates": "updates", "seconds": "s"}
COMPARED = ("episodes", "seconds_to_publication", "seconds_to_exit", "cpu_seconds")
# What 0 stands for where ratios are formed: the least that can be told from nothing.
LEAST = {"episodes": 1.0, "env_steps": 1.0, "updates": 1.0}
LEAST_S = 0.01
LONGEST_SETTING = 60
Told = Callable[[Sequence[Outcome]], str]
"""What a column says of the runs of one settings."""
PROCESSES = ("executors", "memorizer", "learner", "evaluator", "supervisor")


@dataclass(frozen=True)
class Table:
    """A table and what its columns mean."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @property
    def markdown(self) -> str:
        """The table with its title and note."""
        lines = [self.head, ("---",) * len(self.head), *(tuple(map(_escaped, row)) for row in self.rows)]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"### {self.title}\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")


def all_tables(
    groups: Groups,
    baselines: Iterable[Mapping[str, Any]] = (),
    varied: Mapping[str, str] | None = None,
    thresholds: Sequence[float] = (),
) -> list[Table]:
    """Every table of a report, those without rows left out.

    Args:
        groups: runs by the name of their settings.
        baselines: what no learning achieves.
        varied: as of `pair_table`.
        thresholds: as of `score_table`.

    Where runs were made side by side there is no word of time.
    """
    if not is_timed(one for runs in groups.values() for one in runs):
        untimed = (settings_table(groups), return_table(groups), score_table(groups, thresholds), run_table(groups))
        return [table for table in untimed if table.rows]
    tables = [
        settings_table(groups),
        outcome_table(groups, baselines),
        score_table(groups, thresholds),
        time_table(groups),
        pair_table(groups, varied),
        run_table(groups),
    ]
    return [table for table in tables if table.rows]


def settings_table(groups: Groups) -> Table:
    """Return the keys in which settings differ, and their values; keys that not all of them have are counted."""
    known = {name: next((one.settings for one in runs if one.settings), {}) for name, runs in groups.items()}
    known = {name: settings for name, settings in known.items() if settings}
    keys = [*dict.fromkeys(key for settings in known.values() for key in settings)]
    common = [key for key in keys if all(key in settings for settings in known.values())]
    told = {key: [_setting(settings[key]) for settings in known.values()] for key in common}
    rows = tuple((key, *values) for key, values in told.items() if len(set(values)) > 1)
    others = len(keys) - len(common)
    note = f"Keys of one algorithm or schedule that not all of them have: {others}." if others else ""
    return Table("Settings that differ", ("key", *known), rows, note)


def _setting(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= LONGEST_SETTING else f"{text[: LONGEST_SETTING - 3]}..."


def outcome_table(groups: Groups, baselines: Iterable[Mapping[str, Any]] = ()) -> Table:
    """Return what each of the settings needed, and what no learning, or hardly any, achieves."""
    extra = _extra_columns(groups)
    columns: dict[str, Told] = {"solved": _solved, "failed [at most]": _failures}
    columns |= {words: partial(_needed, quantity=quantity) for quantity, words in QUANTITIES.items()}
    columns |= {"tests": _tests, "policy lag": lambda runs: _mean(runs, lambda one: one.lag_mean), **extra}
    more = [_baseline_row(baseline, 1 + len(columns)) for baseline in baselines]
    return _by_settings("What was needed", groups, columns, _outcome_note(groups, extra), more)


def return_table(groups: Groups) -> Table:
    """Return what each of the settings came to, for runs that were made side by side."""
    columns: dict[str, Told] = {"runs": lambda runs: str(len(runs)), "solved": _solved, "failed [at most]": _failures}
    columns |= {"return at the end": _final_return}
    columns |= {f"{QUANTITIES[quantity]} at the end": partial(_ended, quantity=quantity) for quantity in COUNTED}
    note = (
        "Return at the end: mean of the last 100 training episodes, median of all runs [95 % bootstrap interval]. Runs "
        "were made side by side and slowed each other down: seconds are not shown, and where speed decides the order "
        "(ia, oa) returns may depend on that too."
    )
    return _by_settings("What was reached", groups, columns, note + _few_note(map(len, groups.values())))


def score_table(groups: Groups, thresholds: Sequence[float] = ()) -> Table:
    """Return what runs came to at tasks that are never solved; on Breakout with the published figures below.

    Args:
        groups: runs by the name of their settings; those with a rule to judge them by are left out.
        thresholds: returns; how many steps it took to reach each. Without any, on Breakout the published study's.
    """
    unjudged = scores.never_judged(groups)
    wanted = scores.thresholds_for(unjudged, thresholds)
    rows = []
    for name, runs in unjudged.items():
        found = [scores.score(curve, wanted) for one in runs if (curve := scores.curve_of(one))]
        rows.append(
            (
                name,
                f"{sum(one.completed for one in runs)} of {len(runs)}",
                *(
                    _with_interval(*scores.mean_with_interval([getattr(one, part) for one in found]), "return")
                    for part in ("final", "highest", "area")
                ),
                *(
                    _with_interval(*scores.median_with_interval([one.reached[place] for one in found]), "env_steps")
                    for place in range(len(wanted))
                ),
            )
        )
    is_published = bool(rows) and scores.is_breakout(unjudged) and wanted == breakout_study.THRESHOLDS
    for name, published in breakout_study.CURVES.items() if is_published else ():
        mean = math.fsum(published.means) / len(published.means)
        values = (shown(value, "return") for value in (published.means[-1], published.highest, mean))
        steps = (shown(value, "env_steps") for value in published.reached)
        rows.append((f"published: {name}", "1 of 1", *values, *steps))
    head = (
        "settings",
        "completed",
        "last tenth",
        "highest test" if any(one.test_curve for runs in groups.values() for one in runs) else "highest",
        "mean on the way",
        *(f"steps to {number(threshold)}" for threshold in wanted),
    )
    note = (
        "Returns of tests, greedy games of frozen versions; of training where nothing was tested. Last tenth: mean of "
        "the tests of the last tenth of a run's steps. Highest: the luckiest of many, which says little. Mean on "
        "the way: area under the curve over its steps, each test standing for the steps since the one before. Cells: "
        "mean of the runs [95 % bootstrap interval]. Steps to: until the mean of "
        f"{scores.RECENT_TESTS} tests in a row is as high, median [interval]; a run that never came so far counts as "
        "worse than anything."
    )
    note += _few_note(len(runs) for runs in unjudged.values())
    note += f" {breakout_study.CAVEAT}" if is_published else ""
    return Table("What was reached, where nothing is ever solved", head, tuple(rows), note)


def time_table(groups: Groups) -> Table:
    """Other views of the same runs, and who had nothing to do."""
    kinds = [kind for kind in PROCESSES if any(kind in one.idle for runs in groups.values() for one in runs)]
    kinds += sorted({kind for runs in groups.values() for one in runs for kind in one.idle} - {*PROCESSES, "nursery"})
    roles = [role for role in PROCESSES if any(role in one.at_work for runs in groups.values() for one in runs)]
    columns: dict[str, Told] = {
        "KM median episodes": lambda runs: _survival_median(runs, "episodes"),
        "KM median s": lambda runs: _survival_median(runs, _clock(runs)),
        "IQM episodes": lambda runs: _iqm(runs, "episodes"),
        "IQM s": lambda runs: _iqm(runs, _clock(runs)),
        "return at the end": _final_return,
        **{f"{kind} idle": partial(_share, shares="idle", who=kind) for kind in kinds},
        **{f"{role} at work": partial(_share, shares="at_work", who=role) for role in roles},
    }
    note = (
        "KM: Kaplan-Meier estimate, in which a failure is a run that was given up (censored) where it ended; "
        "'failed' where half of the runs were never solved. IQM: mean of the middle half of the runs that did not "
        "fail. Return at the end: mean of the last 100 training episodes, median of all runs with its interval. "
        "Idle: 1 - CPU seconds of a process / seconds from its start to its end, mean of all runs, tests included; "
        "the memorizer may live in the learner's process. At work: share of the time from the first rollout to the "
        "last phase that a role spent in its phases, waiting for room in a lane left out; on fewer cores than busy "
        "processes this holds the wait for a core too, which idle counts as idle."
    )
    return _by_settings("How the time was spent", groups, columns, note)


def pair_table(groups: Groups, varied: Mapping[str, str] | None = None) -> Table:
    """Every two settings, by the seeds that both have.

    Args:
        groups: runs by the name of their settings.
        varied: variants, and which settings they vary: these are held against nothing else.
    """
    rows = []
    pairs = [
        (first, second)
        for first, second in itertools.combinations(groups, 2)
        if {first, second}.isdisjoint(varied or {})
        or first == (varied or {}).get(second)
        or second == (varied or {}).get(first)
    ]
    for first, second in pairs:
        ours, theirs = groups[first], groups[second]
        a, b = _by_seed(ours), _by_seed(theirs)
        seeds = sorted(a.keys() & b.keys())
        if not seeds:
            continue
        for quantity in COMPARED:
            if not (_is_told(ours, quantity) and _is_told(theirs, quantity) and _has([*ours, *theirs], quantity)):
                continue
            least = LEAST.get(quantity, LEAST_S)
            found = compare_paired(*([max(least, runs[s].needed(quantity)) for s in seeds] for runs in (a, b)))
            rows.append(
                (
                    f"{first} / {second}",
                    QUANTITIES[quantity],
                    f"{found.both} of {found.pairs}",
                    _ratio(found.median_ratio, found.median_interval),
                    _ratio(found.mean_ratio, found.mean_interval),
                    f"{found.p_value:.3f}" if found.p_value >= 0.0005 else "< 0.001",
                    _percent(found.improvement),
                )
            )
    head = ("pair", "in", "neither failed", "ratio of medians", "mean ratio", "p", "first needs less")
    note = (
        "Ratios below 1 favour the first; 95 % bootstrap intervals, both runs of a seed drawn together. Ratio of "
        "medians: failures are infinite; inf where only the first failed with half of the seeds, 0 where only the "
        "second did, - where both did. Mean ratio: geometric mean over the seeds with which neither failed; where a "
        "run needed 0 episodes or 0 CPU s (its very first weights passed) 1 episode and 0.01 s are taken for it, the "
        "least that can be counted. p: two-sided paired permutation test (signs flipped) on the signed ranks of the "
        "log ratios of all pairs. First "
        "needs less: probability for a run of the first against any run of the second. Many pairs are many tests: "
        "of twenty without any difference one has p < 0.05."
        + _few_note(len(_by_seed(groups[a]).keys() & _by_seed(groups[b]).keys()) for a, b in pairs)
    )
    return Table("Pairs of settings under the same seeds", head, tuple(rows), note)


def run_table(groups: Groups) -> Table:
    """One row for each run; without its seconds where runs were made side by side."""
    timed, rows = is_timed(one for runs in groups.values() for one in runs), []
    counted = [quantity for quantity in QUANTITIES if timed or quantity in COUNTED]
    for name, runs in groups.items():
        for one in runs:
            counts = one if one.solved or not one.tested else None
            rows.append(
                (
                    name,
                    str(one.seed),
                    "yes" if one.solved else one.reason if one.tested or not one.completed else "not tested",
                    *(_value(getattr(counts, q) if counts else None, q) for q in counted if q != "seconds_to_exit"),
                    *([_value(one.seconds_to_exit, "seconds_to_exit")] if timed else []),
                    str(one.tests),
                    _value(one.lag_mean, "lag"),
                    _value(one.final_return, "return"),
                    f"{one.end.get('episodes', 0):,}" + (f" / {number(one.end.get('seconds', 0.0))}" if timed else ""),
                    one.run or UNKNOWN,
                )
            )
    ended = "ended at episode / s" if timed else "ended at episode"
    names = (*(QUANTITIES[q] for q in counted), "tests", "policy lag", "return at the end", ended, "folder")
    return Table("Every run", ("settings", "seed", "solved", *names), tuple(rows))


def survival(runs: Sequence[Outcome], quantity: str) -> SurvivalCurve:
    """Return how many are not there yet, against `episodes` or seconds; failures censored where they ended."""
    ends = "episodes" if quantity == "episodes" else "seconds"
    times = [one.end.get(ends, 0.0) if one.failed else one.needed(quantity) for one in runs]
    return kaplan_meier(times, [not one.failed for one in runs])


def number(value: float) -> str:
    """Three digits or so: `0.42`, `7.3`, `12`, `1,234`."""
    if math.isinf(value):
        return FAILED
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def shown(value: float, quantity: str) -> str:
    """A value of a quantity: seconds with one decimal, returns below 1 with three, counts whole."""
    if math.isinf(value):
        return FAILED
    if quantity == "return":
        return f"{value:,.{3 if 0 < abs(value) < 1 else 1}f}"
    if "seconds" in quantity or quantity == "lag":
        return f"{value:,.1f}"
    return f"{value:,.0f}"


def _by_settings(
    title: str, groups: Groups, columns: Mapping[str, Told], note: str, more: Iterable[tuple[str, ...]] = ()
) -> Table:
    """A row for each of the settings, with what each column says of its runs, and some more rows."""
    rows = ((name, *(tell(runs) for tell in columns.values())) for name, runs in groups.items())
    return Table(title, ("settings", *columns), (*rows, *more), note)


def _solved(runs: Sequence[Outcome]) -> str:
    return f"{sum(one.solved for one in runs)} of {len(runs)}" if any(one.tested for one in runs) else "not tested"


def _failures(runs: Sequence[Outcome]) -> str:
    failures = sum(one.failed for one in runs)
    return f"{_percent(failures / len(runs))} [{_percent(share_bound(failures, len(runs)))}]"


def _needed(runs: Sequence[Outcome], quantity: str) -> str:
    if quantity == "seconds_to_publication" and not any(one.tested for one in runs):
        return UNKNOWN
    return _summary([one.needed(quantity) for one in runs], quantity)


def _ended(runs: Sequence[Outcome], quantity: str) -> str:
    return _summary([float(one.end.get(quantity, 0)) for one in runs], quantity, worst=False)


def _tests(runs: Sequence[Outcome]) -> str:
    return number(median([one.tests for one in runs])) if any(one.tested for one in runs) else UNKNOWN


def _share(runs: Sequence[Outcome], shares: str, who: str) -> str:
    return _mean(runs, lambda one: getattr(one, shares).get(who), _percent)


def _clock(runs: Sequence[Outcome]) -> str:
    return "seconds_to_publication" if any(one.tested for one in runs) else "seconds_to_exit"


def _survival_median(runs: Sequence[Outcome], quantity: str) -> str:
    middle = survival(runs, quantity).median
    return FAILED if middle is None else shown(middle, quantity)


def _value(value: float | None, quantity: str) -> str:
    return UNKNOWN if value is None else shown(float(value), quantity)


def _summary(values: Sequence[float], quantity: str, *, worst: bool = True) -> str:
    """Median, its interval, and the worst; `-` without values."""
    if not values:
        return UNKNOWN
    middle = shown(median(values), quantity)
    if len(values) == 1:
        return middle
    low, high = bootstrap(values)
    interval = f"{middle} [{shown(low, quantity)}, {shown(high, quantity)}]"
    return f"{interval}, {shown(max(values), quantity)}" if worst else interval


def _with_interval(middle: float, interval: tuple[float, float] | None, quantity: str) -> str:
    if interval is None:
        return shown(middle, quantity)
    return f"{shown(middle, quantity)} [{shown(interval[0], quantity)}, {shown(interval[1], quantity)}]"


def _iqm(runs: Sequence[Outcome], quantity: str) -> str:
    known = [value for one in runs if math.isfinite(value := one.needed(quantity))]
    return shown(iqm(known), quantity) if known else UNKNOWN


def _final_return(runs: Sequence[Outcome]) -> str:
    return _summary([one.final_return for one in runs if one.final_return is not None], "return", worst=False)


def _mean(
    runs: Sequence[Outcome], read: Callable[[Outcome], float | None], tell: Callable[[float], str] = number
) -> str:
    values = [value for one in runs if (value := read(one)) is not None]
    return tell(math.fsum(values) / len(values)) if values else UNKNOWN


def _ratio(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None or math.isnan(value):
        return UNKNOWN
    if interval is None:
        return _factor(value)
    return f"{_factor(value)} [{_factor(interval[0])}, {_factor(interval[1])}]"


def _factor(value: float) -> str:
    return "0" if value == 0 else f"{value:.2f}" if math.isfinite(value) else "inf"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 or share == 0 else f"{100 * share:.1f} %"


def _is_told(runs: Sequence[Outcome], quantity: str) -> bool:
    """Return whether these settings have such a quantity at all; those that always fail have."""
    return _has(runs, quantity) or all(one.failed for one in runs)


def _has(runs: Sequence[Outcome], quantity: str) -> bool:
    return any(math.isfinite(one.needed(quantity)) for one in runs)


def _by_seed(runs: Sequence[Outcome]) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    for one in runs:
        found.setdefault(one.seed, one)
    return found


def _extra_columns(groups: Groups) -> dict[str, Told]:
    runs = [one for members in groups.values() for one in members]
    columns: dict[str, Told] = {}
    if any(one.d2 is not None for one in runs):
        columns["D2"] = _d2
    if any(one.retention is not None for one in runs):
        columns["retention"] = _retention
    if any(one.d0 is not None for one in runs):
        columns["D0 episodes"] = _d0
    if any(one.d0 is not None and "start_episodes" in one.d0 for one in runs):
        columns |= {f"D0 {words} at its start": partial(_d0, key=f"start_{key}") for key, words in STARTS.items()}
    if not all(one.tested for one in runs):
        columns["return at the end"] = _final_return
    return columns


def _d2(runs: Sequence[Outcome]) -> str:
    tried = [one.d2 for one in runs if one.d2 is not None]
    return f"{sum(tried)} of {len(tried)}" if tried else UNKNOWN


def _retention(runs: Sequence[Outcome]) -> str:
    shares = [one.retention[1] / one.retention[0] for one in runs if one.retention is not None]
    if not shares:
        return UNKNOWN
    return f"{_percent(median(shares))} (worst {_percent(min(shares))})"


def _d0(runs: Sequence[Outcome], key: str = "episodes") -> str:
    unit = "seconds_to_publication" if key.endswith("seconds") else key.removeprefix("start_")
    return _summary([math.inf if one.d0 is None else one.d0.get(key, math.inf) for one in runs], unit)


def _baseline_row(baseline: Mapping[str, Any], width: int) -> tuple[str, ...]:
    solved, tried = baseline["solved"], baseline["tried"]
    row = [f"baseline: {baseline['name']}", f"{solved} of {tried} ({baseline['rule']})"]
    row.append(f"{_percent(1 - solved / tried)} [{_percent(share_bound(tried - solved, tried))}]")
    for quantity in QUANTITIES:
        values = baseline.get(quantity)
        row.append(_summary([math.inf if v is None else v for v in values], quantity) if values else UNKNOWN)
    return (*row, *[UNKNOWN] * (width - len(row)))


def _outcome_note(groups: Groups, extra: Iterable[str]) -> str:
    runs = [one for members in groups.values() for one in members]
    passes, goals = _goals(runs)
    solved, moments, cpu = [], [], []
    if passes or not goals:
        moments.append("the publication of the first of the passing versions")
        cpu.append("all processes but the evaluator, until that publication")
    if goals:
        moments.append("the end of that episode")
        cpu.append(
            "all processes, until the run has ended, which is later than that episode, since the log does not tell "
            "them of any other moment"
        )
    if passes or not goals:
        solved.append("all counts are those when the first was published")
    if goals:
        solved.append("all counts are those when that episode was through, not those of the run's end")
    note = (
        f"{solved_means(runs)}; {'; or '.join(solved)}. Cells: median [95 % bootstrap interval], worst; a failure "
        "counts as worse than anything and is never left out. Failed [at most]: share of failures and its exact 95 % "
        f"upper bound. Both clocks start when the command is typed; s to publication ends with {' or '.join(moments)}, "
        f"s to exit with the end of the command. CPU s: {'; or '.join(cpu)}. Tests: versions tested in a run, median. "
        "Policy lag: mean of all rows learned from."
    )
    note += _few_note(map(len, groups.values()))
    told = {
        "D2": " D2: solving versions that also pass from 20 adverse starts.",
        "retention": " Retention: share of the versions tested after the task was solved that pass; with it, s to "
        "exit holds the time of going on.",
        "D0 episodes": " D0: episodes until one training episode, exploration on, took 50,000 steps.",
        "D0 episodes at its start": " At its start: when that episode began, which is what it took to learn it; "
        "everybody goes on while it is played.",
    }
    note += "".join(told.get(name, "") for name in extra)
    if any(not one.tested for one in runs):
        note += " Settings whose versions are not tested cannot be solved: their counts are those at the end."
    if any(one.clock == "run" for one in runs):
        note += " Given run folders do not know when their command was typed: their clocks start with the run itself."
    return note + "".join(f" Note: {mixture}." for mixture in mixtures(groups))


def solved_means(runs: Iterable[Outcome]) -> str:
    """When a run counts as solved, in words, with the names that the documents of the study have for it."""
    passes, goals = _goals(runs)
    means = []
    if passes or not goals:
        means.append(f"{' or '.join(map(str, passes)) or 'enough'} tested versions in a row passed (D1c)")
    if goals:
        long = " or ".join(f"{goal:,}" for goal in goals)
        means.append(f"one training episode, exploration on, lasted {long} steps (D0)")
    return f"Solved: {'; or '.join(means)}"


def mixtures(groups: Groups) -> list[str]:
    """Return what is wrong with taking these runs together, a sentence each without its full stop."""
    found = []
    programs = {one.program for runs in groups.values() for one in runs if one.program}
    if len(programs) > 1:
        found.append(
            f"these runs were made by {len(programs)} versions of the program; --out elsewhere runs all of them anew"
        )
    for name, runs in groups.items():
        if len({one.seed for one in runs}) < len(runs):
            found.append(f"{name} has several runs of one seed, which may not be independent")
    return found


def _goals(runs: Iterable[Outcome]) -> tuple[list[int], list[int]]:
    """Passes in a row, and steps of an episode, that solve the tasks of these runs."""
    runs = list(runs)
    passes = {int(one.facts["passes"]) for one in runs if one.facts.get("passes") and one.tests}
    return sorted(passes), sorted({int(one.facts["episode_steps"]) for one in runs if one.facts.get("episode_steps")})


def _few_note(counts: Iterable[int]) -> str:
    few = sorted({count for count in counts if 1 < count < FEWEST_RUNS})
    if not few:
        return ""
    return (
        f" With fewer than {FEWEST_RUNS} runs the bootstrap interval is no 95 % one: even that from the least to the "
        "greatest value holds the median in only "
        + ", ".join(f"{100 * (1 - 2 / 2**count):.0f} % of studies of {count}" for count in few)
        + "."
    )


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
