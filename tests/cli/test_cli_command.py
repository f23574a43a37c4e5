"""The command tells mistakes without a traceback, by its exit code and its last line."""

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from unittest import mock

import pytest
from cli_tools import GOOD, command, install, result

from mlxe_async import cli, errors
from mlxe_async.algorithms import REGISTRY, load_algorithm
from mlxe_async.cli import COMMANDS, help_text, main
from mlxe_async.cli.explain import algorithm_names, table_names
from mlxe_async.cli.limits import LEAST_DESCRIPTORS, require_descriptors
from mlxe_async.settings import settings_schema

HEAVY = ("torch", "gymnasium", "numpy", "uvloop", "structlog", "matplotlib", "safetensors")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text(GOOD)
    (tmp_path / "bad.toml").write_text("[run]\nsed = 1\nseed = 'x'\n")


def test_a_settings_mistake_is_told_with_exit_code_2_and_nothing_else(tmp_path):
    done = command("bad.toml", "--set", "task.env=os:system", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    places = [line.partition(": got ")[0] for line in done.stderr.splitlines()]
    assert sorted(places) == ["--set task.env: task.env", "bad.toml:2: run.sed", "bad.toml:3: run.seed"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.toml", "good.toml"]


def test_a_settings_mistake_is_told_before_anything_heavy_is_imported(tmp_path):
    code = f"""
import sys
from mlxe_async.cli import main
code = main(["bad.toml"])
heavy = [name for name in {HEAVY!r} if name in sys.modules]
sys.exit(f"imported {{heavy}}" if heavy else code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr


def fits(page):
    lines = page.splitlines()
    return all(len(line) <= 80 for line in lines) and len(lines) <= 105  # two screens


@pytest.mark.parametrize("name", [*table_names(), *algorithm_names()])
def test_the_help_on_each_table_and_algorithm_fits_a_screen_or_two(name, capsys):
    assert main(["--help", name]) == 0
    page = capsys.readouterr().out
    assert f"[{name}]" in page or f'name = "{name}"' in page
    assert fits(page), page


@pytest.mark.parametrize("name", ["task.stages", "task.seeds"])
def test_a_table_inside_another_has_a_page_that_the_other_names(name, capsys):
    assert main(["--help", "task"]) == 0
    assert f"see --help {name}" in capsys.readouterr().out
    for asked in (name, f"[{name}]"):
        assert main(["--help", asked]) == 0
        page = capsys.readouterr().out
        assert f"[{name}]" in page
        assert fits(page), page
    assert ("until_return" in page) == (name == "task.stages")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_its_options_and_an_example_on_a_screen(name, capsys):
    for arguments in ([name, "--help"], ["--help", name]):
        with contextlib.suppress(SystemExit):
            main(arguments)
        page = capsys.readouterr().out
        assert page.startswith(f"usage: python -m mlxe_async {name}")
        assert f"example:\n  python -m mlxe_async {name}" in page
        assert fits(page), page


def test_help_lists_usage_commands_and_exit_codes(tmp_path):
    for arguments in (["--help"], ["-h"], ["help"]):
        done = command(*arguments, folder=tmp_path)
        assert done.returncode == 0
        for name in (*COMMANDS, "--set", "--check", "--no-progress", "exit codes", "75", "130"):
            assert name in done.stdout
    assert fits(done.stdout)


def test_help_explains_every_setting_without_what_is_slow_to_import(tmp_path):
    code = f"""
import sys
from mlxe_async.cli import main
main(["--help"])
main(["--help", "settings"])
heavy = [name for name in {(*HEAVY, "rich")!r} if name in sys.modules]
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    schema = settings_schema()
    for model in (schema, *schema["$defs"].values()):
        for key, about in model.get("properties", {}).items():
            heads = [
                i
                for i, line in enumerate(lines)
                if line.startswith((f"  {key} = ", f"  {key}  (", f"[{key}]  ", f"[task.{key}]  "))
            ]
            sentence = " ".join(about["description"].split())
            assert any(sentence in " ".join(" ".join(lines[i : i + 6]).split()) for i in heads), key
    assert any(line.startswith('  executors = 2  (a whole number from 1 to 1024 or "auto")') for line in lines)
    assert any(line.startswith('  kind = "is", also when left out') for line in lines)


@pytest.mark.long
def test_help_knows_the_built_in_algorithms_and_explains_their_keys(capsys):
    assert algorithm_names() == sorted(REGISTRY)
    for name in REGISTRY:
        assert name in help_text().partition("--help ALGORITHM")[2].partition("--help COMMAND")[0]
        assert main(["--help", name]) == 0
        out = capsys.readouterr().out
        assert f'name = "{name}"' in out
        assert all(f"  {key}" in out for key in load_algorithm(name).Settings.model_json_schema()["properties"])
    assert main(["--help", "mlxx"]) == 2
    assert 'did you mean "mlxe"?' in capsys.readouterr().err


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mlxe_async 0.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "expected FILE.toml or a command"),
        (["folow"], 'did you mean "follow"?'),
        (["good.toml", "--chek"], "--chek"),
        (["--check"], "file"),
        (["good.toml", "--set"], "expected one argument"),
        (["missing.toml"], "missing.toml:1: cannot be read"),
        (["x\x1b[31m"], "\\x1b[31m"),
        (["follow"], "RUN"),
        (["runs"], "expected runs list or runs prune"),
        (["runs", "prune", "--keep", "-1"], "at least 0"),
        (["schema", "--events", "x\x1b"], "x\\x1b"),
    ],
)
def test_a_wrong_command_is_told_in_one_line(capfd, arguments, says):
    assert main(arguments) == 2
    captured = capfd.readouterr()
    [line] = captured.err.splitlines()
    assert says in line
    assert line.isprintable()


