"""`sweep FILE.toml`: search values of settings by Optuna, and write the best with what was measured."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import hashlib
import importlib.util
import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxe_async.analysis import study
from mlxe_async.analysis.study import Arm, Plan, StudyFolder
from mlxe_async.analysis.sweeps import (
    Finalist,
    Trial,
    Verdict,
    best_of,
    counted,
    ranked,
    trial_table,
    valued,
    winner,
)
from mlxe_async.cli.arguments import Parser
from mlxe_async.cli.console import Console
from mlxe_async.cli.keys import key_of_settings
from mlxe_async.cli.rewriting import commented, rewritten
from mlxe_async.cli.studying import Interrupted, Runner, interruptible
from mlxe_async.cores import usable_cores
from mlxe_async.errors import SettingsError
from mlxe_async.settings import Settings, load_settings
from mlxe_async.settings.searching import MOST_TRIALS, Sweep, load_sweep
from mlxe_async.storage.files import read_bounded
from mlxe_async.storage.safe_text import visible

MOST_JOBS = 64
MOST_SEED = 10**9
FRESH = 10_000_000
"""Distance of the fresh seeds from the sweep's own: no trial has them."""
FINALS = 5_000_000
"""Likewise for the seeds by which finalists run again."""
SWEEP, BEST, TABLE = "sweep.json", "best.toml", "trials.md"
FINALS_FOLDER, FRESH_FOLDER = "finals", "fresh"
_NOT_OF_TRIALS = {"trials", "finalists", "finalist_seeds", "fresh_seeds", "timeout_s"}
_LONGEST = 2**20
USAGE = "sweep FILE.toml [--trials N] [--jobs J] [--seed S] [--out FOLDER]"
ABOUT = """\
Search values of settings: FILE.toml says by [sweep] which settings file is varied and how trials are judged, and by
[search] which keys take which values. Optuna proposes them (extra: sweep), several trials run at the same time, and
trials whose learning curve is among the worse ones are ended early.

In the end trials of the highest scores run again with further seeds, for a single run may be luck. The
best of them and the settings as they were run with seeds that no run had before, and best.toml says what was
measured. Trials that failed or diverged are told, and are never the best.

The same command goes on with a sweep that was interrupted or killed; with a higher --trials it makes more of them.
The sweep's folder holds trials.db for optuna-dashboard, trials.md, best.toml, and the fresh runs as a study."""
EXAMPLE = """\
sweep settings/sweeps/ppo-cartpole.toml --trials 20
sweep mine.toml --trials 100 --jobs 4 --out runs/mine"""


def run(arguments: Sequence[str]) -> int:
    """Make the trials that are missing, run the best beside the settings as they were. Returns the exit code."""
    asked = _parser().parse_args(arguments)
    if not asked.file.endswith(".toml"):
        raise SettingsError([f'sweep: got "{visible(asked.file, 60)}", expected a file ending in .toml: {USAGE}'])
    sweep = load_sweep(asked.file)
    count = sweep.table.trials if asked.trials is None else asked.trials
    jobs = _jobs(sweep.settings) if asked.jobs is None else asked.jobs
    if not 1 <= count <= MOST_TRIALS or not 1 <= jobs <= MOST_JOBS or not 0 <= asked.seed <= MOST_SEED:
        raise SettingsError(
            [
                f"sweep: expected --trials from 1 to {MOST_TRIALS:,}, --jobs from 1 to {MOST_JOBS} and --seed from 0 "
                f"to {MOST_SEED:,}"
            ]
        )
    if jobs > 1 and sweep.settings.stop.seconds is not None:
        raise SettingsError([f"--jobs: got {jobs}, expected 1: stop.seconds ends trials, and others slow them"])
    if importlib.util.find_spec("optuna") is None:
        raise SettingsError(
            ["sweep: needs the package optuna, which is not installed: pip install 'mlxe_async[sweep]'"]
        )
    folder = asked.out or Path("runs") / f"sweep-{Path(asked.file).stem.removeprefix('sweep-')}"
    return _Sweeping(sweep, folder, asked, count, jobs).go()


def _parser() -> Parser:
    parser = Parser(USAGE, ABOUT, EXAMPLE)
    parser.add_argument(
        "file", metavar="FILE.toml", help="what is searched: a file with the tables [sweep] and [search]"
    )
    parser.add_argument("--trials", type=int, metavar="N", help="trials in all, those made before counted; as the file")
    parser.add_argument("--jobs", type=int, metavar="J", help="trials at the same time; as many as the cores allow")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="trial n runs with S + n; 0 when left out")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the sweep's folder; runs/sweep-FILE when left out")
    return parser


