"""What the pages say is so: links lead somewhere, commands exist, figures are those of the results that are kept."""

import ast
import configparser
import contextlib
import json
import platform
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pages
import pytest
from pages import PAGES, ROOT, name_of

from mlxe_async.algorithms import REGISTRY, load_algorithm
from mlxe_async.analysis import breakout_study
from mlxe_async.analysis.pictures import PUBLISHED
from mlxe_async.cli import main
from mlxe_async.cli.arguments import Parser
from mlxe_async.parts import laid_out
from mlxe_async.rows import MASK, Spaces
from mlxe_async.schedules.soundness import Facts, verdicts
from mlxe_async.settings import load_settings
from mlxe_async.settings.searching import load_sweep
from mlxe_async.settings.suites import is_suite, load_suite
from mlxe_async.settings.synonyms import SYNONYMS

README = ROOT / "README.md"
STUDY, BENCHMARKS, FAULTS = (
    ROOT / folder / "README.md" for folder in ("runs/study", "tests/benchmarks", "tests/faults")
)
MEASURED = [STUDY, BENCHMARKS, FAULTS]
COMMANDS = list(dict.fromkeys(command for page in PAGES for command in pages.commands(page)))
PEERS = ROOT / "tests/benchmarks/peers/results.json"
# Numbers that say what was done, not what came of it; by page and section.
DEFINITIONS = {
    STUDY: {
        "": {"2", "20", "50000", "500", "15", "95", "1"},
        "Four schedules": {"1", "1.5", "8", "50000", "300"},
        "Unfinished episodes": {"64"},
        "Presets": {"1"},
        "Once solved": {"20000"},
        "The study's own agent": {"50000"},
        "One switch at a time": {"64", "256", "1"},
    },
    BENCHMARKS: {
        "": {"2"},
        "Shared memory and processes": {"100", "40", "99", "95"},
        "Speed": {"2"},
        "Where the time goes": {"2000"},
        "Beside others": {"5", "2", "100000", "256", "64", "32"},
        "What many executors, protection and hours cost": {"1000"},
    },
    FAULTS: {"": {"2"}, "At random": {"0"}},
}


def test_the_front_page_is_read_in_ten_minutes():
    assert len(README.read_bytes()) <= 10_000


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page):
    for target, file, anchor in pages.links(page):
        assert file.exists(), target
        assert not anchor or anchor in pages.anchors(file), target


@pytest.mark.parametrize("page", MEASURED, ids=name_of)
def test_a_page_of_figures_names_its_day_and_its_machine_first(page):
    head = pages.sections(page)[""]
    assert re.search(rf"\b(on|On) {pages.DATE.pattern} on \d+ (quiet )?cores", " ".join(head.split()))


# -- commands ----------------------------------------------------------------------------------------------------------


class Parsed(BaseException):
    """Raised in place of what a command does once its arguments are understood; no handler of errors takes it."""

    def __init__(self, asked):
        super().__init__()
        self.asked = asked


