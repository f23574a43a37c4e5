"""`compare` asks, runs in turn, keeps what has finished, notices what has changed, and reports all of it."""

import io
import json
import shlex
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from study_runs import story, write_run

from mlxe_async import policy
from mlxe_async.analysis import pictures, study
from mlxe_async.analysis.outcomes import failure, outcome
from mlxe_async.analysis.study import Arm, StudyFolder, told_outcomes
from mlxe_async.cli import compare, main
from mlxe_async.cli.compare import parse_seeds
from mlxe_async.cli.console import Console
from mlxe_async.cli.studying import Interrupted, Runner, interruptible
from mlxe_async.errors import RunFailed, SettingsError

SETTINGS = '[run]\nname = "{}"\n[task]\nenv = "CartPole-v1"\n'


class Faked:
    """In the place of real runs: writes their folders, notes their order, and interrupts where it is told to."""

    def __init__(self):
        self.runs = []
        self.stop_before = None
        self.solved_at = 8

    def __call__(self, runner, arm, seed):
        if len(self.runs) == self.stop_before:
            raise Interrupted(signal.SIGINT)
        self.runs.append((arm.name, seed))
        if seed == 13:
            return failure(arm.name, seed, "killed by SIGKILL", 2.0)
        lines = story(arm.name, seed, solved_at=self.solved_at)
        folder = f"20260101T{len(self.runs):06d}Z-{arm.name}"
        return outcome(write_run(runner._kept.runs, lines, folder=folder), 995 * 10**9, 12.0)


@pytest.fixture
def faked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("is", "oa"):
        (tmp_path / f"{name}.toml").write_text(SETTINGS.format(name))
    fake = Faked()
    monkeypatch.setattr(Runner, "run_once", lambda self, arm, seed: fake(self, arm, seed))
    return fake


def ask(*arguments):
    return main(["compare", *arguments, "--no-pictures"])


def rows(text, start="| "):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith(start)]


@pytest.fixture
def undrawn(monkeypatch):
    """No picture is drawn: what draws them keeps its fonts open."""
    monkeypatch.setattr(pictures, "all_pictures", lambda groups: [])


@pytest.mark.usefixtures("undrawn")
def test_the_short_form_runs_one_file_with_many_seeds(faked, capsys):
    assert main(["is.toml", "--seeds", "3", "--set", "stop.env_steps=100"]) == 0
    assert faked.runs == [("is", 0), ("is", 1), ("is", 2)]
    (folder,) = Path("runs").glob("compare-*")
    assert study.read_plan(folder).arms[0].overrides == ("stop.env_steps=100",)
    assert "the report is in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["is.toml", "--seeds", "0"], '--seeds: got "0", expected how many, from 1 to 100,000; which ones: compare'),
        (["is.toml", "--seeds", "1..3"], '--seeds: got "1..3", expected how many'),
        (["is.toml", "--seeds", "3", "--check"], "--seeds: got --check too, expected FILE.toml --seeds N"),
        (["--seeds", "3", "--resume", "latest"], "--seeds: got --resume too, expected FILE.toml"),
        (["--seeds", "3"], "--seeds: got no settings file, expected FILE.toml --seeds N"),
    ],
)
def test_mistakes_of_the_short_form_are_told_in_one_line(faked, capsys, arguments, said):
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(said)
    assert faked.runs == []


@pytest.mark.usefixtures("undrawn")
def test_the_report_names_the_files_that_it_has_written(faked, capsys):
    assert ask("is.toml", "--seeds", "1", "--out", "study") == 0
    told = ["the report is in study: table.md, outcomes.jsonl", "as one page: python -m mlxe_async report study"]
    assert capsys.readouterr().err.splitlines()[-2:] == told
    assert main(["compare", "--resume", "study"]) == 0
    assert capsys.readouterr().err.splitlines()[-2:] == told


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_the_page_that_compare_names_is_made_by_report(faked, capsys):
    assert ask("is.toml", "--seeds", "1,2", "--out", "study") == 0
    words = capsys.readouterr().err.splitlines()[-1].partition("mlxe_async ")[2].split()
    assert main(words) == 0
    text = Path("study.html").read_text()
    assert "What was needed" in text
    assert "return by environment steps" in text
    assert not Path("study/index.html").exists()


