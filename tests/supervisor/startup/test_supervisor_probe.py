"""What needs nobody's word is refused before the first process is started."""

import asyncio
import importlib
import importlib.machinery
import json
import subprocess
import sys

import pytest

from mlxe_async.algorithms import REGISTRY, load_algorithm
from mlxe_async.errors import ResourceError, SettingsError, TaskError
from mlxe_async.ipc.processes.life import Hang
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage
from mlxe_async.settings import load_settings
from mlxe_async.settings.effects import built_in
from mlxe_async.supervisor.startup.host_limits import expect_memory
from mlxe_async.supervisor.startup.preloading import PRELOADED_MEANWHILE, preloaded
from mlxe_async.supervisor.startup.probe import (
    _shown,
    hang_sentence,
    judged,
    probed,
)
from mlxe_async.workers import Probe


class NeverStarted:
    async def start(self, *_):
        raise AssertionError("a process would have been started")


def test_more_rows_than_even_the_smallest_could_fit_are_refused_at_once():
    settings = load_settings({"task": {"env": "CartPole-v1"}, "memory": {"capacity_rows": 10**12}})

    async def main():
        async with probed(NeverStarted(), settings, []):
            pass

    with pytest.raises(ResourceError, match=r"at least, for memory.capacity_rows = 1000000000000 +38,146,972.66 MiB"):
        asyncio.run(main())


def test_too_little_memory_for_any_run_is_told_with_what_it_takes(monkeypatch):
    monkeypatch.setattr("mlxe_async.supervisor.startup.host_limits.available_memory", lambda: 150 << 20)

    async def main():
        async with probed(NeverStarted(), load_settings({"task": {"env": "CartPole-v1"}}), []):
            pass

    with pytest.raises(ResourceError, match="has 150 MiB of memory left, expected at least 180 MiB, of which torch"):
        asyncio.run(main())


