"""A live run is exported while it goes on: TensorBoard's own reader finds its values meanwhile, and all at its end."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from command import LIMIT_S

pytest.importorskip("tensorboard", reason="needs the extra tensorboard")

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mlxe_async.analysis.exporters.scalars import Scalars
from mlxe_async.cli import main
from mlxe_async.logs.reader import read_log

TOML = '[task]\nenv = "CartPole-v1"\n[schedule]\nkind = "oa"\n[algorithm]\nname = "mlxe"\nmin_updates = 4\n'


def values_in(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        (name, event.step, event.value) for name in accumulator.Tags()["scalars"] for event in accumulator.Scalars(name)
    }


def values_of(log):
    scalars = Scalars()
    points = [point for line in read_log(log) for point in scalars.feed(line)]
    return {(point.name, point.step, float(np.float32(point.value))) for point in points}


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_live_run_is_followed_until_it_ends_or_dies(command, tmp_path, capsys, number):
    run = command(TOML)
    run.saw("weights", times=2)
    folder = (run.runs / "latest").resolve()
    exported = tmp_path / "out" / folder.name
    with ThreadPoolExecutor(1) as thread:
        arguments = ["export", str(folder), "--to", "tensorboard", "--out", str(tmp_path / "out"), "--follow"]
        code = thread.submit(main, arguments)
        deadline = time.monotonic() + LIMIT_S
        seen = set()
        while len({step for name, step, _ in seen if name == "charts/episodic_return"}) < 5:
            assert time.monotonic() < deadline
            assert not code.done(), code.result()
            time.sleep(0.02)
            if list(exported.glob("events*")):
                seen = values_in(exported)
        run.signal(number)
        run.wait()
        assert code.result(LIMIT_S) == 0
    found = values_in(exported)
    assert seen <= found
    assert found == values_of(folder)
    said = "; the run died without a last word" in capsys.readouterr().out
    assert said == (number == signal.SIGKILL)
