"""What somebody's module changes in a built-in algorithm is what is learned, by whatever way it is changed."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import ATTACKS

TELLER = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, torch
import attacks, made_rows, proof
from mlxe_async.algorithms import Clock, load_algorithm
from mlxe_async.fast import manifest, updates

def learned(name, fast):
    spaces = proof.BOX if name in ("sac", "td3", "ddpg") else made_rows.SPACES
    algorithm = made_rows.agent(name, spaces=spaces)
    way, rows = updates(algorithm, fast=fast), made_rows.batch(algorithm, scale=2.0)
    for number in range(3):
        way.update(rows, Clock(updates=number, env_steps=20 * number))
    return algorithm.weights(), way.reason

for name in ("ppo", "dqn", "mlxe", "sac", "td3", "ddpg"):
    learned(name, True)
before = {name: learned(name, False)[0] for name in ("ppo", "dqn", "mlxe", "sac", "td3", "ddpg")}
print("ready", flush=True)
for line in sys.stdin:
    if os.fork() == 0:
        name, attack, when = json.loads(line)
        if when == "first":
            manifest._EQUAL.clear()
        try:
            if attack:
                attacks.ATTACKS[attack][1]()
            torch.manual_seed(0)
            fast, reason = learned(name, True)
            torch.manual_seed(0)
            written, _ = learned(name, False)
            told = [reason, bool(np.array_equal(fast, written)), bool(np.array_equal(written, before[name]))]
        except Exception as error:
            told = [f"{type(error).__name__}: {error}", None, None]
        print(json.dumps(told), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def teller():
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", TELLER, here]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        # Until its environment can be read, the process passes for one that the first test has begun.
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def told_by(teller, name, attack="", when="first"):
    """Why there is no twin, whether what was learned is what is written, and whether that is as without the attack."""
    print(json.dumps([name, attack, when]), file=teller.stdin, flush=True)
    line = teller.stdout.readline()
    assert line, "the process ended without a word"
    return json.loads(line)


@pytest.mark.long
def test_without_an_attack_each_algorithm_has_its_twin(teller):
    for name in ("ppo", "dqn", "mlxe", "sac", "td3", "ddpg"):
        reason, _, is_unchanged = told_by(teller, name)
        assert (reason, is_unchanged) == ("", True), name


def some_and_all():
    """Each fifth attack, and all of them where there is time."""
    cases = itertools.product(ATTACKS, ("first", "later"))
    return [pytest.param(*case, marks=pytest.mark.slow if number % 5 else ()) for number, case in enumerate(cases)]


@pytest.mark.parametrize(("attack", "when"), some_and_all())
def test_what_somebodys_module_changes_is_learned(attack, when, teller):
    """Whether it is changed before anything was compared or afterwards."""
    reason, is_written, is_unchanged = told_by(teller, ATTACKS[attack][0], attack, when)
    assert reason, "the twin was kept"
    assert is_unchanged is False, f"the attack has no effect: {reason}"
    assert is_written, reason
