"""What README.md and the page of tasks print about own code runs as printed, and learns."""

import re
import shlex
import subprocess
import sys

import pages
import pytest
from pages import ROOT

from mlxe_async import read_log

README, TASKS = ROOT / "README.md", ROOT / "mlxe_async" / "tasks" / "README.md"


def section(heading, page=README):
    return pages.blocks(pages.section(page, heading))


@pytest.fixture
def folder(tmp_path):
    """An empty folder in which the package lies as in a clone."""
    (tmp_path / "mlxe_async").symlink_to(ROOT / "mlxe_async")
    (tmp_path / "settings").symlink_to(ROOT / "settings")
    return tmp_path


def run(command, folder):
    program, *words = shlex.split(command)
    done = subprocess.run(
        [sys.executable if program == "python" else program, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.long
@pytest.mark.parametrize("kind", ["is", pytest.param("oa", marks=pytest.mark.slow)])
def test_an_environment_and_a_loss_of_ones_own_learn_under_both_schedules(folder, kind):
    blocks = section("Your own environment, network, loss and algorithm")
    runs = []
    for language, text in blocks:
        if language in ("python", "toml"):
            (folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
        else:
            runs += [line for line in text.splitlines() if line.startswith("python")]
            for line in text.splitlines():
                if not line.startswith("python"):
                    run(line, folder)
    assert "clamp(-1, 1)" in (folder / "my_mlxe.py").read_text()
    assert len(runs) == 2
    (line,) = (line for line in runs if line.endswith(f"schedule.kind={kind}"))
    run(line, folder)
    lengths = [event["length"] for event in read_log(folder / "runs" / "latest") if event["event"] == "episode_end"]
    assert sum(lengths[-10:]) < sum(lengths[:10]) / 2


@pytest.mark.long
def test_a_wrapper_with_arguments_works_as_the_page_of_tasks_prints_it(folder):
    for language, text in section("Wrappers", TASKS):
        if language in ("python", "toml"):
            (folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
    ((_, line),) = [block for block in section("Wrappers", TASKS) if block[0] == "sh"]
    run(f"{line.strip()} --no-progress", folder)
    ends = [event for event in read_log(folder / "runs" / "latest") if event["event"] == "episode_end"]
    assert ends[0]["episode_return"] == pytest.approx(0.95 * ends[0]["length"])


@pytest.mark.long
def test_the_program_that_embeds_a_run_works_as_printed(folder):
    ((_, program),) = [block for block in section("In your own program") if block[0] == "python"]
    (folder / "program.py").write_text(program)
    done = run("python -m program", folder)
    assert "reason='env_steps'" in done.stdout
    assert re.search(r"^1 \d+\.0$", done.stdout, re.M)


@pytest.mark.long
def test_a_policy_is_loaded_as_printed(folder):
    run("python -m mlxe_async settings/is.toml --set stop.env_steps=200 --no-progress", folder)
    ((_, program),) = [block for block in section("What you see") if block[0] == "python"]
    (folder / "program.py").write_text(program)
    assert re.match(r"\d+ [01]\n", run("python -m program", folder).stdout)
