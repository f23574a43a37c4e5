"""One update on made-up rows, before anything is started: an algorithm's mistakes show in seconds, not after a run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.errors import EnvironmentFault, raised_at, written_at
from mlxe_async.gpu import unrepeatable
from mlxe_async.maths.normaliser import Moments
from mlxe_async.memory.moments import first_entries
from mlxe_async.rows import MASK, Array, RowLayout, Spaces, standard_columns
from mlxe_async.seeds import derive_seed
from mlxe_async.settings.forms import with_whole_numbers
from mlxe_async.settings.model import Settings
from mlxe_async.workers.kernels import choose_kernels

STEPS = 8  # of a made-up segment, where windows do not ask for more
OBSERVATIONS = 4
ROLLOUTS = 8
MOST_BYTES = 1 << 22  # of all rows together; a few are never too many

if TYPE_CHECKING:
    from mlxe_async.algorithms import Acting

Limited = Callable[[str], contextlib.AbstractContextManager[None]]


class NoUpdate(Exception):
    """The algorithm did not get through one update; the message says what it did instead."""


class NotPublished(NoUpdate):
    """It did, and afterwards an executor's object would act otherwise than the learner's."""


def rehearse(settings: Mapping[str, Any], task: Any, limited: Limited) -> None:
    """Have the algorithm of `[algorithm]` act, derive, tell what is due and update, on rows of the task's spaces.

    Args:
        settings: all settings in plain JSON types.
        task: the environments that were tried out; their first observations are what the rows are made of.
        limited: entered around each call that may hang, with its word.

    Raises:
        NoUpdate: a verb raised, or returned what it must not.
        NotPublished: executors would act by what is not published.
    """
    from mlxe_async.algorithms import Acting, Clock, load_algorithm
    from mlxe_async.algorithms.state.as_written import learned
    from mlxe_async.algorithms.state.namespaces import Namespaces
    from mlxe_async.algorithms.state.published import ROWS, Published, Unlike

    device = settings["learner"]["device"]
    if device != "cpu":
        choose_kernels(Settings.model_validate(settings))
    algorithm_class: Any = load_algorithm(settings["algorithm"]["name"])
    table = with_whole_numbers(algorithm_class.Settings, settings["algorithm"])
    if "name" not in algorithm_class.Settings.model_fields:
        del table["name"]
    spaces, verb, observations = task.spaces, "__init__", first_observations(task, limited)
    try:
        with limited("build"):
            own = algorithm_class.Settings.model_validate(table)
            namespaces = Namespaces(algorithm_class)
            acts = algorithm_class(own, spaces, seed=0, learns=False)
            algorithm: Any = algorithm_class(own, spaces, seed=1, learns=True, device=device)
            published = Published(algorithm, lambda: algorithm_class(own, spaces, seed=0, learns=False), namespaces)
            verb = "weights"
            acts.load(algorithm.weights())
        with limited("act"):
            verb = "act"
            rows = made_up_rows(acts, observations, spaces, acting := Acting())
        with limited("update"):
            verb = "derive"
            batch = batch_of(acts, rows)
            if algorithm.memory == "replay":
                verb, (steps, streams) = "updates_due", rows["step"].shape
                _judge_due(acts.updates_due(rows=steps * streams, new_rows=steps * streams, new_segments=streams))
            if algorithm.memory == "replay" and getattr(algorithm, "moment_entries", 0):
                verb = "set_moments"
                algorithm.set_moments(moments_of(observations, algorithm.moment_entries))
            verb = "update"
            metrics, _ = learned(algorithm, batch, Clock(env_steps=len(rows["step"]), episodes=1, version=1))
            _judge_losses(metrics)
            verb = "weights"
            weights = np.asarray(algorithm.weights())
            _judge(weights, sum(int(np.prod(shape)) for _, shape in algorithm.parameters))
            verb = "act after an update"
            if np.isfinite(weights).all():
                published.check(weights, rows["obs"][-1][:ROWS], _first(acting, ROWS))
    except NoUpdate:
        raise
    except Unlike as error:
        raise NotPublished(str(error)) from error
    except Exception as error:
        from mlxe_async.tasks.hostile import words_of

        # What a verb is called with wrongly, or returned too little of, is seen in our lines: told is where it begins.
        place = raised_at(error) or written_at(getattr(algorithm_class, verb, None)) or raised_at(error, anywhere=True)
        if name := unrepeatable(error):
            raise NoUpdate(
                f"its {verb} needs {name}{f' ({place})' if place else ''}, for which a GPU has no kernel that repeats "
                'itself bit for bit, as this run is to; try schedule.kind = "oa" without run.record, learner.device = '
                '"cpu", or other operations'
            ) from error
        raise NoUpdate(f"its {verb} raised {words_of(error)}{f' ({place})' if place else ''}") from error


def _first(acting: Acting, rows: int) -> Acting:
    """Of environments side by side, what acting knows of the first ones."""
    began = None if acting.began is None else acting.began[:rows]
    return replace(acting, began=began, carry={name: column[:rows] for name, column in acting.carry.items()})


def first_observations(task: Any, limited: Limited) -> Array:
    """First observations of some episodes (n, *O), or random ones where no episode could be begun."""
    found = []
    for seed in range(OBSERVATIONS):
        try:
            with limited("reset"):
                found.append(np.array(task.reset(0, seed=derive_seed(0, "rehearsal.reset", seed))))
        except EnvironmentFault:  # of which a run survives some
            continue
    if found:
        return np.stack(found)
    rng, spaces = np.random.default_rng(0), task.spaces
    if spaces.parts:
        named = {part.name: rng.integers(0, 2, (OBSERVATIONS, *part.shape)) for part in spaces.parts}
        return np.asarray(spaces.pack(named | ({MASK: np.ones_like(named[MASK])} if spaces.masked else {})))
    noise = rng.normal(size=(OBSERVATIONS, *spaces.observation_shape))
    return (noise * 60 + 128).clip(0, 255) if spaces.observation_dtype == "|u1" else noise


def moments_of(observations: Array, entries: int) -> Moments:
    """Running moments of these observations (n, *O), for algorithms whose memory counts them."""
    flat = first_entries(observations, entries).astype(np.float64)
    return Moments(flat.mean(axis=0), flat.var(axis=0), float(len(flat)))


def made_up_rows(
    algorithm: Any, observations: Array, spaces: Spaces, acting: Acting, *, steps: int = 0, streams: int = 0
) -> dict[str, Array]:
    """Segments side by side as columns (T, S, ...), every second one with a last step that is terminated.

    As many as suffice to try things out, unless `steps` T and `streams` S are given.
    """
    carried = getattr(algorithm, "carry", ())
    stops = getattr(algorithm, "stop_columns", ())
    layout = RowLayout(standard_columns(spaces)).with_columns((*algorithm.extra_columns, *stops, *carried))
    steps = steps or (max(algorithm.window, STEPS) if algorithm.window > 1 else STEPS)
    row_bytes = layout.nbytes(64) // 64
    most = max(1, MOST_BYTES // (row_bytes * steps))
    wanted = ROLLOUTS if algorithm.memory == "rollouts" else -(-algorithm.batch_rows // steps)
    streams, rng = streams or max(1, min(wanted, most)), np.random.default_rng(0)
    rows = {c.name: np.zeros((steps, streams, *c.shape), c.dtype) for c in layout.columns}
    which = (np.arange(steps + 1)[:, None] + np.arange(streams)) % len(observations)
    seen = observations.astype(rows["obs"].dtype)[which]
    rows["obs"][:], rows["next_obs"][:] = seen[:-1], seen[1:]
    rows["reward"][:] = rng.normal(size=(steps, streams))
    rows["terminated"][-1, ::2] = 1
    rows["cut"][-1, 1::2] = 1
    rows["last"][-1, -1:] = 1
    rows["version"][:] = 1
    rows["env"][:], rows["step"][:] = np.arange(streams), np.arange(steps)[:, None]
    acting.start(carried, streams)
    for step in range(steps):
        found = {name: column.copy() for name, column in acting.carry.items()}
        chosen = {**algorithm.act(rows["obs"][step], rng, acting), **found}
        for name in rows.keys() & chosen.keys():
            rows[name][step] = chosen[name]
        acting.began = np.zeros(streams, bool)
    if stops and streams > 1:
        said = algorithm.at_stop(rows["next_obs"][-1, 1::2])
        for column in stops:
            rows[column.name][-1, 1::2] = said[column.name]
    return rows


def batch_of(algorithm: Any, rows: Mapping[str, Array]) -> dict[str, Array]:
    """The rows in the shape that `update` is given: (M, ...), windows (window, M, ...), or rollouts (T, B, ...)."""
    steps, streams = rows["step"].shape
    if algorithm.memory == "rollouts":
        own = (*algorithm.extra_columns, *getattr(algorithm, "stop_columns", ()), *getattr(algorithm, "carry", ()))
        firsts = {column.name: rows[column.name][0] for column in own if column.per_rollout}
        return {**rows, **firsts, "valid": np.ones((steps, streams), bool)}
    derived = [algorithm.derive({name: column[:, s].copy() for name, column in rows.items()}) for s in range(streams)]
    columns = dict(rows)
    for column in algorithm.derived_columns:
        columns[column.name] = np.stack([np.asarray(one[column.name], column.dtype) for one in derived], axis=1)
    if algorithm.window > 1:
        batch = {name: column[: algorithm.window] for name, column in columns.items()}
        batch["valid"] = np.ones((algorithm.window, streams), bool)
    else:
        batch = {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}
        batch = {name: column[: algorithm.batch_rows] for name, column in batch.items()}
    batch["weight"] = np.ones(batch["step"].shape[-1], np.float32)
    return batch


def _judge_due(due: Any) -> None:
    if not isinstance(due, (int, float, np.number)) or not 0 <= due < math.inf:
        raise NoUpdate(f"its updates_due returned {due!r}, expected a number of updates, 0 or more")


def _judge_losses(metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        if name.endswith("loss") and not math.isfinite(value):
            raise NoUpdate(f"its update measured {name} = {value}, expected a finite number")


def _judge(weights: Array, parameters: int) -> None:
    if weights.shape != (parameters,):
        raise NoUpdate(f"its weights() returned an array {weights.shape}, expected ({parameters},) as in `parameters`")
