"""The list of mutants of meaning: each can be made, names a test that there is, and is put in place as it should be."""

import ast
import functools
import json
import subprocess
import sys

import pytest
from semantic import LIST, ROOT, file_of, slips
from survivors import _codes

KINDS = {"row order", "off by one", "order of target and step", "what is frozen", "what is counted when"}


@pytest.fixture(scope="module")
def listed():
    """All entries of the list; to make them takes seconds, which collecting tests shall not."""
    return slips()


def test_there_are_enough_of_each_kind_and_none_twice(listed):
    kinds = [one.mutant.kind for one in listed]
    assert set(kinds) == KINDS
    assert all(kinds.count(kind) >= 25 for kind in KINDS)
    assert len({(one.mutant.file, one.mutant.source) for one in listed}) == len(listed) >= 120
    files = {one.mutant.file.split("/")[1] for one in listed}
    assert files == {"algorithms", "maths", "networks"}


@pytest.mark.long
def test_lines_below_a_change_keep_their_numbers(listed):
    for one in listed:
        original = (ROOT / one.mutant.file).read_text()
        assert one.mutant.source.count("\n") == original.count("\n"), one.mutant.before
        if one.mutant.scope:
            assert any(code.co_qualname == one.mutant.scope for code in _codes(compile(original, "", "exec")).values())


@functools.cache
def named_in(file):
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_names_a_test_that_there_is(listed):
    for one in listed:
        assert one.noticed_by, f"{LIST.name}: no test is named for {one.mutant.file}: {one.mutant.after}"
        name = one.noticed_by.split("::")[1].partition("[")[0]
        assert name in named_in(file_of(one.noticed_by)), one.noticed_by


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_the_line_goes_from_first_to_last_and_stays_there", "killed"),
        ("test_clocks_that_cannot_be_are_refused[0-1]", "survived"),
        ("test_that_is_nowhere", "survived"),
    ],
)
def test_a_mutant_is_killed_by_a_test_that_notices_it_and_by_no_other(tmp_path, test, outcome):
    entry = {"file": "mlxe_async/maths/annealing.py", "kind": "off by one", "before": "1.0, now / over", "after": "0"}
    entry["noticed_by"] = f"tests/maths/test_annealing.py::{test}"
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    (tmp_path / "slips.toml").write_text(f"[[mutant]]\n{text}")
    asked = ["--slips", str(tmp_path / "slips.toml"), "--results", str(tmp_path / "results.jsonl")]
    command = [sys.executable, str(LIST.with_suffix(".py")), *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    (line,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert line["outcome"] == outcome, done.stderr
    assert done.returncode == (outcome != "killed")
    assert (line["by"] == entry["noticed_by"]) == (outcome == "killed")