@pytest.fixture
def parsing(monkeypatch):
    """Commands understand their arguments, and do nothing."""
    parse = Parser.parse_args

    def parse_args(self, *arguments):
        raise Parsed(parse(self, *arguments))

    monkeypatch.setattr(Parser, "parse_args", parse_args)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A folder like a clone, in which a reader has written what the pages print."""
    for name in ("mlxe_async", "settings", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    for page in PAGES:
        for _, text in pages.blocks(page.read_text()):
            if match := re.match(r"# (\w+\.(?:toml|py))\n", text):
                (tmp_path / match[1]).write_text(text)
    monkeypatch.chdir(tmp_path)


def words_of(command):
    text = re.sub(r"^\S*\.venv/bin/", "", command.text)
    return shlex.split(re.sub(r"^python3\.11 ", "python ", text))


def ours(command):
    return words_of(command)[:3] == ["python", "-m", "mlxe_async"] and len(words_of(command)) > 3


def test_there_are_commands_to_look_at():
    assert "testenv:py{312,313}" in tox()
    assert sum(map(ours, COMMANDS)) >= 50
    assert len(COMMANDS) >= 80


@pytest.mark.parametrize("command", [*filter(ours, COMMANDS)], ids=str)
def test_a_command_of_a_page_is_understood(command, parsing, reader, capsys):
    arguments = words_of(command)[3:]
    asked = None
    try:
        assert main(arguments) == 0, capsys.readouterr().err
    except Parsed as parsed:
        asked = parsed.asked
    for file in [word for word in arguments if word.endswith(".toml") and word != "FILE.toml"]:
        if arguments[arguments.index(file) - 1] == "--vary":
            variations = tomllib.loads(Path(file).read_text())
            first = next(word for word in arguments if word.endswith(".toml"))
            for sets in variations.values():
                load_settings(first, [*asked.overrides, *sets])
        elif is_suite(file):
            load_suite(file)
        elif arguments[0] == "sweep":
            load_sweep(file)
        else:
            load_settings(file, getattr(asked, "overrides", []))


def test_a_command_with_a_mistake_is_not_understood(parsing, reader, capsys):
    with contextlib.suppress(Parsed):
        assert main(["curve", "latest", "--evry", "1000"]) == 2
        return
    pytest.fail("it was understood")


def script(command):
    words = words_of(command)
    if words[0] == "python" and words[1].endswith(".py"):
        return words[1], words[2:]
    if words[:2] == ["tox", "-e"] and "--" in words:
        text = tox()[f"testenv:{words[2]}"]["commands"]
        return re.search(r"tests/\S+\.py", text)[0], words[words.index("--") + 1 :]
    return None


def tox():
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini")
    return parser


SCRIPTS = [command for command in COMMANDS if script(command)]


@pytest.mark.parametrize("command", SCRIPTS, ids=str)
def test_a_program_of_a_page_exists_and_has_the_options_it_is_given(command):
    file, arguments = script(command)
    tree = ast.parse((ROOT / file).read_text())
    names = [
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute | ast.Name)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id) in ("add_argument", "add")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ]
    for option in (word.partition("=")[0] for word in arguments if word.startswith("--")):
        assert option in names


@pytest.mark.slow
@pytest.mark.parametrize("command", SCRIPTS, ids=str)
def test_a_program_of_a_page_understands_its_arguments(command):
    file, arguments = script(command)
    if "parse_args" not in (ROOT / file).read_text():
        return
    stand_in = (
        "import argparse, runpy, sys\n"
        "parse = argparse.ArgumentParser.parse_args\n"
        "argparse.ArgumentParser.parse_args = lambda *given: sys.exit(77 if parse(*given) else 1)\n"
        "sys.path.insert(0, sys.argv[1].rpartition('/')[0])\n"
        "del sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", stand_in, file, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 77, done.stderr


OTHERS = [command for command in COMMANDS if not ours(command) and not script(command)]


@pytest.mark.parametrize("command", OTHERS, ids=str)
def test_what_else_is_typed_exists(command):
    words = words_of(command)
    if words[0] == "tox":
        known = {*tox(), *(f"testenv:py{version}" for version in ("312", "313"))}
        assert words == ["tox"] or {f"testenv:{name}" for name in words[words.index("-e") + 1].split(",")} <= known
    elif words[0] == "pytest":
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
    elif words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert words[1] == "install"
        assert all(name in extras for word in words for name in re.findall(r"\[(\w+)\]", word))
    else:
        assert words[0] in ("cp", "sed", "git", "python", "mlxe_async", "ruff", "mypy"), "nobody looks at this command"


# -- figures -----------------------------------------------------------------------------------------------------------


def sources(page, text):
    """The kept results that a section names."""
    found = set()
    for _, file, _ in pages.links(page, text):
        if file.suffix in (".txt", ".md") and file.name != "README.md":
            found |= set(pages.numbers(file.read_text()))
            lines = file.parent / "outcomes.jsonl"
            runs = map(json.loads, lines.read_text().splitlines() if lines.exists() else ())
            found |= {str(run["episodes"]) for run in runs if "episodes" in run}
        elif file.suffix == ".json":
            found |= peers()
    return found


def peers():
    """Every figure of the peers' results, rounded as the page shows it."""
    found = set()
    for table in json.loads(PEERS.read_text())["rows"].values():
        for one in table["summary"].values():
            for key in ("median", "least", "most", "lag_mean"):
                if key in one:
                    found |= {f"{one[key]:.0f}", f"{one[key]:.1f}", f"{one[key]:.2f}", f"{one[key] / 1e6:.1f}"}
    return found


PARTS = [(page, heading) for page in MEASURED for heading in pages.sections(page)]


@pytest.mark.parametrize(("page", "heading"), PARTS, ids=lambda part: part if isinstance(part, str) else name_of(part))
def test_every_figure_stands_in_the_kept_result_that_its_section_names(page, heading):
    if page == FAULTS and heading == "What may happen, and what happens then":
        return  # what is promised; the catalogue judges it
    text = pages.sections(page)[heading]
    known = sources(page, text) | DEFINITIONS[page].get(heading, set())
    if heading in ("Four schedules", "The study's own agent"):
        known |= {str(number) for row in PUBLISHED.values() for number in row}
    if heading == "Breakout from the pixels":
        known |= {f"{arm.means[0]:g}" for arm in breakout_study.CURVES.values()}
    assert set(pages.figures(text)) - known == set()


