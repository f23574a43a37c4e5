"""The key of settings changes with each file that a run is made by."""

import pytest

from mlxe_async.cli.keys import key_of_settings
from mlxe_async.settings import load_settings

TEXT = """
[run]
python_path = ["."]
[task]
env = "mine:Task-v0"
wrappers = ["wraps:Own"]
reset_options = "items.jsonl"
[[task.stages]]
wrappers = ["staged:Own"]
until_steps = 5
[[task.stages]]
[algorithm]
name = "learns.deep:Own"
"""
FILES = ("run.toml", "mine.py", "wraps.py", "staged.py", "items.jsonl", "learns/deep.py", "learns/__init__.py")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "learns").mkdir()
    for name in FILES:
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "run.toml").write_text(TEXT)
    (tmp_path / "beside.py").write_text("a = 1\n")
    return tmp_path


def key(folder, overrides=()):
    path = str(folder / "run.toml")
    return key_of_settings(path, overrides, load_settings(path, list(overrides)))


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_changes_the_key(folder, name):
    before = key(folder)
    with (folder / name).open("a") as file:
        file.write("# changed\n")
    assert key(folder) != before


def test_overrides_change_the_key_and_files_that_nothing_names_do_not(folder):
    before = key(folder)
    (folder / "beside.py").write_text("a = 2\n")
    assert key(folder) == before
    assert key(folder, ["stop.env_steps=5"]) != before


def test_the_content_of_a_file_has_the_key_of_the_file(folder):
    settings = load_settings(folder / "run.toml")
    assert key_of_settings((folder / "run.toml").read_bytes(), (), settings) == key(folder)