@pytest.mark.long
def test_settings_take_turns_and_the_report_is_written(faked, capsys):
    assert ask("is.toml", "oa.toml", "--seeds", "1..3", "--out", "study") == 0
    assert faked.runs == [("is", 1), ("oa", 1), ("is", 2), ("oa", 2), ("is", 3), ("oa", 3)]
    out, err = capsys.readouterr()
    assert [row[1] for row in rows(out, "| is |")] == ["3 of 3", "8"]
    # Five seconds passed between the command and the run's own beginning.
    assert rows(out, "| is ")[0][7] == "9.9 [9.9, 9.9], 9.9"
    assert "Every run" not in out
    table = Path("study/table.md").read_text()
    assert len(rows(table, "| oa ")) == 2 + 3
    assert len(Path("study/outcomes.jsonl").read_text().splitlines()) == 6
    assert "6 of 6: oa, seed 3: solved at episode 8" in err
    assert ask("is.toml", "oa.toml", "--seeds", "1..3", "--out", "study", "--rows") == 0
    assert "### Every run" in capsys.readouterr().out


@pytest.fixture(scope="module")
def _fonts(tmp_path_factory):
    """Matplotlib keeps the files of its fonts open for good."""
    path = write_run(tmp_path_factory.mktemp("fonts"), story())
    pictures.bars({"is": [outcome(path)]})


@pytest.mark.long
@pytest.mark.usefixtures("_fonts")
def test_the_pictures_are_written(faked):
    assert main(["compare", "is.toml", "--seeds", "1", "--out", "study"]) == 0
    names = {path.name for path in Path("study").iterdir()}
    assert {"bars.svg", "bars.png", "learning.svg", "survival.svg", "timeline.png"} <= names


@pytest.mark.long
def test_what_has_finished_is_not_run_again(faked, capsys):
    faked.stop_before = 3
    assert ask("is.toml", "oa.toml", "--seeds", "1..3", "--out", "study") == 130
    assert "SIGINT: 3 of 6 runs have finished; this goes on" in capsys.readouterr().err
    faked.stop_before = None
    assert ask("--resume", "study") == 0
    assert faked.runs == [("is", 1), ("oa", 1), ("is", 2), ("oa", 2), ("is", 3), ("oa", 3)]
    # The same --out with more seeds, and a report of what is there.
    assert ask("is.toml", "oa.toml", "--seeds", "1..4", "--out", "study") == 0
    assert faked.runs[6:] == [("is", 4), ("oa", 4)]
    assert ask("--resume", "study") == 0
    assert len(faked.runs) == 8


@pytest.mark.long
@pytest.mark.parametrize(
    "how", ["file", "module", *(pytest.param(how, marks=pytest.mark.slow) for how in ("override", "package"))]
)
def test_changed_settings_are_noticed(faked, capsys, how):
    own = 'python_path = ["."]\n[algorithm]\nname = "mine:Loss"\n[task]\nenv = "CartPole-v1"\n'
    Path("is.toml").write_text(f'[run]\nname = "is"\n{own}')
    if how == "package":
        Path("mine").mkdir()
        Path("mine/__init__.py").write_text("from mine.net import Loss")
        Path("mine/net.py").write_text("a = 1")
    else:
        Path("mine.py").write_text("a = 1")
    arguments = ["is.toml", "--seeds", "1,2", "--out", "study"]
    assert ask(*arguments) == 0
    if how == "file":
        Path("is.toml").write_text(f'[run]\nname = "is"\nseed = 3\n{own}')
    elif how == "module":
        Path("mine.py").write_text("a = 2")
    elif how == "package":
        Path("mine/net.py").write_text("a = 2")
    else:
        arguments += ["--set", "stop.env_steps=9"]
    assert ask(*arguments) == 2
    assert "has changed since 2 of its runs" in capsys.readouterr().err
    assert len(faked.runs) == 2
    assert ask(*arguments, "--rerun") == 0
    assert len(faked.runs) == 4
    assert ask(*arguments) == 0


def test_failures_are_rows(faked, capsys):
    assert ask("is.toml", "--seeds", "12,13,14", "--out", "study", "--rows") == 0
    first, *_, last_but_one, last = rows(capsys.readouterr().out, "| is ")
    assert first[1] == "2 of 3"
    assert first[3] == "8 [8, failed], failed"
    assert last_but_one[2] == "killed by SIGKILL"
    assert last[2] == "yes"


