"""What the benchmarks of pushes make of runs: curves, probabilities, tables; and what is kept says the same."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RESULTS = BENCHMARKS / "results"


@pytest.fixture(scope="module")
def program():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield lambda name: runpy.run_path(str(BENCHMARKS / f"{name}.py"))
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_the_mean_of_the_last_eight_episodes(program):
    told = program("ladder")["told"]([8.0] * 8 + [16.0] * 8)
    assert (told["episodes"], told["longest"], told["best8"], told["last8"]) == (16, 16.0, 16.0, 16.0)
    assert [8, 8.0] in told["curve"]
    assert told["curve"][-1] == [16, 16.0]
    assert told["curve"][0] == [1, 8.0]


def test_runs_of_fewer_episodes_or_none_have_no_mean(program):
    told = program("ladder")["told"]
    assert told([])["curve"] == []
    assert told([5.0])["best8"] == 0.0


def test_the_probability_that_one_is_larger_counts_draws_half(program):
    better = program("pushed_lag")["better"]
    assert better([1, 2], [0, 0]) == 1.0
    assert better([0, 0], [1, 2]) == 0.0
    assert better([1, 2], [1, 2]) == 0.5


def test_its_interval_holds_it_and_is_wide_for_few_runs(program):
    module = program("pushed_lag")
    low, high = module["better_between"]([3.0, 1.0, 5.0], [2.0, 4.0, 0.0])
    assert low < module["better"]([3.0, 1.0, 5.0], [2.0, 4.0, 0.0]) < high
    assert high - low > 0.5


@pytest.mark.parametrize("name", ["ladder", "pushed_lag", "wall_time"])
def test_what_is_kept_makes_the_table_that_is_kept(program, name):
    module, path = program(name), RESULTS / f"{name}.jsonl"
    lines = module["table"](program("recorded")["lines_of"](path))
    assert path.with_suffix(".md").read_text().splitlines() == lines
    assert len(lines) > 3
