"""What is kept of the studies is small, and its lines make the tables that stand beside them."""

import json
import subprocess
import sys

import pages
import pytest
from study_runs import story, write_run

from mlxe_async.analysis.outcomes import outcome
from mlxe_async.analysis.study import ALL_OUTCOMES, group, stored_outcomes
from mlxe_async.analysis.tables import outcome_table, pair_table, score_table, time_table
from mlxe_async.cli.compare import run as compare
from mlxe_async.errors import RunFailed

STUDIES = pages.ROOT / "runs" / "study"
KEPT = sorted(file.parent.name for file in STUDIES.glob(f"*/{ALL_OUTCOMES}"))
POOLED = ["presets", "presets-again", "record"]
NO_LINES = "baseline"
BY_HAND = {"pong"}
QUICK = {"final", "ia-drop", "istb", "study-ia-drop"}


def rows_of(folder):
    """Title, names of columns and rows of each table."""
    text = (folder / "table.md").read_text()
    return [
        (text[:start].rpartition("### ")[2].strip(), tuple(head), [tuple(row) for row in rows])
        for start, (head, *rows) in pages.tables(text)
    ]


def outcomes(name):
    names = POOLED if name == "pooled" else [name]
    return group(one for name in names for one in stored_outcomes(STUDIES / name))


def test_all_of_them_take_little_room():
    assert sum(file.stat().st_size for file in STUDIES.rglob("*") if file.is_file()) <= 600_000


def test_every_study_of_the_page_is_kept():
    named = {file.parent.name for _, file, _ in pages.links(STUDIES / "README.md") if file.name == "table.md"}
    assert named == {*KEPT, "pooled"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
        for name in sorted({*KEPT, "pooled"} - BY_HAND)
    ],
)
def test_the_lines_of_a_study_make_its_tables(name):
    (_, head, rows), *others = rows_of(STUDIES / name)
    reached = [others.pop(0) for title, *_ in others[:1] if title == score_table({}).title]
    (_, time_head, time_rows), *pairs = others
    groups = outcomes(name)
    needed, spent = outcome_table(groups), time_table(groups)
    scores = score_table(groups)
    assert [(scores.title, scores.head, list(scores.rows))] * bool(scores.rows) == reached
    assert needed.head == head
    assert list(needed.rows) == [row for row in rows if not row[0].startswith(NO_LINES)]
    assert (spent.head, list(spent.rows)) == (time_head, time_rows)
    for _, _, told in pairs:
        of = [first for first, *_ in told]
        for pair in dict.fromkeys(of):
            one, other = pair.split(" / ")
            made = pair_table({one: groups[one], other: groups[other]})
            assert list(made.rows) == [row for row in told if row[0] == pair]


def test_the_kept_run_of_pong_is_the_one_of_its_table():
    (one,) = stored_outcomes(STUDIES / "pong")
    text = (STUDIES / "pong" / "table.md").read_text()
    assert f"{one.env_steps:,}" in text
    assert f"{one.seconds_to_exit - one.seconds_to_publication:.0f}" == "21"
    assert one.curve[-1][0] <= one.end["episodes"]


@pytest.mark.long
def test_a_study_is_kept_without_what_only_pictures_need(tmp_path):
    runs = [write_run(tmp_path, story(name, seed, solved_at=4 + seed, episodes=12)) for name in "ab" for seed in (0, 1)]
    made, kept = tmp_path / "made", tmp_path / "kept"
    assert compare([*map(str, runs), "--no-pictures", "--out", str(made)]) == 0
    program = pages.ROOT / "tests" / "benchmarks" / "keep_study.py"
    done = subprocess.run(
        [sys.executable, str(program), str(made), str(kept)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.stdout.startswith(f"{kept}: 4 runs")
    lines = (kept / ALL_OUTCOMES).read_text().splitlines()
    assert all("curve" not in json.loads(line) and "run" not in json.loads(line) for line in lines)
    table = (kept / "table.md").read_text()
    assert "Every run" not in table
    assert "time, on" not in table  # whether they were made one at a time, run folders do not tell
    whole = group(outcome(run) for run in runs)
    assert outcome_table(group(stored_outcomes(kept))).rows == outcome_table(whole).rows


def test_a_line_without_program_and_digest_has_those_of_the_line_before(tmp_path):
    first = json.loads((STUDIES / "final" / ALL_OUTCOMES).read_text().splitlines()[0])
    bare = {name: value for name, value in first.items() if name not in ("digest", "program")}
    lines = [{**first, "digest": "one", "program": "a"}, {**bare, "seed": 1}, {**bare, "seed": 2, "digest": ""}]
    (tmp_path / ALL_OUTCOMES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(one.digest, one.program) for one in stored_outcomes(tmp_path)] == [("one", "a"), ("one", "a"), ("", "a")]


@pytest.mark.parametrize("line", ["[]", "7", "null"])
def test_a_damaged_report_is_refused_in_a_sentence(tmp_path, line):
    first = (STUDIES / "final" / ALL_OUTCOMES).read_text().splitlines()[0]
    (tmp_path / ALL_OUTCOMES).write_text(f"{first}\n{line}\n")
    with pytest.raises(RunFailed, match="cannot be read"):
        stored_outcomes(tmp_path)
