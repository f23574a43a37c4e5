"""A run of two hours becomes a small page within seconds of CPU time, and nothing that stands out is lost."""

import json
import time

import pytest
from report_runs import SECOND, ZERO_NS, Log, second, start

from mlxe_async.analysis.report.folder import read_run
from mlxe_async.analysis.report.groups import group
from mlxe_async.analysis.report.page import page

SECONDS = 2 * 3600
A_SECOND = 10  # rounds of six lines: settings/oa.toml writes some 15 lines a second
STEPS = 500  # of an episode
MOST_S, MOST_BYTES = 10.0, 3_000_000
PEAK_AT, PEAK = 37_777, 123_456.0


def rounds(log, count):
    """Lines of as many rounds, which differ in numbers alone; an account of rows each ten seconds."""
    first = len(log.lines)
    second(log, 0.0, 1)
    templates = log.lines[first:]
    del log.lines[first:]
    for number in range(1, count + 1):
        now = ZERO_NS + number * SECOND // A_SECOND
        told = {
            "mono_ns": now,
            "start_ns": now - SECOND // 20,
            "seconds": 0.04,
            "env_steps": STEPS * number,
            "length": STEPS,
            "episode": number,
            "version": number,
            "updates": 20 * number,
            "episode_return": PEAK if number == PEAK_AT else 400.0 + number % 100,
            "ingested": STEPS * number,
        }
        for line in templates:
            if line["event"] != "ledger" or number % (10 * A_SECOND) == 0:
                yield json.dumps({**line, **{key: value for key, value in told.items() if key in line}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "20261127T135002Z-long"
    path.mkdir()
    (path / "lock").touch()
    log = Log(path.name)
    start(log)
    with (path / "log.jsonl").open("w") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in log.lines)
        file.writelines(f"{line}\n" for line in rounds(log, SECONDS * A_SECOND))
    yield path
    (path / "log.jsonl").unlink()


@pytest.mark.slow
def test_two_hours_take_seconds_and_kilobytes_and_keep_their_peak(folder):
    before = time.process_time()
    with (folder / "log.jsonl").open("rb") as file:
        for line in file:
            json.loads(line)
    plain_s = time.process_time() - before
    before = time.process_time()
    run = read_run(folder)
    read_s = time.process_time() - before
    text = page(group([run]))
    took = time.process_time() - before
    lines, megabytes = run.story.lines, (folder / "log.jsonl").stat().st_size / 1e6
    print(f"{lines:,} lines, {megabytes:.0f} MB: parsed in {plain_s:.1f} s, read in {read_s:.1f} s")
    print(f"all in {took:.1f} s; a page of {len(text) / 1e3:.0f} kB")
    assert lines > 400_000
    assert took < max(MOST_S, 3 * plain_s)  # on a crowded machine all CPU seconds are longer
    assert len(text.encode()) < MOST_BYTES
    assert "between 400 and 123.5k" in text
    assert "2 h 0 min after its start" in text
