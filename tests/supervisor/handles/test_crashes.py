"""Reports about deaths: where an executor stood is read from what it left behind, and written down."""

import json
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest

from mlxe_async.errors import NotFound, SettingsError
from mlxe_async.ipc.shared.lanes import LaneWriter, begin_epoch, format_lane, lane_bytes
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.roles.places import Places
from mlxe_async.rows import RowLayout, Spaces, standard_columns
from mlxe_async.storage.crash_reports import FIRST_REPORTS, MOST_REPORTS, CrashReport, read_report
from mlxe_async.supervisor.handles.crashes import Crashes

LAYOUT = RowLayout(standard_columns(Spaces(observation_shape=(2,), actions=3)))
BLOCK, SLOTS = 4, 4
REPORT = CrashReport(
    what="mlxe-exe-1 (pid 7) killed by signal 11 (SIGSEGV)\n--- stack ---\x1b[2J",
    run="a-run",
    process="mlxe-exe-1",
    role="executor",
    pid=7,
    epoch=2,
    time="2026-01-01T00:00:00+00:00",
    signal="SIGSEGV",
    executor=1,
    environment="Some-v0",
    env=0,
    phase="step",
    episode=3,
    seed=4,
    step=2,
    actions=[0, 1],
    stack='File "a.py"\nwhat: "forged"\n--- traceback ---',
)


def test_a_report_is_read_back_as_it_was_written_whatever_its_text_contains(tmp_path):
    path = REPORT.write(tmp_path)
    assert path.name == "mlxe-exe-1.2.txt"
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_report(path) == REPORT
    assert "\x1b" not in path.read_text()
    assert REPORT.place == "executor 1, environment 0 (Some-v0), step 2 of episode 3 (seed 4)"
    assert REPORT.write(tmp_path).name == "mlxe-exe-1.2-2.txt"


def test_what_is_no_report_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(NotFound, match="cannot be read"):
        read_report(path)
    for text in ("", "hello: 1\n", REPORT.to_text().replace("epoch: 2", 'epoch: "2"'), REPORT.to_text()[:100]):
        path.write_text(text)
        with pytest.raises(SettingsError):
            read_report(path)


ODD = (-1, 2**62, 10**400, 1.5, math.nan, math.inf, "7", "", "\x1b[2J", True, None, [], {}, [1, [2, "x"]], [[math.nan]])


def test_a_report_that_was_changed_is_refused_by_file_and_key_or_read(tmp_path):
    path, refused = tmp_path / "changed.txt", 0
    good = REPORT.to_text().splitlines(keepends=True)
    keys = {line.partition(":")[0]: place for place, line in enumerate(good) if line.partition(": ")[0] in vars(REPORT)}
    changes = [(key, f"{key}: {json.dumps(value)}\n") for key in keys for value in ODD]
    changes += [(key, line) for key in keys for line in ("", f"{key}: {{\n", f"{key}: " + "[" * 100_000 + "\n")]
    for key, line in changes:
        path.write_text("".join([*good[: keys[key]], line, *good[keys[key] + 1 :]]))
        try:
            report = read_report(path)
        except SettingsError as error:
            refused += 1
            (told,) = error.problems
            assert told.startswith((f"{path}: {key}: got ", f"{path}: {key}[")), (line[:80], told)
            assert told.isprintable()
            assert len(told) < 300 + len(str(path))
        else:
            assert type(getattr(report, key)) in (int, str, list, type(None)), line
    assert len(changes) == len(keys) * (len(ODD) + 3)
    assert refused > len(changes) / 2


def test_the_first_reports_and_the_newest_are_kept(tmp_path):
    for number in range(MOST_REPORTS + 5):
        path = CrashReport(**{**vars(REPORT), "epoch": number}).write(tmp_path)
        os.utime(path, ns=(number, number))
    kept = sorted(int(path.name.split(".")[1]) for path in tmp_path.iterdir())
    assert kept == [*range(FIRST_REPORTS), *range(FIRST_REPORTS + 5, MOST_REPORTS + 5)]


