"""What exporters are fed becomes values under known names, and tables in which nothing is missing."""

import csv
import datetime as dt
import json

import pytest
from log_lines import episode, evaluate, exported, generate, learn, line, numbered, phase, publish, run_start, short_run

from mlxe_async.analysis.exporters import TARGETS, cells, exporter_to, tables
from mlxe_async.analysis.exporters.scalars import Scalars
from mlxe_async.errors import SettingsError


def points(lines):
    scalars = Scalars()
    return [point for one in numbered(lines) for point in scalars.feed(one)]


def values(lines, name):
    return [(point.step, point.value) for point in points(lines) if point.name == name]


def test_values_have_the_names_that_people_know_and_are_told_by_environment_steps():
    found = {point.name: (point.step, point.value) for point in points(short_run())}
    assert found == {
        "time/publish_seconds": (90, pytest.approx(0.001)),
        "charts/version": (90, 2),
        "charts/updates": (90, 1),
        "charts/episodes": (90, 1),
        "time/generate_seconds": (90, pytest.approx(0.01)),
        "charts/episodic_return": (90, 5.0),
        "charts/episodic_length": (90, 10),
        "time/memorize_seconds": (90, pytest.approx(0.003)),
        "time/learn_seconds": (90, pytest.approx(0.014)),
        "charts/policy_lag": (90, 0.5),
        "charts/policy_lag_max": (90, 1),
        "losses/loss": (90, 0.25),
        "time/evaluate_seconds": (90, pytest.approx(0.018)),
        "eval/episodic_return": (90, 9.0),
        "eval/episodic_return_min": (90, 8.0),
        "eval/passed": (90, 1.0),
        "memory/rows": (90, 90),
        "memory/backlog": (90, 0),
    }


def test_metrics_of_algorithms_are_losses_or_what_they_are_known_as():
    losses = {"policy_loss": 1.0, "value_loss": 2.0, "learning_rate": 3.0, "approximate_kl": 4.0, "clipped_share": 5.0}
    found = points([run_start(), learn(1, 2, 9, 2, losses=losses | {"epsilon": 6.0, "own": None, "entropy": 7})])
    assert {point.name: point.value for point in found if point.name.startswith(("losses/", "charts/"))} == {
        "losses/policy_loss": 1.0,
        "losses/value_loss": 2.0,
        "charts/learning_rate": 3.0,
        "losses/approx_kl": 4.0,
        "losses/clipfrac": 5.0,
        "charts/epsilon": 6.0,
        "losses/entropy": 7,
    }


def test_a_test_belongs_to_the_steps_at_which_its_version_was_published():
    published = line("weights", 12, "learner", version=7, updates=1, env_steps=100, episodes=1)
    tested = line("evaluation", 40, "evaluator", version=7, passed=None, episodes=1, steps=9, seconds=1.0)
    lines = [run_start(), published, generate(13, 30, 0, 50, 150), evaluate(20, 40, 7), tested | {"return_mean": 4.0}]
    assert values(lines, "eval/episodic_return") == [(100, 4.0)]
    assert values(lines, "eval/passed") == []


def test_an_update_belongs_to_the_steps_with_which_it_was_begun():
    lines = [run_start(), generate(0, 5, 0, 150, 150), learn(1, 9, 10, 2, env_steps=100, losses={"loss": 1.0})]
    assert values(lines, "losses/loss") == [(100, 1.0)]


def test_shares_of_time_are_those_since_the_process_was_told_last_and_begin_anew_with_a_sitting():
    told = [{"waiting": 1.0, "stepping": 3.0}, {"waiting": 2.0, "stepping": 3.0}, {"waiting": 0.5, "saving": 0.5}]
    lines = [line("times", n, "executor", 1, process="mlxe-exe-1", seconds=one) for n, one in enumerate(told)]
    other = line("times", 3, "learner", process="mlxe-lrn", seconds={"waiting": 2.0, "odd": None, "less": -1.0})
    found = [(point.name, point.value) for point in points([run_start(), *lines, other])]
    assert found == [
        ("share/executor-1_waiting", 0.25),
        ("share/executor-1_stepping", 0.75),
        ("share/executor-1_waiting", 1.0),
        ("share/executor-1_stepping", 0.0),
        ("share/executor-1_waiting", 0.5),
        ("share/executor-1_saving", 0.5),
        ("share/learner_waiting", 1.0),
    ]


def test_latencies_are_values_in_seconds_and_histograms_with_their_edges():
    told = {"count": 4, "p50": 0.001, "p99": 0.5}
    one = line("times", 1, "learner", process="a", seconds={}, latencies={"updating": told}, histograms={})
    assert {point.name: point.value for point in points([one])} == {
        "latency/learner_updating_p50": 0.001,
        "latency/learner_updating_p99": 0.5,
    }
    scalars = Scalars()
    one |= {"histograms": {"updating": {"1024": 2, "5": 1}}}
    (found,) = scalars.histograms(one)
    assert (found.name, found.counts) == ("latency/learner_updating", [1, 0, 2])
    assert found.edges == pytest.approx([4e-9, 5e-9, 896e-9, 1024e-9])
    with pytest.raises(ValueError, match="expected an edge and a count"):
        scalars.histograms(one | {"histograms": {"updating": {"-1": 2}}})


