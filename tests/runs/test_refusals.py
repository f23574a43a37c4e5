"""What cannot work is refused before any role is started, with the place, the reason and the exit code."""

from importlib.util import find_spec

import pytest
from command import Command

from mlxe_async.cli import main

GOOD = """\
[stop]
env_steps = 200
[task]
env = "CartPole-v1"
[schedule]
kind = "is"
[algorithm]
name = "mlxe"
"""


@pytest.fixture
def ended(tmp_path):
    """`ended(toml, *arguments)`: the command run to its end; exit code, stderr, lines of its log."""

    def run(toml, *arguments):
        command = Command(tmp_path, toml, *arguments)
        try:
            exit_code, _, error = command.wait()
            return exit_code, error, command.lines()
        finally:
            command.close()

    return run


@pytest.mark.parametrize(
    ("override", "code", "said"),
    [
        ('task.env="CartPol-v1"', 2, "did you mean CartPole-v1"),
        pytest.param(
            'task.env="LunarLander-v3"',
            2,
            'pip install "mlxe_async[box2d]"',
            marks=pytest.mark.skipif(find_spec("Box2D") is not None, reason="Box2D is installed: nothing is missing"),
        ),
        ('task.env="no_such_module:Env-v0"', 2, "no_such_module"),
        ("algorithm.batchh=3", 2, 'did you mean "batch"'),
        ("algorithm.batch=0", 2, "algorithm.batch: got 0, expected a whole number of at least 1"),
        ('algorithm.name="nothing"', 2, "expected one of a2c"),
        ('learner.device="cuda"', 2, "torch finds no usable GPU"),
        ("schedule.executor=2", 2, 'did you mean "executors"'),
        ("memory.capacity_rows=1000000000", 4, "MiB"),
        ('run.dir="/proc/nothing"', 4, "no run folder can be made"),
    ],
)
def test_a_run_that_cannot_work_is_refused(tmp_path, capsys, override, code, said):
    file = tmp_path / "settings.toml"
    file.write_text(GOOD)
    runs = tmp_path / "runs"
    assert main([str(file), "--set", f'run.dir="{runs}"', "--set", override]) == code
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not list(runs.glob("*/log.jsonl"))


def test_the_command_says_so_by_its_exit_code(ended):
    exit_code, error, lines = ended(GOOD, "--set", 'task.env="CartPol-v1"')
    assert exit_code == 2, error
    assert "did you mean CartPole-v1" in error
    assert "Traceback" not in error
    assert not lines


def test_a_mistake_in_the_algorithms_own_keys_is_told_with_file_and_line(ended):
    exit_code, error, _ = ended(GOOD + "discount = 2.0\n")
    assert exit_code == 2
    assert "settings.toml:9: algorithm.discount: got 2.0, expected" in error


@pytest.mark.slow
def test_an_environment_that_ends_the_probe_is_refused_as_a_mistake_of_the_task(tmp_path, ended):
    (tmp_path / "fatal_task.py").write_text(
        "import os\n\nimport gymnasium\n\n\nclass Fatal(gymnasium.Env):\n    def __init__(self):\n        os._exit(0)\n"
    )
    override = f'[run]\npython_path = ["{tmp_path}"]\n'
    exit_code, error, _ = ended(GOOD.replace("CartPole-v1", "fatal_task:Fatal") + override)
    assert exit_code == 2, error
    assert 'settings.toml:4: the probe of task.env = "fatal_task:Fatal" failed: mlxe-probe' in error.splitlines()[-1]


@pytest.mark.slow
def test_an_algorithm_whose_constructor_raises_is_refused_with_the_line_in_its_file(tmp_path, ended):
    (tmp_path / "odd_algorithm.py").write_text(
        "from mlxe_async.algorithms.mlxe.paper import MLxE\n\n\nclass Odd(MLxE):\n"
        "    def __init__(self, *args, **kwargs):\n        self.nothing.there\n"
    )
    override = f'[run]\npython_path = ["{tmp_path}"]\n'
    exit_code, error, _ = ended(GOOD.replace('"mlxe"', '"odd_algorithm:Odd"') + override)
    assert exit_code == 2, error
    assert "its constructor raised AttributeError" in error
    assert "odd_algorithm.py:6" in error


@pytest.mark.slow
def test_an_environment_that_never_closes_is_not_refused(tmp_path, ended):
    (tmp_path / "open_task.py").write_text(
        "import threading\n\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\n\n"
        "class Open(CartPoleEnv):\n    def close(self):\n        threading.Event().wait()\n"
    )
    settings = GOOD.replace("CartPole-v1", "open_task:Open") + f'[run]\npython_path = ["{tmp_path}"]\n'
    exit_code, error, _ = ended(settings, "--check")
    assert exit_code == 0, error
