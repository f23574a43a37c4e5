"""Algorithms are found by name, built in or the user's own, and what is wrong with a name is said in one line."""

import pytest

from mlxe_async.algorithms import load_algorithm
from mlxe_async.errors import SettingsError


def problem(name):
    with pytest.raises(SettingsError) as caught:
        load_algorithm(name)
    (line,) = caught.value.problems
    assert line.startswith("algorithm.name: ")
    return line


def test_a_built_in_name_gives_its_class():
    assert load_algorithm("mlxe").__name__ == "MLxE"


def test_the_users_own_class_is_found_by_module_and_name(tmp_path, monkeypatch):
    (tmp_path / "my_file.py").write_text("from mlxe_async.algorithms.mlxe import MLxE\nclass Mine(MLxE):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_algorithm("my_file:Mine").__name__ == "Mine"


def test_a_misspelt_name_gets_the_nearest_one():
    assert 'did you mean "mlxe"' in problem("mlxec")


def test_a_module_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_file.py").write_text("raise RuntimeError('out of paper')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "out of paper" in problem("broken_file:Mine")
    assert "No module named" in problem("no_such_package_at_all:Mine")


def test_a_missing_class_and_a_class_that_is_no_algorithm_are_told_apart():
    assert "has no class Nobody" in problem("mlxe_async.algorithms.mlxe.paper:Nobody")
    assert "is no algorithm: it lacks" in problem("fractions:Fraction")
