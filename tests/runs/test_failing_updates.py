"""An `update` that raises, measures or makes what is no number: contained where it can be, told in one sentence."""

import re

import pytest

from mlxe_async.errors import NumericError, RunFailed, TaskError


def with_algorithm(name):
    return {"algorithm": {"name": f"failing_updates:{name}", "min_updates": 4, "batch": 64}}


@pytest.mark.parametrize("kind", [pytest.param("is", marks=pytest.mark.slow), "oa"])
def test_one_that_always_raises_ends_the_run_with_its_reason_in_one_line(live, kind):
    runs = []

    async def watch(run):
        runs.append(run)
        await run.saw("run_end")

    with pytest.raises(
        RunFailed,
        match=r"raised in the first phase of learning: \S+failing_updates.py:15: ValueError: the loss",
    ) as told:
        live(watch, schedule={"kind": kind}, **with_algorithm("RaisesAlways"))
    assert "\n" not in str(told.value)
    (run,) = runs
    traces = [line["message"] for line in run.all("warning") if "failing_updates.py" in line["message"]]
    assert len(traces) == 1
    assert run.all("run_end")[0]["exit_code"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["is", "oa"])
def test_one_that_raises_once_costs_a_process_and_no_version(live, kind):
    result, run = live(schedule={"kind": kind}, stop={"env_steps": 600}, **with_algorithm("RaisesInItsFirstLife"))
    assert result.reason == "env_steps"
    assert len(run.all("proc_start", process="mlxe-lrn")) == 2
    versions = [line["version"] for line in run.all("weights")]
    assert versions == sorted(set(versions))
    assert len(versions) > 3


@pytest.mark.parametrize("kind", ["is", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("ia", "oa"))])
def test_what_was_published_before_the_learner_could_say_so_counts(live, kind):
    result, run = live(schedule={"kind": kind}, stop={"env_steps": 600}, **with_algorithm("DiesOncePublished"))
    assert result.reason == "env_steps"
    assert len(run.all("proc_start", process="mlxe-lrn")) == 2
    versions = [line["version"] for line in run.all("weights")]
    assert versions == list(range(1, len(versions) + 1))
    assert len(versions) > 3


def test_a_measurement_that_is_no_number_is_logged_as_null(live):
    result, run = live(stop={"env_steps": 300}, **with_algorithm("MeasuresNothing"))
    assert result.reason == "env_steps"
    learned = run.all("phase", phase="learn")
    assert learned
    assert all(line["losses"]["surprise"] is None and line["losses"]["entropy"] > 0 for line in learned)


def test_weights_that_are_no_numbers_again_and_again_are_never_published_and_end_the_run(live):
    with pytest.raises(NumericError, match="got NaN or infinity 4 times in a row after version 1"):
        live(**with_algorithm("Diverges"))


def test_a_run_that_was_to_learn_and_never_did_has_failed_and_says_why(live):
    why = r"^nothing was learned: none of [123] plans led to new weights, the last one because .* were not finite$"
    with pytest.raises(RunFailed, match=why) as raised:
        live(stop={"env_steps": 70}, schedule={"executors": 1}, **with_algorithm("Diverges"))
    assert raised.value.exit_code == 3


def test_a_run_in_which_no_update_was_due_is_told_and_no_failure(live):
    result, run = live(stop={"env_steps": 120}, **with_algorithm("DropsAll"))
    assert (result.exit_code, result.updates) == (0, 0)
    assert [line["message"] for line in run.all("warning") if "no update was due" in line["message"]]


def test_a_run_that_never_learned_but_was_asked_to_stop_ends_as_asked(live):
    async def stop(run):
        await run.saw("proc_exit", process="mlxe-lrn")
        run.supervisor.request_stop("SIGTERM")
        await run.saw("run_end")

    endless = {"stop": {"env_steps": 10_000_000}, "schedule": {"kind": "oa"}}
    result, _ = live(stop, **endless, **with_algorithm("DiesInTheLearner"))
    assert (result.exit_code, result.updates) == (143, 0)


def test_one_that_ends_its_process_is_refused_before_anything_starts(live, tmp_path):
    with pytest.raises(TaskError, match=r'algorithm\.name: "failing_updates:DiesInEachUpdate" cannot learn: .*SIGKILL'):
        live(**with_algorithm("DiesInEachUpdate"))
    assert not any(tmp_path.rglob("log.jsonl"))


def test_an_error_of_many_lines_is_one_sentence_with_its_place_and_the_log_has_all_of_it(live):
    runs = []

    async def watch(run):
        runs.append(run)
        await run.saw("run_end")

    with pytest.raises(RunFailed) as told:
        live(watch, **with_algorithm("ActsWithManyWords"))
    said = r"executor \d generating: ValueError: the first line of it … \(\S+failing_updates\.py:\d+\)"
    assert re.fullmatch(said, str(told.value))
    (end,) = runs[0].all("run_end")
    assert re.fullmatch(f"failed: {said}", end["reason"])
    assert end["trace"].splitlines().count("and another one") == 60
