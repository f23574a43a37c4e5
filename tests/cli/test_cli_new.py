"""`new NAME` writes files that run, learn and are tested as they are."""

import re
import subprocess
import sys
import tomllib

import pytest
from cli_tools import command

from mlxe_async import read_log
from mlxe_async.cli import main, new
from mlxe_async.errors import ResourceError
from mlxe_async.settings import load_settings

FILES = ["lamp.toml", "lamp_algorithm.py", "lamp_task.py", "test_lamp.py"]


@pytest.fixture
def lamp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "lamp"]) == 0
    return tmp_path / "lamp"


def in_folder(folder, *words):
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.long
def test_what_is_written_passes_its_own_test(lamp):
    assert sorted(path.name for path in lamp.iterdir()) == FILES
    done = in_folder(lamp, "pytest", "-q", "-p", "no:cacheprovider", "test_lamp.py")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("sets", [["schedule.kind=oa"], ["algorithm.name=ppo"], ["schedule.kind=serial"]], ids=str)
def test_what_the_settings_file_suggests_learns_it_too(lamp, sets):
    done = in_folder(lamp, "mlxe_async", "lamp.toml", "--no-progress", "--set", *sets)
    assert done.returncode == 0, done.stderr
    returns = [line["episode_return"] for line in read_log(lamp / "runs" / "latest") if line["event"] == "episode_end"]
    assert sum(returns[-50:]) > sum(returns[:50])


def test_what_is_written_is_clean_and_explained(lamp):
    done = in_folder(
        lamp, "ruff", "check", "--no-cache", "--isolated", "--select", "E,F,I,B,UP", "--line-length", "120", "."
    )
    assert done.returncode == 0, done.stdout
    assert "NAME" not in "".join(path.read_text() for path in lamp.iterdir())
    text = (lamp / "lamp.toml").read_text()
    keys = [line for line in text.splitlines() if re.match(r"\w+ = ", line)]
    assert len(keys) >= 12
    explained = [line for line in keys if "  # " in line]
    assert len(explained) >= len(keys) - 2
    assert load_settings(lamp / "lamp.toml").algorithm.name == "lamp_algorithm:ActorCritic"


def test_it_says_what_to_type_next(tmp_path, capsys):
    assert main(["new", "lamp", "--dir", str(tmp_path / "some where")]) == 0
    said = capsys.readouterr().out
    assert f"cd '{tmp_path}/some where/lamp'" in said
    assert all(name in said for name in FILES)


@pytest.mark.parametrize("name", ["Lamp", "9lives", "a-b", "../x", "class", "", "x" * 41, "ümlaut", "a\x1b[2J"])
def test_a_name_that_no_module_can_have_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", name]) == 2
    said = capsys.readouterr().err
    assert "expected a small letter" in said
    assert "\x1b" not in said
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_is_there_is_written_over(lamp, capsys):
    (lamp / "lamp.toml").write_text("mine")
    assert main(["new", "lamp"]) == 2
    assert "which is there already" in capsys.readouterr().err
    assert (lamp / "lamp.toml").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_told(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["new", "lamp", "--dir", str(tmp_path / "file")]) == 4
    assert "cannot be written" in capsys.readouterr().err


def test_examples_are_the_settings_files_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "lamp", "--examples"]) == 0
    found = sorted((tmp_path / "lamp" / "examples").iterdir())
    assert {"oa.toml", "is.toml", "schema.json"} <= {path.name for path in found}
    for path in found:
        if path.suffix == ".toml":
            tomllib.loads(path.read_text())
            assert load_settings(path).task.env


def test_an_installation_without_examples_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(new, "EXAMPLES", (tmp_path,))
    with pytest.raises(ResourceError, match="example settings files"):
        new.examples()


def test_nothing_heavy_is_needed_to_write_them(tmp_path):
    code = "import sys; from mlxe_async.cli import main; main(['new', 'lamp']); sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_command_itself_writes_them(tmp_path):
    assert command("new", "lamp", folder=tmp_path).returncode == 0
    assert (tmp_path / "lamp" / "lamp.toml").is_file()