SPREAD = {"min": -2.0, "p25": -1.0, "p50": 0.0, "p75": 0.0, "p99": 1.0, "max": 4.0}


def spread(values, counts, **fields):
    told = {"version": 3, "updates": 9, "env_steps": 70, "values": values, "counts": counts, **fields}
    return line("quantiles", 1, "learner", **told)


def test_quantiles_are_values_of_all_numbers_and_histograms_of_every_part():
    one = spread(
        {"weights": SPREAD | {"p5": -1.5, "p95": 0.5}, "weights/a.0": SPREAD}, {"weights": 200, "weights/a.0": 100}
    )
    assert [(point.name, point.step, point.value) for point in points([one])] == [
        ("quantiles/weights_p5", 70, -1.5),
        ("quantiles/weights_p50", 70, 0.0),
        ("quantiles/weights_p95", 70, 0.5),
    ]
    whole, part = Scalars().histograms(one)
    assert (whole.name, whole.step, sum(whole.counts)) == ("quantiles/weights", 70, 200)
    assert (part.name, part.edges) == ("quantiles/weights/a.0", [-2.0, -1.0, 0.0, 1.0, 4.0])
    assert part.counts == [25, 25, 49, 1]  # the quarter at 0 begins the bucket above it


def test_discrete_actions_are_a_histogram_of_their_shares_and_equal_numbers_one_bucket():
    values = {"actions": SPREAD, "weights": dict.fromkeys(SPREAD, 3.0), "gradients": SPREAD | {"max": None}}
    one = spread(values, {"actions": 8, "weights": 5, "gradients": 5}, shares={"actions": [0.25, 0.0, 0.75]})
    actions, weights = Scalars().histograms(one)
    assert (actions.edges, actions.counts) == ([-0.5, 0.5, 1.5, 2.5], [2, 0, 6])
    assert (weights.edges, weights.counts) == ([2.5, 3.5], [5])


@pytest.mark.parametrize("seconds", [None, {}, [1], {"waiting": 0.0}, "x"])
def test_of_no_time_no_share_is_told(seconds):
    assert points([{**line("times", 1, "learner", process="a", seconds={}), "seconds": seconds}]) == []


