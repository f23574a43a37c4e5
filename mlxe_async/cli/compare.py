"""`compare`: settings files with many seeds, or runs that are there already, side by side in one honest report.

Runs go one after the other, because runs that share the cores would measure each other, unless only returns are to be
judged (`--jobs`); and in turn, all settings with one seed before any with the next, so that a drift of the machine hits
all alike. Each finished run is kept at once: whatever interrupts a study, the same command goes on with it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import json
import math
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxe_async.analysis import study
from mlxe_async.analysis.outcomes import Outcome, is_timed, outcome
from mlxe_async.analysis.study import Arm, Plan, StudyFolder
from mlxe_async.analysis.tables import Table, all_tables, mixtures, run_table
from mlxe_async.cli import suite as suites
from mlxe_async.cli.arguments import Parser
from mlxe_async.cli.console import Console
from mlxe_async.cli.keys import key_of_settings
from mlxe_async.cli.studying import Interrupted, Runner, interruptible, pass_adverse_starts
from mlxe_async.errors import RunFailed, SettingsError
from mlxe_async.settings import Settings, load_settings
from mlxe_async.settings.suites import Suite, is_suite, load_suite
from mlxe_async.settings.trust import Needed, code_of
from mlxe_async.storage.files import PLAIN_NAME, read_bounded
from mlxe_async.storage.run_folder import find_run
from mlxe_async.storage.safe_text import visible
from mlxe_async.storage.seals import fits, seal_in, sealed

FIVE_SEEDS = "0..4"
LONGEST_FILE = 2**20
MOST_BASELINES = 100_000
MOST_JOBS = 64
MOST_THRESHOLDS = 8
USAGE = "compare FILE.toml|SUITE.toml|RUN|STUDY ... [--seeds A..B] [--set a.b=VALUE ...] [--out FOLDER] [...]"

ABOUT = """\
Run each settings file with each seed, one run at a time, and report how they
compare; or a suite, a file of tasks, algorithms and seeds, with one table of
normalised scores. Run folders and folders of other studies may be given too: they are shown
beside, runs of one settings name together. With the same --out, or --resume
FOLDER, a study that was interrupted goes on: runs that have finished are not run
again.

