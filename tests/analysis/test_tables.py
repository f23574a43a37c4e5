"""The tables of a study: failures stay in, cells say what they promise."""

import dataclasses

import pytest
from study_runs import story, write_run

from mlxe_async.analysis.outcomes import failure, outcome
from mlxe_async.analysis.study import group
from mlxe_async.analysis.tables import (
    Table,
    all_tables,
    number,
    outcome_table,
    pair_table,
    run_table,
    settings_table,
    survival,
    time_table,
)


@pytest.fixture
def groups(tmp_path):
    """`is` solves at 4, 6 and 8 episodes; `oa` at 12 and 24, and once not at all."""
    runs = [outcome(write_run(tmp_path, story("is", seed, solved_at=4 + 2 * seed, episodes=12))) for seed in range(3)]
    runs += [outcome(write_run(tmp_path, story("oa", seed, solved_at=12 + 12 * seed, episodes=30))) for seed in (0, 1)]
    runs.append(outcome(write_run(tmp_path, story("oa", 2, solved_at=None, episodes=40))))
    return group(runs)


def cells(table, row):
    return dict(zip(table.head, table.rows[row], strict=True))


@pytest.mark.long
def test_keys_in_which_settings_differ_come_first_with_their_values(tmp_path):
    runs = [
        outcome(write_run(tmp_path, story(name, seed, batch=n)))
        for name, n in (("a", 64), ("b", 32))
        for seed in (1, 2)
    ]
    table = all_tables(group(runs))[0]
    assert (table.title, table.head) == ("Settings that differ", ("key", "a", "b"))
    assert table.rows == (("algorithm.batch", "64", "32"),)
    assert table.note == ""


def test_no_such_table_where_none_differs(groups):
    assert settings_table({"is": groups["is"]}).rows == ()
    assert "Settings that differ" not in [table.title for table in all_tables({"is": groups["is"]})]


def test_keys_that_not_all_have_are_counted(groups):
    one, two = (dict(groups[name][0].settings) for name in ("is", "oa"))
    two |= {"algorithm.name": "dqn", "algorithm.double": True, "algorithm.layers": [64] * 40}
    del two["algorithm.batch"]
    runs = [dataclasses.replace(groups[name][0], settings=keys) for name, keys in (("is", one), ("oa", two))]
    table = settings_table(group(runs))
    assert ("algorithm.name", '"mlxe"', '"dqn"') in table.rows
    assert table.note == "Keys of one algorithm or schedule that not all of them have: 3."


def test_settings_of_runs_that_told_none_are_passed_over(groups):
    unknown = [dataclasses.replace(one, settings={}) for one in groups["oa"]]
    assert settings_table({**groups, "oa": unknown}).head == ("key", "is")


def test_settings_are_told_by_median_interval_and_worst(groups):
    one = cells(outcome_table(groups), 0)
    assert one["settings"] == "is"
    assert one["solved"] == "3 of 3"
    assert one["episodes"] == "6 [4, 8], 8"
    assert one["s to publication"] == "3.9 [2.9, 4.9], 4.9"
    # No failure of three: 1 - 0.05^(1/3).
    assert one["failed [at most]"] == "0 % [63 %]"


def test_a_failure_is_worse_than_anything_and_stays_in(groups):
    one = cells(outcome_table(groups), 1)
    assert one["solved"] == "2 of 3"
    assert one["episodes"] == "24 [12, failed], failed"
    assert one["failed [at most]"].startswith("33 % [")
    lost = outcome_table({"x": [failure("x", 1, "killed", 2.0)]})
    assert cells(lost, 0)["episodes"] == "failed"


def test_optional_columns_come_with_their_data(tmp_path, groups):
    head = outcome_table(groups).head
    assert not {"D2", "retention", "D0 episodes", "return at the end"} & set(head)
    kept = outcome(write_run(tmp_path, story("keeps", 1, after=(True, True, False, True), stop={"solved": False})))
    free = outcome(write_run(tmp_path, story("free", 1, solved_at=None, tested=False)))
    table = outcome_table(group([kept, free]))
    assert cells(table, 0)["retention"] == "75 % (worst 75 %)"
    assert cells(table, 1)["solved"] == "not tested"
    assert cells(table, 1)["failed [at most]"].startswith("0 %")
    assert cells(table, 1)["return at the end"] == "35.0"
    assert (cells(table, 1)["episodes"], cells(table, 1)["s to publication"]) == ("12", "-")


def test_baselines_stand_in_the_same_table(groups):
    drawn = {"name": "untrained", "solved": 9, "tried": 400, "rule": "one test"}
    found = {"name": "cem", "solved": 2, "tried": 3, "rule": "3 in a row", "episodes": [70, None, 90], "env_steps": []}
    table = outcome_table(groups, [drawn, found])
    assert cells(table, 2)["solved"] == "9 of 400 (one test)"
    assert cells(table, 2)["failed [at most]"] == "98 % [99 %]"
    assert cells(table, 2)["episodes"] == "-"
    assert cells(table, 3)["episodes"] == "90 [70, failed], failed"