def test_what_a_built_in_algorithm_learns_from_is_known_without_torch():
    program = (
        "import sys\n"
        "from mlxe_async.settings.effects import built_in\n"
        "print(*(built_in(name).memory for name in sys.argv[1:]))\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *REGISTRY], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [load_algorithm(name).memory for name in REGISTRY]
    assert built_in("mine:Mine") is None


@pytest.mark.parametrize(("sync", "limit"), [("rollout", 0), ("episode", 500), ("episode", None)])
def test_a_capacity_that_has_no_effect_is_refused(sync, limit):
    tables = {"algorithm": {"name": "ppo"}, "schedule": {"kind": "is", "sync": sync}}
    settings = load_settings({"task": {"env": "CartPole-v1"}, "memory": {"capacity_rows": 10**12}, **tables})
    expect_memory(settings)
    kind = {
        "memory_kind": "rollouts",
        "off_policy": "corrects",
        "bootstraps": True,
        "has_gradients": True,
        "prioritised": False,
    }
    task = {"registered_max_episode_steps": 500, "reward_threshold": 475.0}
    facts = {**kind, "defaults": {}, "algorithm": {}, "task": {"max_episode_steps": limit, **task}}
    if limit is None:  # it says how long an episode may be
        assert judged(settings, facts).settings.memory.capacity_rows == 10**12
        return
    with pytest.raises(SettingsError, match=r'memory.capacity_rows: has no effect with algorithm.name = "ppo"'):
        judged(settings, facts)


@pytest.mark.parametrize(
    ("key", "value", "refused", "said"),
    [
        ("task.wrappers", ["mlxe_async:No"], TaskError, "--set task.wrappers: task.wrappers: module mlxe_async has no"),
        ("algorithm.name", "dqn", SettingsError, "--set algorithm.name: algorithm.name: dqn needs a task"),
    ],
)
def test_what_the_probe_refuses_is_told_at_the_key_it_is_about(tmp_path, key, value, refused, said):
    (file := tmp_path / "a.toml").write_text('[task]\nenv = "Pendulum-v1"\n[algorithm]\nname = "ppo"\n')
    settings = load_settings(file, [f"{key}={json.dumps(value)}"])
    facts = Probe(settings.model_dump(mode="json"), ProgressPage(bytearray(PAGE_BYTES))).probe()
    with pytest.raises(refused) as raised:
        judged(settings, facts)
    assert str(raised.value).startswith(said)


STACK = """Fatal Python error: Aborted

Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f02 (most recent call first):
  File "/my/world.py", line 12 in step
  File "/x/mlxe_async/tasks/vector.py", line 233 in step
  File "/x/mlxe_async/ipc/processes/serve.py", line 151 in _call
  File "/x/mlxe_async/ipc/processes/birth.py", line 92 in _live

Extension modules: numpy.core (total: 1)
"""


@pytest.mark.parametrize(
    ("hang", "says", "advice"),
    [
        (Hang("step", 5.0, 0.2), "task.env = \"CartPole-v1\" hangs in 'step', over its limit of 5 s", "step_timeout_s"),
        (Hang("step", 60.0, 0.2), "hangs in 'step', over its limit of 60 s", "reset_timeout_s"),
        (Hang("import", 60.0, 0.2), "task.env = \"CartPole-v1\" hangs in 'import'", "reset_timeout_s"),
        (Hang("load", 60.0, 0.2), "the algorithm \"dqn\" hangs in 'load'", None),
        (Hang("update", 60.0, 0.2), "the algorithm \"dqn\" hangs in 'update'", "update_timeout_s"),
    ],
)
def test_a_hang_of_the_probe_is_told_with_its_place_and_the_key_that_gives_it_longer(hang, says, advice):
    settings = load_settings({"task": {"env": "CartPole-v1"}, "algorithm": {"name": "dqn"}})
    sentence = hang_sentence(settings, hang, STACK)
    assert says in sentence
    assert 'in File "/my/world.py", line 12 in step' in sentence
    assert [word for word in sentence.split() if word.startswith("schedule.")] == [f"schedule.{advice}"] * bool(advice)


def test_of_the_stack_of_a_hang_only_what_is_of_use_is_shown():
    assert _shown(STACK).splitlines() == [
        "the stack of the probe, innermost call first:",
        '  File "/my/world.py", line 12 in step',
        '  File "/x/mlxe_async/tasks/vector.py", line 233 in step',
    ]


def test_a_hang_without_a_stack_is_told_as_such():
    settings = load_settings({"task": {"env": "CartPole-v1"}})
    assert "left no stack" in hang_sentence(settings, Hang("reset", 1.0, 0.2), "")


@pytest.mark.long
def test_what_is_imported_before_the_probe_brings_no_torch_and_what_is_imported_meanwhile_does():
    program = (
        "import importlib, sys\n"
        "first, then = (words.split(',') for words in sys.argv[1:])\n"
        "for name in first: importlib.import_module(name)\n"
        "assert 'torch' not in sys.modules\n"
        "known = set(sys.modules)\n"
        "for name in then: importlib.import_module(name)\n"
        "assert 'torch' in sys.modules\n"
        "print(*(name for name in sys.modules.keys() - known if name.startswith('mlxe_async')))\n"
    )
    own = load_settings({"task": {"env": "CartPole-v1"}, "algorithm": {"name": "mine:Mine"}})
    lists = [",".join(names) for names in (preloaded(own), PRELOADED_MEANWHILE)]
    done = subprocess.run([sys.executable, "-c", program, *lists], check=True, capture_output=True, text=True)
    assert "mlxe_async.roles.learner" in done.stdout.split()


@pytest.mark.parametrize("name", REGISTRY)
def test_of_the_built_in_algorithms_the_runs_own_alone_is_imported(name):
    chosen = load_settings({"task": {"env": "CartPole-v1"}, "algorithm": {"name": name}})
    imported = [module for module in preloaded(chosen) if module.startswith("mlxe_async.algorithms.")]
    assert imported == [REGISTRY[name].partition(":")[0].removesuffix(".paper")]


def test_an_algorithm_of_the_users_may_build_on_any_of_them():
    own = load_settings({"task": {"env": "CartPole-v1"}, "algorithm": {"name": "mine:Mine"}})
    assert {home.partition(":")[0].removesuffix(".paper") for home in REGISTRY.values()} <= set(preloaded(own))


def facts_of_task(**task):
    kind = {
        "memory_kind": "replay",
        "off_policy": "learns",
        "bootstraps": True,
        "has_gradients": True,
        "prioritised": False,
        "defaults": {},
        "algorithm": {},
    }
    known = {"registered_max_episode_steps": 500, "reward_threshold": None, "max_episode_steps": 500}
    return {**kind, "task": {**known, **task}}


@pytest.mark.parametrize(
    ("schedule", "seconds", "words"),
    [
        (
            {"kind": "is", "envs_per_executor": 8, "executors": 2},
            7.5,
            "once took 7.5 s, so that the 8 of one process take about 60 s: more than half of "
            "supervision.start_timeout_s = 60 and of schedule.reset_timeout_s = 60",
        ),
        ({"kind": "serial", "envs_per_executor": 8, "executors": 2}, 2.0, "the 16 of one process take about 32 s"),
        ({"kind": "is", "envs_per_executor": 8, "executors": 2}, 2.0, None),
    ],
)
def test_environments_that_take_long_to_make_are_told_with_the_keys_that_give_them_longer(schedule, seconds, words):
    settings = load_settings(
        {"task": {"env": "CartPole-v1"}, "schedule": {**schedule, "reset_timeout_s": 60.0}},
    )
    told = [line for line in judged(settings, facts_of_task(make_seconds=seconds)).cautions if "once took" in line]
    assert len(told) == (words is not None)
    assert all(words in line for line in told)


@pytest.mark.parametrize(
    ("schedule", "steps", "rows"),
    [
        ({"kind": "is", "executors": 2, "rollout_steps": 1024}, 100_000, "6 updates, since each takes 16,384 rows"),
        ({"kind": "oa", "executors": 2, "rollout_steps": 1024}, 100_000, "12 updates, since each takes 8,192 rows"),
        ({"kind": "is", "executors": 2, "rollout_steps": 32}, 100_000, None),
        ({"kind": "is", "executors": 2, "rollout_steps": 1024}, 1_000, None),  # a trial
    ],
)
def test_a_run_with_few_updates_is_told_with_the_keys_that_make_them_many(schedule, steps, rows):
    tree = {"task": {"env": "CartPole-v1"}, "algorithm": {"name": "ppo"}, "stop": {"env_steps": steps}}
    settings = load_settings({**tree, "schedule": {**schedule, "envs_per_executor": 8, "sync": "rollout"}})
    facts = {**facts_of_task(), "memory_kind": "rollouts"}
    told = [line for line in judged(settings, facts).cautions if "stop.env_steps" in line]
    assert len(told) == (rows is not None)
    assert all(f"stop.env_steps = 100,000 is enough for {rows}" in line for line in told)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"minibatch": 512}, []),
        ({"minibatch": 5000}, ["algorithm.minibatch = 5,000 is more than the 512 rows of an update"]),
        (
            {"cell": "gru", "sequence_steps": 48},
            ["algorithm.sequence_steps = 48 is more than schedule.rollout_steps = 32: sequences are whole rollouts"],
        ),
        ({"cell": "gru", "sequence_steps": 32}, []),
    ],
)
def test_minibatches_and_pieces_larger_than_their_whole_are_told(fields, told):
    schedule = {"kind": "is", "executors": 2, "envs_per_executor": 8, "sync": "rollout", "rollout_steps": 32}
    tree = {"task": {"env": "CartPole-v1"}, "algorithm": {"name": "ppo", **fields}, "schedule": schedule}
    facts = {**facts_of_task(), "memory_kind": "rollouts", "algorithm": fields}
    found = judged(load_settings(tree), facts).cautions
    assert [line.partition(": an epoch")[0] for line in found if "is more than" in line] == told


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        ('task.env: there is no environment "CartPole-v1"', True),
        ("task.env: CartPole-v1 needs a package that is not installed", False),
        ("task.vectorize: no package", False),
    ],
)
def test_that_an_environment_is_known_here_alone_is_said_only_where_others_do_not_know_it(problem, told):
    chosen = load_settings({"task": {"env": "CartPole-v1"}, "algorithm": {"name": "ppo"}})
    importlib.import_module("gymnasium")
    with pytest.raises(TaskError, match=problem) as refused:
        judged(chosen, {"task_error": problem})
    assert ("known to this program only" in str(refused.value)) is told


@pytest.mark.parametrize(("vectorize", "is_there"), [("envpool", True), ("envpool", False), ("single", True)])
def test_envpool_is_imported_before_the_forks_where_it_steps_and_is_there(monkeypatch, vectorize, is_there):
    found = {True: importlib.machinery.ModuleSpec("envpool", None), False: None}[is_there]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    chosen = load_settings({"task": {"env": "CartPole-v1", "vectorize": vectorize}, "algorithm": {"name": "ppo"}})
    assert ("envpool" in preloaded(chosen)) is (is_there and vectorize == "envpool")