The report is printed as Markdown and kept in the study's folder: table.md,
outcomes.jsonl (all data) and each picture as .svg and .png. `report FOLDER` makes
one HTML page of a study."""
EXAMPLE = """\
compare settings/is.toml settings/oa.toml --seeds 0..9
compare settings/oa.toml --seeds 1..5 --timeout 600
compare settings/suites/classic.toml --out runs/classic"""


def run(arguments: Sequence[str]) -> int:
    """Run what is missing, write the report, print its tables. Returns the exit code."""
    asked = _parser().parse_args(arguments)
    console = Console(sys.stderr)
    folder, plan, settings, suite = _plan(asked)
    others = _others(plan)
    with StudyFolder(folder) as kept:
        if not plan.rerun:
            kept.check_unchanged(plan)
        kept.write_plan(plan, sealed(_code_of(settings)))
        if suite is not None:
            suites.prepare(kept, suite, console)
        for note in _beside(plan, settings):
            console.line(f"note: {note}")
        runner = Runner(kept, console, longest_s=plan.timeout_s, keep_runs=plan.keep_runs)
        try:
            with interruptible():
                _run_missing(kept, plan, runner, console)
                baselines = _baselines(kept, settings, asked.baselines, console)
        except Interrupted as stopped:
            done = sum(kept.finished(arm, seed) is not None for arm, seed in plan.rounds())
            console.finish(
                f"{stopped.name}: {done} of {len(list(plan.rounds()))} runs have finished; "
                f"this goes on with them: python -m mlxe_async compare --resume {shlex.quote(str(folder))}"
            )
            return stopped.exit_code
        outcomes = [*_outcomes(kept, plan), *others]
        if not outcomes:
            raise SettingsError([f"compare: got no run at all in {folder}, expected settings files or run folders"])
        for mixture in mixtures(study.group(outcomes)) if not plan.suite else ():
            console.line(f"note: {mixture}")
        tables = _report(kept, outcomes, baselines, plan, with_pictures=not asked.no_pictures)
        shown = tables if asked.rows else [table for table in tables if table.title != run_table({}).title]
        sys.stdout.write("\n".join(table.markdown for table in shown))
        console.finish(f"the report is in {folder}: table.md, {study.ALL_OUTCOMES}")
        console.finish(f"as one page: python -m mlxe_async report {shlex.quote(str(folder))}")
    return 0


def _parser() -> Parser:
    parser = Parser(USAGE, ABOUT, EXAMPLE)
    add = parser.add_argument
    add(
        "sources",
        nargs="*",
        metavar="FILE|RUN|STUDY",
        help="settings files to run, or a suite; folders of runs and studies",
    )
    add("--seeds", metavar="A..B", help=f"both ends included, or a list A,B,C; {FIVE_SEEDS} when left out")
    add("--set", action="append", default=[], dest="overrides", metavar="a.b=VALUE", help="for all settings files")
    add("--vary", type=Path, metavar="FILE", help="TOML, NAME = [a.b=VALUE, ...]: each settings file so varied as well")
    add("--out", type=Path, metavar="FOLDER", help="the study's folder; runs/compare-<utc time> when left out")
    add("--resume", type=Path, metavar="FOLDER", help="go on with a study as it was asked for, or report it anew")
    add(
        "--rerun",
        action=argparse.BooleanOptionalAction,
        help="run again what was made by settings that have changed since",
    )
    add("--baselines", type=int, default=0, metavar="N", help="add N untrained policies of each kind (CartPole only)")
    add(
        "--d2",
        action=argparse.BooleanOptionalAction,
        help="test the policies that solved the task from 20 adverse starts too",
    )
    add("--retention", type=int, metavar="STEPS", help="go on for STEPS steps; how many later versions still pass")
    add("--rows", action="store_true", help="print a row for every run too; table.md always has them")
    add(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help=f"a run that takes longer has failed; {study.LONGEST_RUN_S:g} when left out",
    )
    add(
        "--jobs",
        type=int,
        metavar="N",
        help="number of runs side by side; then only returns are judged",
    )
    add(
        "--thresholds",
        type=_returns,
        metavar="A,B",
        help="of tasks that are never solved: steps until tests reach these returns; 50,100 on Breakout",
    )
    add("--no-pictures", action="store_true", help="tables only")
    parser.add_trust()
    add(
        "--keep-runs",
        action=argparse.BooleanOptionalAction,
        help="keep the run folders, in FOLDER/runs (those of failures always are); so when left out",
    )
    return parser


def _returns(text: str) -> tuple[float, ...]:
    """`"50,100"`: up to eight returns, ascending.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not 1 <= len(found) <= MOST_THRESHOLDS or not all(map(math.isfinite, found)) or sorted(set(found)) != [*found]:
        raise argparse.ArgumentTypeError(
            f'got "{visible(text, 60)}", expected 1 to {MOST_THRESHOLDS} returns, ascending'
        )
    return found


def parse_seeds(text: str) -> list[int]:
    """`"3"`, `"1000..1009"` (both ends included) or `"1,2,5"`.

    Raises:
        SettingsError: it is neither, or names a seed twice.
    """
    if re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        seeds = [int(seed) for seed in text.split(",")]
        if len(set(seeds)) < len(seeds):
            raise SettingsError([f'--seeds: got "{text[:60]}", expected each seed once'])
        return seeds
    match = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text)
    if not match or int(match[2]) < int(match[1]) or int(match[2]) - int(match[1]) >= 100_000:
        raise SettingsError([f'--seeds: got "{visible(text, 60)}", expected A..B with A <= B, or A,B,C'])
    return list(range(int(match[1]), int(match[2]) + 1))