@pytest.mark.long
def test_given_runs_and_studies_stand_beside(faked, tmp_path, capsys):
    assert ask("is.toml", "--seeds", "1,2", "--out", "study") == 0
    paths = [str(write_run(tmp_path / "runs", story("oa", seed))) for seed in (1, 2)]
    capsys.readouterr()
    assert ask(*paths, "study", "--out", "both") == 0
    out = capsys.readouterr().out
    assert [row[0] for row in rows(out)[1:]][1:3] == ["oa", "is"]
    assert "their clocks start with the run itself" in out
    assert rows(out, "| oa / is")[0][2] == "2 of 2"
    assert len(faked.runs) == 2
    assert ask(*paths, paths[0], "--out", "both") == 0
    assert "several runs of one seed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_page_of_given_runs_has_them_too_also_in_a_folder_with_a_space(faked, tmp_path, capsys):
    paths = [str(write_run(tmp_path / "runs", story("oa", seed))) for seed in (1, 2)]
    for out, more in (("one study", ()), ("my study", ("is.toml", "--seeds", "1"))):
        assert ask(*paths, *more, "--out", out) == 0, capsys.readouterr().err
        words = shlex.split(capsys.readouterr().err.splitlines()[-1].partition("mlxe_async ")[2])
        assert words == ["report", out]
        assert main(words) == 0
        assert "20260101T000002Z-oa" in Path(f"{out}.html").read_text()
    assert {one.name for one in told_outcomes(Path("my study"))} == {"is", "oa"}
    capsys.readouterr()
    assert ask("my study", "--out", "third") == 0
    assert {row[0] for row in rows(capsys.readouterr().out)[1:]} >= {"is", "oa"}
    assert faked.runs == [("is", 1)]


def test_an_unfinished_run_cannot_be_compared(faked, tmp_path, capsys):
    path = write_run(tmp_path / "runs", story("oa", 1, ended=False))
    assert ask(str(path), "--out", "study") == 2
    assert "its log has no run_end" in capsys.readouterr().err


def test_retention_is_a_stop_condition_of_every_run(faked):
    assert ask("is.toml", "--seeds", "1", "--out", "study", "--retention", "500") == 2
    Path("is.toml").write_text(SETTINGS.format("is") + "[stop]\nsolved = true\n[evaluation]\nenabled = true\n")
    assert ask("is.toml", "--seeds", "1", "--out", "study", "--retention", "500") == 0
    (arm,) = study.read_plan(Path("study")).arms
    assert arm.overrides == ("stop.steps_after_solved=500",)


@pytest.mark.long
def test_solving_policies_are_tested_from_adverse_starts(faked, monkeypatch, capsys):
    asked = []

    def load(run, which, tell):
        asked.append((Path(run).name, which))
        return SimpleNamespace(test=lambda starts: SimpleNamespace(passed=starts == "adverse"))

    monkeypatch.setattr(policy, "load_policy", load)
    assert ask("is.toml", "--seeds", "1,13", "--out", "study") == 0
    assert ask("is.toml", "--seeds", "1,13", "--out", "study", "--d2") == 0
    assert asked == [("20260101T000001Z-is", "solved")]
    assert "1 of 1" in capsys.readouterr().out
    assert ask("is.toml", "--seeds", "1,13", "--out", "study", "--d2") == 0
    assert len(asked) == 1


@pytest.mark.long
def test_a_study_goes_on_as_it_was_asked_for(faked, monkeypatch, capsys):
    monkeypatch.setattr(compare, "pass_adverse_starts", lambda run, console: True)
    faked.stop_before = 2
    asked = ("--seeds", "1..3", "--timeout", "7", "--no-keep-runs", "--d2")
    assert ask("is.toml", *asked, "--out", "study") == 130
    faked.stop_before = None
    assert ask("--resume", "study") == 0
    plan = study.read_plan(Path("study"))
    assert (plan.timeout_s, plan.keep_runs, plan.d2, plan.rerun) == (7.0, False, True, False)
    assert list(Path("study/runs").iterdir()) == []
    assert "3 of 3" in rows(capsys.readouterr().out, "| is ")[0][-1]
    # What is said anew counts.
    assert ask("--resume", "study", "--no-d2", "--timeout", "9") == 0
    plan = study.read_plan(Path("study"))
    assert (plan.timeout_s, plan.keep_runs, plan.d2) == (9.0, False, False)


