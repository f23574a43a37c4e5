"""Commands of the pages that take seconds are run as printed, beside a run that has just ended."""

import re
import shlex
import subprocess
import sys

import pages
import pytest
from pages import ROOT

QUICK = re.compile(
    r"python -m mlxe_async (?:"
    r"--help\b.*|schema\b.*|runs\b.*|curve\b.*|follow latest --(?:json|lines)|eval\b.*|play latest --episodes 3|new\b.*"
    r"|.*--check|compare runs/study\b.*)"
)
COMMANDS = dict.fromkeys(
    command.text for page in pages.PAGES for command in pages.commands(page) if QUICK.fullmatch(command.text)
)


def typed(words, folder):
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A folder like a clone, with a finished run of CartPole in it."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("mlxe_async", "settings"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "runs").mkdir()
    (folder / "runs" / "study").symlink_to(ROOT / "runs" / "study")
    sets = ["stop.env_steps=600", "checkpoint.interval_steps=300", "evaluation.max_episode_steps=600"]
    words = shlex.split("python -m mlxe_async settings/is.toml --no-progress --set evaluation.screen_steps=600")
    typed([*words, *(word for one in sets for word in ("--set", one))], folder)
    return folder


def test_there_are_commands_of_each_kind():
    assert len(COMMANDS) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_quick_command_of_a_page_does_what_it_says(command, clone):
    assert typed(shlex.split(command), clone).strip()
