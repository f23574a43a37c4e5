"""An environment given from Python, as a notebook's cell has it, is made wherever environments are made."""

import functools
import subprocess
import sys
import threading

import gymnasium
import pytest
from live_runs import EVALUATED, killing, settings

from mlxe_async import Supervisor, load_policy, load_settings
from mlxe_async.errors import TaskError
from mlxe_async.tasks import given

CELL = '''
import gymnasium
import numpy as np

GOAL = 9


class Corridor(gymnasium.Env):
    """1 steps to the right; the goal is at the right end."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, goal=GOAL):
        self.goal = goal

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.field = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.field = max(0, self.field + (1 if action == 1 else -1))
        done = self.field == self.goal
        return np.array([self.field / self.goal], np.float32), 0.9 if done else -0.1, done, False, {}


made = lambda goal=4: Corridor(goal)
'''
TASK = {"env": "python/Corridor", "max_episode_steps": 60}
PPO = {"name": "ppo"}
SCHEDULE = {"envs_per_executor": 2, "sync": "rollout", "rollout_steps": 32}


@pytest.fixture
def cell():
    """The names that a notebook's cell defines: those of `__main__`, which is no module that can be imported."""
    names = {"__name__": "__main__"}
    exec(CELL, names)  # noqa: S102 - as a kernel does
    return names


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "more"), [("serial", {"executors": 1}), ("istb", {}), ("is", {}), ("ia", {}), ("oa", {})]
)
def test_a_class_of_a_cell_is_stepped_by_executors_and_tests_under_every_schedule(live, cell, kind, more):
    asked = {"task": TASK, "algorithm": PPO, "schedule": {**SCHEDULE, "kind": kind, **more}, "evaluation": EVALUATED}
    result, run = live(None, env=cell["Corridor"], stop={"env_steps": 600}, **asked)
    assert result.updates >= 1
    assert run.all("evaluation")
    assert result.run_dir.joinpath("settings.toml").read_text().count('env = "python/Corridor"') == 1


@pytest.mark.long
def test_executors_and_evaluator_that_are_killed_are_given_it_again(live, cell):
    async def kill(run):
        await killing((2, "mlxe-exe-0"), (3, "mlxe-exe-1"), (4, "mlxe-eval"))(run)
        again = run.lines[-1]["seq"]
        await run.saw("evaluation", after=again)
        await run.enough("weights", len(run.all("weights")) + 2)

    result, run = live(
        kill,
        env=cell["Corridor"],
        task=TASK,
        algorithm=PPO,
        schedule=SCHEDULE,
        stop={"env_steps": 10**7},
        evaluation=EVALUATED,
    )
    assert result.reason == "enough"
    assert {line["process"] for line in run.all("proc_exit", expected=False)} >= {"mlxe-exe-0", "mlxe-exe-1"}


@pytest.mark.long
def test_a_nursery_that_is_killed_is_given_it_again(live, cell):
    import os
    import signal

    async def kill(run):
        await run.saw("weights", times=2)
        os.kill(run.supervisor._nursery.pid, signal.SIGKILL)
        await run.enough("weights", len(run.all("weights")) + 3)

    result, _ = live(kill, env=cell["Corridor"], task=TASK, algorithm=PPO, schedule=SCHEDULE, stop={"env_steps": 10**7})
    assert result.reason == "enough"


