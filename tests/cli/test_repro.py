"""`repro`: what brought an environment down does so again, with the same seed and the same actions, or it is said."""

from types import SimpleNamespace

import pytest

from mlxe_async.cli import main, repro
from mlxe_async.settings import load_settings
from mlxe_async.storage.crash_reports import CrashReport

MODULE = '''
import os, signal, time
import gymnasium
import numpy as np


class Brittle(gymnasium.Env):
    """Breaks as told at the step at which the actions so far, and the seed, spell its password."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, fault):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        self.said = [seed]
        if self.fault == "reset" and seed == 77:
            os._exit(9)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.said.append(action)
        if self.said == [77, 2, 0, 1]:
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.fault == "hang":
                time.sleep(1e6)
            if self.fault == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            raise ValueError("a word of its own")
        return np.zeros(1, np.float32), 0.0, False, False, {}
'''


def test_an_episode_whose_stage_or_item_is_not_known_is_not_lived_again(tmp_path, monkeypatch, capsys):
    report = SimpleNamespace(env=0, seed=1, step=2, what="it fell", place="", actions=(), process="mlxe-exe-0", epoch=1)
    monkeypatch.setattr(repro, "read_report", lambda path: report)
    task = {"env": "CartPole-v1", "stages": [{"until_steps": 1}, {}]}
    monkeypatch.setattr(repro, "settings_of_run", lambda folder, trust: load_settings({"task": task}))
    assert main(["repro", str(tmp_path / "crash.txt")]) == 3
    assert "task.stages: which of them the episode had is not in the report" in capsys.readouterr().err


@pytest.fixture
def again(tmp_path, capfd):
    """Write a run's settings and a report, and have it lived again: exit code, stdout, stderr."""

    def live(fault, **known):
        (tmp_path / "brittle_again.py").write_text(MODULE)
        (tmp_path / "crash").mkdir(exist_ok=True)
        (tmp_path / "settings.toml").write_text(
            f'[run]\npython_path = ["{tmp_path}"]\n'
            f'[task]\nenv = "brittle_again:Brittle"\nkwargs = {{fault = "{fault}"}}\n'
            '[schedule]\nkind = "is"\nstep_timeout_s = 2.0\n'
        )
        about = {"env": 0, "phase": "step", "episode": 1, "seed": 77, "step": 3, "actions": [2, 0, 1], **known}
        report = CrashReport(
            "it died", "a-run", "mlxe-exe-0", "executor", 7, 2, "2026", executor=0, environment="Brittle", **about
        )
        code = main(["repro", str(report.write(tmp_path / "crash")), "--trust", "brittle_again"])
        return code, *capfd.readouterr()

    return live


def test_what_killed_it_kills_it_again(again):
    code, out, _ = again("kill")
    assert code == 0
    assert "step 3 of episode 1 (seed 77)" in out
    assert "with the same seed and the same 3 actions" in out
    assert "it came again: killed by SIGSEGV in step 3" in out
    assert "in step\n" in out.replace("  | ", "")  # its stack


def test_what_does_not_come_again_is_said_to(again):
    code, _, error = again("kill", actions=[2, 0, 0])
    assert code == 3
    assert "it did not come again: 3 steps were taken" in error


def test_what_is_no_report_about_an_environment_is_told_so(again, tmp_path):
    code, _, error = again("kill", env=None)
    assert (code, "about no environment" in error) == (3, True)
    assert main(["repro", str(tmp_path / "settings.toml")]) == 2
    assert main(["repro", str(tmp_path / "nothing")]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise", "it came again: a fault of the environment in step 3"),
        ("hang", "it came again: step 3 did not return within 2 s"),
        ("stop", "it came again: step 3 did not return within 2 s"),
    ],
)
def test_faults_that_do_not_kill_come_again_too(again, fault, said):
    code, out, _ = again(fault)
    assert (code, said in out) == (0, True), out


@pytest.mark.slow
def test_a_death_in_a_reset_comes_again(again):
    code, out, _ = again("reset", phase="reset", step=0, actions=[])
    assert (code, "it came again: ended with exit code 9 in reset" in out) == (0, True), out


@pytest.mark.slow
def test_without_actions_and_without_a_policy_nothing_is_pretended(again):
    code, out, error = again("kill", actions=None)
    assert code == 3
    assert "other actions, for the first ones are not known" in out
    assert "neither the actions are known nor a policy" in out + error