def _jobs(settings: Settings) -> int:
    """Return how many runs fit on the cores: executors and learner take turns, but under `oa` and `ia`."""
    schedule = settings.schedule
    busy = schedule.executors + (0 if schedule.reproducible else 1)
    return max(1, usable_cores() // busy)


class _Sweeping:
    """One sitting of a sweep."""

    def __init__(self, sweep: Sweep, folder: Path, asked: argparse.Namespace, count: int, jobs: int) -> None:
        self._sweep, self._folder, self._count, self._jobs = sweep, folder, count, jobs
        self._file, self._seed = asked.file, asked.seed
        self._console = Console(sys.stderr)

    def go(self) -> int:
        """Do all that is missing; returns the exit code."""
        from mlxe_async.cli.sweeping import Trials

        with StudyFolder(self._folder, proof=SWEEP) as kept:
            self._hold_to(kept)
            steps = f"{self._sweep.env_steps:,} steps" if self._sweep.env_steps else "the settings' own length"
            beside = f", {self._jobs} at a time" if self._jobs > 1 else ""
            self._console.line(f"{self._count} trials of {steps}{beside}, in {visible(str(self._folder), 200)}")
            with Trials(self._sweep, kept.path, self._seed, self._console) as trials:
                try:
                    with interruptible():
                        trials.make(self._count, self._jobs)
                        made = trials.all()
                        finals = self._finals(made)
                        best = winner(finals).trial if finals else best_of(made)
                        verdict = None if best is None else self._fresh(best)
                except Interrupted as stopped:
                    made = trials.all()
                    kept.write(TABLE, trial_table(made).markdown)
                    self._console.finish(
                        f"{stopped.name}: {counted(made)}; the same command goes on: "
                        f"python -m mlxe_async sweep {shlex.quote(visible(self._file, 200))} "
                        f"--out {shlex.quote(visible(str(self._folder), 200))}"
                    )
                    return stopped.exit_code
            return self._finish(kept, made, finals, best, verdict)

    def _hold_to(self, kept: StudyFolder) -> None:
        """Note what is searched; a folder where something else was searched is refused."""
        key = self._key()
        try:
            known = json.loads(read_bounded(kept.path / SWEEP, _LONGEST))
        except FileNotFoundError:
            known = None
        except (OSError, ValueError) as error:
            raise SettingsError(
                [f"--out: {self._folder}/{SWEEP} cannot be read ({error}): take another folder"]
            ) from error
        if known is not None and (not isinstance(known, dict) or known.get("key") != key):
            raise SettingsError(
                [
                    f"{visible(self._file, 200)}: it, its settings file or --seed has changed since trials in "
                    f"{visible(str(self._folder), 200)} were made, expected the same: give another --out"
                ]
            )
        kept.write(SWEEP, json.dumps({"key": key, "file": str(Path(self._file).absolute()), "seed": self._seed}) + "\n")

    def _key(self) -> str:
        """Hash of all that makes trials what they are; how many there are is not of it."""
        table = self._sweep.table.model_dump(mode="json", exclude=_NOT_OF_TRIALS)
        keys = {name: one.model_dump(mode="json") for name, one in self._sweep.keys.items()}
        of_settings = key_of_settings(self._sweep.file, self._sweep.overrides, self._sweep.settings)
        text = json.dumps([table, keys, of_settings, self._seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # -- the best beside the settings as they were ---------------------------------------------------------------------

    def _finals(self, made: Sequence[Trial]) -> list[Finalist]:
        """Run the trials of the highest scores again; none where a single one is asked for."""
        table = self._sweep.table
        chosen = [one for one in ranked(made) if one.state == "complete"][: table.finalists]
        if table.finalists < 2 or len(chosen) < 2:
            return []
        arms = {f"trial-{one.number}": dict(one.values) for one in chosen}
        seeds = tuple(self._seed + FINALS + one for one in range(table.finalist_seeds))
        scores = self._scores(FINALS_FOLDER, arms, seeds)
        own = [(one, one.score if one.score is not None else -math.inf) for one in chosen]
        return [Finalist(one, (score, *scores[f"trial-{one.number}"])) for one, score in own]

    def _fresh(self, best: Trial) -> Verdict | None:
        if not (asked := self._sweep.table.fresh_seeds):
            return None
        seeds = tuple(self._seed + FRESH + one for one in range(asked))
        scores = self._scores(FRESH_FOLDER, {"before": {}, "best": dict(best.values)}, seeds)
        return Verdict(seeds, scores["best"], scores["before"])

    def _scores(
        self, folder: str, arms_of: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
    ) -> dict[str, tuple[float, ...]]:
        """Scores of values by name, one for each seed; runs that have finished are kept in a folder of the sweep's."""
        from mlxe_async.cli.sweeping import score_of

        sweep, arms = self._sweep, []
        for name, values in arms_of.items():
            overrides = sweep.overrides_with(values)
            settings = load_settings(sweep.file, list(overrides))
            arms.append(Arm(name, sweep.file, overrides, key_of_settings(sweep.file, overrides, settings)))
        plan = Plan(tuple(arms), tuple(seeds), timeout_s=sweep.table.timeout_s, keep_runs=False, jobs=self._jobs)
        with StudyFolder(self._folder / folder) as kept:
            kept.write_plan(plan)
            missing = [
                (arm, seed)
                for arm, seed in plan.rounds()
                if (stored := kept.finished(arm, seed)) is None or stored[1] != arm.key
            ]
            runner = Runner(kept, self._console, longest_s=plan.timeout_s, keep_runs=False)
            program = study.program_key()
            with contextlib.closing(runner.side_by_side(missing, self._jobs)) as finished:
                for arm, seed, found in finished:
                    kept.store(arm, found, program)
                    runner.let_go(found)
                    score = score_of(found, sweep.table.score)
                    self._console.line(f"{folder}, {arm.name}, seed {seed}: score {score:,.1f}")
            outcomes = {arm.name: [kept.finished(arm, seed) for seed in seeds] for arm in arms}
        return {
            name: tuple(score_of(stored[0], sweep.table.score) for stored in of_arm if stored)
            for name, of_arm in outcomes.items()
        }

    # -- what is written -----------------------------------------------------------------------------------------------

    def _finish(
        self,
        kept: StudyFolder,
        made: list[Trial],
        finals: Sequence[Finalist],
        best: Trial | None,
        verdict: Verdict | None,
    ) -> int:
        table = trial_table(made)
        told = [f"{len(made)} trials: {counted(made)}"]
        if best is None:
            kept.write(TABLE, table.markdown)
            sys.stdout.write(table.markdown)
            self._console.finish(f"{told[0]}; none is complete, so there is no best, and nothing was written")
            return 3
        if finals:
            told.append(f"those of the highest scores ran again: {'; '.join(one.how for one in finals)}")
        told.append(f"best: trial {best.number}, {best.how}: {_values(best.values)}")
        if verdict is not None:
            many = f"seeds {verdict.seeds[0]} to {verdict.seeds[-1]}" if len(verdict.seeds) > 1 else "one fresh seed"
            told += [f"{many}, which no run had before: {verdict.sentences()[0]}", *verdict.sentences()[1:]]
        kept.write(TABLE, f"{table.markdown}\n" + "".join(f"{line}.\n" for line in told))
        kept.write(BEST, self._text(kept.path, made, best, told))
        sys.stdout.write(table.markdown)
        self._console.finish(*told, f"written: {visible(str(self._folder / BEST), 200)}")
        return 0

    def _text(self, folder: Path, made: Sequence[Trial], best: Trial, told: Sequence[str]) -> str:
        """The settings file with the best values, and all that was measured above them."""
        sweep, day = self._sweep, dt.datetime.now(dt.UTC).strftime("%d %B %Y")
        wanted = load_settings(
            sweep.file, [*sweep.table.set, *sweep.overrides_with(best.values)[len(sweep.overrides) :]]
        )
        body = rewritten(sweep.file, sweep.table.set, best.values, wanted, folder, "sweep")
        kind = "the last tenth of its steps" if sweep.table.score == "final" else "all of its steps"
        budget = f"{sweep.env_steps:,} steps" if sweep.env_steps else "the settings' own length"
        head = [
            f"By sweep from {visible(Path(self._file).name, 100)} on {day}: trials of {budget}, seed {self._seed}.",
            f"A score is the mean return of {kind}.",
            *(f"{line[:1].upper()}{line[1:]}." for line in told),
            "",
            *(f"trial {one.number}: {one.how}: {_values(one.values)}" for one in ranked(made)),
        ]
        return commented(head) + "\n" + body


def _values(values: Any) -> str:
    return ", ".join(f"{key} = {valued(value)}" for key, value in values.items())
