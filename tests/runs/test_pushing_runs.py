"""Runs under `oa` whose executors push gradients: `[schedule] gradients = "executors"`."""

import pytest
from killed_learners import LIVES
from resume_tools import run_here, settings

from mlxe_async.errors import NumericError, RunFailed, SettingsError, StepsDiffer
from mlxe_async.settings import load_settings

ROLLOUTS = {"kind": "oa", "executors": 2, "gradients": "executors", "envs_per_executor": 2, "rollout_steps": 16}
TABLES = {
    "a2c": {"policy": [16], "value": [16]},
    "impala": {"policy": [16], "value": [16]},
    "ppo": {"policy": [16], "value": [16], "epochs": 2, "minibatch": 16},
    "reinforce": {"policy": [16], "rows_per_update": 30},
}

REPLAY = {"batch": 16, "start_rows": 64, "train_every": 8}
REPLAYED = {
    "dqn": REPLAY | {"layers": [16]},
    "dqn-priorities": REPLAY | {"layers": [16], "prioritised": True},
    "c51": REPLAY | {"layers": [16]},
    "rainbow": REPLAY | {"layers": [16], "noisy": False},
    "apex": {"layers": [16], "batch": 16, "start_rows": 64, "replay_ratio": 2.0},
    "mlxe": {"policy": [16], "value": [16]},
    "sac": REPLAY | {"layers": [16]},
    "ddpg": REPLAY | {"layers": [16], "normalise": True},
}


def run(live, name, *, stop=None, learner=None, checkpoint=None, **schedule):
    of = name.partition(":")[2].partition("_")[0] or name
    tables = TABLES | REPLAYED
    of = of if of in tables else "a2c"
    schedule = {**ROLLOUTS, **schedule}
    if of == "reinforce":
        schedule |= {"sync": "episode", "envs_per_executor": 1}
        del schedule["rollout_steps"]
    tables = {"algorithm": {"name": name, **tables[of]}, "schedule": schedule, "learner": learner or {}}
    tables |= {"checkpoint": checkpoint} if checkpoint else {}
    return live(stop=stop or {"env_steps": 1500}, **tables)


def expect_balanced(result, lines, *, most_odd=0, together=1):
    """Each rollout that was differentiated was applied once, or is accounted for; each push is a version."""
    account = lines.all("pushes")[-1]
    ends = ("applied", "too_old", "odd", "lost", "outliers", "given_up", "waiting")
    assert account["made"] - sum(account[name] for name in ends) in (0, 1, 2), account  # under way when the run ended
    assert account["applied"] == result.updates * together
    assert account["odd"] <= most_odd
    versions = [line["version"] for line in lines.all("phase", phase="learn")]
    assert versions == sorted(set(versions))
    return account


@pytest.mark.long
@pytest.mark.parametrize("name", TABLES)
def test_each_push_is_an_update_and_a_version(live, name):
    result, lines = run(live, name, max_policy_lag=1000)  # on a busy machine one may fall far behind
    account = expect_balanced(result, lines)
    assert account["applied"] >= 10
    assert account["lost"] == account["too_old"] == 0
    learned = lines.all("phase", phase="learn")
    assert [line["version"] for line in learned] == [*range(2, 2 + len(learned))]


@pytest.mark.long
@pytest.mark.parametrize("name", TABLES)
def test_by_default_no_step_is_by_a_push_that_is_more_than_eight_versions_old(live, name):
    result, lines = run(live, name)
    account = expect_balanced(result, lines)
    assert account["applied"] >= 10
    assert account["lost"] == 0
    assert all(line["lag_max"] <= 8 for line in lines.all("phase", phase="learn"))


@pytest.mark.long
def test_pushes_beyond_the_bound_on_policy_lag_are_rejected_and_counted(live):
    result, lines = run(live, "impala", executors=3, max_policy_lag=0, stop={"env_steps": 3000})
    account = expect_balanced(result, lines)
    assert account["too_old"] > 0
    assert {line["lag_max"] for line in lines.all("phase", phase="learn")} == {0}


@pytest.mark.long
@pytest.mark.parametrize("compensation", ["adaptive", "constant"])
def test_gradients_of_older_weights_are_compensated(live, compensation):
    how = {"combine": "delay_compensated", "compensation": compensation}
    result, lines = run(live, "a2c", executors=3, stop={"env_steps": 4000}, **how)
    assert expect_balanced(result, lines)["applied"] >= 30
    learned = lines.all("phase", phase="learn")
    assert {line["losses"]["compensation_missed"] for line in learned} == {0.0}
    late = [line["losses"]["compensation"] for line in learned if line["lag_max"]]
    assert late
    assert all(moved > 0 for moved in late)
    assert all(not line["losses"]["compensation"] for line in learned if not line["lag_max"])


