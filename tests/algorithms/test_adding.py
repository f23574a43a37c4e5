"""Six places name a built-in algorithm; whoever adds one is told which of them still lacks it."""

import ast
import functools
import tomllib
from pathlib import Path

import pytest

from mlxe_async.algorithms import REGISTRY

ROOT = Path(__file__).parents[2]
TESTS = [path for path in (ROOT / "tests/algorithms").glob("test_*.py") if path != Path(__file__)]


@functools.cache
def named_by_tests():
    """Modules that tests of algorithms import from, and all words that they have as strings."""
    nodes = [node for path in TESTS for node in ast.walk(ast.parse(path.read_text()))]
    words = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return words | {node.module for node in nodes if isinstance(node, ast.ImportFrom)}


def bars():
    """Settings files that have a quick bar."""
    (table,) = [
        node.value
        for node in ast.parse((ROOT / "tests/runs/test_quick_bars.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BARS"
    ]
    return set(ast.literal_eval(table))


def algorithm_of(path):
    return tomllib.loads(path.read_text()).get("algorithm", {}).get("name")


def lacking(name):
    """Places that name an algorithm: what is to be done there, where it is not."""
    module, _, kind = REGISTRY[name].partition(":")
    presets = {path.stem for path in (ROOT / "settings").glob("*.toml") if algorithm_of(path) == name}
    pages = {page: (ROOT / page).read_text() for page in ("README.md", "mlxe_async/algorithms/README.md")}
    places = {
        f"{module.replace('.', '/')}.py: the paper": (ROOT / f"{module.replace('.', '/')}.py").exists(),
        "settings/: a preset that runs it": presets,
        "README.md: its place in the table of algorithms": f"`{name}`" in pages["README.md"],
        "mlxe_async/algorithms/README.md: its file among the papers": f"{module.split('.', 2)[2].replace('.', '/')}.py`"
        in pages["mlxe_async/algorithms/README.md"],
        "tests/runs/test_quick_bars.py: what its preset reaches, in BARS": presets & bars(),
        f"tests/algorithms/: tests of {kind}": {module, name} & named_by_tests(),
    }
    return [place for place, named in places.items() if not named]


@pytest.mark.parametrize("name", REGISTRY)
def test_every_place_that_names_an_algorithm_has_it(name):
    assert lacking(name) == []


def test_an_algorithm_that_is_only_registered_is_told_what_it_lacks(monkeypatch):
    monkeypatch.setitem(REGISTRY, "again", "mlxe_async.algorithms.parts.nowhere:Again")
    assert [place.partition(":")[0] for place in lacking("again")] == [
        *("mlxe_async/algorithms/parts/nowhere.py", "settings/", "README.md", "mlxe_async/algorithms/README.md"),
        *("tests/runs/test_quick_bars.py", "tests/algorithms/"),
    ]
