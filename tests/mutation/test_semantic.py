"""The list of mutants of meaning: each can be made, names a test that there is, and is put in place as it should be."""

import ast
import functools

import pytest
from semantic import LIST, ROOT, Slip, ask_named, file_of, slips
from survivors import Results, Verdict, _codes

SLIPS = slips()
KINDS = {"row order", "off by one", "order of target and step", "what is frozen", "what is counted when"}


def test_there_are_enough_of_each_kind_and_none_twice():
    kinds = [one.mutant.kind for one in SLIPS]
    assert set(kinds) == KINDS
    assert all(kinds.count(kind) >= 25 for kind in KINDS)
    assert len({(one.mutant.file, one.mutant.source) for one in SLIPS}) == len(SLIPS) >= 120
    files = {one.mutant.file.split("/")[1] for one in SLIPS}
    assert files == {"algorithms", "maths"}


def test_lines_below_a_change_keep_their_numbers():
    for one in SLIPS:
        original = (ROOT / one.mutant.file).read_text()
        assert one.mutant.source.count("\n") == original.count("\n"), one.mutant.before
        if one.mutant.scope:
            assert any(code.co_qualname == one.mutant.scope for code in _codes(compile(original, "", "exec")).values())


@functools.cache
def named_in(file):
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_names_a_test_that_there_is():
    for one in SLIPS:
        assert one.noticed_by, f"{LIST.name}: no test is named for {one.mutant.file}: {one.mutant.after}"
        name = one.noticed_by.split("::")[1].partition("[")[0]
        assert name in named_in(file_of(one.noticed_by)), one.noticed_by


@pytest.mark.slow
def test_a_mutant_is_killed_by_its_test_and_survives_one_that_has_nothing_to_do_with_it(tmp_path):
    found = {one.mutant.after: one for one in SLIPS}
    killed = found["min(1.0, (now + 1) / over)"]
    other = "tests/maths/test_annealing.py::test_a_line_of_one_step_is_the_shortest"
    results = Results(tmp_path / "results.jsonl")
    ask_named([killed], results)
    (line,) = results._known.values()
    assert Verdict(line["outcome"], line["by"], 0.0) == Verdict("killed", killed.noticed_by, 0.0)
    ask_named([Slip(killed.mutant, other)], results)
    (line,) = results._known.values()
    assert line["outcome"] == "survived"