@pytest.mark.long
def test_returns_that_are_compared_with_other_episodes_are_pushed_whatever_their_lengths(live):
    schedule = {"kind": "oa", "gradients": "executors", "executors": 3, "combine": "mean", "mean_of": 3}
    algorithm = {"name": "reinforce", "policy": [16], "baseline": "mean", "rows_per_update": 50}
    result, lines = live(stop={"env_steps": 6000}, algorithm=algorithm, schedule=schedule)
    assert expect_balanced(result, lines, together=3)["applied"] >= 30
    rollouts = lines.all("phase", phase="generate")
    # CartPole's first episodes have about 20 rows, and a rollout ends with the one that reaches 50; the last are of the
    # steps that are left.
    assert all(50 <= line["rows"] < 50 + 500 for line in rollouts[: len(rollouts) // 2])
    assert sum(line["rows"] for line in rollouts) == result.steps
    assert len(lines.all("episode_end")) > 1.5 * len(rollouts)


@pytest.mark.long
def test_no_more_rows_are_gathered_for_a_push_than_the_run_has_steps_left(live):
    schedule = {"kind": "oa", "gradients": "executors", "executors": 2}
    algorithm = {"name": "reinforce", "policy": [16], "rows_per_update": 20_000}
    result, _ = live(stop={"env_steps": 600}, algorithm=algorithm, schedule=schedule)
    assert result.reason == "env_steps"
    assert result.updates >= 1
    assert 600 <= result.steps < 600 + 2 * 500


@pytest.mark.long
def test_several_gradients_an_update_are_not_compensated(live):
    with pytest.raises(StepsDiffer, match='expected "fifo": an update of PPO pushes gradients of'):
        run(live, "ppo", combine="delay_compensated")


@pytest.mark.long
@pytest.mark.parametrize(("name", "of"), [("a2c", 2), ("a2c", 5), ("impala", 3), ("reinforce", 3)])
def test_a_step_is_by_the_mean_of_as_many_pushes_as_is_said(live, name, of):
    result, lines = run(live, name, combine="mean", mean_of=of, executors=3, stop={"env_steps": 4000})
    account = expect_balanced(result, lines, together=of)
    assert account["applied"] >= 10 * of or name == "reinforce"
    assert account["given_up"] < of
    learned = lines.all("phase", phase="learn")
    assert [line["version"] for line in learned] == [*range(2, 2 + len(learned))]


@pytest.mark.long
def test_minibatches_of_several_pushes_have_no_mean(live):
    with pytest.raises(StepsDiffer, match='got "mean", expected "fifo" where the number of steps of an update follows'):
        run(live, "ppo", combine="mean")


@pytest.mark.long
def test_one_executor_alone_fills_a_mean(live):
    result, lines = run(live, "a2c", combine="mean", mean_of=4, executors=1)
    assert expect_balanced(result, lines, together=4)["applied"] >= 40


@pytest.mark.slow
def test_executors_play_on_while_the_learner_is_slow(live):
    """Ten pushes of each wait, then the oldest gives way."""
    result, lines = run(live, "odd_pushers:SlowLearner", hogwild=True, stop={"env_steps": 12_000})
    account = expect_balanced(result, lines)
    assert account["given_up"] > account["applied"] > 0
    assert max(line["waiting"] for line in lines.all("pushes")) <= 20
    assert account["made"] >= 12_000 // 32 - 2


@pytest.mark.long
def test_pushes_of_losses_far_off_are_rejected_and_counted(live):
    result, lines = run(live, "odd_pushers:NowAndThenFarOff", max_loss_deviations=4.0, stop={"env_steps": 12_000})
    account = expect_balanced(result, lines)
    assert 0 < account["outliers"] < account["applied"] / 10


MOMENTS = ("updating", "updated", "recorded", "writing", "written")
OF_THE_LEARNER = ("read", "updating", "updated", "keeping", "kept", "publishing", "published")
KILLED = [
    (name, who, moment)
    for name in (*TABLES, "dqn")
    for who, moments in (("worker", MOMENTS), ("learner", OF_THE_LEARNER))
    for moment in moments
]
FEW = {
    ("dqn", "worker", "written"),
    ("a2c", "learner", "updated"),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "who", "moment"), [pytest.param(*one, marks=() if one in FEW else pytest.mark.slow) for one in KILLED]
)
def test_no_push_is_applied_twice_or_torn_where_a_process_is_killed(live, name, who, moment):
    result, lines = run(live, f"killed_pushers:{name}_{who}_{moment}", stop={"env_steps": 3000})
    deaths = [line for line in lines.all("proc_exit", expected=False) if line["signal"] == "SIGKILL"]
    assert len(deaths) == LIVES
    account = expect_balanced(result, lines)
    assert account["lost"] == (LIVES if who == "worker" else 0)
    assert account["applied"] >= 10


@pytest.mark.long
def test_it_goes_on_from_a_checkpoint(tmp_path):
    tables = {"algorithm": {"name": "a2c", **TABLES["a2c"]}, "schedule": ROLLOUTS}
    first, lines = run_here(settings(stop={"env_steps": 1500}, **tables), tmp_path)
    again, more = run_here(settings(stop={"env_steps": 3000}, **tables), resume=first.run_dir)
    assert not [line for line in more.all("warning") if line["role"] == "learner"]
    account = more.all("pushes")[-1]
    assert (again.updates, again.steps >= 3000) == (first.updates + account["applied"], True)
    assert lines.all("pushes")[-1]["applied"] == first.updates


@pytest.mark.long
def test_a_checkpoint_in_the_middle_finds_no_push_under_way(live):
    result, lines = run(live, "a2c", stop={"env_steps": 6000}, checkpoint={"interval_s": 0.2})
    saved = lines.all("checkpoint")
    assert len(saved) >= 2
    assert expect_balanced(result, lines)["lost"] == 0


@pytest.mark.long
def test_an_own_algorithm_that_counts_its_rows_by_itself_is_stepped_by_all_rows(live):
    result, lines = run(live, "odd_pushers:CountingAlone")
    assert expect_balanced(result, lines)["applied"] >= 10


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("NeverFinite", NumericError, "got NaN or infinity 4 times in a row"),
        ("Raising", RunFailed, "the fifth one"),
        ("WithoutGradients", StepsDiffer, "without a gradient of `backward`"),
        ("Uneven", StepsDiffer, "expected the same"),
    ],
)
def test_odd_pushes_end_the_run_with_the_reason(live, name, kind, said):
    with pytest.raises(kind, match=said):
        run(live, f"odd_pushers:{name}")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            {"schedule.gradients": "learner", "schedule.replay": "local"},
            'schedule.replay: got "local", expected "global"',
        ),
        ({"schedule.updates_per_publish": 2}, "schedule.updates_per_publish: got 2, expected 1"),
        ({"schedule.compensation": "constant"}, 'schedule.compensation: got "constant", expected "adaptive"'),
        ({"schedule.mean_of": 2}, 'schedule.mean_of: got 2, expected none with schedule.combine = "fifo"'),
        ({"schedule.hogwild": True, "schedule.memorizer": "learner"}, 'memorizer: got "learner", expected "own"'),
        ({"schedule.gradients": "learner", "schedule.hogwild": True}, "schedule.hogwild: got true, expected false"),
        ({"learner.promote_best": 3}, 'expected "learner" with learner.promote_best = 3'),
        ({"learner.device": "cuda"}, 'with learner.device = "cuda": executors differentiate on the CPU'),
    ],
)
def test_keys_that_do_not_go_with_it_are_refused(written, said):
    file = {"task": {"env": "CartPole-v1"}, "algorithm": {"name": "a2c"}}
    with pytest.raises(SettingsError) as refused:
        load_settings(file, {"schedule.kind": "oa", "schedule.gradients": "executors", **written})
    assert said in str(refused.value)