def test_sps_is_the_mean_rate_since_the_run_began_told_twice_a_second_at_most():
    lines = [run_start(0), *(generate(t - 100, t, 0, 10, t // 10) for t in range(100, 2100, 100))]
    rates = values(lines, "charts/SPS")
    assert [step for step, _ in rates] == [50, 100, 150, 200]
    assert [rate for _, rate in rates] == pytest.approx([100.0] * 4)


def test_sps_leaves_out_the_time_between_the_sittings_of_a_run():
    resumed = line("run_resume", 101_000, checkpoint=1, version=1, env_steps=10, episodes=0, updates=0, seconds=1.0)
    lines = [run_start(0), resumed | {"gap_ns": 100 * 10**9}, generate(101_500, 102_000, 0, 190, 200)]
    assert values(lines, "charts/SPS") == [(200, pytest.approx(100.0))]


def test_points_have_the_time_of_the_log():
    (first, *_) = points([run_start(), episode(1500, 1.0)])
    assert first.time == dt.datetime(2026, 1, 1, 0, 0, 1, 500_000, dt.UTC).timestamp()


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "3", True, [1], {}])
def test_what_is_no_finite_number_is_left_out(value):
    assert values([run_start(), {**episode(1, 2.0), "episode_return": value}], "charts/episodic_return") == []


# -- tables ------------------------------------------------------------------------------------------------------------


def rows(folder, name):
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def flat(value, place=""):
    """A line as columns, as the page says."""
    for name, one in value.items():
        if isinstance(one, dict):
            yield from flat(one, f"{place}{name}.")
        else:
            text = "" if one is None else one if isinstance(one, str) else json.dumps(one)
            yield f"{place}{name}", text


def test_each_kind_of_line_has_a_table_in_which_every_value_of_the_log_stands(tmp_path):
    lines = numbered(short_run())
    assert exported(tables.Files(tmp_path / "t"), lines).told() == "17 lines in 14 files"
    found = {}
    for path in (tmp_path / "t").iterdir():
        for row in rows(tmp_path / "t", path.stem):
            found[row["seq"]] = row
    for one in lines:
        expected = dict(flat(one))
        row = found[str(one["seq"])]
        assert {name: row[name] for name in expected} == expected
        assert not any(value for name, value in row.items() if name not in expected)
    assert sorted(path.name for path in (tmp_path / "t").iterdir())[:4] == [
        "episode_end.csv",
        "evaluation.csv",
        "ledger.csv",
        "phase-evaluate.csv",
    ]


def test_columns_that_come_up_later_are_empty_before(tmp_path):
    losses = [{"a": 1.0}, {"a": 2.0, "b": 3.5}, {"c": 4.0}]
    exported(tables.Files(tmp_path), [learn(n, n + 1, 5, n, losses=told) for n, told in enumerate(losses, 1)])
    found = rows(tmp_path, "phase-learn")
    names = ("losses.a", "losses.b", "losses.c")
    assert [[row[name] for name in names] for row in found] == [["1.0", "", ""], ["2.0", "3.5", ""], ["", "", "4.0"]]
    assert not list(tmp_path.glob(".*"))


def test_texts_of_any_kind_are_on_one_line(tmp_path):
    texts = ['a,"b"', "two\nlines\r\n", "\x00\ud800", "ä\u202e", ""]
    exported(tables.Files(tmp_path), [line("warning", n, message=text, loud=n == 2) for n, text in enumerate(texts)])
    assert [row["message"] for row in rows(tmp_path, "warning")] == [
        'a,"b"',
        "two\\nlines\\r\\n",
        "\\x00\\ud800",
        "ä\\u202e",
        "",
    ]
    assert [row["loud"] for row in rows(tmp_path, "warning")] == ["false", "false", "true", "false", "false"]
    assert len((tmp_path / "warning.csv").read_text().splitlines()) == 6


def test_what_was_fed_can_be_read_after_a_flush_while_more_is_to_come(tmp_path):
    files = tables.Files(tmp_path)
    for number in range(1, 4):
        files.feed(episode(number, float(number)))
        files.flush()
        assert [row["episode_return"] for row in rows(tmp_path, "episode_end")] == ["1.0", "2.0", "3.0"][:number]
    files.close()
    files.close()


def test_a_reader_never_finds_a_part_of_a_row(tmp_path):
    files, seen = tables.Files(tmp_path), set()
    for number in range(600):
        files.feed(line("warning", number, message="x" * (number % 300)))
        *rows_there, rest = (tmp_path / "warning.csv").read_text().split("\n")
        assert rest == ""
        seen.add(len(rows_there))
    files.close()
    assert seen == {1, 257, 513}
    assert len(rows(tmp_path, "warning")) == 600


def test_tables_of_an_earlier_export_give_way_and_other_files_stay(tmp_path):
    exported(tables.Files(tmp_path), short_run())
    (tmp_path / "mine.csv").write_text("a\n")
    (tmp_path / "notes.txt").write_text("b\n")
    exported(tables.Files(tmp_path), [publish(0, 1, 1)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.csv", "notes.txt", "phase-publish.csv"]


def test_a_link_in_the_place_of_a_table_is_not_written_through(tmp_path):
    (tmp_path / "other").write_text("precious")
    (tmp_path / "warning.csv").symlink_to(tmp_path / "other")
    exported(tables.Files(tmp_path), [line("warning", 1, message="x")])
    assert (tmp_path / "other").read_text() == "precious"


@pytest.mark.parametrize("kind", ["../x", "", "a/b", "\ud800", ".hidden", "a" * 65])
def test_a_kind_of_line_that_is_no_plain_name_is_refused(tmp_path, kind):
    files = tables.Files(tmp_path / "t")
    with pytest.raises(ValueError, match="as a kind of line"):
        files.feed({**line("warning", 1, message="x"), "event": kind})
    assert list((tmp_path / "t").iterdir()) == []


def test_kinds_and_columns_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "MOST_KINDS", 3)
    monkeypatch.setattr(tables, "MOST_COLUMNS", 40)
    files = tables.Files(tmp_path)
    for number in range(3):
        files.feed(phase(f"p{number}", 0, 1, "learner"))
    with pytest.raises(ValueError, match="more than 3 kinds"):
        files.feed(phase("p3", 0, 1, "learner"))
    with pytest.raises(ValueError, match="more than 40 fields"):
        files.feed(phase("p1", 0, 1, "learner", **{f"f{number}": 1 for number in range(50)}))
    files.close()
    assert not list(tmp_path.glob(".*"))


# -- targets -----------------------------------------------------------------------------------------------------------


def test_a_package_that_is_missing_is_told_with_the_extra_that_brings_it(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'tensorboard'", name="tensorboard.compat")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(SettingsError, match=r'pip install "mlxe_async\[tensorboard\]" \(No module named'):
        exporter_to("tensorboard")
    with pytest.raises(ModuleNotFoundError):  # nothing that an extra would mend
        exporter_to("csv")


def test_each_extra_is_one_of_the_packages_own():
    import tomllib

    from pages import ROOT

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, target in TARGETS.items():
        assert not target.package or any(one.startswith(target.package) for one in extras[name])