def test_survival_censors_failures_where_they_ended(groups):
    curve = survival(groups["oa"], "episodes")
    assert (curve.times, curve.censored, curve.median) == ((12, 24), (40,), 24)
    assert survival(groups["oa"], "seconds_to_publication").censored == (21,)
    assert cells(time_table(groups), 1)["KM median episodes"] == "24"


@pytest.mark.long
def test_pairs_are_compared_by_seed(groups):
    rows = {row[1]: row for row in pair_table(groups).rows}
    pair, _, both, medians, means, p, less = rows["episodes"]
    assert (pair, both) == ("is / oa", "2 of 3")
    assert medians.startswith("0.25 [")
    assert means.startswith("0.29 [")  # sqrt(4/12 * 6/24)
    assert p == "0.250"
    assert less == "100 %"
    assert set(rows) == {"episodes", "s to publication", "s to exit", "CPU s"}
    assert pair_table({"is": groups["is"]}).rows == ()
    # Five pairs at most: the note says what such an interval is worth.
    assert "75 % of studies of 3" in pair_table(groups).note
    assert "75 % of studies of 3" in outcome_table(groups).note


@pytest.mark.slow
def test_variants_are_held_against_what_they_vary_and_nothing_else(groups):
    three = {"is": groups["is"], "is-fast": groups["oa"], "is-slow": groups["is"], "ia": groups["oa"]}
    varied = {"is-fast": "is", "is-slow": "is"}
    assert {row[0] for row in pair_table(three, varied).rows} == {"is / is-fast", "is / is-slow", "is / ia"}
    assert len({row[0] for row in pair_table(three).rows}) == 6


def test_nothing_needed_counts_as_the_least_that_can_be_counted(groups):
    first, *rest = groups["is"]
    lucky = dataclasses.replace(first, episodes=0, cpu_seconds=0.0)
    (row, *_) = pair_table({"lucky": [lucky, *rest], "is": groups["is"]}).rows
    assert row[4].startswith("0.63 [")  # (1/4)^(1/3), the others being equal


@pytest.mark.long
def test_pairs_of_which_one_always_fails_are_shown(groups):
    lost = [dataclasses.replace(one, solved=False) for one in groups["is"]]
    rows = pair_table({"lost": lost, "is": groups["is"]}).rows
    assert [row[1] for row in rows] == ["episodes", "s to publication", "s to exit", "CPU s"]
    assert {row[3] for row in rows} == {"inf [inf, inf]"}
    assert {row[3] for row in pair_table({"is": groups["is"], "lost": lost}).rows} == {"0 [0, 0]"}
    half = [*lost[:2], groups["is"][2]]
    assert {row[3] for row in pair_table({"half": half, "other": half}).rows} == {"-"}
    assert pair_table({"lost": lost, "too": lost}).rows == ()


@pytest.mark.long
def test_the_note_says_when_all_is_counted(groups):
    goal = {name: [dataclasses.replace(r, facts={"episode_steps": 50_000}) for r in g] for name, g in groups.items()}
    told = outcome_table(goal).note
    assert told.startswith("Solved: one training episode, exploration on, lasted 50,000 steps (D0); all counts are ")
    assert "not those of the run's end" in told
    assert "CPU s: all processes, until the run has ended" in told
    assert "passed (D1c); all counts are those when the first was published" in outcome_table(groups).note


def test_mixtures_of_programs_and_seeds_are_in_the_note(groups):
    assert "Note:" not in outcome_table(groups).note
    mixed = [dataclasses.replace(one, program=f"p{one.seed}", seed=1) for one in groups["is"]]
    told = outcome_table({"is": mixed}).note
    assert "made by 3 versions of the program" in told
    assert "is has several runs of one seed" in told


@pytest.mark.long
def test_every_run_has_a_row_with_its_reason(groups):
    table = run_table(groups)
    assert len(table.rows) == 6
    assert cells(table, 5)["solved"] == "episodes"
    assert cells(table, 5)["episodes"] == "-"
    assert cells(table, 5)["ended at episode / s"] == "40 / 21"
    assert [one.title for one in all_tables(groups)][-1] == "Every run"


def test_tables_are_markdown_whatever_stands_in_them():
    table = Table("t", ("a", "b"), (("x|y\nz", "<b>"),), "note & more")
    assert table.markdown == "### t\n\n| a | b |\n| --- | --- |\n| x\\|y z | <b> |\n\nnote & more\n"


@pytest.mark.parametrize(
    ("value", "text"), [(0.421, "0.42"), (7.34, "7.3"), (12.0, "12"), (1234.6, "1,235"), (float("inf"), "failed")]
)
def test_numbers_are_short(value, text):
    assert number(value) == text
