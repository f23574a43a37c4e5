"""A sample of the comparison of a learner's gradients with autograd's, for mutants; the whole is `gradients.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TRUSTING = """
import importlib, sys
sys.path.insert(0, {here!r})
import gradients

def trusting(algorithm):
    name = type(algorithm).__name__.lower()
    return importlib.import_module("mlxe_async.fast").twin_of(name, algorithm)

gradients.learners_way = trusting
sys.exit(gradients.main())
"""


def run(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_what_a_learner_uses_is_the_gradient_of_the_changed_file():
    done = run(HERE / "gradients.py", "--sample", "5", "--seed", "5", "--list")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 mutants compared" in done.stdout


@pytest.mark.slow
def test_the_comparison_notices_a_twin_that_stands_for_changed_code():
    done = run("-c", TRUSTING.format(here=str(HERE)), "--files", "algorithms/dqn", "--sample", "30", "--seed", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert " 0 differ" not in done.stdout
