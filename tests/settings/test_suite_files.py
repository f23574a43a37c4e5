"""A suite's file gives each task with each algorithm, and tells each mistake with its place."""

from pathlib import Path

import pytest

from mlxe_async.errors import SettingsError
from mlxe_async.settings import load_settings
from mlxe_async.settings.suites import is_suite, load_suite

ROOT = Path(__file__).parents[2]
SUITE = """\
[suite]
seeds = [0, 1]
env_steps = 1000
[settings]
schedule.executors = 1
memory.capacity_rows = 500
[tasks.pole]
task.env = "CartPole-v1"
random = 22.0
reference = 500.0
[tasks.car]
task.env = "MountainCar-v0"
env_steps = 2000
[algorithms.ppo]
algorithm.name = "ppo"
[algorithms.dqn]
algorithm.name = "dqn"
memory.capacity_rows = 5000
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def made(text):
        (tmp_path / "s.toml").write_text(text)
        return load_suite("s.toml")

    return made


def problems_of(suite, text):
    with pytest.raises(SettingsError) as caught:
        suite(text)
    return caught.value.problems


def test_each_task_stands_with_each_algorithm(suite):
    made = {one.name: one for one in suite(SUITE).entries}
    assert list(made) == ["pole-ppo", "pole-dqn", "car-ppo", "car-dqn"]
    assert made["pole-dqn"].settings.memory.capacity_rows == 5000
    assert made["pole-ppo"].settings.memory.capacity_rows == 500
    assert made["pole-ppo"].settings.stop.env_steps == 1000
    assert made["car-ppo"].settings.stop.env_steps == 2000
    assert made["car-ppo"].settings.run.name == "car-ppo"


def test_the_text_of_an_entry_means_the_same_as_its_settings(suite, tmp_path):
    for one in suite(SUITE).entries:
        (tmp_path / "one.toml").write_text(one.text)
        assert load_settings(tmp_path / "one.toml").model_dump() == one.settings.model_dump()


def test_folders_of_own_code_are_seen_from_the_suites_file(suite, tmp_path):
    (tmp_path / "own").mkdir()
    made = suite(SUITE.replace("[settings]\n", '[settings]\nrun.python_path = ["own"]\n'))
    assert made.entries[0].settings.run.python_path == (str(tmp_path / "own"),)


def test_a_suite_is_known_by_its_table(tmp_path):
    (tmp_path / "s.toml").write_text(SUITE)
    (tmp_path / "t.toml").write_text('[task]\nenv = "CartPole-v1"\n')
    assert is_suite(str(tmp_path / "s.toml"))
    assert not is_suite(str(tmp_path / "t.toml"))
    assert not is_suite(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seeds = [0, 1]", "seeds = [0, 0]", "s.toml:2: suite.seeds: got a seed twice, expected each once"),
        ("seeds = [0, 1]", "seeds = []", "s.toml:2: suite.seeds: got a list, expected a list with at least 1 item"),
        ("env_steps = 1000\n", "env_step = 1000\n", 'did you mean "env_steps"?'),
        ("random = 22.0", "randm = 22.0", "s.toml:9: tasks.pole.randm: got 22.0, expected one of"),
        ("random = 22.0", "random = 500.0", "tasks.pole.reference: got 500.0, expected more than random, 500.0"),
        ("random = 22.0", "random = 501.0", "tasks.pole.reference: got 500.0, expected more than random, 501.0"),
        ("[tasks.pole]", '[tasks."a pole"]', 'got the name "a pole", expected a plain name'),
        ('algorithm.name = "ppo"\n', "", "algorithms.ppo.algorithm.name: got nothing, expected an algorithm"),
        ('task.env = "CartPole-v1"\n', "", "tasks.pole.task.env: got nothing, expected an environment"),
        ("[settings]", "[settings]\nrun.seed = 3", "expected python_path or allow_modules"),
        ("[settings]", "[setings]", 'did you mean "settings"?'),
        (
            "random = 22.0",
            "memory.capacity_rows = 9",
            "tasks.pole.memory.capacity_rows: got a value here and in algorithms.dqn, expected it in one of them",
        ),
        ("random = 22.0", "schedule.executor = 1", "with algorithms.ppo: schedule.executor: got 1, expected one of"),
    ],
)
def test_a_mistake_is_told_with_its_place(suite, old, new, said):
    assert old in SUITE
    problems = problems_of(suite, SUITE.replace(old, new, 1))
    assert any(said in problem for problem in problems), problems
    assert all(problem.startswith("s.toml:") for problem in problems)


def test_two_pairs_of_one_name_are_refused(suite):
    text = SUITE.replace("[tasks.car]", "[tasks.pole-a]").replace("[algorithms.dqn]", "[algorithms.a-ppo]")
    assert any('got two runs of the name "pole-a-ppo"' in problem for problem in problems_of(suite, text))


def test_a_suite_given_as_a_runs_settings_is_answered_with_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SUITE)
    with pytest.raises(SettingsError, match="this file is one for python -m mlxe_async compare"):
        load_settings("s.toml")
    (tmp_path / "s.toml").write_text('[sweep]\nsettings = "mine.toml"\n[search]\n')
    with pytest.raises(SettingsError, match="this file is one for python -m mlxe_async sweep"):
        load_settings("s.toml")


def test_the_suite_that_comes_with_the_package_is_four_tasks_by_three_algorithms_by_three_seeds():
    made = load_suite(str(ROOT / "settings" / "suites" / "classic.toml"))
    assert (len(made.entries), len(made.file.suite.seeds)) == (12, 3)


def test_sweeps_that_come_with_the_package_are_fine():
    from mlxe_async.settings.searching import load_sweep

    files = sorted((ROOT / "settings" / "sweeps").glob("*.toml"))
    assert files
    for file in files:
        assert load_sweep(str(file)).keys


def test_modules_that_may_be_named_are_the_suites_to_say(suite):
    made = suite(SUITE.replace("[settings]", '[settings]\nrun.allow_modules = ["mine"]', 1))
    assert {one.settings.run.allow_modules for one in made.entries} == {("mine",)}
