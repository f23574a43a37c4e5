"""Making the trials of a sweep: Optuna proposes and prunes, runs are processes of their own, and a database keeps all.

A trial that was under way when the sweep ended, in whichever way, is made again under its number. The sampler begins
anew for each trial, from the sweep's seed and the trial's number: of trials one after the other, what was interrupted
and goes on proposes the same values as what was not.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.analysis import scores
from mlxe_async.analysis.outcomes import Outcome, outcome
from mlxe_async.analysis.sweeps import State, Stretches, Trial, best_of, valued
from mlxe_async.cli.console import Console
from mlxe_async.cli.studying import STOPPING, WHOLE_LOG, UnderWay, ended
from mlxe_async.errors import RunFailed
from mlxe_async.logs.reader import Tail
from mlxe_async.settings.searching import SearchedKey, Sweep
from mlxe_async.storage.run_folder import LOG
from mlxe_async.storage.safe_text import visible

if TYPE_CHECKING:
    import optuna

LOOK_S = 0.2
"""Seconds from one look at the logs of trials under way to the next."""
MOST_REFUSED = 3
"""Trials that are refused, one after another and none made before, after which the sweep is given up."""
DATABASE = "trials.db"
_NAME = "sweep"
_DIVERGED, _FAILED, _REFUSED = 5, 3, 2
_MINIMUM_STARTUP = 3


class Trials:
    """The trials of a sweep, those of earlier sittings too.

    Args:
        sweep: what is searched.
        folder: of the sweep, held by the caller.
        seed: of the sampler, and of the first trial's run.
        console: for a line on each trial.
    """

    def __init__(self, sweep: Sweep, folder: Path, seed: int, console: Console) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._sweep, self._folder, self._seed, self._console = sweep, folder, seed, console
        self._storage, self._study = _opened(folder / DATABASE, _pruner(sweep))
        self._refused = 0

    def close(self) -> None:
        """Close the database."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def all(self) -> list[Trial]:
        """Every trial, by its number."""
        import optuna

        found = []
        for one in self._study.get_trials(deepcopy=False):
            told = one.user_attrs
            state: State = told.get("ended", "running") if one.state != optuna.trial.TrialState.RUNNING else "running"
            values = {key: self._value_of(key, one.params[key]) for key in self._sweep.keys if key in one.params}
            score = one.value if one.state == optuna.trial.TrialState.COMPLETE else None
            about = (told.get("reason", ""), told.get("env_steps", 0), told.get("seconds", 0.0))
            found.append(Trial(one.number, values, state, score, *about))
        return found

    def make(self, count: int, jobs: int) -> None:
        """Make trials up to this number, those first that were under way when the sweep last ended.

        Raises:
            RunFailed: no trial can be made: the first ones were all refused, or a process could not be started.
        """
        under_way: dict[UnderWay, _Looked] = {}
        with contextlib.ExitStack() as stack:
            stack.callback(_let_go, under_way)
            while True:
                while len(under_way) < jobs and (trial := self._next(count, under_way.values())) is not None:
                    looked = _Looked(trial, self._folder, self._interval)
                    under_way[UnderWay(self._command(looked), self._sweep.table.timeout_s)] = looked
                if not under_way:
                    return
                gone = ended(list(under_way), LOOK_S)
                for one, looked in list(under_way.items()):
                    pruned = self._is_pruned(looked) if one not in gone else None
                    if one in gone or pruned:
                        looked.close()
                        del under_way[one]
                        code, said = one.close()
                        self._tell(looked, code, said, pruned, one.seconds, count)

    # -- one trial -----------------------------------------------------------------------------------------------------

    def _next(self, count: int, under_way: Iterable[_Looked]) -> optuna.trial.Trial | None:
        """The trial to be made now; None if all are made or under way."""
        import optuna

        taken = {one.trial.number for one in under_way}
        known = self._study.get_trials(deepcopy=False)
        for one in known:
            if one.state == optuna.trial.TrialState.RUNNING and one.number not in taken:
                self._study.sampler = self._sampler(one.number)
                return self._proposed(optuna.trial.Trial(self._study, one._trial_id))
        if len(known) >= count:
            return None
        self._study.sampler = self._sampler(len(known))
        return self._proposed(self._study.ask())

    def _proposed(self, trial: optuna.trial.Trial) -> optuna.trial.Trial:
        for key, one in self._sweep.keys.items():
            if one.choices:
                trial.suggest_categorical(key, _as_optuna_takes(one))
            elif isinstance(one.low, int) and isinstance(one.high, int):
                trial.suggest_int(key, one.low, one.high, log=one.log, step=int(one.step or 1))
            else:
                trial.suggest_float(key, float(one.low or 0), float(one.high or 0), log=one.log, step=one.step)
        return trial

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        import optuna

        seed = int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0])
        if self._sweep.table.sampler == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        startup = max(_MINIMUM_STARTUP, min(10, self._sweep.table.trials // 3))
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)

    @property
    def _interval(self) -> int:
        steps = self._sweep.env_steps
        return self._sweep.table.interval_steps or max(1, (steps or 20_000) // 20)

    def _command(self, looked: _Looked) -> list[str]:
        number = looked.trial.number
        values = {key: self._value_of(key, looked.trial.params[key]) for key in self._sweep.keys}
        own = {"run.seed": self._seed + number, "run.name": f"trial-{number}", "run.dir": str(looked.folder)}
        sets = [*self._sweep.overrides_with(values), *(f"{key}={json.dumps(value)}" for key, value in own.items())]
        parts = [part for one in (*sets, WHOLE_LOG) for part in ("--set", one)]
        return [sys.executable, "-m", "mlxe_async", self._sweep.file, "--no-progress", *parts]

    def _value_of(self, key: str, param: Any) -> Any:
        choices = self._sweep.keys[key].choices
        return json.loads(param) if choices and not all(map(_is_plain, choices)) else param

    def _is_pruned(self, looked: _Looked) -> str:
        """Report what a trial's log tells by now; why it is to be ended, or nothing."""
        for step, value in looked.told():
            looked.trial.report(value, step)
            if looked.trial.should_prune():
                return f"at {step:,} steps, {value:,.1f}"
        return ""

    def _tell(
        self, looked: _Looked, code: int | None, said: str, pruned: str | None, seconds: float, count: int
    ) -> None:
        """Keep how a trial ended.

        Raises:
            RunFailed: nothing was tried.
        """
        from optuna.trial import TrialState

        number = looked.trial.number
        last = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
        score, found = None, None
        state: State = "failed"
        if pruned:
            state, reason = "pruned", pruned
        elif code is None:
            reason = f"timed out after {self._sweep.table.timeout_s:g} s"
        elif code == 0:
            found = outcome(looked.run_folder())
            score, reason = _score(found, self._sweep.table.score)
            state = "complete" if score is not None else "failed"
        elif code == _DIVERGED:
            state, reason = "diverged", last
        elif code == _REFUSED:
            state, reason = "refused", last
        elif code == _FAILED or (code < 0 and -code not in STOPPING):
            reason = last if code > 0 else f"killed by {signal.Signals(-code).name}"
        else:
            raise RunFailed(f"{visible(last, 500)}\ntrial {number} could not be made (exit code {code}); go on later")
        trial = looked.trial
        for key, value in (("ended", state), ("reason", visible(reason, 300)), ("seconds", round(seconds, 2))):
            trial.set_user_attr(key, value)
        trial.set_user_attr("env_steps", looked.steps if found is None else int(found.end.get("env_steps", 0)))
        kept = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}.get(state, TrialState.FAIL)
        self._study.tell(trial, score if state == "complete" else None, state=kept)
        self._say(number, count)
        self._refused = self._refused + 1 if state == "refused" else 0
        if self._refused >= MOST_REFUSED and all(one.state in ("refused", "running") for one in self.all()):
            raise RunFailed(f"the first {self._refused} trials were refused, the last: {visible(reason, 500)}")
        if state != "failed":
            shutil.rmtree(looked.folder, ignore_errors=True)

    def _say(self, number: int, count: int) -> None:
        trials = self.all()
        one, best = trials[number], best_of(trials)
        so_far = f"; best so far trial {best.number}" if best is not None and best.number != number else ""
        values = ", ".join(f"{key} = {valued(value)}" for key, value in one.values.items())
        self._console.line(f"trial {number} of {count}: {one.how}, {one.seconds:.0f} s: {values}{so_far}")


class _Looked:
    """A trial under way, and what its log has told so far.

    Args:
        trial: Optuna's.
        folder: of the sweep.
        interval: environment steps of a stretch.
    """

    def __init__(self, trial: optuna.trial.Trial, folder: Path, interval: int) -> None:
        self.trial = trial
        self.folder = folder / "runs" / f"trial-{trial.number}"
        shutil.rmtree(self.folder, ignore_errors=True)  # of an earlier sitting, which did not end it
        self.steps = 0
        self._stretches = Stretches(interval)
        self._tail: Tail | None = None
        self._known = set(trial.storage.get_trial(trial._trial_id).intermediate_values)

    def run_folder(self) -> Path:
        """The run's own folder.

        Raises:
            RunFailed: there is none.
        """
        found = self._found()
        if found is None:
            raise RunFailed(f"trial {self.trial.number}: expected a run's folder in {self.folder}, got none")
        return found

    def told(self) -> list[tuple[int, float]]:
        """Stretches that are over since the last look, and that were not reported before."""
        if self._tail is None:
            found = self._found()
            if found is None:
                return []
            self._tail = Tail(found / LOG)
        told = []
        while events := self._tail.read():
            for event in events:
                steps = event.get("env_steps")
                self.steps = max(self.steps, steps) if type(steps) is int else self.steps
                told += self._stretches.feed(event)
        fresh = [point for point in told if point[0] not in self._known]
        self._known |= {step for step, _ in fresh}
        return fresh

    def close(self) -> None:
        """Close the log."""
        if self._tail is not None:
            self._tail.close()

    def _found(self) -> Path | None:
        try:
            inside = sorted(path for path in self.folder.iterdir() if not path.is_symlink())
        except OSError:
            return None
        return next((path for path in inside if (path / LOG).is_file()), None)


def _opened(path: Path, pruner: optuna.pruners.BasePruner) -> tuple[optuna.storages.RDBStorage, optuna.study.Study]:
    """Open the database of a sweep, made if it is not there.

    Raises:
        RunFailed: it cannot be read, or written.
    """
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
        study = optuna.create_study(
            storage=storage, study_name=_NAME, direction="maximize", load_if_exists=True, pruner=pruner
        )
    except (SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
        said = visible(str(error).partition("\n")[0], 300)
        raise RunFailed(
            f"{path} cannot be used as a database of Optuna's, give another --out, or remove it to begin anew: {said}"
        ) from error
    return storage, study


def _let_go(under_way: dict[UnderWay, _Looked]) -> None:
    """End all that is under way."""
    for one, looked in under_way.items():
        looked.close()
        one.close()


def _pruner(sweep: Sweep) -> optuna.pruners.BasePruner:
    import optuna

    table = sweep.table
    if table.pruner == "none":
        return optuna.pruners.NopPruner()
    warmup = table.warmup_steps or (sweep.env_steps or 0) // 5
    percentile = 50.0 if table.pruner == "median" else table.percentile
    return optuna.pruners.PercentilePruner(percentile, n_startup_trials=table.startup_trials, n_warmup_steps=warmup)


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def _as_optuna_takes(one: SearchedKey) -> list[Any]:
    """Choices as its database keeps them: lists and tables as JSON."""
    plain = all(map(_is_plain, one.choices))
    return [value if plain else json.dumps(value) for value in one.choices]


def _score(found: Outcome, kind: str) -> tuple[float | None, str]:
    """Return the score of a run that has ended, or why it has none."""
    curve = scores.curve_of(found)
    if not curve:
        return None, f"no episode ended in {found.end.get('env_steps', 0):,} steps"
    value = getattr(scores.score(curve), kind)
    return (float(value), "") if np.isfinite(value) else (None, "its score is not finite")


def score_of(found: Outcome, kind: str) -> float:
    """Return the score of a run under a fresh seed; minus infinity if it failed or has none."""
    if not found.completed:
        return -np.inf
    value, _ = _score(found, kind)
    return -np.inf if value is None else value
