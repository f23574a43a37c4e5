"""Long tables resume from what is kept: which runs are known, which are missing, and what is made of them."""

import importlib
import io
import json

import pytest
from matplotlib.figure import Figure
from pages import ROOT

BENCHMARKS = ROOT / "tests" / "benchmarks"
SETTINGS = '[run]\nseed = 3\n[task]\nenv = "CartPole-v1"\n[stop]\nenv_steps = 600\n'


@pytest.fixture
def program(monkeypatch):
    """`program(name)`: a module beside the benchmarks, as their commands import it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture(scope="module")
def _fonts():
    """Matplotlib keeps the files of its fonts open for good."""
    figure = Figure()
    figure.subplots().set_title("a")
    figure.savefig(io.BytesIO())


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "made.toml"
    path.write_text(SETTINGS)
    return path


def record(job, final=1.0, **more):
    about = {"name": job.name, "settings": job.key, "steps": job.steps, "seed": job.seed, **job.more}
    told = {"algorithm": "ppo", "env": "CartPole-v1", "final": final, "failed": None, "tests": [], "seconds": 2.0}
    return about | told | more


def jobs_of(recorded, file, seeds, **more):
    return [recorded.Job("made", file, (), 600, seed, more) for seed in seeds]


def test_a_run_is_known_by_what_is_written_and_not_by_how(program, file):
    recorded = program("recorded")
    key = recorded.Job("made", file, ("a.b=1", "c.d=2"), 600, 0, {}).key
    assert recorded.Job("other", file, ("c.d=2", "a.b=1"), 900, 5, {}).key == key
    file.write_text("# a remark\n" + SETTINGS.replace("seed = 3", "seed = 4"))
    assert recorded.Job("made", file, ("a.b=1", "c.d=2"), 600, 0, {}).key == key
    assert recorded.Job("made", file, ("a.b=1",), 600, 0, {}).key != key
    file.write_text(SETTINGS.replace("600", "700"))
    assert recorded.Job("made", file, ("a.b=1", "c.d=2"), 600, 0, {}).key != key


def test_only_what_is_missing_is_run_and_each_run_is_kept_at_once(program, file, tmp_path, monkeypatch):
    recorded, said, asked = program("recorded"), [], []
    path = tmp_path / "kept" / "made.jsonl"

    def done(job):
        asked.append(job.seed)
        if job.seed == 2 and asked.count(2) == 1:
            raise KeyboardInterrupt
        return record(job, final=float(job.seed))

    monkeypatch.setattr(recorded, "done", done)
    with pytest.raises(KeyboardInterrupt):
        recorded.complete(jobs_of(recorded, file, range(4)), path, said.append)
    assert [one["seed"] for one in recorded.read(path)] == [0, 1]
    found = recorded.complete(jobs_of(recorded, file, [3, 2, 1, 0]), path, said.append)
    assert [one["final"] for one in found] == [3.0, 2.0, 1.0, 0.0]
    assert asked == [0, 1, 2, 3, 2]
    assert said[-3].startswith("2 of 4 runs are recorded")
    before = path.read_bytes()
    recorded.complete(jobs_of(recorded, file, range(4)), path, said.append)
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", ["{", "[1]", '{"settings": "x", "steps": 1}'])
def test_a_damaged_line_is_named(program, tmp_path, line):
    path = tmp_path / "made.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"made.jsonl:1: expected a run as one JSON object"):
        program("recorded").read(path)


def test_a_run_counts_by_its_last_ten_tests_or_by_its_last_weights(program):
    recorded = program("recorded")
    tests = [[step, float(step)] for step in range(12)]
    assert recorded.last_tests({"tests": tests, "final": 99.0}) == 6.5
    assert recorded.last_tests({"tests": tests[:9], "final": 99.0}) == 99.0


@pytest.mark.slow
def test_a_real_run_tells_its_tests_its_lag_and_its_last_weights(program, file):
    recorded = program("recorded")
    pieces = ("algorithm.name=ppo", "schedule.kind=is", "schedule.simulated_lag=1", "schedule.rollout_steps=16")
    pieces += ("schedule.envs_per_executor=2",)
    one, two = (recorded.done(recorded.Job("made", file, pieces, 600, 7, {"lag_asked": 1})) for _ in range(2))
    assert one["failed"] is None
    # Which executor tells first of its episodes depends on the moment, and how long it took.
    repeats = one.keys() - {"seconds", "training"}
    assert {name: one[name] for name in repeats} == {name: two[name] for name in repeats}
    assert len(one["tests"]) > 2
    assert all(0 <= at <= 640 and 1 <= mean <= 500 for at, mean in one["tests"])
    assert 0.5 < one["lag"] < 1
    assert 8 <= one["final"] <= 500
    assert json.loads(json.dumps(one)) == one


def test_a_run_that_is_judged_by_its_first_failure_is_refused(program, file):
    recorded = program("recorded")
    with pytest.raises(program("mlxe_async.errors").SettingsError, match=r"try --set evaluation\.rule=mean_return"):
        recorded.done(recorded.Job("made", file, ("evaluation.rule=cap",), 600, 0, {}))


def test_the_table_stands_beside_what_others_reach_and_a_failure_is_the_worst(program, file):
    bars, recorded = program("bars"), program("recorded")
    jobs = [recorded.Job("made", file, (), 500_000, seed, {}) for seed in range(4)]
    head, _, row = bars.table([record(job, final) for job, final in zip(jobs, (481, 490, 490, 500), strict=True)])
    cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert cells["mean of the middle"] == "490.0"
    assert (cells["bar"], cells["clears it"]) == ("480 at 500,000", "yes")
    worse = [record(job, final) for job, final in zip(jobs, (400, 490, 490, 500), strict=True)]
    assert "no, by" in bars.table(worse)[2]
    worse[0] |= {"failed": "it diverged", "final": None, "seconds": None}
    failed = dict(zip(head.split(" | "), bars.table(worse)[2].split(" | "), strict=True))
    assert (failed["failed"], failed["95 %"].split(" ")[0]) == ("1", "-inf")
    short = [record(recorded.Job("made", file, (), 600, 0, {}), 20.0)]
    assert "too few steps" in bars.table(short)[2]
    assert "| unheard of |" not in bars.table([record(jobs[0]) | {"env": "unheard of", "algorithm": "own"}])[2][:9]


def test_each_reference_is_a_figure_of_one_algorithm_on_one_task_or_of_settings_by_their_name(program):
    known = program("tomllib").loads(program("bars").REFERENCES.read_text())["reference"]
    places = [(one.get("name"), one.get("algorithm"), one.get("env")) for one in known]
    assert len(set(places)) == len(places) > 20
    of_both, by_name = {"algorithm", "env", "steps", "bar", "told"}, {"name", "told"}
    assert all(by_name <= one.keys() <= by_name | {"steps", "bar", "judged"} or of_both == one.keys() for one in known)


def lagged(recorded, file, lag, seed, height, **more):
    job = recorded.Job("made", file, (f"schedule.simulated_lag={lag}",), 600, seed, {"lag_asked": lag})
    return record(job, height, tests=[[0, 0.0], [300, height], [600, height]], lag=float(lag), **more)


def test_areas_are_relative_to_those_of_the_same_seeds_without_lag(program, file):
    lag, recorded = program("lag"), program("recorded")
    unlagged = [lagged(recorded, file, 0, seed, height) for seed, height in ((0, 100.0), (1, 300.0))]
    late = [lagged(recorded, file, 4, seed, height) for seed, height in ((0, 100.0), (1, 100.0))]
    assert lag.area(unlagged[0]) == pytest.approx(75, rel=0.01)
    share, (low, high) = lag.share_of(late, unlagged)
    assert share == pytest.approx(0.5)
    assert (low, high) == (pytest.approx(1 / 3), pytest.approx(1.0))
    diverged = [late[0], late[1] | {"failed": "it diverged", "final": None}]
    assert lag.share_of(diverged, unlagged)[0] == pytest.approx(0.25)
    *_, row = lag.table([*late, *unlagged])
    assert row.split(" | ")[1:6] == ["4", "4.0", "2", "75", "50%"]


@pytest.mark.usefixtures("_fonts")
def test_the_ablation_is_drawn_from_what_is_kept(program, file, tmp_path, capsys):
    lag, recorded = program("lag"), program("recorded")
    path = tmp_path / "lag.jsonl"
    for delay in (0, 4):
        for seed in range(2):
            recorded.append(path, lagged(recorded, file, delay, seed, 100.0) | {"name": "mlxe, V-trace"})
    assert lag.main(["--show", "--steps", "600", "--results", str(path)]) == 0
    assert "| mlxe, V-trace | 4 |" in capsys.readouterr().out
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "100%" in path.with_suffix(".md").read_text()


def test_all_variants_of_the_ablation_are_settings_that_are_fine(program):
    lag, load = program("lag"), program("mlxe_async.settings").load_settings
    variants = program("tomllib").loads(lag.VARIANTS.read_text())["variant"]
    for one in variants:
        schedule = load(ROOT / one["file"], [*one["set"], "schedule.simulated_lag=64"]).schedule
        rows = schedule.executors * schedule.envs_per_executor * schedule.rollout_steps
        assert (schedule.kind, schedule.sync, rows) == ("is", "rollout", 256), one["name"]
    assert len({one["name"] for one in variants}) == len(variants)


@pytest.mark.long
@pytest.mark.usefixtures("_fonts")
@pytest.mark.parametrize("name", ["bars", "lag"])
def test_what_is_kept_can_be_shown(program, name, capsys, tmp_path):
    kept = BENCHMARKS / "results" / f"{name}.jsonl"
    copy = tmp_path / kept.name
    copy.write_bytes(kept.read_bytes())
    assert program(name).main(["--show", "--results", str(copy)]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 2
