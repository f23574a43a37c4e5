"""Users of other packages type first what they know, and are answered in one line with what to type here."""

import copy
import re
import shlex

import numpy as np
import pytest
from cli_tools import command as run_command

import mlxe_async
from mlxe_async import Supervisor, cli, load_settings
from mlxe_async.algorithms import REGISTRY
from mlxe_async.cli.arguments import Parser
from mlxe_async.cli.elsewhere import OURS, answered
from mlxe_async.elsewhere import IMPORTS, RUNS
from mlxe_async.policy import Policy

WRITES = "python -m mlxe_async advise {} --write FILE.toml writes one"
TYPED = {
    # stable-baselines3 and its zoo
    "train.py --algo ppo --env CartPole-v1": WRITES.format("CartPole-v1 --algorithm ppo"),
    "--algo ppo --env CartPole-v1": WRITES.format("CartPole-v1 --algorithm ppo"),
    "--algo td3 --env Pendulum-v1 -n 50000": WRITES.format("Pendulum-v1 --algorithm td3"),
    "train --algo sac --env Pendulum-v1 --eval-freq 5000": "--eval-freq is --set evaluation.interval_steps=5000",
    "enjoy --algo ppo --env CartPole-v1": "expected python -m mlxe_async play latest --render",
    "enjoy.py --algo ppo": "play latest --render",
    "plot_train": "curve latest for numbers, report latest",
    "push_to_hub": "export latest --to card",
    "record_video": "play latest --video FILE.mp4",
    "benchmark": "--seeds 5, or compare FILE.toml OTHER.toml",
    "hyperopt": "tune FILE.toml",
    "evaluate": "eval latest",
    "hyperparams/ppo.yml": "expected a settings file in TOML",
    "FILE.toml --n-envs 8": "--n-envs is --set schedule.envs_per_executor=8 (for each of schedule.executors)",
    "FILE.toml --tensorboard-log runs": "--tensorboard-log is --set 'logs.export=[\"tensorboard\"]'",
    "FILE.toml --save-freq 1000": "--save-freq is --set checkpoint.interval_steps=1000",
    "FILE.toml --cuda False": "--cuda is --set learner.device=cpu",
    "FILE.toml --save-model": "--save-model is nothing: the run's folder keeps checkpoints",
    "FILE.toml --exploration-fraction 0.5": "--set algorithm.epsilon_steps=VALUE (in steps, not in shares of the run)",
    # CleanRL
    "ppo.py --env-id CartPole-v1 --total-timesteps 50000": "--total-timesteps is --set stop.env_steps=50000",
    "cleanrl/ppo.py --seed 1 --env-id Acrobot-v1": WRITES.format("Acrobot-v1 --algorithm ppo"),
    "sac_continuous_action.py": WRITES.format("ENV --algorithm sac"),
    "ddpg_continuous_action.py": WRITES.format("ENV --algorithm ddpg"),
    "td3_continuous_action_jax.py": WRITES.format("ENV --algorithm td3"),
    "ppo_atari_envpool.py": WRITES.format("ENV --algorithm ppo"),
    "rainbow_atari.py": WRITES.format("ENV --algorithm rainbow"),
    "c51.py --track": "--track is export latest --to tensorboard",
    "dqn.py --capture_video": "--capture_video is --set evaluation.video=true",
    "FILE.toml --seed 1": "--seed is --set run.seed=1",
    "FILE.toml --track --wandb-project-name x": "--track is export latest --to tensorboard",
    "FILE.toml --no-cuda --num-steps 128": "--num-steps is --set schedule.rollout_steps=128",
    "FILE.toml --learning-rate 3e-4": "--learning-rate is --set algorithm.learning_rate=3e-4",
    "FILE.toml --exp-name first": "--exp-name is --set run.name=first",
    "FILE.toml --num-minibatches=4": "--num-minibatches is --set algorithm.minibatch=VALUE (the rows of each, not how",
    "FILE.toml --torch-deterministic": "--torch-deterministic is --set schedule.kind=is",
    # RLlib
    "train --run PPO --env CartPole-v1": WRITES.format("CartPole-v1 --algorithm ppo"),
    "train file config.yaml": "expected FILE.toml, which says what to learn",
    "rollout": "play latest --render",
    "FILE.toml --num-workers 4": "--num-workers is --set schedule.executors=4",
    "FILE.toml --stop-timesteps 100": "--stop-timesteps is --set stop.env_steps=100",
    "evaluation": "eval latest",
    "tensorboard": "export latest --to tensorboard",
    # Sample Factory
    "--algo=APPO --env=doom_basic --experiment=x": WRITES.format("doom_basic --algorithm ppo"),
    "--env=CartPole-v1 --train_for_env_steps=5000": "--train_for_env_steps is --set stop.env_steps=5000",
    "--env=CartPole-v1 --train_dir=./runs": "--train_dir is --set run.dir=./runs",
    "--env=CartPole-v1 --num_envs_per_worker=8": "--num_envs_per_worker is --set schedule.envs_per_executor=8",
    "--env=CartPole-v1 --restart_behavior=resume": "--restart_behavior is --resume latest",
    "--env=CartPole-v1 --with_wandb=True": "--with_wandb is export latest --to tensorboard",
    # any
    "ppo": WRITES.format("ENV --algorithm ppo"),
    "PPO": WRITES.format("ENV --algorithm ppo"),
    "CartPole-v1": WRITES.format("CartPole-v1"),
    "ALE/Pong-v5": WRITES.format("ALE/Pong-v5"),
    "run FILE.toml": "expected FILE.toml",
    "continue": "--resume latest",
    "list": "advise --list for environments",
    "envs": "advise --list for environments",
    "monitor": "follow latest",
    "config": "--help settings",
    "settings.json": "in TOML",
    "--config FILE.toml": "--config is the file alone",
    "FILE.toml --executors 3": "--executors is --set schedule.executors=3",
    "FILE.toml --env_steps 5": "--env_steps is --set stop.env_steps=5",
}


