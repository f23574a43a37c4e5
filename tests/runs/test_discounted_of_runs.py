"""The log tells of each episode its return, its discounted return, its executor and the moving average."""

import pytest
from live_runs import settings
from resume_tools import run_here


@pytest.mark.long
@pytest.mark.parametrize("kind", ["serial", "is", "oa"])
def test_cart_pole_has_one_reward_for_each_step(kind, tmp_path):
    algorithm = {"name": "ppo", "policy": [8], "value": [8], "discount": 0.9}
    _, run = run_here(settings(algorithm=algorithm, schedule={"kind": kind}), tmp_path)
    told = run.all("episode_end")
    assert {line["idx"] for line in told} == {0, 1}
    average = None
    for line in told:
        assert line["discounted_return"] == pytest.approx((1 - 0.9 ** line["length"]) / (1 - 0.9))
        value = line["episode_return"]
        average = value if average is None else 0.99 * average + 0.01 * value
        assert line["average"] == pytest.approx(average)


@pytest.mark.long
def test_environments_of_one_vector_have_it_too(tmp_path):
    algorithm = {"name": "ppo", "policy": [8], "value": [8], "discount": 0.9}
    schedule = {"kind": "is", "envs_per_executor": 4, "rollout_steps": 32}
    task = {"env": "CartPole-v1", "max_episode_steps": 200, "vectorize": "native"}
    _, run = run_here(settings(algorithm=algorithm, schedule=schedule, task=task), tmp_path)
    told = run.all("episode_end")
    assert told
    for line in told:
        assert line["discounted_return"] == pytest.approx((1 - 0.9 ** line["length"]) / (1 - 0.9))
