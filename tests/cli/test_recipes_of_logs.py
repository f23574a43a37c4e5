"""The recipes of the log's page give the same numbers by each tool, of a run that is in the middle of a line."""

import shutil
import subprocess
import sys

import pages
import pytest
from log_lines import episode, evaluate, learn, run_start, text_of

from mlxe_async.analysis.exporters import lacking
from mlxe_async.cli import main
from mlxe_async.storage.run_folder import RunFolder

PAGE = pages.ROOT / "mlxe_async" / "logs" / "README.md"
MEANS = {1: 1.0, 2: 3.5, 10: 40.0}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A run that goes on, whose newest line is half written."""
    monkeypatch.chdir(tmp_path)
    told = [(1, 0.5), (1, 1.5), (2, 3.5), (10, 40.0)]
    lines = [run_start(), *(episode(n, value, version=version) for n, (version, value) in enumerate(told, 1))]
    lines[3:3] = [learn(3, 4, 5, 2, losses={"loss": 1.0}), evaluate(4, 5, 2)]
    with RunFolder.create("runs", "x") as one:
        one.log_path.write_text(text_of(lines) + '{"event": "episode_end", "version": 99, "episode_ret')
        yield one


def recipe(language, mark=""):
    (found,) = [
        text for kind, text in pages.blocks(pages.section(PAGE, "Recipes")) if kind == language and mark in text
    ]
    return found


def means(text):
    """Versions and their mean returns, of lines that begin with both."""
    words = [line.replace("│", " ").replace("┆", " ").split() for line in text.splitlines()]
    return {int(one[0]): float(one[1]) for one in words if len(one) == 2 and one[0].isdigit()}


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_jq(tmp_path):
    if shutil.which("jq") is None:
        pytest.skip("needs jq")
    (tmp_path / "this.jq").write_text(recipe("jq"))
    command = recipe("jq").splitlines()[0].removeprefix("# ").split()
    assert means(output(*command)) == MEANS


def test_duckdb():
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        assert dict(connection.sql(recipe("sql")).fetchall()) == MEANS


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_frames(package):
    pytest.importorskip(package)
    assert means(output(sys.executable, "-c", recipe("python", package))) == MEANS


def test_parquet_of_the_log_is_read_by_each(folder, capsys):
    if lacking("parquet"):
        pytest.skip(lacking("parquet"))
    assert main(["export", "latest", "--to", "parquet"]) == 0
    capsys.readouterr()
    place = f"parquet/{folder.path.name}/episode_end.parquet"
    duckdb = pytest.importorskip("duckdb")
    (sql,) = [word for word in pages.section(PAGE, "Recipes").split("`") if word.startswith("SELECT avg")]
    with duckdb.connect() as connection:
        assert connection.sql(sql).fetchall() == [(pytest.approx(11.375),)]
    pandas = pytest.importorskip("pandas")
    assert pandas.read_parquet(place)["episode_return"].mean() == pytest.approx(11.375)
    pytest.importorskip("polars")
    script = f"import polars; print(polars.scan_parquet({place!r}).collect()['episode_return'].mean())"
    assert float(output(sys.executable, "-c", script)) == pytest.approx(11.375)
