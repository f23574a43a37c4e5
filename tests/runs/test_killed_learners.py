"""Where all wait for the learner, a run whose learner is killed ends with the weights of one that nobody killed."""

import os
import signal

import pytest
from killed_learners import LIVES
from test_determinism import story

MLXE = {"min_updates": 4, "batch": 64}
ALL_THAT_LEARNS = {
    "target": "every_k", "target_every": 3, "average": 0.2, "optimiser": "radam", "normalise": True,
    "priorities": ["age", "risk", "td"],
}  # fmt: skip
LAKE = {"env": "FrozenLake-v1", "max_episode_steps": 100}
TABLES = {
    "mlxe": {"algorithm": MLXE},
    "mlxe rich": {"algorithm": MLXE | ALL_THAT_LEARNS},
    "dqn": {
        "algorithm": {"batch": 64, "train_every": 24, "start_rows": 64, "target_every": 3, "average": 0.2},
        "schedule": {"envs_per_executor": 2, "rollout_steps": 33},
    },
    "dqn remembering": {
        "algorithm": {
            "cell": "gru",
            "cell_size": 8,
            "sequence_steps": 8,
            "burn_in": 4,
            "layers": [16],
            "batch": 36,
            "train_every": 24,
            "start_rows": 64,
            "target_every": 3,
            "value_rescaling": True,
        },
        "schedule": {"envs_per_executor": 2, "rollout_steps": 33},
        "task": {"env": "CartPole-v1", "hide": [1, 3], "max_episode_steps": 50},
    },
    "apex": {
        "algorithm": {"batch": 16, "replay_ratio": 1.0, "start_rows": 64, "target_every": 3, "average": 0.2},
        "schedule": {"envs_per_executor": 2, "rollout_steps": 33},
    },
    "td": {
        "algorithm": {"batch": 16, "train_every": 24, "start_rows": 64, "target_every": 3},
        "schedule": {"envs_per_executor": 2, "rollout_steps": 33},
    },
    "rainbow": {
        "algorithm": {
            "batch": 16,
            "train_every": 24,
            "start_rows": 64,
            "target_every": 3,
            "layers": [16],
            "v_max": 90.0,
        },
        "schedule": {"envs_per_executor": 2, "rollout_steps": 33},
    },
    "sac": {
        "algorithm": {"batch": 16, "train_every": 8, "start_rows": 64, "layers": [16], "n_step": 2},
        "schedule": {"rollout_steps": 33},
        "task": {"env": "Pendulum-v1", "max_episode_steps": 50},
    },
    "td3": {
        "algorithm": {
            "batch": 16,
            "train_every": 8,
            "start_rows": 64,
            "layers": [16],
            "noise": "ou",
            "normalise": True,
        },
        "schedule": {"rollout_steps": 33},
        "task": {"env": "Pendulum-v1", "max_episode_steps": 50},
    },
    "ppo": {
        "algorithm": {"epochs": 2, "minibatch": 32},
        "schedule": {"envs_per_executor": 2, "rollout_steps": 32},
    },
    "ppo remembering": {
        "algorithm": {"epochs": 2, "minibatch": 32, "cell": "lstm", "cell_size": 8, "sequence_steps": 10},
        "schedule": {"envs_per_executor": 2, "rollout_steps": 32},
        "task": {"env": "CartPole-v1", "hide": [1, 3], "max_episode_steps": 50},
    },
    "a2c": {
        "algorithm": {"reward_scaling": True, "optimiser": "rmsprop", "deviation": "computed"},
        "schedule": {"envs_per_executor": 2, "rollout_steps": 16},
        "task": {"env": "Pendulum-v1", "max_episode_steps": 50},
    },
    "q_learning": {"algorithm": {}, "schedule": {"envs_per_executor": 2, "rollout_steps": 16}, "task": LAKE},
    "sarsa": {"algorithm": {"n_step": 3}, "schedule": {"envs_per_executor": 2, "rollout_steps": 16}, "task": LAKE},
    "reinforce": {
        "algorithm": {"baseline": "mean", "rows_per_update": 60},
        "schedule": {"sync": "episode"},
    },
}
PLAIN = {case: f"killed_learners:{case.split()[0]}_never" for case in TABLES}
"""Of the same kind as those that die: classes of users have no defaults that follow the task."""
STOP = {"env_steps": 900}


def run(live, case, name, **schedule):
    tables = {key: dict(table) for key, table in TABLES[case].items()}
    tables["algorithm"]["name"] = name
    tables["learner"] = {"fast": False}  # those that die are of other classes: all are done as they are written
    tables["schedule"] = {"kind": "is", "executors": 2, **tables.get("schedule", {}), **schedule}
    return live(stop=STOP, **tables)


