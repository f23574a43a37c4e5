"""Runs whose executors share whole networks: `[schedule] combine = "best_score"`."""

import pytest
from killed_learners import LIVES
from resume_tools import run_here, settings

from mlxe_async.errors import SettingsError
from mlxe_async.settings import load_settings

BY_SCORE = {"kind": "oa", "executors": 2, "gradients": "executors", "combine": "best_score", "sync": "episode"}
BY_SCORE |= {"envs_per_executor": 1}
SMALL = {"policy": [16], "value": [16]}
ENDS = ("applied", "beaten", "too_old", "odd", "lost", "outliers", "given_up", "waiting")


def run(live, name="a2c", **stop):
    return live(stop=stop or {"env_steps": 3000}, algorithm={"name": name, **SMALL}, schedule=BY_SCORE)


def expect_promoted_by_score(result, lines, *, lost=0):
    """Each network was promoted or beaten, once; the scores of those that were promoted only rise."""
    account = lines.all("pushes")[-1]
    assert account["made"] - sum(account[name] for name in ENDS) in (0, 1, 2), account  # under way when the run ended
    assert account["applied"] == result.updates >= 2
    assert account["beaten"] > account["applied"]
    assert account["lost"] == lost
    learned = lines.all("phase", phase="learn")
    scores = [line["losses"]["score"] for line in learned if line["updates"]]
    assert scores == sorted(set(scores))
    versions = [line["version"] for line in learned if line["updates"]]
    assert versions == [*range(2, 2 + len(versions))]
    best = float("-inf")
    for line in learned:
        assert (line["losses"]["score"] > best) == bool(line["updates"])
        best = max(best, line["losses"]["score"])
    return learned, best


@pytest.mark.long
def test_the_network_of_the_best_episode_is_what_all_go_on_from(live):
    result, lines = run(live)
    _, best = expect_promoted_by_score(result, lines)
    assert best == max(line["episode_return"] for line in lines.all("episode_end"))
    played = [line for line in lines.all("phase", phase="generate") if line["version"] > 1]
    assert {line["idx"] for line in played} == {0, 1}  # losers pull the winner's weights


KILLED = [("worker", moment) for moment in ("updated", "writing", "written")]
KILLED += [("learner", moment) for moment in ("read", "keeping", "kept", "publishing", "published")]
FEW = {("learner", "published")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("who", "moment"), [pytest.param(*one, marks=() if one in FEW else pytest.mark.slow) for one in KILLED]
)
def test_score_and_weights_stay_one_where_a_process_is_killed(live, who, moment):
    name = f"killed_pushers:a2c_worker_{moment}" if who == "worker" else f"killed_offers:a2c_{moment}"
    result, lines = run(live, name, env_steps=20_000)  # the last life needs three better networks
    deaths = [line for line in lines.all("proc_exit", expected=False) if line["signal"] == "SIGKILL"]
    assert len(deaths) == LIVES
    expect_promoted_by_score(result, lines, lost=LIVES if who == "worker" else 0)


@pytest.mark.long
def test_a_resumed_run_promotes_only_what_beats_the_best_of_all(tmp_path):
    tables = {"algorithm": {"name": "a2c", **SMALL}, "schedule": BY_SCORE}
    first, lines = run_here(settings(stop={"env_steps": 3000}, **tables), tmp_path)
    best = max(line["losses"]["score"] for line in lines.all("phase", phase="learn"))
    again, more = run_here(settings(stop={"env_steps": 6000}, **tables), resume=first.run_dir)
    assert again.steps >= 6000
    later = [line["losses"]["score"] for line in more.all("phase", phase="learn") if line["updates"]]
    assert later == sorted(later)
    assert all(score > best for score in later)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"schedule.sync": "rollout"}, 'schedule.sync: got "rollout", expected "episode"'),
        ({"schedule.envs_per_executor": 2, "schedule.sync": "episode"}, "envs_per_executor: got 2, expected 1"),
        ({"schedule.hogwild": True}, "schedule.hogwild: got true, expected false"),
        ({"schedule.simulated_lag": 2}, "schedule.simulated_lag: got 2, expected 0"),
        ({"schedule.max_loss_deviations": 3.0}, "schedule.max_loss_deviations: got 3.0, expected none"),
        ({"run.record": True}, "run.record: got true, expected false"),
        ({"schedule.gradients": "learner"}, 'schedule.combine: got "best_score", expected "fifo"'),
    ],
)
def test_keys_that_do_not_go_with_it_are_refused(written, said):
    file = {"task": {"env": "CartPole-v1"}, "algorithm": {"name": "a2c"}}
    whole = {f"schedule.{name}": value for name, value in BY_SCORE.items()}
    with pytest.raises(SettingsError) as refused:
        load_settings(file, {**whole, **written})
    assert said in str(refused.value)


def test_algorithms_that_replay_are_refused(live):
    with pytest.raises(SettingsError, match=r'schedule\.combine: got "best_score", expected "fifo": this algorithm'):
        live(algorithm={"name": "dqn"}, schedule=BY_SCORE)


LAG = {"kind": "oa", "executors": 2, "gradients": "executors", "envs_per_executor": 2, "rollout_steps": 16}


@pytest.mark.long
@pytest.mark.parametrize(("executors", "lag"), [(1, 3), (2, 5)])
def test_each_push_waits_for_younger_ones(live, executors, lag):
    schedule = LAG | {"simulated_lag": lag, "executors": executors, "max_policy_lag": 1000}
    result, lines = live(stop={"env_steps": 2000}, algorithm={"name": "a2c", **SMALL}, schedule=schedule)
    account = lines.all("pushes")[-1]
    assert account["applied"] == result.updates > 20
    assert account["given_up"] == lag  # those that would have waited for more
    assert account["too_old"] == 0
    lags = [line["lag_min"] for line in lines.all("phase", phase="learn")][2 * lag :]
    assert min(lags) >= lag
    if executors == 1:  # no more than its places wait; of several one may be slow while others go on
        assert max(lags) <= lag + 2


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"schedule.max_policy_lag": 3}, "schedule.simulated_lag: got 5, expected at most schedule.max_policy_lag = 3"),
        ({"schedule.gradients": "learner"}, "schedule.simulated_lag: got 5, expected 0"),
    ],
)
def test_a_lag_that_nothing_would_be_learned_under_is_refused(written, said):
    file = {"task": {"env": "CartPole-v1"}, "algorithm": {"name": "a2c"}}
    how = {"schedule.kind": "oa", "schedule.gradients": "executors", "schedule.simulated_lag": 5}
    with pytest.raises(SettingsError) as refused:
        load_settings(file, {**how, **written})
    assert said in str(refused.value)