def reported(tmp_path, *, steps, earlier=0, lost=False, phase="step"):
    """What is reported about an executor of two environments that dies in step `steps` of environment 1."""
    with (
        Segment.create("lane", lane_bytes(SLOTS, LAYOUT.nbytes(BLOCK))) as lane,
        Segment.create("control", Places.nbytes(2, "<i8", ())) as control,
    ):
        format_lane(lane, SLOTS, LAYOUT.nbytes(BLOCK), LAYOUT.schema_hash)
        begin_epoch(lane)
        writer = LaneWriter(lane, LAYOUT.schema_hash)
        places = Places(2, "<i8", (), control.buffer)
        places.clear()
        filled, views = 0, None
        for step in range(-earlier, steps - 1):
            for env in range(2):
                if views is None:
                    views, filled = LAYOUT.views(writer.reserve(), BLOCK), 0
                row = {"env": env, "episode": 5 - (step < 0), "step": step % 100, "action": (step + env) % 3}
                for name, value in row.items():
                    views[name][filled] = value
                filled += 1
                if filled == BLOCK:
                    sequence = writer.commit(BLOCK)
                    writer._control.set("tail", sequence + 1)
                    views = None
        places.cursor[0], places.episode[:], places.seed[:], places.step[:] = 1, 5, 99, steps - 1
        places.running[:] = phase == "step"
        places.action[:] = 2
        if lost:
            places.cursor[0] = 1000  # nonsense
        told = []
        blueprint = SimpleNamespace(
            processes=[SimpleNamespace(name="mlxe-exe-0", roles=("executor-0",))],
            page_of=lambda role: 0,
            places=lambda segment, index: Places(2, "<i8", (), segment.buffer),
            layout=LAYOUT,
            block_rows=BLOCK,
            settings=SimpleNamespace(task=SimpleNamespace(env="Some-v0")),
        )
        log = SimpleNamespace(emit=lambda event, role, idx: told.append((event, role, idx)))
        page = SimpleNamespace(pulse=lambda: (1, 1))
        run = SimpleNamespace(
            blueprint=blueprint,
            segments={"lane-0": lane, "control": control},
            folder=SimpleNamespace(path=tmp_path, crash_path=tmp_path),
            log=log,
        )
        crashes = Crashes(run, [page])
        process = SimpleNamespace(name="mlxe-exe-0", pid=5, epoch=1, trace="")
        crashes.died(process, "it died", SimpleNamespace(signal=9, code=None, stack=""))
        ((event, role, idx),) = told
        assert (role, idx, event.process) == ("executor", 0, "mlxe-exe-0")
        report = read_report(tmp_path / event.file)
        del places, views, writer
        return report, crashes.stood(0), crashes.stood(0)


@pytest.mark.parametrize("steps", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("earlier", [0, 1, 9])
def test_where_it_was_and_all_actions_of_its_episode_are_known(tmp_path, steps, earlier):
    report, stood, again = reported(tmp_path, steps=steps, earlier=earlier)
    assert (report.env, report.phase, report.episode, report.seed, report.step) == (1, "step", 5, 99, steps)
    assert report.actions == [(step + 1) % 3 for step in range(steps - 1)] + [2]
    assert report.signal == "SIGKILL"
    assert (stood.env, stood.seed) == (1, 99)
    assert again is None


def test_actions_that_the_lane_no_longer_holds_are_said_to_be_unknown(tmp_path):
    report, _, _ = reported(tmp_path, steps=40)
    assert (report.step, report.actions) == (40, None)


def test_a_death_in_a_reset_and_one_in_no_environment(tmp_path):
    report, _, _ = reported(tmp_path, steps=1, phase="reset")
    assert (report.phase, report.step, report.actions) == ("reset", 0, [])
    report, stood, _ = reported(tmp_path, steps=1, lost=True)
    assert (report.env, stood) == (None, None)
    assert report.place == ""


def test_places_count_where_they_are_told_to():
    buffer = bytearray(1024)
    places = Places(3, "<f4", (2,), buffer, 128)
    places.clear()
    assert places.present() is None
    places.cursor[0], places.seed[2] = 2, 7
    places.action[2] = [0.5, 1.5]
    place = Places(3, "<f4", (2,), buffer, 128).present()
    assert (place.env, place.phase, place.seed, place.step) == (2, "reset", 7, 0)
    assert np.array_equal(place.action, [0.5, 1.5])
    assert not any(buffer[:128])
