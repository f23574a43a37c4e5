"""TensorBoard's own reader finds every value that was exported, at its step and time, also while more is written."""

import pytest
from log_lines import episode, exported, generate, learn, line, numbered, run_start, short_run

pytest.importorskip("tensorboard", reason="needs the extra tensorboard")

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mlxe_async.analysis.exporters.scalars import Scalars
from mlxe_async.analysis.exporters.tensorboard import Files


def reader(folder):
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})


def read(accumulator):
    accumulator.Reload()
    return {
        (name, event.step, event.value, event.wall_time)
        for name in accumulator.Tags()["scalars"]
        for event in accumulator.Scalars(name)
    }


def expected(lines):
    scalars = Scalars()
    points = [point for one in lines for point in scalars.feed(one)]
    return {(point.name, point.step, float(np.float32(point.value)), point.time) for point in points}


def long_run(count=200):
    """A run of many values, several of them at the same step."""
    lines = [run_start()]
    for number in range(1, count):
        lines.append(generate(10 * number, 10 * number + 5, 0, 16, 16 * number))
        lines += [episode(10 * number + 5, number / 7 + env, env_steps=16 * number) for env in range(3)]
        losses = {"policy_loss": -1 / number, "learning_rate": 1e-3 / number}
        lines.append(learn(10 * number + 5, 10 * number + 9, 16, number, losses=losses, env_steps=16 * number))
    return numbered(lines)


def test_the_reader_of_tensorboard_finds_every_value(tmp_path):
    lines = long_run()
    files = Files(tmp_path / "run")
    for one in lines:
        files.feed(one)
    files.close()
    found = read(reader(tmp_path / "run"))
    assert found == expected(lines)
    assert files.told() == f"{199 * 3 * 2 + 199 * 4 + 3:,} values; tensorboard --logdir {tmp_path}"
    assert len([one for one in found if one[0] == "charts/episodic_return"]) == 199 * 3


def test_the_reader_finds_every_value_so_far_while_more_is_written(tmp_path):
    lines = long_run(40)
    files, accumulator = Files(tmp_path), reader(tmp_path)
    for number, one in enumerate(lines, 1):
        files.feed(one)
        if number % 25 == 0:
            files.flush()
            assert read(accumulator) == expected(lines[:number])
    files.close()
    assert read(accumulator) == expected(lines)


def test_times_begin_with_those_of_the_log_and_settings_are_a_text(tmp_path):
    files = Files(tmp_path)
    for one in numbered([run_start(settings={"run": {"name": "a|b", "odd": {}}, "stop": {"solved": True}})]):
        files.feed(one)
    files.close()
    accumulator = reader(tmp_path)
    accumulator.Reload()
    assert accumulator.FirstEventTimestamp() == 1767225600.0  # 2026-01-01
    (text,) = accumulator.Tensors("settings/text_summary")
    assert text.tensor_proto.string_val[0].decode().splitlines() == [
        "|key|value|",
        "|-|-|",
        '|run.name|"a\\|b"|',
        "|run.odd|{}|",
        "|stop.solved|true|",
    ]


def test_a_resumption_has_readers_forget_what_became_void_and_nothing_else(tmp_path):
    before = [run_start(), episode(1, 1.0, env_steps=10), episode(2, 2.0, env_steps=20), episode(3, 3.0, env_steps=30)]
    resumed = line("run_resume", 4, checkpoint=1, version=1, env_steps=20, episodes=2, updates=0, seconds=1.0)
    files = Files(tmp_path)
    for one in numbered([*before, resumed, episode(5, 5.0, env_steps=25)]):
        files.feed(one)
    files.close()
    accumulator = reader(tmp_path)
    accumulator.Reload()
    returns = [(event.step, event.value) for event in accumulator.Scalars("charts/episodic_return")]
    assert returns == [(10, 1.0), (20, 2.0), (25, 5.0)]


def test_an_earlier_export_gives_way(tmp_path):
    for _ in range(2):
        files = Files(tmp_path)
        for one in numbered(short_run()):
            files.feed(one)
        files.close()
    (tmp_path / "events.out.tfevents.1.other").write_bytes(b"")
    Files(tmp_path).close()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("value", [1e300, -1e300, 3.5e38])
def test_what_single_precision_does_not_hold_is_left_out(tmp_path, value):
    files = Files(tmp_path)
    files.feed(numbered([episode(1, value)])[0])
    files.close()
    assert {name for name, *_ in read(reader(tmp_path))} == {"charts/episodic_length"}


def test_names_of_any_kind_are_told_harmlessly(tmp_path):
    files = Files(tmp_path)
    files.feed(numbered([learn(1, 2, 3, 4, losses={"\x1b\ud800" + "x" * 1000: 1.0})])[0])
    files.close()
    (name,) = [name for name, *_ in read(reader(tmp_path)) if name.startswith("losses/")]
    assert name.startswith("losses/\\x1b\\ud800xxx")
    assert len(name) < 220


def test_histograms_of_latencies_are_those_of_the_log(tmp_path):
    buckets = {"1280": 3, "2048": 1, "1048576": 7}  # ends, in nanoseconds
    told = line(
        "times", 5, "executor", 1, process="mlxe-exe-1", seconds={}, latencies={}, histograms={"acting": buckets}
    )
    files = Files(tmp_path)
    for one in numbered([run_start(), generate(1, 2, 1, 9, 9), told]):
        files.feed(one)
    files.close()
    accumulator = reader(tmp_path)
    accumulator.Reload()
    (found,) = accumulator.Tensors("latency/executor-1_acting")
    rows = np.frombuffer(found.tensor_proto.tensor_content) if found.tensor_proto.tensor_content else np.array(
        found.tensor_proto.double_val
    )  # fmt: skip
    assert found.step == 9
    assert rows.reshape(-1, 3).tolist() == [
        [1.024e-06, 1.28e-06, 3],
        [1.28e-06, 1.792e-06, 0],
        [1.792e-06, 2.048e-06, 1],
        [2.048e-06, 0.000917504, 0],
        [0.000917504, 0.001048576, 7],
    ]
    (plugin,) = [accumulator.SummaryMetadata("latency/executor-1_acting").plugin_data.plugin_name]
    assert plugin == "histograms"


def test_quantiles_are_histograms(tmp_path):
    values = {"weights": {"min": -1.0, "p50": 0.5, "max": 2.0}}
    told = line("quantiles", 5, "learner", version=2, updates=1, env_steps=9, values=values, counts={"weights": 10})
    files = exported(Files(tmp_path), [run_start(), told])
    accumulator = reader(tmp_path)
    accumulator.Reload()
    (found,) = accumulator.Tensors("quantiles/weights")
    assert found.step == 9
    rows = np.frombuffer(found.tensor_proto.tensor_content) if found.tensor_proto.tensor_content else np.array(
        found.tensor_proto.double_val
    )  # fmt: skip
    assert rows.reshape(-1, 3).tolist() == [[-1.0, 0.5, 5], [0.5, 2.0, 5]]
    assert files.told().startswith("2 values")  # the median besides
