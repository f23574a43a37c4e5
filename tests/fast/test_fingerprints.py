"""A fingerprint changes with every function that an update can reach, and with nothing else."""

import contextlib
import shutil
import subprocess
import sys

import pytest

from mlxe_async.fast import fingerprints

PACKAGE = fingerprints.KEPT.parents[1]
EDITS = {
    "a sign in a loss": ("algorithms/ppo.py", "return -(ratio * advantage)", "return (ratio * advantage)", "ppo"),
    "a bound": ("algorithms/ppo.py", "ratio.clamp(1 - clip", "ratio.clamp(1 - 2 * clip", "ppo"),
    "the update": ("algorithms/dqn.py", "loss.backward()", "loss.neg().backward()", "dqn"),
    "what is before it": ("algorithms/value_based.py", ".target_every == 0", ".target_every == 1", "dqn"),
    "what an update calls": ("maths/returns.py", "    return advantage", "    return 2 * advantage", "ppo"),
    "a constant": ("maths/normaliser.py", "LIMIT = 10.0", "LIMIT = 9.0", "mlxe"),
    "a default": ("maths/vtrace.py", "c_clip: float = 1.0", "c_clip: float = 0.9", "mlxe"),
    "the network": ("networks/learning.py", "* 2).sigmoid() * 2 - 1", "* 2).sigmoid()", "dqn"),
    "what three share": ("algorithms/continuous.py", "s.discount * (1 - batch", "(1 - batch", "td3"),
    "noise on a target": ("algorithms/td3.py", "deviation * normal", "2 * deviation * normal", "td3"),
    "a temperature": ("algorithms/sac.py", "entropy.detach() - target", "entropy.detach() + target", "sac"),
    "an actor's loss": ("algorithms/ddpg.py", "return -q.mean()", "return -q.median()", "ddpg"),
    "a step": ("optimisers.py", "weight_decay=0.0", "weight_decay=0.1", "dqn"),
}


TELLER = """
import os, sys
import gymnasium, numpy, pydantic, torch  # once: what is edited is imported anew by each child
for line in sys.stdin:
    if os.fork() == 0:
        import mlxe_async.fast.fingerprints as fingerprints
        from mlxe_async.algorithms import load_algorithm
        name, touched = line.split(",")
        algorithm = load_algorithm(name)
        if touched.strip():
            late = fingerprints.IMPORTED_NS + 1
            os.utime(sys.modules[touched.strip()].__file__, ns=(late, late))
        print(fingerprints.difference(algorithm, name), flush=True)
        os._exit(0)
    os.wait()
"""


class Copied:
    """A copy of the package, and what differs in it."""

    def __init__(self, tree):
        self.package = tree / "mlxe_async"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        # No bytecode is kept: it is told from its source by whole seconds.
        self.teller = subprocess.Popen(
            [sys.executable, "-B", "-c", TELLER], cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def said(self, name, touched=""):
        """What differs, by a process of its own; a file may change once it has begun."""
        print(name, touched, sep=",", file=self.teller.stdin, flush=True)
        line = self.teller.stdout.readline()
        assert line.endswith("\n"), "the process ended without a word"
        return line.strip()

    @contextlib.contextmanager
    def edited(self, place, text):
        """Another text of a file, for a while."""
        path = self.package / place
        before = path.read_text()
        path.write_text(text)
        try:
            yield
        finally:
            path.write_text(before)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    made = Copied(tmp_path_factory.mktemp("copied"))
    with made.teller:
        yield made
        made.teller.stdin.close()


@pytest.mark.parametrize("edit", EDITS)
def test_a_file_that_is_edited_in_place_is_noticed(copied, edit):
    place, before, after, name = EDITS[edit]
    text = (copied.package / place).read_text()
    assert before in text
    with copied.edited(place, text.replace(before, after, 1)):
        assert place.removesuffix(".py").replace("/", ".") in copied.said(name)


def test_what_an_update_does_not_reach_may_change(copied):
    place = "maths/returns.py"
    more = 'def more():\n    """Nobody calls it."""\n    return 1\n'
    with copied.edited(place, f"{(copied.package / place).read_text()}\n\n{more}"):
        assert [copied.said(name) for name in ("ppo", "dqn")] == ["", ""]


def test_a_file_that_changes_under_a_running_program_counts_as_changed(copied):
    assert "mlxe_async.algorithms.ppo" in copied.said("ppo", touched="mlxe_async.algorithms.ppo")


def test_a_function_is_told_from_its_double_elsewhere():
    def double(q):
        return q

    other = type(double)(double.__code__, {"__name__": "elsewhere"}, "double")
    assert fingerprints.digest(double) != fingerprints.digest(other)
    made = eval("lambda q: q")  # noqa: S307 - a function without a file
    assert fingerprints.digest(made) == "it has no file"
