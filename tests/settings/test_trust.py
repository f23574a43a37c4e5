"""Code that a run's folder names runs if it is this user's own run, or trusted by name; none of a stranger's does."""

import os
import subprocess
import sys

import pytest

from mlxe_async import errors
from mlxe_async.settings import dump_settings, load_settings
from mlxe_async.settings.trust import Needed, code_of, seal_of, settings_of_run
from mlxe_async.storage import seals

ALGORITHM = """
from mlxe_async.algorithms.mlxe.paper import MLxE
class Own(MLxE):
    pass
"""


def made(folder, *, seal=True, **tables):
    """A run's folder of settings alone, with a module and a wrapper of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own_one.py").write_text(ALGORITHM)
    tree = {"task": {"env": "CartPole-v1"}, "run": {"python_path": [str(folder)]}, **tables}
    settings = load_settings(tree)
    (folder / "settings.toml").write_text(dump_settings(settings))
    if seal:
        (folder / "seal").write_text(seal_of(settings))
    return folder


OWN = {"algorithm": {"name": "own_one:Own"}}


def test_an_own_run_needs_no_word(tmp_path):
    folder = made(tmp_path / "run", **OWN)
    assert settings_of_run(folder).run.python_path == (str(folder),)


def test_a_run_from_elsewhere_is_refused_with_what_to_add(tmp_path):
    folder = made(tmp_path / "run", seal=False, **OWN)
    with pytest.raises(errors.Untrusted) as refusal:
        settings_of_run(folder)
    (said,) = refusal.value.problems
    assert 'algorithm.name = "own_one:Own"' in said
    assert f"--trust {folder}" in said
    assert f'trust=["{folder}"]' in said
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("trust", [["own_one"], ["{folder}"], ["{folder}/.."]])
def test_a_module_or_folder_that_is_trusted_is_used(trust, tmp_path):
    folder = made(tmp_path / "run", seal=False, **OWN)
    found = settings_of_run(folder, trust=[one.format(folder=folder) for one in trust])
    assert found.run.python_path == (str(folder),)


@pytest.mark.parametrize("trust", [["own"], ["own_one.more"], ["/nowhere"], ["own_one:Own"]])
def test_trust_of_something_else_does_not_help(trust, tmp_path):
    folder = made(tmp_path / "run", seal=False, **OWN)
    with pytest.raises(errors.Untrusted):
        settings_of_run(folder, trust=trust)


def test_folders_of_a_run_that_names_only_built_in_code_are_left_out(tmp_path):
    folder = made(tmp_path / "run", seal=False)
    assert settings_of_run(folder).run.python_path == ()


def test_a_folder_that_the_caller_names_by_an_override_is_used(tmp_path):
    folder, mine = made(tmp_path / "run", seal=False), tmp_path / "mine"
    mine.mkdir()
    assert settings_of_run(folder, {"run.python_path": [str(mine)]}).run.python_path == (str(mine),)


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": {"name": "other:Own"}},
        {"task": {"env": "own_one:Env"}},
        {"task": {"env": "CartPole-v1", "kwargs": {"sutton_barto_reward": True}}},
        {"task": {"env": "CartPole-v1", "wrappers": ["own_one:Wrap"]}},
    ],
)
def test_a_seal_is_of_the_names_that_it_was_made_for(change, tmp_path):
    folder = made(tmp_path / "run", **OWN)
    other = made(tmp_path / "run", seal=False, **{**OWN, **change})
    assert other == folder
    with pytest.raises(errors.Untrusted):
        settings_of_run(folder)


def test_a_seal_of_another_user_or_machine_does_not_fit(tmp_path, monkeypatch):
    folder = made(tmp_path / "run", **OWN)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    with pytest.raises(errors.Untrusted):
        settings_of_run(folder)


def test_a_secret_that_others_can_read_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    seal = seals.sealed({"a": 1})
    assert seals.fits(seal, {"a": 1})
    (tmp_path / "state" / "mlxe_async" / "secret").chmod(0o644)
    assert not seals.fits(seal, {"a": 1})


def test_without_a_place_for_a_secret_nothing_is_sealed(tmp_path, monkeypatch):
    (tmp_path / "state").write_text("a file")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert seals.sealed({"a": 1}) == ""
    assert not seals.fits("", {"a": 1})


def test_processes_that_begin_together_have_one_secret(tmp_path):
    script = "from mlxe_async.storage.seals import sealed; print(sealed(1))"
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    children = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert len({child.communicate(timeout=60)[0] for child in children}) == 1
    assert [path.name for path in (tmp_path / "mlxe_async").iterdir()] == ["secret"]


def test_built_in_code_takes_no_seal():
    assert seal_of(load_settings({"task": {"env": "CartPole-v1"}})) == ""


@pytest.mark.parametrize(
    ("task", "is_plain"),
    [
        ({"env": "CartPole-v1", "wrappers": ["gymnasium.wrappers:ClipReward"]}, True),
        ({"env": "CartPole-v1", "wrappers": ["gymnasium.wrappers:RecordVideo"]}, False),
        ({"env": "CartPole-v1", "wrappers": ["gymnasium.wrappers.vector:ClipReward"]}, False),
        ({"env": "ale_py:ALE/Pong-v5"}, False),
        ({"env": "GymV26Environment-v0"}, False),
    ],
)
def test_of_gymnasium_alone_some_wrappers_need_no_trust(task, is_plain):
    needed = Needed(load_settings({"task": task}), ())
    assert (needed.untrusted == []) == is_plain


def test_what_a_seal_is_of_tells_no_secrets():
    code = code_of(load_settings({"task": {"env": "CartPole-v1", "kwargs": {"api_token": "abc"}}}))
    assert "abc" not in str(code)


def test_whoever_cannot_leave_a_folder_out_refuses_it(tmp_path):
    settings = load_settings({"task": {"env": "CartPole-v1"}, "run": {"python_path": [str(tmp_path)]}})
    with pytest.raises(errors.Untrusted, match=r"run.python_path\[0\]"):
        Needed(settings, ()).refuse_folders("a study")
    Needed(settings, [str(tmp_path)]).refuse_folders("a study")