def test_runs_made_anew_by_wish_go_on_after_an_interruption_and_only_then(faked):
    assert ask("is.toml", "--seeds", "1,2", "--out", "study") == 0
    Path("is.toml").write_text(SETTINGS.format("is") + "[stop]\nenv_steps = 5\n")
    faked.stop_before = 3
    assert ask("is.toml", "--seeds", "1,2", "--out", "study", "--rerun") == 130
    faked.stop_before = None
    assert ask("--resume", "study") == 0
    assert faked.runs == [("is", 1), ("is", 2)] * 2
    Path("is.toml").write_text(SETTINGS.format("is") + "[stop]\nenv_steps = 6\n")
    assert ask("--resume", "study") == 2


def test_where_there_is_no_folder_to_test_that_is_told(faked, capsys):
    assert ask("is.toml", "--seeds", "1", "--out", "study", "--no-keep-runs") == 0
    assert ask("--resume", "study", "--d2") == 0
    assert "is, seed 1: no D2, its run folder was not kept" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("b", 'the name "is-b" twice'), ("x" * 64, "expected a plain name, not too long")]
)
def test_names_of_variations_differ_and_are_names(faked, capsys, name, said):
    Path("is-b.toml").write_text(SETTINGS.format("is-b"))
    Path("vary.toml").write_text(f'{name} = ["stop.env_steps=9"]\n')
    assert ask("is.toml", "is-b.toml", "--vary", "vary.toml", "--out", "study") == 2
    assert said in capsys.readouterr().err
    assert faked.runs == []


def test_a_file_of_variations_that_cannot_be_read_is_told_in_words(faked, capsys):
    for given, said in (
        ("none.toml", "--vary: none.toml cannot be read (No such file or directory), expected a TOML file of variants"),
        (".", "--vary: . cannot be read (Is a directory), expected"),
    ):
        assert ask("is.toml", "--vary", given, "--out", "study") == 2
        assert said in capsys.readouterr().err
    Path("vary.toml").write_text("a [\n")
    assert ask("is.toml", "--vary", "vary.toml", "--out", "study") == 2
    assert "--vary: vary.toml: " in (said := capsys.readouterr().err)
    assert "at line 1" in said
    assert faked.runs == []


def test_a_damaged_file_of_a_study_is_an_error_in_a_line(faked, capsys):
    assert ask("is.toml", "--seeds", "1", "--out", "study") == 0
    Path("study/baselines.json").write_text("{")
    assert ask("--resume", "study") == 3
    said = capsys.readouterr().err
    assert "baselines.json cannot be read, and may be removed" in said
    assert "Traceback" not in said


def test_run_folders_may_be_removed_once_their_outcome_is_stored(faked):
    faked.solved_at = None
    assert ask("is.toml", "--seeds", "1", "--out", "study", "--no-keep-runs") == 0
    assert len(list(Path("study/runs").iterdir())) == 1  # that of a failure is kept
    faked.solved_at = 8
    assert ask("is.toml", "--seeds", "2", "--out", "study", "--no-keep-runs") == 0
    assert [path.name for path in Path("study/runs").iterdir()] == ["20260101T000001Z-is"]


