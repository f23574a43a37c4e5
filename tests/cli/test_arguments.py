"""Values that argparse would take for options, and what a study asks of its runs."""

import io

import pytest

from mlxe_async.analysis.study import Arm, StudyFolder
from mlxe_async.cli.arguments import Parser
from mlxe_async.cli.console import Console
from mlxe_async.cli.studying import Runner
from mlxe_async.errors import SettingsError


@pytest.fixture
def parser():
    made = Parser("compare FILE ...")
    made.add_argument("files", nargs="+")
    made.add_argument("--thresholds")
    made.add_argument("--rows", action="store_true")
    return made


@pytest.mark.parametrize("numbers", ["-400,-200", "-.5,1", "-3", "-1e3,2"])
def test_negative_numbers_behind_an_option_are_its_own(parser, numbers):
    for words in (["--thresholds", numbers], [f"--thresholds={numbers}"]):
        assert parser.parse_args(["a.toml", *words, "--rows"]).thresholds == numbers


def test_a_flag_takes_none_and_an_option_is_no_number(parser):
    with pytest.raises(SettingsError):
        parser.parse_args(["a.toml", "--rows", "-4,2"])
    with pytest.raises(SettingsError):
        parser.parse_args(["a.toml", "--thresholds", "--rows"])


def test_the_runs_of_a_study_keep_their_whole_logs(tmp_path):
    with StudyFolder(tmp_path / "study") as kept:
        runner = Runner(kept, Console(io.StringIO()), longest_s=None, keep_runs=True)
        words = runner._command(Arm("x", "x.toml", (), "key"), 1)
    assert "logs.max_mb=1048576" in words