def told(line, capsys):
    code = cli.main(shlex.split(line))
    return code, capsys.readouterr().err


def test_there_are_forty_lines_and_more():
    assert len(TYPED) >= 40


@pytest.mark.parametrize("line", TYPED)
def test_a_command_line_of_another_package_is_answered_in_one_line(line, capsys):
    code, said = told(line, capsys)
    assert code == 2
    assert len(said.splitlines()) == 1
    assert TYPED[line] in said, said
    assert "Traceback" not in said


def test_a_line_that_the_answer_gives_is_one_of_this_program(capsys):
    for line in TYPED:
        for command in re.findall(r"python -m mlxe_async (\w+)", answered(shlex.split(line))):
            assert command in (*cli.COMMANDS, "FILE")


@pytest.mark.parametrize(
    "line", ["FILE.toml", "FILE.toml --seeds 3", "--resume latest --check", "FILE.toml --set a.b=1 --no-progress"]
)
def test_a_command_line_of_this_program_is_not_answered(line):
    assert answered(shlex.split(line)) == ""


def test_the_options_of_a_run_are_known_here(monkeypatch):
    found = []
    monkeypatch.setattr(Parser, "parse_args", lambda parser, _: found.extend(parser._option_string_actions) or exit())
    with pytest.raises(SystemExit):
        cli.main(["FILE.toml"])
    assert {*found} <= {*OURS}


@pytest.mark.parametrize("name", IMPORTS)
def test_what_is_imported_from_another_package_is_answered(name):
    with pytest.raises(ImportError, match=f"mlxe_async has no {name}; write: ") as refusal:
        getattr(mlxe_async, name)
    for algorithm in re.findall(r'"name": "(\w+)"', str(refusal.value)):
        assert algorithm in REGISTRY


def test_another_name_is_no_attribute():
    assert not hasattr(mlxe_async, "nothing_of_the_kind")
    assert not hasattr(mlxe_async, "__path_of_nothing__")


@pytest.mark.parametrize("name", RUNS)
def test_a_method_of_what_trains_elsewhere_is_answered(name):
    supervisor = Supervisor(load_settings({"task": {"env": "CartPole-v1"}}))
    with pytest.raises(AttributeError, match=re.escape(f"has no attribute '{name}'; call {RUNS[name]}")):
        getattr(supervisor, name)


def test_methods_of_a_model_are_answered_by_a_policy_which_can_be_copied_all_the_same():
    policy = Policy.__new__(Policy)
    for name, ours in Policy.elsewhere.items():
        assert not hasattr(Policy, name)
        with pytest.raises(AttributeError, match=re.escape(f"; call {ours}")):
            getattr(policy, name)
    policy.flat = np.zeros(2, np.float32)
    assert copy.deepcopy(policy).flat.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("name", "key"), [("dqn", "batch"), ("ppo", "minibatch")])
def test_an_option_beside_a_file_is_answered_by_the_keys_of_its_algorithm(name, key, tmp_path, capsys):
    file = tmp_path / "a.toml"
    file.write_text(f'[task]\nenv = "CartPole-v1"\n[algorithm]\nname = "{name}"\n')
    assert cli.main([str(file), "--batch-size", "128"]) == 2
    assert f"--batch-size is --set algorithm.{key}=128" in capsys.readouterr().err


@pytest.mark.parametrize(("env", "said"), [("CartPole-v9", "did you mean CartPole-v1"), ("doom_basic", "my_task")])
def test_a_task_that_there_is_not_is_told_beside_other_mistakes(env, said, tmp_path, capsys):
    file = tmp_path / "a.toml"
    file.write_text(f'[task]\nenv = "{env}"\n[schedule]\nnum_workers = 2\n[algorithm]\nname = "APPO"\n')
    assert cli.main([str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert f'{file}:2: task.env: there is no environment "{env}"' in lines[2]
    assert said in lines[2]


@pytest.mark.parametrize(
    ("algorithm", "table", "told"),
    [
        ("ppo", "gama = 0.9", ["algorithm.gama: got 0.9"]),
        ("APPO", "gamma = 0.9\n[schedule]\nnum_workers = 2", ["algorithm.name: got", "algorithm.gamma", "num_workers"]),
    ],
)
def test_a_task_that_there_is_not_is_told_beside_all_other_mistakes(tmp_path, algorithm, table, told):
    (tmp_path / "a.toml").write_text(f'[task]\nenv = "Nope-v0"\n[algorithm]\nname = "{algorithm}"\n{table}\n')
    done = run_command("a.toml", "--check", folder=tmp_path)
    assert done.returncode == 2
    for one in (*told, 'there is no environment "Nope-v0"'):
        assert one in done.stderr