def _plan(asked: argparse.Namespace) -> tuple[Path, Plan, list[Settings], Suite | None]:
    """The study's folder, what is to be in it, and the settings of its arms, all mistakes told before the first run.

    Returns:
        And the suite that was given, where one was; a resumed one is in its folder.
    """
    timeout_s = study.LONGEST_RUN_S if asked.timeout is None else asked.timeout
    if (
        not 0 <= asked.baselines <= MOST_BASELINES
        or not 0 < timeout_s < 1e9
        or (asked.retention is not None and asked.retention < 1)
        or (asked.jobs is not None and not 1 <= asked.jobs <= MOST_JOBS)
    ):
        raise SettingsError(
            [
                f"compare: expected --baselines from 0 to {MOST_BASELINES:,}, --timeout > 0, --retention >= 1, "
                f"and --jobs from 1 to {MOST_JOBS}"
            ]
        )
    if asked.resume is not None:
        given = [name for name in ("sources", "seeds", "overrides", "vary", "out", "retention") if getattr(asked, name)]
        if given:
            raise SettingsError(
                [f"--resume: got {', '.join(given)} too, expected none: the study has them; repeat --out to change it"]
            )
        plan = study.read_plan(asked.resume)
        settings = [load_settings(arm.file, list(arm.overrides)) for arm in plan.arms]
        if not fits(seal_in(asked.resume), _code_of(settings)):
            for arm, one in zip(plan.arms, settings, strict=True):
                why = f"{visible(arm.file, 300)} is run by a study from elsewhere, or was changed since"
                Needed(one, asked.trust).refuse_folders(why)
        keys = [key_of_settings(arm.file, arm.overrides, one) for arm, one in zip(plan.arms, settings, strict=True)]
        arms = tuple(dataclasses.replace(arm, key=key) for arm, key in zip(plan.arms, keys, strict=True))
        return asked.resume, _with_switches(dataclasses.replace(plan, arms=arms), asked), settings, None
    if not asked.sources:
        raise SettingsError([f"compare: got no settings file and no run, expected: {USAGE}"])
    files = [source for source in asked.sources if source.endswith(".toml")]
    out = asked.out or Path("runs") / f"compare-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}"
    overrides = list(asked.overrides)
    if source := next(filter(is_suite, files), ""):
        suites.refuse_others(asked, source)
        suite, chosen = load_suite(source), parse_seeds(asked.seeds) if asked.seeds else None
        plan, settings = suites.plan_of(suite, source, out, overrides, chosen, key_of_settings)
        return out, _with_switches(plan, asked), settings, suite
    if asked.retention:
        overrides.append(f"stop.steps_after_solved={asked.retention}")
    settings, problems = [], []
    for file in files:
        try:
            settings.append(load_settings(file, overrides))
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
    arms = tuple(
        Arm(name, str(Path(file).absolute()), tuple(overrides), key_of_settings(file, overrides, one))
        for name, file, one in zip(_names(files, settings), files, settings, strict=True)
    )
    if asked.vary is not None:
        arms = tuple(varied for arm in arms for varied in (arm, *_variants(arm, asked.vary)))
        _check_arms(arms, asked.vary)
    others = tuple(str(_other(source)) for source in asked.sources if not source.endswith(".toml"))
    seeds = tuple(parse_seeds(asked.seeds or FIVE_SEEDS)) if files else ()
    return out, _with_switches(Plan(arms, seeds, others), asked), settings, None


def _code_of(settings: Sequence[Settings]) -> list[Any]:
    """Return what decides which code a study runs, as JSON."""
    return [code_of(one) for one in settings]


def _with_switches(plan: Plan, asked: argparse.Namespace) -> Plan:
    """The plan with what was said of how runs are made; what was not said stays."""
    names = {"timeout": "timeout_s"} | {key: key for key in ("keep_runs", "d2", "rerun", "jobs", "thresholds")}
    said = {names[key]: value for key in names if (value := getattr(asked, key)) is not None}
    return dataclasses.replace(plan, **said)


def _names(files: Sequence[str], settings: Sequence[Settings]) -> list[str]:
    names = [one.run.name for one in settings]
    for name, file in zip(names, files, strict=True):
        if names.count(name) > 1:
            raise SettingsError([f'{file}: got the name "{name}" twice, expected names that differ (run.name)'])
        if not PLAIN_NAME.fullmatch(name):
            raise SettingsError([f"{file}: got {visible(repr(name), 60)} for run.name, expected a plain name"])
    return names


