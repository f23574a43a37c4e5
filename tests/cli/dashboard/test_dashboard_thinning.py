"""Of thousands of episodes in a piece of a log some are decoded: none is forgotten, and never the best one."""

import json

import numpy as np

from mlxe_async.cli.dashboard.run_now import RunNow
from mlxe_async.cli.dashboard.thinning import KEPT, MANY, Thinning
from mlxe_async.logs import events
from mlxe_async.logs.journal import Journal


def written(path, count, seed=0):
    """A log of `count` episodes of two executors, as runs write it, with other lines between; and their returns."""
    rng, returns = np.random.default_rng(seed), []
    with Journal(path, "x") as journal:
        for begin in range(0, count, 50):
            values = (rng.integers(1, 500, 50) / 4).tolist()
            returns += values
            columns = {
                "env": range(50),
                "episode": range(50),
                "length": range(50),
                "terminated": [True] * 50,
                "episode_return": values,
                "episodes": range(begin + 1, begin + 51),
                "average": [float(begin)] * 50,
            }
            same = {"version": 1, "env_steps": begin * 10, "seed": None, "discounted_return": None}
            journal.emit_all(events.EpisodeEnd, same, columns, "executor", begin // 50 % 2)
            journal.emit(events.Metrics({"x": 1.0}, begin * 10))
    return path.read_bytes().splitlines(), returns


def test_few_are_all_decoded(tmp_path):
    lines, _ = written(tmp_path / "log.jsonl", MANY - 50)
    thinning = Thinning()
    assert thinning(lines) == lines
    assert not thinning.taken()


def test_of_many_some_stand_for_all_and_other_lines_stay(tmp_path):
    lines, returns = written(tmp_path / "log.jsonl", 1000)
    thinning, run = Thinning(), RunNow("x")
    kept = thinning(lines)
    told = [json.loads(line) for line in kept]
    assert [line for line in told if line["event"] == "metrics"] == [
        line for line in map(json.loads, lines) if line["event"] == "metrics"
    ]
    assert KEPT <= sum(line["event"] == "episode_end" for line in told) <= KEPT + 2
    for line in told:
        run.feed(line)
    run.leave_out(thinning.taken())
    assert not thinning.taken()  # counted once
    assert run.by_executor == {"executor 0": 500, "executor 1": 500}
    assert (run.lines, run.episodes, run.env_steps) == (len(lines), 1000, 9500)
    assert run.best.value == max(returns)
    assert run.moving == 950.0
    assert abs(run.mean_return - sum(returns) / 1000) < 20


def test_the_best_of_all_pieces_is_told_whichever_it_is_in(tmp_path):
    thinning, told, all_of_them = Thinning(), [], []
    for seed in range(5):
        lines, returns = written(tmp_path / f"{seed}.jsonl", 600, seed)
        all_of_them += returns
        told += [json.loads(line)["episode_return"] for line in thinning(lines) if b"episode_end" in line]
        assert max(told) == max(all_of_them)


def test_what_is_no_line_of_ours_is_left_to_the_reader():
    lines = [b'{"event": "episode_end", "role": "executor", "idx": 0, "episode_return": null}', b"", b"[1]"] * MANY
    assert Thinning()(lines) == lines