@pytest.fixture(scope="module")
def undisturbed():
    """Story and weights of runs that nobody disturbs, by case; each is made once."""
    return {}


def told(lines):
    """What a run learned and how far it was, without times."""
    learned = [
        (line["version"], line["rows"], line["updates"], line["losses"], line["lag_max"])
        for line in lines.all("phase", phase="learn")
    ]
    published = [
        (line["version"], line["updates"], line["env_steps"], line["episodes"], line["norm"])
        for line in lines.all("weights")
    ]
    return learned, published


def as_if_nothing_happened(live, undisturbed, case, moment, **schedule):
    key = (case, schedule.get("kind", "is"))
    if key not in undisturbed:
        result, lines = run(live, case, PLAIN[case], **schedule)
        undisturbed[key] = (result.weights_hash, told(lines))
    result, lines = run(live, case, f"killed_learners:{case.split()[0]}_{moment}", **schedule)
    deaths = [line for line in lines.all("proc_exit", expected=False) if line["signal"] == "SIGKILL"]
    assert len(deaths) == LIVES
    assert (result.weights_hash, told(lines)) == undisturbed[key]
    return lines


ALL = ("updating", "updated", "keeping", "kept", "publishing", "published", "settled", "drawn")
REPLAY = (*ALL, "phase", "counted", "drawing")
EVERY = [
    *(("ppo", moment) for moment in ALL),
    *(("ppo remembering", moment) for moment in ALL),
    *(("a2c", moment) for moment in ALL),
    *(("reinforce", moment) for moment in ALL),
    *(("q_learning", moment) for moment in ALL),
    *(("sarsa", moment) for moment in ALL),
    *(("mlxe", moment) for moment in REPLAY),
    *(("mlxe rich", moment) for moment in REPLAY),
    *(("dqn", moment) for moment in REPLAY),
    *(("dqn remembering", moment) for moment in REPLAY),
    *(("td", moment) for moment in (*REPLAY, "noting")),
    *(("apex", moment) for moment in (*REPLAY, "noting")),
    *(("rainbow", moment) for moment in (*REPLAY, "noting")),
    *(("sac", moment) for moment in REPLAY),
    *(("td3", moment) for moment in REPLAY),
]
QUICK = {("ppo", "settled"), ("sac", "published")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "moment"), [pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow) for one in EVERY]
)
def test_a_run_whose_learner_is_killed_three_times_ends_with_the_same_weights(live, undisturbed, case, moment):
    lines = as_if_nothing_happened(live, undisturbed, case, moment)
    assert sum("goes on from there too" in line["message"] for line in lines.all("warning")) == LIVES


OTHERS = [
    # Executors that die with the learner begin their episodes anew: these deliver whole ones.
    ("mlxe", "updated", {"kind": "serial"}),
    ("mlxe rich", "published", {"kind": "serial"}),
    ("mlxe rich", "updating", {"kind": "istb"}),
    ("mlxe", "kept", {"kind": "istb"}),
    ("td", "noting", {"kind": "is", "memorizer": "own"}),
    ("ppo", "kept", {"kind": "is", "memorizer": "own"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "moment", "schedule"), OTHERS)
def test_so_does_one_whose_learner_shares_its_process_with_all_others_or_with_nobody(
    live, undisturbed, case, moment, schedule
):
    as_if_nothing_happened(live, undisturbed, case, moment, **schedule)


EVALUATED = {"enabled": True, "max_episode_steps": 300, "screen_steps": 50, "episodes": 3}


@pytest.mark.slow
def test_a_learner_that_is_killed_from_outside_whenever_it_has_published_changes_nothing_that_is_told(live):
    def tables():
        return {**TABLES["ppo"], "algorithm": {"name": "ppo", **TABLES["ppo"]["algorithm"]}, "evaluation": EVALUATED}

    async def kill(run):
        for times in range(1, 6):
            await run.saw("weights", times=times)
            os.kill(run.pid("mlxe-lrn"), signal.SIGKILL)
            await run.saw("proc_start", times=times + 1, process="mlxe-lrn")

    undisturbed, first = live(**tables(), stop=STOP)
    disturbed, second = live(kill, **tables(), stop=STOP)
    assert len(second.all("proc_exit", process="mlxe-lrn", expected=False)) == 5
    assert disturbed.weights_hash == undisturbed.weights_hash
    assert story(second) == story(first)
    assert first.all("evaluation")