@pytest.mark.long
def test_a_run_goes_on_and_its_policy_plays_only_where_the_environment_is_given_again(live, cell, capsys):
    result, _ = live(None, env=cell["Corridor"], task=TASK, algorithm=PPO, schedule=SCHEDULE, stop={"env_steps": 256})
    folder = result.run_dir
    more = load_settings(folder / "settings.toml", {"stop.env_steps": 512}, of_run=True)
    given._makers.clear()
    with pytest.raises(TaskError, match=r"is Corridor of a Python program, .* resume=RUN, env=Corridor"):
        Supervisor(more, resume=folder)
    policy = load_policy(folder)
    assert policy.act([0.5]) in (0, 1)
    with pytest.raises(TaskError, match=r"load_policy\(RUN, env=Corridor\); commands need it in a file"):
        next(policy.play())
    with pytest.raises(TaskError, match=r"env: got python/made, expected that of the run: .*python/Corridor"):
        load_policy(folder, env=_named("made", cell["made"]))
    assert next(load_policy(folder, env=cell["Corridor"]).play(max_episode_steps=60)).steps <= 60
    assert Supervisor(more, resume=folder, env=cell["Corridor"]).run_sync().steps >= 512
    given._makers.clear()
    for words in (["--resume", folder], ["play", folder], ["eval", folder]):
        done = subprocess.run(
            [sys.executable, "-m", "mlxe_async", *map(str, words)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "is Corridor of a Python program, and no file has its code" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


def _named(name, maker):
    maker.__name__ = name
    return maker


@pytest.mark.long
@pytest.mark.parametrize("kind", ["lambda", "partial", "function of a module"])
def test_functions_make_environments_too(tmp_path, cell, kind):
    maker = {
        "lambda": cell["made"],
        "partial": functools.partial(cell["Corridor"], 4),
        "function of a module": cartpole,
    }[kind]
    chosen = settings(algorithm=PPO, schedule=SCHEDULE, stop={"env_steps": 64})
    result = Supervisor(chosen, run_dir=tmp_path, env=maker).run_sync()
    assert result.steps >= 64


def cartpole():
    """Carried by the name of this module, whose folder the other processes are told."""
    return gymnasium.make("CartPole-v1")


@pytest.mark.long
def test_arguments_are_those_of_the_settings(tmp_path, cell):
    chosen = settings(
        task={"env": "python/x", "kwargs": {"goal": 1}, "max_episode_steps": 50},
        algorithm=PPO,
        schedule=SCHEDULE,
        stop={"episodes": 30},
    )
    lengths = []
    supervisor = Supervisor(chosen, run_dir=tmp_path, env=cell["made"])
    supervisor.subscribe(lambda line: lengths.append(line["length"]), ["episode_end"])
    supervisor.run_sync()
    assert 1 in lengths
    assert supervisor.settings.task.env == "python/lambda"


@pytest.mark.parametrize(
    ("maker", "said"),
    [
        (lambda cell: "CartPole-v1", "env: got the text 'CartPole-v1', expected a gymnasium.Env class or a function"),
        (lambda cell: cell["Corridor"](), "but each process makes its own: give its class, or a function"),
        (lambda cell: 3, r"env: got 3 \(int\), expected a gymnasium.Env class or a function"),
        (
            lambda cell: functools.partial(cell["Corridor"], threading.Lock()),
            "Corridor cannot be carried to other processes .TypeError: .*lock.* make them in its __init__",
        ),
    ],
)
def test_what_cannot_be_carried_is_refused_in_one_sentence(cell, maker, said):
    with pytest.raises(TaskError, match=said) as refusal:
        Supervisor(settings(), env=maker(cell))
    assert "\n" not in str(refusal.value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("maker", "said"),
    [
        (lambda: 5, r"python/lambda returned 5 \(int\), expected a gymnasium.Env"),
        (lambda: 1 / 0, "raised ZeroDivisionError"),
        (lambda missing: missing, "raised TypeError: .*missing"),
    ],
)
def test_one_that_makes_no_environment_is_refused_by_the_probe(tmp_path, maker, said):
    with pytest.raises(TaskError, match=said) as refusal:
        Supervisor(settings(), run_dir=tmp_path, env=maker).run_sync()
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_one_that_cannot_be_drawn_says_so_to_play(cell):
    name = given.offer(cell["Corridor"])
    with pytest.raises(TaskError, match="takes no render_mode, so that nothing can be drawn"):
        given.spec_of(name).entry_point(render_mode="human")
