"""A GPU's use is read once a second, reaches log, status and exporters, and nothing is said where there is none."""

import json
from types import SimpleNamespace

import pytest
from log_lines import line

from mlxe_async import gpu
from mlxe_async.analysis.exporters.scalars import Scalars
from mlxe_async.errors import ProtocolError
from mlxe_async.logs.journal import Journal
from mlxe_async.supervisor.handles.process_events import ProcessEvents
from mlxe_async.supervisor.monitoring.status import progress_of
from mlxe_async.supervisor.plan.budget import Bell, Budget, Counters
from mlxe_async.supervisor.plan.event_log import EventLog

READ = {"name": "A GPU", "allocated": 100, "reserved": 200, "most": 150, "whole": 1000, "busy": 0.25}


class Cuda:
    """What `torch.cuda` answers where there is a GPU; without NVML, as torch does, it raises."""

    def __init__(self, has_nvml=True):
        self.asked, self._has_nvml = 0, has_nvml

    def get_device_name(self, device):
        assert device.type == "cuda"
        return "A GPU"

    def memory_allocated(self, device):
        return 100

    def memory_reserved(self, device):
        return 200

    def max_memory_allocated(self, device):
        return 150

    def get_device_properties(self, device):
        return SimpleNamespace(total_memory=1000)

    def utilization(self, device):
        self.asked += 1
        if not self._has_nvml:
            raise ModuleNotFoundError("pynvml does not seem to be installed or it can't be imported.")
        return 25


def test_it_is_read_once_a_second_at_most():
    clock = iter([0.0, 0.5, 0.99, 1.0, 1.5, 2.5])
    gauge = gpu.Gauge("cuda", Cuda(), lambda: next(clock))
    assert [gauge.read() for _ in range(6)] == [READ, None, None, READ, None, READ]


def test_without_nvml_memory_is_told_alone_and_it_is_not_asked_again():
    cuda, clock = Cuda(has_nvml=False), iter([0.0, 2.0])
    gauge = gpu.Gauge("cuda", cuda, lambda: next(clock))
    assert [gauge.read(), gauge.read()] == [READ | {"busy": None}] * 2
    assert cuda.asked == 1


def test_on_the_cpu_nothing_is_read():
    assert gpu.gauge_of("cpu")() is None


def test_it_reaches_log_status_and_exporters(tmp_path):
    counters = Counters()
    budget = Budget({}, counters, Bell())
    with Journal(tmp_path / "log.jsonl", "x") as journal:
        log = EventLog(journal, counters, budget)
        memorizer = SimpleNamespace(owed=0, held=0)
        assert "gpu" not in progress_of(counters, budget, log, memorizer, {})
        run = SimpleNamespace(log=log, blueprint=SimpleNamespace(processes=[]))
        listener, learner = ProcessEvents(run, None, None), SimpleNamespace(name="mlxe-lrn")
        listener.notice(learner, {"notice": {"kind": "gpu", **READ}})
        with pytest.raises(ProtocolError, match="sent gpu"):
            listener.notice(learner, {"notice": {"kind": "gpu", **READ, "most": "much"}})
        assert progress_of(counters, budget, log, memorizer, {})["gpu"] == READ
    (told,) = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert (told["event"], told["role"], told["device"]) == ("gpu", "learner", "A GPU")
    about = {name: value for name, value in READ.items() if name != "name"}
    found = {point.name: point.value for point in Scalars().feed(line("gpu", 1, "learner", device="A GPU", **about))}
    assert found == {"gpu/allocated": 100, "gpu/reserved": 200, "gpu/most": 150, "gpu/busy": 0.25}