def _variants(arm: Arm, path: Path) -> Iterator[Arm]:
    """The arm once more for each line of a file of variations, under the name that the line gives it."""
    try:
        table = tomllib.loads(read_bounded(path, LONGEST_FILE).decode())
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError([f"--vary: {path} cannot be read ({reason}), expected a TOML file of variants"]) from error
    except (ValueError, RecursionError) as error:
        raise SettingsError([f'--vary: {path}: {error}, expected TOML lines NAME = ["a.b=VALUE", ...]']) from error
    problems = []
    for name, sets in table.items():
        if not PLAIN_NAME.fullmatch(name) or not isinstance(sets, list) or not all(type(one) is str for one in sets):
            raise SettingsError([f'{path}: got {visible(name, 60)}, expected plain-name = ["table.key=VALUE", ...]'])
        overrides = (*arm.overrides, *sets)
        try:
            settings = load_settings(arm.file, list(overrides))
        except SettingsError as error:
            problems += [f"{path}: {name}: {problem}" for problem in error.problems]
            continue
        yield Arm(f"{arm.name}-{name}", arm.file, overrides, key_of_settings(arm.file, overrides, settings))
    if problems:
        raise SettingsError(problems)


def _check_arms(arms: Sequence[Arm], path: Path) -> None:
    """Runs and their files are named after arms: names must differ, and must be names."""
    names, problems = [arm.name for arm in arms], []
    for arm in dict(zip(names, arms, strict=True)).values():
        if names.count(arm.name) > 1:
            problems.append(f'--vary: {path}: got the name "{arm.name}" twice, expected names that differ')
        if not PLAIN_NAME.fullmatch(arm.name):
            problems.append(f"--vary: {path}: got {visible(repr(arm.name), 120)}, expected a plain name, not too long")
    if problems:
        raise SettingsError(problems)


def _other(source: str) -> Path:
    """The folder of a study or of a run."""
    path = Path(source)
    return path.absolute() if study.has_outcomes(path) else find_run(source)


def _run_missing(kept: StudyFolder, plan: Plan, runner: Runner, console: Console) -> None:
    rounds = list(plan.rounds())
    program = study.program_key()
    if plan.jobs > 1:
        missing = [(arm, seed) for arm, seed in rounds if not _is_current(kept.finished(arm, seed), arm)]
        done = len(rounds) - len(missing)
        with contextlib.closing(runner.side_by_side(missing, plan.jobs)) as finished:
            for number, (arm, seed, found) in enumerate(finished, done + 1):
                kept.store(arm, found, program)
                console.line(f"{number} of {len(rounds)}: {arm.name}, seed {seed}: {_how(found, timed=False)}")
    for number, (arm, seed) in enumerate(rounds, 1):
        stored = kept.finished(arm, seed)
        one = stored[0] if stored is not None and _is_current(stored, arm) else None
        if one is None:
            one = runner.run_once(arm, seed)
            kept.store(arm, one, program)
            console.line(f"{number} of {len(rounds)}: {arm.name}, seed {seed}: {_how(one)}")
        if plan.d2 and one.solved and one.d2 is None:
            if one.run and (kept.runs / one.run).is_dir():
                one = dataclasses.replace(one, d2=pass_adverse_starts(kept.runs / one.run, console))
                kept.store(arm, one, stored[2] if stored is not None and stored[1] == arm.key else program)
            else:
                console.line(f"note: {arm.name}, seed {seed}: no D2, its run folder was not kept")
        runner.let_go(one)
    if plan.rerun:  # done: what changes later is not to be run again unasked
        kept.write_plan(dataclasses.replace(plan, rerun=False))


def _is_current(stored: tuple[Outcome, str, str] | None, arm: Arm) -> bool:
    return stored is not None and stored[1] == arm.key


def _beside(plan: Plan, settings: Sequence[Settings]) -> Iterator[str]:
    """Return what is to be known of settings that are run side by side.

    Raises:
        SettingsError: runs are ended by a clock that others slow down.
    """
    if plan.jobs == 1:
        return
    timed = [one.run.name for one in settings if one.stop.seconds is not None]
    if timed:
        raise SettingsError(
            [f"--jobs: got {plan.jobs}, expected 1: stop.seconds ends runs of {', '.join(timed)}, and others slow them"]
        )
    free = {one.schedule.kind for one in settings if not one.schedule.reproducible}
    if free:
        kinds = " and ".join(sorted(free))
        yield f"schedule {kinds}: what is learned depends on who is fast, and so on what runs side by side"


def _how(one: Outcome, *, timed: bool = True) -> str:
    if one.solved:
        how = f"solved at episode {one.episodes:,}"
    elif one.tested or not one.completed:
        how = f"not solved ({one.reason})"
    else:
        how = f"ended ({one.reason})"
    return f"{how}, {one.seconds_to_exit or 0.0:.1f} s" if timed else how


