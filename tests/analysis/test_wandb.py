"""The command of Weights & Biases reads the folder, and sends each value to a server: here, to a stand-in for it."""

import json
import os
import subprocess
import sys

import pytest
from log_lines import episode, exported, learn, line, numbered, run_end, run_start, short_run
from wandb_server import Server

pytest.importorskip("wandb", reason="needs the extra wandb")

from mlxe_async.analysis.exporters.scalars import Scalars
from mlxe_async.analysis.exporters.wandb import BLOCK, Files

LIMIT_S = 120.0
OUR_OWN = {"env_steps", "_step", "_timestamp", "_runtime"}


@pytest.fixture
def sent(tmp_path):
    """Syncs a folder with `wandb sync`; returns what a server was sent."""
    servers = []

    def sync(folder, *options):
        servers.append(server := Server())
        home = {"WANDB_DIR": str(tmp_path), "WANDB_CONFIG_DIR": str(tmp_path), "WANDB_CACHE_DIR": str(tmp_path)}
        about = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40, "WANDB_ERROR_REPORTING": "false"}
        command = [sys.executable, "-m", "wandb", "sync", *options, folder]
        done = subprocess.run(
            command, env={**os.environ, **home, **about}, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        server.told = done.stderr + done.stdout
        return server

    yield sync
    for server in servers:
        server.end()


def history(lines):
    """Rows as the stand-in should get them: of each line that tells anything, its values and their step."""
    scalars = Scalars()
    told = [points for one in lines if (points := scalars.feed(one))]
    return [{point.name: point.value for point in points} | {"env_steps": points[0].step} for points in told]


def without(row, names):
    return {name: value for name, value in row.items() if name not in names}


@pytest.mark.long
def test_each_value_arrives_at_its_step_and_time_with_settings_and_exit_code(tmp_path, sent):
    lines = [*short_run()[:-1], *(episode(70 + n, n / 7, env_steps=90 + n) for n in range(400)), run_end(469)]
    lines = numbered(lines)
    told = exported(Files(tmp_path / "w"), lines).told()
    (folder,) = (tmp_path / "w").iterdir()
    assert told == f"{len(history(lines)):,} rows of history; wandb sync {folder}"
    assert folder.name == "offline-run-20260101_000000-x"
    assert (folder / "run-x.wandb").stat().st_size > 2 * BLOCK  # records lie across the borders of blocks
    server = sent(folder)
    rows = [server.history[number] for number in sorted(server.history)]
    assert [without(row, {"_step", "_timestamp", "_runtime"}) for row in rows] == history(lines)
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    assert (rows[-1]["_timestamp"], rows[-1]["_runtime"]) == (pytest.approx(1767225600.469), pytest.approx(0.469))
    assert server.config["algorithm"] == {"value": {"name": "ppo"}}
    assert server.config["seed"] == {"value": 3}
    assert server.complete == {"complete": True, "exitcode": 0}
    assert server.summary["ending"] == "episodes"
    assert server.summary["charts/episodic_return"] == 399 / 7
    assert server.variables["tags"] == ["CartPole-v1", "ppo", "oa"]


@pytest.mark.long
def test_what_was_flushed_is_read_while_more_is_written_and_a_death_is_told(tmp_path, sent):
    lines = numbered([run_start(), *(episode(n, n / 3, env_steps=n) for n in range(1, 40))])
    files = Files(tmp_path / "w")
    for one in lines[:20]:
        files.feed(one)
    files.flush()
    (folder,) = (tmp_path / "w").iterdir()
    first = sent(folder, "--include-synced")
    assert [without(row, OUR_OWN - {"env_steps"}) for row in first.history.values()] == history(lines[:20])
    for one in lines[20:]:
        files.feed(one)
    files.close("the run died, its last line is of then")
    files.close()
    server = sent(folder, "--include-synced")
    assert len(server.history) == 39
    assert (server.complete["exitcode"], server.summary["ending"]) == (1, "the run died, its last line is of then")


def test_its_own_listing_names_the_run(tmp_path, sent):
    exported(Files(tmp_path / "wandb"), [run_start(), episode(1, 1.0)])
    assert "run-x.wandb" in sent(tmp_path / "wandb", "--dry-run").told


def test_runs_lie_side_by_side_and_an_earlier_export_of_the_same_run_gives_way(tmp_path):
    for name in ("x", "y", "x"):
        exported(Files(tmp_path), [{**one, "run": name} for one in (run_start(), episode(1, 2.0))])
    assert sorted(path.name for path in tmp_path.rglob("*.wandb")) == ["run-x.wandb", "run-y.wandb"]


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".x", "\ud800"])
def test_a_name_that_is_no_plain_one_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="as the name of a run"):
        exported(Files(tmp_path / "w"), [{**run_start(), "run": name}])
    assert list((tmp_path / "w").iterdir()) == []


def test_odd_texts_are_told_as_json(tmp_path):
    odd = {"a\ud800": 1.0, "b\n": 2.0}
    settings = {"run": {"name": "\ud800"}}
    exported(
        Files(tmp_path), [run_start(settings=settings), learn(1, 2, 3, 1, losses=odd), line("warning", 3, message="x")]
    )
    (file,) = tmp_path.rglob("*.wandb")
    assert json.dumps("\ud800").encode() in file.read_bytes()