def test_baselines_are_computed_once(faked, monkeypatch, capsys):
    from mlxe_async.analysis import baselines

    asked = []

    def compute(evaluation, tried):
        asked.append(tried)
        return [baselines.Baseline("drawn", 1, tried, "one test")]

    monkeypatch.setattr(baselines, "cartpole_baselines", compute)
    for _ in range(2):
        assert ask("is.toml", "--seeds", "1", "--out", "study", "--baselines", "50") == 0
        assert "| baseline: drawn | 1 of 50 (one test) | 98 % [" in capsys.readouterr().out
    assert asked == [50]
    assert ask("--resume", "study") == 0
    assert "| baseline: drawn | 1 of 50" in capsys.readouterr().out
    assert ask("is.toml", "--seeds", "1", "--out", "x", "--set", "task.env=Acrobot-v1", "--baselines", "5") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "got no settings file and no run"),
        (["is.toml", "is.toml"], 'the name "is" twice'),
        (["--resume", "study", "is.toml"], "got sources too"),
        (["--resume", "nowhere"], "expected the folder of a study"),
        (["no-such-run"], 'there is no run "no-such-run"'),
        (["is.toml", "--seeds", "1,1"], "each seed once"),
        (["is.toml", "--set", "run.sed=1"], "run.sed"),
        (["is.toml", "--retention", "0"], "--retention"),
    ],
)
def test_mistakes_are_told_before_anything_is_run(faked, capsys, arguments, said):
    assert ask(*arguments) != 0
    assert said in capsys.readouterr().err
    assert faked.runs == []
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [3]), ("1,5", [1, 5]), ("1000..1003", [1000, 1001, 1002, 1003]), ("7..7", [7])]
)
def test_seeds_are_given_as_a_list_or_a_range(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "5..1", "1..", "1-3", "-1", "1..99999999"])
def test_other_seeds_are_refused(text):
    with pytest.raises(SettingsError, match="--seeds"):
        parse_seeds(text)


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    shown = capsys.readouterr().out
    for action in compare._parser()._actions:
        assert all(option in shown for option in action.option_strings)
        assert action.help


@pytest.fixture
def runner(tmp_path):
    with StudyFolder(tmp_path / "study") as kept:
        yield Runner(kept, Console(io.StringIO()), longest_s=60.0, keep_runs=True)


# Stands in for a run: says in the folder's lock whose it is, and ends as it is told to.
STAND_IN = """
import json, os, pathlib, sys, time
folder, said, code = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if folder:
    (pathlib.Path(folder) / "lock").write_text(json.dumps({"pid": os.getpid()}))
print(said, file=sys.stderr, flush=True)
if code is None:
    time.sleep(600)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def ends(monkeypatch, code, said="", lines=None):
    """Let the command end like this, with a run folder that holds these lines."""

    def command(self, arm, seed):
        folder = "" if lines is None else str(write_run(self._kept.runs, lines))
        return [sys.executable, "-c", STAND_IN, folder, said, json.dumps(code)]

    monkeypatch.setattr(Runner, "_command", command)


ARM = Arm("is", "is.toml", (), "key")


@pytest.mark.parametrize(
    ("code", "said", "reason"),
    [
        (3, "a\nthe run failed: x", "the run failed: x"),
        (5, "weights became NaN", "weights became NaN"),
        (-9, "", "killed by SIGKILL"),
        pytest.param(None, "", "timed out after 2 s", marks=pytest.mark.long),
    ],
)
def test_a_crash_is_a_failure_with_its_reason(monkeypatch, runner, code, said, reason):
    runner._longest_s = 60.0 if code is not None else 2.0
    ends(monkeypatch, code, said, story("is", 4, ended=False, solved_at=None))
    one = runner.run_once(ARM, 4)
    assert (one.reason, one.failed, one.seed, one.end["episodes"]) == (reason, True, 4, 12)
    ends(monkeypatch, code, said)
    nothing = runner.run_once(ARM, 5)
    assert (nothing.reason, nothing.failed, nothing.name, nothing.seed) == (reason, True, "is", 5)


@pytest.mark.parametrize(
    ("code", "said"), [(2, "x.toml:1: got"), (4, "no memory"), (130, "stopped"), (143, "stopped"), (75, "held")]
)
def test_what_was_not_even_tried_is_no_outcome(monkeypatch, runner, code, said):
    ends(monkeypatch, code, said)
    with pytest.raises(RunFailed, match="is, seed 4"):
        runner.run_once(ARM, 4)


def test_the_right_folder_is_judged_whatever_else_lies_there(monkeypatch, runner, tmp_path):
    write_run(runner._kept.runs, story("is", 3), folder="20270101T000000Z-is")
    ends(monkeypatch, 0, "", story("is", 4))
    assert runner.run_once(ARM, 4).seed == 4


def test_a_signal_to_stop_is_an_interruption():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as info, interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert (info.value.name, info.value.exit_code) == ("SIGTERM", 143)
    assert signal.getsignal(signal.SIGTERM) is before


def test_every_line_of_the_data_is_json(faked):
    assert ask("is.toml", "--seeds", "1,13", "--out", "study") == 0
    lines = [json.loads(line) for line in Path("study/outcomes.jsonl").read_text().splitlines()]
    assert [(line["seed"], line["solved"]) for line in lines] == [(1, True), (13, False)]
