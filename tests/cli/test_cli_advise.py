"""`advise` tells which algorithms fit, writes a file that runs as it is, and lists ids."""

import tomllib

import pytest

from mlxe_async.cli import main
from mlxe_async.settings import load_settings


@pytest.mark.long
def test_it_ranks_what_fits_and_refuses_the_rest_with_a_reason(capsys):
    assert main(["advise", "Pendulum-v1"]) == 0
    page = capsys.readouterr().out
    assert "  1. sac, td3: actions are bounded numbers" in page
    assert "   - dqn: needs a task with discrete actions, got Box of shape (1,)" in page
    assert "measured      1,000 random steps" in page
    assert page.index('name = "sac"') > page.index("refused:")
    assert len(page.splitlines()) <= 60


@pytest.mark.long
def test_the_file_that_it_writes_holds_what_two_lines_would_choose(tmp_path, capsys):
    path = tmp_path / "frozen.toml"
    assert main(["advise", "FrozenLake-v1", "--steps", "20000", "--write", str(path)]) == 0
    assert f"written: {path}" in capsys.readouterr().out
    written = tomllib.loads(path.read_text())
    assert written["algorithm"]["name"] == "q_learning"
    assert written["algorithm"]["epsilon_steps"] == 2400
    assert written["stop"] == {"env_steps": 20000, "solved": True}
    assert load_settings(path).algorithm.table == written["algorithm"]
    assert main([str(path), "--check"]) == 0
    assert "defaults chosen" not in capsys.readouterr().out
    assert main(["advise", "FrozenLake-v1", "--write", str(path)]) == 2
    assert "which is there already, expected a new file" in capsys.readouterr().err


def test_a_check_tells_which_defaults_were_chosen_and_why(tmp_path, capsys):
    path = tmp_path / "two.toml"
    path.write_text('[task]\nenv = "Pendulum-v1"\n[algorithm]\nname = "td3"\n[stop]\nenv_steps = 9000\n')
    assert main([str(path), "--check"]) == 0
    page = capsys.readouterr().out
    assert "defaults chosen, by rule; a key that you write is taken instead:" in page
    assert "few numbers: a task of at most 8 numbers needs no wide layers" in page
    assert "algorithm.layers = [64, 64]" in page


def test_given_keys_are_kept_in_the_file(tmp_path, capsys):
    path = tmp_path / "lake.toml"
    given = ["--set", "task.kwargs={is_slippery = false}", "--set", "schedule.executors=1", "--algorithm", "dqn"]
    assert main(["advise", "FrozenLake-v1", *given, "--write", str(path)]) == 0
    capsys.readouterr()
    written = tomllib.loads(path.read_text())
    assert written["task"] == {"env": "FrozenLake-v1", "kwargs": {"is_slippery": False}}
    assert written["schedule"]["executors"] == 1
    assert written["algorithm"]["name"] == "dqn"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["advise"], "got no ENV"),
        (["advise", "Pendulm-v1"], "did you mean Pendulum-v1"),
        (["advise", "Pendulum-v1", "--algorithm", "dqn"], "needs a task with discrete actions"),
        (["advise", "CartPole-v1", "--algorithm", "dqnn"], "which is no built-in algorithm"),
        (["advise", "CartPole-v1", "--steps", "0"], "--steps: got 0"),
        (["advise", "CartPole-v1", "--set", "algorithm.epochs=3"], "--algorithm NAME chooses one"),
        (["advise", "CartPole-v1", "--set", "stop.env_steps=3"], "expected --steps N"),
        (["advise", "CartPole-v1", "--list", "x"], "--list: got CartPole-v1 too"),
    ],
)
def test_mistakes_are_told_in_one_line(words, told, capsys):
    assert main(words) == 2
    found = capsys.readouterr()
    assert told in found.err
    assert len(found.err.splitlines()) == 1
    assert found.out == ""


@pytest.mark.long
def test_ids_are_listed_by_a_part_of_their_name_or_a_form(capsys):
    assert main(["advise", "--list", "cartpole"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (own,) = [line for line in lines if line.startswith("CartPole-v1 ")]
    assert "limit 500; solved at 475; vectorize native" in own
    assert main(["advise", "--list", "Cart*-v1"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["CartPole-v1"]
    assert main(["advise", "--list", "no-such-thing"]) == 0
    assert capsys.readouterr().out == ""


def test_an_environment_beside_it_is_found_and_its_folder_is_written(tmp_path, monkeypatch):
    (tmp_path / "my_lamp.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n\n\nclass Lamp(CartPoleEnv):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["advise", "my_lamp:Lamp", "--write", "lamp.toml"]) == 0
    assert 'python_path = ["."]' in (tmp_path / "lamp.toml").read_text()
    assert load_settings("lamp.toml").run.python_path == (str(tmp_path),)