def test_a_figure_that_was_not_measured_is_found():
    text = pages.sections(STUDY)["Four schedules"].replace("1.10 [1.06, 1.15]", "7.77 [1.06, 1.15]")
    assert "7.77" in set(pages.figures(text)) - sources(STUDY, text)


def test_each_kept_result_names_its_command_its_day_and_its_machine():
    program = runpy.run_path(str(BENCHMARKS.with_name("kept.py")))
    found = {file.stem: file.read_text().splitlines() for file in program["RESULTS"].glob("*.txt")}
    assert set(program["COMMANDS"]) <= set(found)
    for name, lines in found.items():
        assert lines[0].startswith("$ python ")
        assert re.match(rf"# {pages.DATE.pattern}, .*\b(core|machine)", lines[1])
        if name in program["COMMANDS"]:
            assert lines[0] == f"$ {program['COMMANDS'][name]}"


def test_what_a_command_prints_is_kept_under_its_command_day_and_machine():
    kept = runpy.run_path(str(BENCHMARKS.with_name("kept.py")))["kept"]
    command, about, nothing, printed = kept("python --version").splitlines()
    assert command == "$ python --version"
    assert re.match(rf"# {pages.DATE.pattern}, \d+ cores of .*, commit \w+", about)
    assert (nothing, printed) == ("", f"Python {platform.python_version()}")


def test_each_row_of_the_benchmarks_is_a_line_of_a_kept_result():
    looked_at = 0
    for text in pages.sections(BENCHMARKS).values():
        kept = [file for _, file, _ in pages.links(BENCHMARKS, text) if file.suffix == ".txt"]
        lines = [pages.numbers(line) for file in kept for line in file.read_text().splitlines()]
        for _, (head, *rows) in pages.tables(text):
            for row in rows if "mlxe_async" not in " ".join(head) else ():
                told = pages.figures(" | ".join(row))
                assert any(is_within(told, line) for line in lines), row
                looked_at += 1
    assert looked_at >= 20


def is_within(told, line):
    """Whether all that is told is on the line, in this order."""
    left = iter(line)
    return all(number in left for number in told)


def kept_rows(folder):
    """Rows of all tables of a study, each a dictionary by the names of columns."""
    found = pages.tables((folder / "table.md").read_text())
    return [dict(zip(head, row, strict=True)) for _, (head, *rows) in found for row in rows]


def test_each_table_of_the_study_is_a_part_of_the_one_it_came_from():
    text, compared = STUDY.read_text(), 0
    for start, (head, *rows) in pages.tables(text):
        if head[0] != "settings" or "hypothesis" in head:
            continue
        links = re.findall(r"\]\(([\w-]+)/table\.md\)", text[:start])
        folders = links[-2:] if "The study's own agent" in text[:start] else links[-1:]
        known = [row for folder in folders for row in kept_rows(STUDY.parent / folder)]
        for row in rows:
            told = dict(zip(head, row, strict=True))
            assert any(told.items() <= one.items() for one in known), told
            compared += len(told)
    assert compared > 300


def test_the_peers_table_has_each_figure_in_its_place():
    rows = json.loads(PEERS.read_text())["rows"]
    (_, one), (_, two) = pages.tables(pages.sections(BENCHMARKS)["Beside others"])
    names = [cell.split()[0] for cell in one[0][1:]]
    for row, key in zip(one[1:], ("one-pass", "native", "solve", "ppo-defaults", "ppo-zoo"), strict=True):
        for name, cell in zip(names, row[1:], strict=True):
            summary = rows[key]["summary"].get(name)
            assert (cell == "-") == (summary is None)
            if summary:
                assert summary["version"] in ("0.1.0", one[0][1 + names.index(name)].split()[-1])
                shown = f"{summary['median']:.2f}" if key == "solve" else f"{summary['median']:,.0f}"
                assert cell.split(";")[0].split()[0] == shown
    for row, key in zip(two[1:], ("memory-prioritised", "memory-uniform"), strict=True):
        for name, cell in zip(("mlxe_async", "tianshou", "cpprb"), row[1:], strict=True):
            assert cell == f"{rows[key]['summary'][name]['median'] / 1e6:.1f}"


def test_the_front_pages_results_are_those_of_the_pages_they_lead_to():
    ((_, rows),) = pages.tables(pages.section(README, "Results"))
    assert len(rows) >= 6
    for row in rows:
        ((_, file, _),) = pages.links(README, row[-1])
        known = set(pages.figures(file.read_text()))
        assert set(pages.figures(row[1])) - known == set(), row


def test_the_faults_are_counted_as_in_their_table():
    states = [row["state"] for row in json.loads((ROOT / "tests/faults/results.json").read_text())]
    green, red = states.count("green"), states.count("red")
    told = f"{green} rows of {len(states)} green, {red} red, {len(states) - green - red} that this host cannot judge"
    assert told in " ".join(FAULTS.read_text().split())