def test_where_all_step_together_the_state_is_kept_with_each_version():
    file = {"task": {"env": "CartPole-v1"}, "algorithm": {"name": "a2c"}}
    written = {"schedule.kind": "is", "schedule.gradients": "executors", "learner.keep_state_every": 5}
    with pytest.raises(SettingsError, match=r"learner\.keep_state_every: got 5, expected 1 with"):
        load_settings(file, written)
    load_settings(file, {**written, "schedule.kind": "oa"})


@pytest.mark.parametrize(("name", "why"), [("dqn-priorities", "over all rows"), ("a2c", "replays no rows")])
def test_rows_of_ones_own_are_replayed_where_there_are_any_and_priorities_do_not_spread_over_all(live, name, why):
    tables = {"algorithm": {"name": name.partition("-")[0], **(TABLES | REPLAYED)[name]}}
    schedule = {"kind": "oa", "gradients": "executors", "replay": "local"}
    with pytest.raises(SettingsError, match=rf"schedule\.replay: got \"local\", expected \"global\".*{why}"):
        live(schedule=schedule, **tables)


QUICK = ("dqn", "dqn-priorities", "sac")
EACH = [pytest.param(name, "global", marks=() if name in QUICK else pytest.mark.slow) for name in REPLAYED]
EACH.append(("dqn", "local"))


@pytest.mark.long
@pytest.mark.parametrize(("name", "replay"), EACH)
def test_replayed_minibatches_are_pushed_too(live, name, replay):
    env = "Pendulum-v1" if name in ("sac", "ddpg") else "CartPole-v1"
    schedule = {"kind": "oa", "executors": 2, "gradients": "executors", "envs_per_executor": 2, "sync": "rollout"}
    schedule["replay"] = replay
    tables = {"algorithm": {"name": name.partition("-")[0], **REPLAYED[name]}, "schedule": schedule}
    result, lines = live(stop={"env_steps": 1500}, task={"env": env}, **tables)
    account = expect_balanced(result, lines)
    assert account["applied"] >= 20
    assert account["too_old"] <= account["applied"] / 10
    assert not [line for line in lines.all("warning") if line["role"] == "learner"]
