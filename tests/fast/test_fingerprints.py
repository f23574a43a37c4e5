"""A fingerprint changes with every function that an update can reach, and with nothing else."""

import shutil
import subprocess
import sys

import pytest

from mlxe_async.fast import fingerprints

PACKAGE = fingerprints.KEPT.parents[1]
SAY = "from mlxe_async.algorithms import load_algorithm; from mlxe_async.fast.fingerprints import difference"
EDITS = {
    "a sign in a loss": ("algorithms/ppo.py", "return -(ratio * advantage)", "return (ratio * advantage)", "ppo"),
    "a bound": ("algorithms/ppo.py", "ratio.clamp(1 - clip", "ratio.clamp(1 - 2 * clip", "ppo"),
    "the update": ("algorithms/dqn.py", "% s.target_every == 0", "% s.target_every == 1", "dqn"),
    "what an update calls": ("maths/returns.py", "    return advantage", "    return 2 * advantage", "ppo"),
    "a constant": ("maths/normaliser.py", "LIMIT = 10.0", "LIMIT = 9.0", "mlxe"),
    "a default": ("maths/vtrace.py", "c_clip: float = 1.0", "c_clip: float = 0.9", "mlxe"),
    "the network": ("networks/learning.py", "* 2).sigmoid() * 2 - 1", "* 2).sigmoid()", "dqn"),
    "a step": ("optimisers.py", "weight_decay=0.0", "weight_decay=0.1", "dqn"),
}


def said(tree, name):
    """What differs in a copy of the package, by a program of its own."""
    script = f"{SAY}; print(difference(load_algorithm({name!r}), {name!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tree, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    tree = tmp_path_factory.mktemp("copied")
    shutil.copytree(PACKAGE, tree / "mlxe_async", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.mark.parametrize("edit", EDITS)
def test_a_file_that_is_edited_in_place_is_noticed(copied, edit):
    place, before, after, name = EDITS[edit]
    path = copied / "mlxe_async" / place
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    try:
        assert place.removesuffix(".py").replace("/", ".") in said(copied, name)
    finally:
        path.write_text(text)


def test_what_an_update_does_not_reach_may_change(copied):
    path = copied / "mlxe_async/maths/returns.py"
    text = path.read_text()
    path.write_text(f'{text}\n\ndef more():\n    """Nobody calls it."""\n    return 1\n')
    try:
        assert [said(copied, name) for name in ("ppo", "dqn")] == ["", ""]
    finally:
        path.write_text(text)


def test_a_file_that_changes_under_a_running_program_counts_as_changed(copied):
    script = (
        f"import os, time; {SAY}; import mlxe_async.algorithms.ppo as ppo; "
        "late = time.time() + 1; os.utime(ppo.__file__, (late, late)); "
        "print(difference(load_algorithm('ppo'), 'ppo'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=copied, capture_output=True, text=True, check=True, timeout=120
    )
    assert "mlxe_async.algorithms.ppo" in done.stdout


def test_a_function_is_told_from_its_double_elsewhere():
    def double(q):
        return q

    other = type(double)(double.__code__, {"__name__": "elsewhere"}, "double")
    assert fingerprints.digest(double) != fingerprints.digest(other)
    made = eval("lambda q: q")  # noqa: S307 - a function without a file
    assert fingerprints.digest(made) == "it has no file"