# -- the front page's tables -------------------------------------------------------------------------------------------

IN_THE_TABLE = [name for name in REGISTRY if name not in ("q_learning", "sarsa")]
"""Algorithms that learn from any observations; tables need integers."""
ACTIONS = {
    "Discrete": Spaces((4,), actions=2),
    "MultiDiscrete": Spaces((4,), action_shape=(2,), action_kind="multi_discrete", action_sizes=(2, 3)),
    "MultiBinary": Spaces((4,), action_shape=(2,), action_kind="multi_binary", action_sizes=(2, 2)),
    "Box": Spaces((4,), action_shape=(1,), action_low=(-1.0,), action_high=(1.0,)),
    "action masks": Spaces(
        (6,), actions=2, action_sizes=(2,), parts=laid_out([("obs", (4,), "<f4"), (MASK, (2,), "|u1")]), masked=True
    ),
}


def what_works():
    """The table of algorithms and spaces: row -> algorithm -> cell."""
    ((_, (head, *rows)),) = pages.tables(pages.section(README, "Algorithms and spaces"))
    columns = [[name.strip(" `") for name in cell.split(",")] for cell in head[1:]]
    return {
        row[0]: {name: cell for names, cell in zip(columns, row[1:], strict=True) for name in names} for row in rows
    }


def test_the_table_of_algorithms_has_all_of_them():
    for row in what_works().values():
        assert set(row) - {"your own"} == set(IN_THE_TABLE)


@pytest.mark.parametrize("name", IN_THE_TABLE)
@pytest.mark.parametrize("taken", ACTIONS)
def test_actions_and_masks_are_taken_or_refused_as_the_table_says(name, taken):
    (said,) = [
        row[name]
        for label, row in what_works().items()
        if re.search(rf"\b{taken}\b", label) and label.endswith(("actions", "masks"))
    ]
    kind = load_algorithm(name)
    with contextlib.nullcontext() if said == "yes" else pytest.raises(ValueError, match=r"^algorithm\.name: "):
        kind(kind.Settings(), ACTIONS[taken], seed=0, learns=False)


@pytest.mark.parametrize("name", IN_THE_TABLE)
def test_memories_and_schedules_are_as_the_table_says(name):
    kind, rows = load_algorithm(name), what_works()
    takes = [label for label, row in rows.items() if label.endswith("actions") and row[name] == "yes"]
    taken = next(one for one in ("Discrete", "Box") if any(re.search(rf"\b{one}\b", label) for label in takes))
    made = kind(kind.Settings(), ACTIONS[taken], seed=0, learns=False)
    assert rows["learns from"][name] == made.memory
    whole = {"sync": "rollout", "unfinished": "keep"} if made.bootstraps else {"sync": "episode", "unfinished": "drop"}
    refused = []
    for schedule in ("serial", "istb", "is", "ia", "oa"):
        facts = Facts(schedule, made.memory, made.off_policy, made.bootstraps, **whole)
        refused += [schedule for verdict in verdicts(facts) if verdict.refused]
    assert refused == (["oa"] if rows["`oa`"][name].startswith("refused") else [])
    assert ("whole episodes" in rows["`serial`, `istb`, `is`, `ia`"][name]) == (name in ("a2c", "reinforce"))
    says = {"corrects": "yes, corrected by ratios", "learns": "yes, off-policy by design", "ignores": "refused, but"}
    assert rows["`oa`"][name].startswith(says[made.off_policy])


def test_keys_of_other_packages_lead_where_the_table_says():
    ((_, (_, *rows)),) = pages.tables(pages.section(README, "From stable-baselines3 and CleanRL"))
    looked_at = 0
    for theirs, cleanrl, here in rows:
        for key in re.findall(r"`(\w+)`", f"{theirs} {cleanrl}"):
            if key in SYNONYMS:
                assert set(SYNONYMS[key]) & set(re.findall(r"`([\w.]+)`", here)), key
                looked_at += 1
    assert looked_at >= 20


SCHEDULES = ROOT / "mlxe_async/schedules/README.md"
PLACES = re.findall(r"^\| .* \| `(\w+)` \| (learner|executors) \| (.*) \|$", SCHEDULES.read_text(), re.MULTILINE)


def test_each_paper_stands_where_its_settings_file_puts_it():
    assert len(PLACES) >= 14
    for kind, gradients, files in PLACES:
        for file in re.findall(r"\(([^)]+\.toml)\)", files):
            schedule = load_settings(SCHEDULES.parent / file).schedule
            assert (schedule.kind, schedule.gradients) == (kind, gradients), file
