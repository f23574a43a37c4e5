"""Numbers that environments tell of themselves reach the log, the exporters, the report and the live view."""

import pytest
from live_runs import settings
from resume_tools import run_here

from mlxe_async.analysis.exporters.scalars import Scalars
from mlxe_async.analysis.report.story import Story
from mlxe_async.cli.view.picture import Picture

TASK = {"env": "CartPole-v1", "max_episode_steps": 200, "wrappers": ["telling_tasks:Angle"]}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["is", "serial", "oa"])
def test_they_are_told_everywhere(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("mlxe_async.roles.executor.METRICS_S", 0.0)  # in this process, for serial
    executors = {"executors": 1} if kind == "serial" else {}
    chosen = settings(task=TASK, schedule={"kind": kind, **executors}, stop={"env_steps": 3000})
    _, run = run_here(chosen, tmp_path)
    told = run.all("metrics")
    assert told
    assert all(line["role"] == "executor" and 0 < line["values"]["angle"] < 0.5 for line in told)
    assert all(set(line["values"]) == {"angle"} for line in told)
    assert told[-1]["env_steps"] <= run.all("run_end")[-1]["env_steps"]
    (note,) = {line["message"] for line in run.all("env_note", kind="metrics")}
    assert 'info["metrics"]["wrong"]' in note

    scalars = Scalars()
    points = [point for line in run.lines for point in scalars.feed(line) if point.name.startswith("metrics/")]
    assert [point.value for point in points] == [line["values"]["angle"] for line in told]
    assert {point.name for point in points} == {"metrics/angle"}

    story = Story.of(run.lines)
    assert len(story.metrics["angle"]["value"]) == len(told)
    picture = Picture()
    for line in run.lines:
        picture.feed(line)
    assert picture.metrics == {"angle": told[-1]["values"]["angle"]}