@pytest.mark.parametrize("command", ["follow", "trace", "play", "eval", "compare", "replay", "repro", "--resume"])
@pytest.mark.parametrize("what", ["missing", "a\nb", "a" * 5000, "folder", "binary", "empty", "/proc/self/mem", "\x00"])
def test_what_is_no_run_is_a_mistake_in_the_command_told_in_one_line(tmp_path, capsys, command, what):
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\x7fELF\x00\xff" * 99)
    (tmp_path / "empty").touch()
    assert main([command, what]) == (4 if command in ("follow", "trace") and what == "/proc/self/mem" else 2)
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    assert "expected" in line or "there is no run" in line or "cannot be read" in line
    assert len(line) < 500
    assert captured.out == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("what", ["binary", "a" * 5000])
def test_runs_are_looked_for_only_in_a_folder(tmp_path, capsys, what):
    (tmp_path / "binary").write_bytes(b"\x7fELF")
    assert main(["runs", "list", "--dir", what]) == 2
    assert "expected a folder of runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        errors.SettingsError(["algorithm.lr: got 1, expected 2"]),
        errors.TaskError("no such environment"),
        errors.NotFound("there is no run"),
        errors.ResourceError("memory plan:\n  lane 1\nthe plan needs more"),
        errors.RunFailed("executor 3 is lost"),
        errors.NumericError("not finite"),
        errors.RunFolderBusy("held by another run: pid 3"),
        errors.UnsupportedPlatform("needs Linux"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_run_is_its_exit_code_and_its_last_line(capfd, monkeypatch, error):
    install(monkeypatch, ends=error)
    assert main(["good.toml"]) == error.exit_code
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == str(error).splitlines()[-1]
    assert "Traceback" not in "".join(lines)


def test_a_mistake_of_ours_shows_its_traceback_and_a_last_line(capfd, monkeypatch):
    install(monkeypatch, ends=ZeroDivisionError("oops"))
    assert main(["good.toml"]) == 3
    lines = capfd.readouterr().err.splitlines()
    assert "Traceback" in lines[0]
    assert lines[-1] == "an error of mlxe_async itself: ZeroDivisionError('oops')"


def test_the_exit_code_is_the_results(capfd, monkeypatch):
    install(monkeypatch, ends=result(exit_code=5, reason="failed: x"))
    assert main(["good.toml"]) == 5
    assert capfd.readouterr().err.splitlines()[-1].startswith("failed (failed: x) after 5 episodes")


def test_elsewhere_than_on_linux_one_sentence_says_so(capfd, monkeypatch):
    monkeypatch.setattr(cli.sys, "platform", "darwin")
    assert main(["good.toml"]) == 4
    assert capfd.readouterr().err == "mlxe_async runs on Linux, and this is darwin\n"


def test_the_schema_of_settings_holds_the_algorithms_keys(tmp_path):
    done = command("schema", folder=tmp_path)
    schema = json.loads(done.stdout)
    assert done.returncode == 0
    assert set(schema["properties"]) >= {"run", "stop", "task", "schedule", "algorithm", "learner", "memory"}
    assert "learning_rate" in schema["$defs"]["mlxe"]["properties"]


def test_the_schema_of_the_log_holds_every_event(capsys):
    assert main(["schema", "--events"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"run_start", "phase", "run_end"} <= set(schema["$defs"])


def test_files_in_the_working_folder_are_not_taken_for_modules(tmp_path):
    for name in ("asyncio", "json", "numpy", "pydantic", "signal", "tomllib", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)\n")
    arguments = [sys.executable, "-m", "mlxe_async", "schema"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    arguments = [sys.executable, "-m", "mlxe_async", "schema", "--events"]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_help_tells_what_an_algorithm_recommends_for_other_tables(capsys, monkeypatch):
    from mlxe_async.algorithms import load_algorithm

    for name in ("mlxe", "dqn", "ppo"):
        assert main(["--help", name]) == 0
        said = capsys.readouterr().out.partition("keys of other tables")[2]
        for table, values in load_algorithm(name).defaults.items():
            part = said.partition(f"[{table}]")[2]
            assert all(f"\n  {key} = " in part for key in values)
    assert '  sync = "rollout"' in said
    monkeypatch.setattr(load_algorithm("mlxe"), "defaults", {})
    assert main(["--help", "mlxe"]) == 0
    assert "keys of other tables" not in capsys.readouterr().out


def test_runs_explains_itself(capsys):
    assert main(["runs", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("runs list", "runs prune", "--older-than", "--yes"))


@pytest.mark.parametrize("source", [["bad.toml"], []])
def test_mistakes_in_settings_are_told_although_a_run_is_to_go_on(tmp_path, monkeypatch, capsys, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text('[task]\nenv = "CartPole-v1"\n[schedule]\nexecutor = 2\n')
    overrides = [] if source else ["--set", "run.dir=3"]
    assert main([*source, "--resume", "nothing", *overrides]) == 2
    assert ("schedule.executor" if source else "run.dir") in capsys.readouterr().err


@pytest.mark.cold
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_modules_are_imported_ends_the_command_in_its_own_words(tmp_path, number):
    (tmp_path / "difflib.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-m", "mlxe_async", "a.toml"], env=os.environ | {"PYTHONPATH": path}, **pipes
    ) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(number)
            assert process.wait(30) == 128 + number
            assert process.stderr.read().decode() == f"stopped by {number.name}\n"
        finally:
            process.kill()  # where it has ended that does nothing


def test_a_working_folder_that_is_gone_is_a_sentence(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main([str(tmp_path / "good.toml")]) == 4
    assert "the working folder is gone" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["good.toml"], ["compare", "good.toml"], ["play", "latest"]])
def test_too_little_address_space_is_told_before_a_library_ends_the_process(capsys, monkeypatch, arguments):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (100_000 * 1024, resource.RLIM_INFINITY))
    assert main(arguments) == 4
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("the limit of this process's address space is 97 MiB, expected at least 640 MiB")


@pytest.mark.parametrize("most", [8, 12, 19, 24])
def test_too_few_descriptors_are_told_with_the_limit_and_nothing_is_started(tmp_path, most):
    (tmp_path / "a.toml").write_text('[task]\nenv = "CartPole-v1"\n')
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mlxe_async", "a.toml"],
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    [line] = done.stderr.splitlines()
    assert f" {most} (ulimit -Hn)" in line
    assert not (tmp_path / "runs").exists()


def test_a_soft_limit_below_what_a_command_takes_is_raised(monkeypatch):
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (8, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _which, limits: raised.append(limits))
    require_descriptors()
    assert raised == [(LEAST_DESCRIPTORS, 4096)]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files", "a.toml"), "a.toml: Too many open files; this process may have"),
        (OSError(errno.ENFILE, "Too many open files in system"), "raise the limit of the host"),
        (OSError(errno.ENOSPC, "No space left on device"), "make room on the disk"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_what_the_host_lacks_is_no_mistake_of_ours(capsys, monkeypatch, error, words):
    monkeypatch.setattr("mlxe_async.cli._command", mock.Mock(side_effect=error))
    assert main(["a.toml"]) == 4
    [line] = capsys.readouterr().err.splitlines()
    assert words in line


def test_other_errors_of_the_system_are_mistakes_of_ours(capsys, monkeypatch):
    monkeypatch.setattr("mlxe_async.cli._command", mock.Mock(side_effect=OSError(errno.EBADF, "Bad file descriptor")))
    assert main(["a.toml"]) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("an error of mlxe_async itself: OSError(9")
