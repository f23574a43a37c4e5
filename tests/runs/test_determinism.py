"""In `is`, the same seed tells the same story, whoever was faster, and whoever died."""

import os
import signal

import pytest
from live_runs import TESTED

STORY = {
    "phase": ("phase", "version", "rows", "episodes", "updates", "losses", "lag_max"),
    "episode_end": ("env", "episode", "episode_return", "length", "terminated", "version", "seed"),
    "weights": ("version", "updates", "env_steps", "episodes", "norm"),
    "evaluation": ("version", "passed", "steps", "return_mean", "failed_at", "streak"),
}
SHORT = TESTED["stop"]
PIECES = {"kind": "is", "envs_per_executor": 2, "rollout_steps": 32}
EVALUATED = TESTED["evaluation"]


def story(run):
    """What happened, per role, without times and process ids."""
    told = {}
    for line in run.lines:
        if line["event"] in STORY:
            told.setdefault((line["role"], line["idx"]), []).append([line[name] for name in STORY[line["event"]]])
    return told


@pytest.mark.long
def test_one_seed_gives_the_same_weights_and_the_same_story_twice(live, undisturbed):
    first, first_run = undisturbed
    second, second_run = live(**TESTED)
    assert first.weights_hash == second.weights_hash
    assert story(first_run) == story(second_run)
    assert first_run.all("evaluation")


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [None, {"name": "ppo", "epochs": 1, "minibatch": 64}], ids=["mlxe", "ppo"])
def test_who_tests_the_weights_changes_nothing_in_them(live, algorithm):
    """Filters of observations stand still in tests, and the tests' steps count nowhere."""
    chosen = {"stop": SHORT, **({} if algorithm is None else {"algorithm": algorithm, "schedule": PIECES})}
    tested, run = live(evaluation=EVALUATED, **chosen)
    alone, other = live(**chosen)
    assert run.all("evaluation")
    assert not other.all("evaluation")
    assert tested.weights_hash == alone.weights_hash
    assert (tested.steps, tested.episodes, tested.updates) == (alone.steps, alone.episodes, alone.updates)


@pytest.mark.slow
def test_another_seed_gives_other_weights(live):
    short = {"env_steps": 300}
    assert live(stop=short)[0].weights_hash != live(stop=short, run={"seed": 4})[0].weights_hash


def test_the_synchronous_schedule_equals_the_serial_one_bit_for_bit(live, undisturbed):
    parallel, parallel_run = undisturbed
    serial, serial_run = live(schedule={"kind": "serial"}, **TESTED)
    assert parallel.weights_hash == serial.weights_hash
    assert story(parallel_run) == story(serial_run)


@pytest.mark.long
def test_what_depends_on_finished_episodes_is_the_same_whoever_delivers_first_or_dies(live):
    chosen = {"task": {"adverse_starts": True}, "stop": {"env_steps": 1500}}

    async def kill(run):
        await run.saw("weights", times=3)
        os.kill(run.pid("mlxe-exe-1"), signal.SIGKILL)

    serial, run = live(schedule={"kind": "serial", "executors": 2}, **chosen)
    parallel, other = live(schedule={"kind": "is", "executors": 2}, **chosen)
    assert serial.weights_hash == parallel.weights_hash
    assert story(run) == story(other)
    killed, _ = live(kill, schedule={"kind": "is", "executors": 2}, **chosen)
    assert killed.restarts == 1
    assert killed.weights_hash == serial.weights_hash


@pytest.mark.slow
def test_it_equals_the_serial_one_with_one_executor_too(live):
    parallel, parallel_run = live(schedule={"kind": "is", "executors": 1}, **TESTED)
    serial, serial_run = live(schedule={"kind": "serial", "executors": 1}, **TESTED)
    assert parallel.weights_hash == serial.weights_hash
    assert story(parallel_run) == story(serial_run)


@pytest.mark.slow
def test_native_vectors_tell_the_same_story_too_and_no_step_that_only_resets_is_a_row(live):
    native = {
        "task": {"vectorize": "native"},
        "algorithm": {"name": "ppo", "epochs": 1, "minibatch": 128},
        "stop": {"env_steps": 3000},
    }
    parallel, run = live(schedule={"kind": "is", "envs_per_executor": 16, "rollout_steps": 32}, **native)
    serial, serial_run = live(schedule={"kind": "serial", "envs_per_executor": 16, "rollout_steps": 32}, **native)
    assert parallel.weights_hash == serial.weights_hash
    assert story(run) == story(serial_run)
    rollouts = run.all("phase", phase="generate")
    steps, ended = 32 * 16 * len(rollouts), sum(line["episodes"] for line in rollouts)
    # At the very end, some may have ended whose reset is still to come.
    assert steps - ended <= sum(line["rows"] for line in rollouts) <= steps - ended + 2 * 16
    assert ended > 16
    assert {line["episode_return"] - line["length"] for line in run.all("episode_end")} == {0.0}


EARLY = {
    "mlxe": {"name": "mlxe", "min_updates": 4, "batch": 64, "priorities": ["td", "age"]},
    "dqn": {"name": "dqn", "prioritised": True, "start_rows": 64},
    "rainbow": {"name": "rainbow", "start_rows": 64},
    "apex": {"name": "apex", "start_rows": 64},
    "ppo": {"name": "ppo", "epochs": 1, "minibatch": 64},
}


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [kind if kind == "dqn" else pytest.param(kind, marks=pytest.mark.slow) for kind in EARLY]
)
def test_how_early_rows_are_taken_in_changes_nothing(live, kind):
    """Small blocks are committed in the middle of rollouts, and taken in when that is noticed."""
    chosen = {"schedule": PIECES, "algorithm": EARLY[kind], "stop": SHORT}
    whole, _ = live(memory={"block_rows": 64}, **chosen)
    early, run = live(memory={"block_rows": 2}, **chosen)
    assert any(line["ingest_seconds"] for line in run.all("phase", phase="memorize"))
    assert early.updates > 5
    assert early.weights_hash == whole.weights_hash


@pytest.mark.slow
def test_it_does_not_matter_which_executor_finishes_first(live):
    hashes, first = set(), []
    for slow in ("SlowFirst", "SlowSecond"):
        result, run = live(task={"wrappers": [f"slow_tasks:{slow}"]}, stop={"env_steps": 600})
        hashes.add(result.weights_hash)
        # Both of a phase are told in the order in which they finished.
        told = [line["idx"] for line in run.all("phase", phase="generate")]
        first.append(sum(told[::2]) / len(told[::2]))
    assert first[0] > 0.6
    assert first[1] < 0.4
    assert len(hashes) == 1


@pytest.mark.slow
def test_a_memorizer_of_its_own_changes_nothing(live):
    assert (
        live(schedule={"memorizer": "own"}, stop=SHORT)[0].weights_hash
        == live(schedule={"memorizer": "learner"}, stop=SHORT)[0].weights_hash
    )


@pytest.mark.long
def test_an_executor_that_is_killed_repeats_its_rollout_and_changes_nothing(live, undisturbed):
    async def kill(run):
        for round_ in range(2, 6):
            await run.saw("weights", times=round_)
            os.kill(run.pid("mlxe-exe-1"), signal.SIGKILL)
            await run.saw("proc_start", times=round_, process="mlxe-exe-1")

    disturbed, run = live(kill, **TESTED)
    assert run.all("proc_exit", process="mlxe-exe-1", expected=False)
    assert disturbed.weights_hash == undisturbed[0].weights_hash
