"""What processes say between their answers: a notice goes where it belongs, one that is not known ends its process."""

import asyncio
from types import SimpleNamespace

import pytest

from mlxe_async import read_log
from mlxe_async.errors import ProtocolError
from mlxe_async.ipc.processes.life import Hang
from mlxe_async.logs.journal import Journal
from mlxe_async.supervisor.handles.process_events import ProcessEvents
from mlxe_async.supervisor.plan.budget import Counters
from mlxe_async.supervisor.recording.steps import Ended, NoRecorder


def listening(log, crashes=None, roles=(), recorder=None):
    processes = [SimpleNamespace(name=name, roles=held) for name, held in dict(roles).items()]
    run = SimpleNamespace(
        log=log,
        counters=Counters(),
        recorder=recorder or NoRecorder(),
        blueprint=SimpleNamespace(processes=processes),
    )
    return ProcessEvents(run, asyncio.Event(), crashes)


def test_a_remark_of_the_learner_is_a_warning_in_the_log_and_what_is_unknown_is_refused():
    warned = []
    log = SimpleNamespace(warn=lambda message, role: warned.append((message, role)))
    listener, process = listening(log), SimpleNamespace(name="mlxe-lrn")
    listener.notice(process, {"notice": {"kind": "remark", "detail": "memory stays pageable"}})
    assert warned == [("memory stays pageable", "learner")]
    with pytest.raises(ProtocolError, match="mlxe-lrn sent a notice that is not known"):
        listener.notice(process, {"notice": {"kind": "remark", "detail": 7}})


FAULT = {
    "kind": "env_error", "executor": 1, "env": 0, "phase": "step", "detail": "hot", "episode": 3, "step": 2, "seed": 7,
    "faults": 1, "trace": "",
}  # fmt: skip


def test_a_fault_of_an_environment_is_told_if_it_is_whole_and_of_an_executor_of_that_process():
    told = []
    tells = SimpleNamespace(
        env_error=lambda index, fault: told.append(index), faulted=lambda index, fault: told.append(index)
    )
    roles = {"mlxe-exe-1": ("executor-1",), "mlxe-exe-2": ("executor-2",)}
    listener, process = listening(tells, crashes=tells, roles=roles), SimpleNamespace(name="mlxe-exe-1")
    listener.notice(process, {"notice": FAULT})
    assert told == [1, 1]
    without_seed = {name: value for name, value in FAULT.items() if name != "seed"}
    note = {"kind": "note", "executor": 2, "about": "dtype", "detail": "cast"}
    for bad in (FAULT | {"executor": 2}, FAULT | {"executor": 99}, FAULT | {"env": "0"}, without_seed, note):
        with pytest.raises(ProtocolError, match="mlxe-exe-1 sent"):
            listener.notice(process, {"notice": bad})
    assert told == [1, 1]


@pytest.mark.parametrize(
    ("call", "limit_s", "setting"),
    [
        ("step", 5.0, "schedule.step_timeout_s"),
        ("step", 60.0, "schedule.reset_timeout_s"),  # the first step of an episode
        ("reset", 60.0, "schedule.reset_timeout_s"),
        ("update", 30.0, "schedule.update_timeout_s"),
        ("evaluate", 60.0, ""),
    ],
)
def test_a_hang_is_told_with_the_setting_that_has_its_limit(tmp_path, call, limit_s, setting):
    journal = Journal(tmp_path / "log.jsonl", "x")
    listener = listening(SimpleNamespace(emit=journal.emit))
    schedule = SimpleNamespace(step_timeout_s=5.0, reset_timeout_s=60.0, update_timeout_s=30.0)
    listener._run.settings = SimpleNamespace(schedule=schedule)
    listener.hang(SimpleNamespace(name="mlxe-exe-0", pid=7), Hang(call, limit_s, 0.2))
    journal.close()
    (line,) = read_log(tmp_path / "log.jsonl")
    assert (line["setting"], line["limit_s"]) == (setting, limit_s)


@pytest.mark.parametrize(
    ("name", "expected", "why"),
    [
        ("mlxe-exe-1", False, "executor 1 died"),
        ("mlxe-lrn", False, "the learner died"),
        ("mlxe-eval", False, None),
        ("mlxe-exe-1", True, None),
    ],
)
def test_a_death_ends_the_recording_whatever_the_process_was_doing(name, expected, why):
    noted, log = [], SimpleNamespace(emit=lambda *_, **__: None)
    crashes, recorder = SimpleNamespace(died=lambda *_: None), SimpleNamespace(note=noted.append)
    process = SimpleNamespace(name=name, pid=7, epoch=1)
    status = SimpleNamespace(code=None, signal=9, stack="")
    listening(log, crashes, recorder=recorder).exited(process, "it died", status, expected)
    assert noted == ([Ended("", why)] if why else [])
