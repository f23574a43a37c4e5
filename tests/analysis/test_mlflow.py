"""MLflow's own store finds every value that was exported, at its step and time, also while more is written."""

import pytest
from log_lines import episode, exported, learn, line, numbered, run_end, run_start, short_run

pytest.importorskip("mlflow", reason="needs the extra mlflow")

from mlflow.entities import ViewType
from mlflow.store.tracking.file_store import FileStore

from mlxe_async.analysis.exporters.mlflow import Files
from mlxe_async.analysis.exporters.scalars import Scalars


@pytest.fixture
def opened(monkeypatch):
    """Opens a store as MLflow does; it asks for the word, for its newer stores are databases."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return lambda folder: FileStore(str(folder))


def runs(store):
    experiments = store.search_experiments(view_type=ViewType.ALL)
    ids = [one.experiment_id for one in experiments]
    return store.search_runs(ids, None, ViewType.ALL), {one.experiment_id: one.name for one in experiments}


def values(store, run):
    return {
        (name, point.step, point.value, point.timestamp)
        for name in run.data.metrics
        for point in store.get_metric_history(run.info.run_id, name)
    }


def expected(lines):
    scalars = Scalars()
    points = [point for one in lines for point in scalars.feed(one)]
    return {(point.name, point.step, float(point.value), round(point.time * 1000)) for point in points}


def test_the_store_has_the_run_with_every_value_its_settings_and_how_it_ended(tmp_path, opened):
    lines = numbered([*short_run()[:-1], *(episode(70 + n, n / 7, env_steps=90 + n) for n in range(50)), run_end(200)])
    assert exported(Files(tmp_path / "m"), lines).told().endswith(f"mlflow ui --backend-store-uri {tmp_path / 'm'}")
    store = opened(tmp_path / "m")
    (run,), names = runs(store)
    assert values(store, run) == expected(lines)
    assert names[run.info.experiment_id] == "CartPole-v1"
    assert (run.info.run_name, run.info.status, run.info.lifecycle_stage) == ("x", "FINISHED", "active")
    assert (run.info.start_time, run.info.end_time) == (1767225600000, 1767225600200)
    assert run.data.params == {"run.name": "x", "algorithm.name": "ppo"}
    assert run.data.tags | {"mlxe.ending": "episodes", "mlxe.algorithm": "ppo", "mlxe.seed": "3"} == run.data.tags


def test_the_store_has_every_value_so_far_while_more_is_written(tmp_path, opened):
    lines = numbered([run_start(), *(episode(n, n / 3, env_steps=n) for n in range(1, 60))])
    files, store = Files(tmp_path), opened(tmp_path)
    for number, one in enumerate(lines, 1):
        files.feed(one)
        if number % 20 == 0:
            files.flush()
            (run,), _ = runs(store)
            assert values(store, run) == expected(lines[:number])
            assert run.info.status == "RUNNING"
    files.close()


def test_of_a_run_that_died_it_says_so_and_when(tmp_path, opened):
    exported(Files(tmp_path), [run_start(), episode(7, 1.0)], died="the run died, its last line is of then")
    (run,), _ = runs(opened(tmp_path))
    assert (run.info.status, run.info.end_time) == ("KILLED", 1767225600007)
    assert run.data.tags["mlxe.ending"] == "the run died, its last line is of then"


@pytest.mark.parametrize(("code", "status"), [(0, "FINISHED"), (3, "FAILED"), (130, "KILLED"), (None, "FAILED")])
def test_the_status_follows_the_exit_code(tmp_path, opened, code, status):
    exported(Files(tmp_path), [run_start(), run_end(9) | {"exit_code": code}])
    (run,), _ = runs(opened(tmp_path))
    assert run.info.status == status


def test_runs_lie_side_by_side_and_an_earlier_export_of_the_same_run_gives_way(tmp_path, opened):
    for name, value in (("x", 1.0), ("y", 2.0), ("x", 3.0)):
        exported(Files(tmp_path), [{**one, "run": name} for one in (run_start(), episode(1, value))])
    found, names = runs(opened(tmp_path))
    assert {run.info.run_name: run.data.metrics["charts/episodic_return"] for run in found} == {"x": 3.0, "y": 2.0}
    assert len(names) == 1


def test_metrics_of_any_name_stay_inside_the_run(tmp_path, opened):
    names = ["../../out", "a", "a/b", "..", "", "ä:%", "x" * 300]
    exported(Files(tmp_path), [run_start(), learn(1, 2, 3, 1, losses=dict.fromkeys(names, 1.0))])
    store = opened(tmp_path)
    (run,), _ = runs(store)
    found = {name for name in run.data.metrics if name.startswith("losses/")}
    assert found == {f"losses/{name}" for name in ("out", "a", "a.b", "_", "___", "x" * 200)}
    inside = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert inside == {run.info.experiment_id, ".trash"}


def test_a_run_that_was_resumed_goes_on(tmp_path, opened):
    resumed = line("run_resume", 95, checkpoint=1, version=1, env_steps=9, episodes=0, updates=0, seconds=1.0)
    exported(Files(tmp_path), [run_start(), run_end(9), run_start(90, resumed=True), resumed, episode(99, 1.0)])
    (run,), _ = runs(opened(tmp_path))
    assert (run.info.status, run.info.end_time) == ("RUNNING", None)
