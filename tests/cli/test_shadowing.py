"""Files in the working folder that are called like a module of Python, of a package, or like the program itself."""

import keyword
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cold

ROOT = Path(__file__).parents[2]
STAND_IN = "open('ran', 'a').write(__name__ + ' ')\n"


def command(folder, *arguments, flags=()):
    """(exit code, its last line on stderr, what of the folder has run)."""
    done = subprocess.run(
        [sys.executable, *flags, "-m", "mlxe_async", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    ran = folder / "ran"
    return done.returncode, (done.stderr.splitlines() or [""])[-1], ran.read_text() if ran.exists() else ""


@pytest.mark.parametrize(
    "name", ["typing", "random", "json", "numpy", "__future__", "time", "signal", "argparse", "struct"]
)
@pytest.mark.parametrize("is_package", [False, True], ids=["file", "package"])
def test_what_the_program_imports_is_not_taken_from_the_working_folder(tmp_path, name, is_package):
    path = tmp_path / name / "__init__.py" if is_package else tmp_path / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(STAND_IN)
    assert command(tmp_path, "--version") == (0, "", "")


@pytest.mark.long
def test_neither_is_what_a_run_imports(tmp_path):
    for name in ("typing", "random", "json", "numpy", "torch", "gymnasium", "asyncio", "uvloop", "multiprocessing"):
        (tmp_path / f"{name}.py").write_text(STAND_IN)
    (tmp_path / "run.toml").write_text('[task]\nenv = "CartPole-v1"\n')
    code, said, ran = command(tmp_path, "run.toml", "--check")
    assert (code, ran) == (0, ""), said


@pytest.mark.parametrize("is_package", [False, True], ids=["file", "package"])
def test_what_python_imports_before_the_program_is_refused_by_name(tmp_path, is_package):
    path = tmp_path / "keyword" / "__init__.py" if is_package else tmp_path / "keyword.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(Path(keyword.__file__).read_text() + STAND_IN)
    code, said, ran = command(tmp_path, "--version")
    assert (code, ran) == (2, "keyword ")
    assert said.startswith(f"{path} has run in place of Python's own module keyword, which is imported before this")
    assert said.endswith("rename it, or use python -P -m mlxe_async")
    (tmp_path / "ran").unlink()
    assert command(tmp_path, "--version", flags=["-P"]) == (0, "", "")


def test_a_file_that_is_called_like_the_program_runs_only_where_python_is_not_told_to_leave_it(tmp_path):
    (tmp_path / "mlxe_async.py").write_text(STAND_IN)
    assert command(tmp_path, "--version", flags=["-P"]) == (0, "", "")
    code, _, ran = command(tmp_path, "--version")
    assert (code, ran) == (0, "__main__ ")


def test_the_program_runs_in_the_folder_of_pythons_own_modules_and_in_its_own(tmp_path):
    for folder in (Path(os.__file__).parent, ROOT):
        done = command(folder, "--version")
        assert done[0] == 0, done


def test_who_imports_the_package_keeps_the_path(tmp_path):
    (tmp_path / "own.py").write_text("import sys, mlxe_async\nprint(sys.path[0])")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("import mlxe_async")
    (tmp_path / "other" / "__main__.py").write_text("import sys\nprint(sys.path[0])")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for arguments in (["own.py"], ["-m", "own"], ["-m", "other"]):
        command_line = [sys.executable, *arguments]
        done = subprocess.run(command_line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(tmp_path)