def _outcomes(kept: StudyFolder, plan: Plan) -> list[Outcome]:
    """All that was run of the plan."""
    found: list[Outcome] = []
    for arm in plan.arms:
        ours = [stored[0] for seed in plan.seeds if (stored := kept.finished(arm, seed))]
        # One file under one key: a program that has learned new keys meanwhile makes no other settings of it.
        digest = next((one.digest for one in ours if one.digest), "")
        found += [dataclasses.replace(one, digest=digest) for one in ours]
    return found


def _others(plan: Plan) -> list[Outcome]:
    """Return what became of the runs and studies that were named, before anything is run beside them."""
    found: list[Outcome] = []
    for path in map(Path, plan.others):
        try:
            found += study.told_outcomes(path) if study.has_outcomes(path) else [outcome(path)]
        except RunFailed as error:
            raise SettingsError([f"compare: {visible(str(error), 500)}"]) from error
    return found


def _baselines(kept: StudyFolder, settings: Sequence[Settings], tried: int, console: Console) -> list[dict[str, Any]]:
    stored = study.stored_baselines(kept.path)
    if not tried:
        return stored[1] if stored else []
    if not settings or any(one.task.env != "CartPole-v1" for one in settings):
        raise SettingsError(["--baselines: expected settings files, all of them for CartPole-v1"])
    import gymnasium

    cartpole = gymnasium.spec("CartPole-v1")
    evaluation = settings[0].evaluation.completed(cartpole.reward_threshold, cartpole.max_episode_steps).model_dump()
    asked = {"evaluation": evaluation, "tried": tried}
    if stored and stored[0] == json.loads(json.dumps(asked)):
        return stored[1]
    from mlxe_async.analysis.baselines import cartpole_baselines

    console.line(f"baselines: {tried} policies of each kind")
    found = [dataclasses.asdict(baseline) for baseline in cartpole_baselines(evaluation, tried)]
    kept.write(study.BASELINES, json.dumps({"asked": asked, "baselines": found}) + "\n")
    return found


def _report(
    kept: StudyFolder,
    outcomes: Sequence[Outcome],
    baselines: Sequence[Mapping[str, Any]],
    plan: Plan,
    *,
    with_pictures: bool,
) -> list[Table]:
    groups = study.group(outcomes)
    kept.write(study.ALL_OUTCOMES, "".join(f"{json.dumps(one.to_json())}\n" for one in outcomes))
    if plan.suite:
        tables = [*suites.report(kept, outcomes, with_pictures=with_pictures), run_table(groups)]
        kept.write("table.md", f"# {kept.path.name}\n\n" + "\n".join(table.markdown for table in tables))
        return tables
    tables = all_tables(groups, baselines, plan.varied(), plan.thresholds)
    about = _about(outcomes)
    kept.write("table.md", f"# {kept.path.name}\n\n{about}\n\n" + "\n".join(table.markdown for table in tables))
    if with_pictures:
        from mlxe_async.analysis.pictures import all_pictures

        for picture in all_pictures(groups):
            kept.write(f"{picture.name}.svg", picture.svg)
            kept.write(f"{picture.name}.png", picture.png)
    return tables


def _about(outcomes: Sequence[Outcome]) -> str:
    """Return what was run, and where, in one paragraph."""

    def each(read: str, part: str = "facts") -> str:
        found = {str(one.facts.get(part, {}).get(read) if part != "facts" else one.facts.get(read)) for one in outcomes}
        return " or ".join(sorted(found - {"None"})) or "?"

    seeds = sorted({one.seed for one in outcomes})
    at_once = "one at a time, " if is_timed(outcomes) else "some at the same time, "
    if any(one.clock == "run" for one in outcomes):
        at_once = ""  # of run folders that were given it is not known
    which = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 2 else " and ".join(map(str, seeds))
    return (
        f"{len(outcomes)} runs on {each('env')}, seeds {which}, {at_once}on {each('cores', 'host')} cores of "
        f"{each('system', 'host')}; torch {each('torch', 'versions')}, mlxe_async {each('mlxe_async', 'versions')}."
    )
