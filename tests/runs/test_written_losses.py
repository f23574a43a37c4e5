"""Whole runs with changed losses, as a user's file outside of the package and in place: both learn what is written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from live_runs import settings
from papers import PACKAGE, place_of, text_of

from mlxe_async.algorithms import load_algorithm
from mlxe_async.settings import dump_settings

PPO_MEASURED = "            measured.append(found)\n"
PPO_FOUND = '        found = {"policy_loss": actor'
PPO_ROLE = '    off_policy = "corrects"'
MLXE = {"name": "mlxe", "min_updates": 4, "batch": 64}
PPO = {"name": "ppo", "epochs": 4, "minibatch": 64, "minibatches": "rows", "learning_rate": 0.01}
ONE_EPOCH = PPO | {"epochs": 1, "minibatches": "sequences"}
# what is changed -> the algorithm, and what is replaced by what
WRITTEN = {
    "advantages clamped to ten": (
        MLXE | {"return_scale": 20.0},
        {"weighted_advantage.detach()": "weighted_advantage.detach().clamp(-10, 10)"},
    ),
    "Huber with delta 10": (
        MLXE,
        {
            "return 0.5 * (target.detach() - value).square()": "far = (target.detach() - value).abs()\n"
            "        return (0.5 * far.square()).where(far < 10, 10 * (far - 5))"
        },
    ),
    "weight decay in the loss": (
        MLXE,
        {
            "loss, value_mean, entropy_mean = (": "decay = 1e-3 * sum(leaf.square().sum() for leaf in "
            "self.learned.parameters())\n        loss, value_mean, entropy_mean = (",
            "return loss, {name": "return loss + decay, {name",
        },
    ),
    "entropy annealed by the clock": (
        MLXE,
        {
            "self.follow(clock)\n": "self.follow(clock)\n        self._weight = clock.env_steps / 1500\n",
            "- s.entropy * entropy": "- self._weight * entropy",
        },
    ),
    "adaptive KL from a coefficient of 0": (
        PPO,
        {
            PPO_MEASURED: PPO_MEASURED + "            far = found['approximate_kl'] > 0.002\n"
            "            self._beta = 2 * self._beta + 0.1 if far else self._beta / 2\n",
            PPO_FOUND: f"        total = total + self._beta * divergence\n{PPO_FOUND}",
            PPO_ROLE: f"    _beta = 0.0\n{PPO_ROLE}",
        },
    ),
    "dual clip": (
        PPO,
        {
            "    return -(ratio * advantage).minimum(ratio.clamp(1 - clip, 1 + clip) * advantage).mean()": "    "
            "gain = (ratio * advantage).minimum(ratio.clamp(1 - clip, 1 + clip) * advantage)\n"
            "    return -gain.maximum(1.3 * advantage).where(advantage < 0, gain).mean()"
        },
    ),
    "another loss of PPO's one epoch": (
        ONE_EPOCH,
        {"error = (target.detach() - value).square()": "error = 2 * (target.detach() - value).abs()"},
    ),
}


def command(folder, algorithm, *, fast, package=PACKAGE.parent, python_path=(), kind="is"):
    """Run a settings file by the command of `package`. Returns how its learner updated and the hash of its weights."""
    rollout = {"envs_per_executor": 2, "sync": "rollout", "rollout_steps": 32} if "epochs" in algorithm else {}
    schedule = rollout | {"kind": kind}
    places = {"dir": str(folder / "runs"), "python_path": [str(one) for one in python_path]}
    chosen = settings(algorithm=algorithm, schedule=schedule, learner={"fast": fast, "audit_every": 1}, run=places)
    file = folder / "settings.toml"
    file.write_text(dump_settings(chosen, idle=[("memory", "keep_rows")] if rollout else []))
    run = subprocess.run(
        [sys.executable, "-m", "mlxe_async", str(file)],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [json.loads(line) for line in (folder / "runs" / "latest" / "log.jsonl").read_text().splitlines()]
    (how,) = [line for line in lines if line["event"] == "updates"]
    (end,) = [line for line in lines if line["event"] == "run_end"]
    assert end["updates"] > 3
    return how, end["weights_hash"]


def changed(text, changes):
    for before, after in changes.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    """What the unchanged files learn by their fast gradients; each is run once."""
    known = {}

    def of(algorithm):
        key = repr(algorithm)
        if key not in known:
            how, known[key] = command(tmp_path_factory.mktemp("unchanged"), algorithm, fast=True)
            assert how["fast"]
        return known[key]

    return of


@pytest.mark.slow
@pytest.mark.parametrize("what", WRITTEN)
def test_a_changed_loss_is_what_is_learned(what, unchanged, tmp_path):
    algorithm, changes = WRITTEN[what]
    name = algorithm["name"]
    text = changed(text_of(name), changes)
    own, edited = tmp_path / "own", tmp_path / "edited"
    own.mkdir()
    (own / "my_loss.py").write_text(text)
    mine = algorithm | {"name": f"my_loss:{load_algorithm(name).__name__}"}
    shutil.copytree(PACKAGE, edited / PACKAGE.name)
    (edited / PACKAGE.name / place_of(name)).write_text(text)

    copy, in_copy = command(own, mine, fast=True, python_path=[own])
    in_place, in_edited = command(edited, algorithm, fast=True, package=edited)
    assert (copy["fast"], in_place["fast"]) == (False, False)
    assert "algorithms" in in_place["reason"]
    assert in_copy == in_edited != unchanged(algorithm)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "oa"])
def test_a_changed_way_of_acting_is_done_without_the_twin(kind, tmp_path):
    """The stored log-probabilities are those of the behaviour that was written, which the twin does not know."""
    place = Path("algorithms") / "parts" / "on_policy.py"
    written = "return self.distribution(self.common(self.see(obs)), self.spaces.mask(obs))"
    flatter = written.replace("self.common(self.see(obs))", "self.common(self.see(obs)) / 3")
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name)
    (tmp_path / PACKAGE.name / place).write_text(changed((PACKAGE / place).read_text(), {written: flatter}))
    how, _ = command(tmp_path, PPO, fast=True, package=tmp_path, kind=kind)
    assert (how["fast"], "algorithms.parts.policies:" in how["reason"]) == (False, True)
