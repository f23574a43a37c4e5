"""The state of a run in numbers for programs: plain JSON types, names of the field, finite values."""

from __future__ import annotations

import math
from typing import Any

from mlxe_async.analysis.report.points import known
from mlxe_async.cli.dashboard.panels import known_text
from mlxe_async.cli.dashboard.run_now import RunNow
from mlxe_async.cli.dashboard.series import Series

MOST_WORKERS = 1024


def state_of(run: RunNow) -> dict[str, Any]:
    """Counters, best score, averages, the workers' states, the series of returns, the verdict and faults of a run."""
    picture = run.picture
    now_ns, best = picture.last_ns, run.best
    workers = [
        {
            "name": lane.name,
            "state": lane.doing(now_ns),
            "busy": round(lane.activity.lately(now_ns)[0], 4),
            "rate": round(lane.activity.lately(now_ns)[1], 3),
            "episodes": run.by_executor.get(lane.name, 0),
        }
        for lane in list(picture.lanes.values())[:MOST_WORKERS]
    ]
    return {
        "run": run.name,
        "state": run.state,
        **{key: _plain(run.start.get(key)) for key in ("algorithm", "env", "schedule", "seed")},
        "seconds": round(run.seconds, 3),
        "env_steps": int(run.env_steps),
        "episodes": int(run.episodes),
        "updates": int(run.updates),
        "version": picture.version,
        "weights_norm": run.norm,
        "best_return": None if best is None else best.value,
        "best_episode": None if best is None else best._asdict(),
        "mean_return": run.mean_return,
        "moving_average": run.moving if run.recent else None,
        "best_test": None if run.best_test is None else {"version": run.best_test[0], "return_mean": run.best_test[1]},
        "lag": {"mean": picture.lag_mean, "max": picture.lag_max},
        "memory": {key: known(run.ledger, key) for key in ("kept", "capacity", "backlog")},
        "steps_per_second": round(picture.rate(now_ns), 3),
        "stop": {name: list(pair) for name, pair in picture.towards_stop(now_ns).items()},
        "workers": workers,
        "last_episodes": [one._asdict() for one in run.last_episodes],
        "returns": _rows(run.returns),
        "moving_averages": _rows(run.averages),
        "tests": _rows(run.tests),
        "losses": {name: series.rows()[-1][2] for name, series in run.losses.items() if series.count},
        "times": run.modes,
        "verdict": {key: known_text(run.bottleneck, key) for key in ("slowest", "advice")},
        "faults": dict(run.happenings.counts),
        "lines": run.lines,
        "unusable_lines": run.unusable,
    }


def _rows(series: Series) -> dict[str, Any]:
    return {"columns": ["env_steps", "seconds", "value", "least", "greatest"], "rows": series.rows()}


def _plain(value: Any) -> Any:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if is_number or value is None else str(value)[:200]
