"""Under `serial` a built-in algorithm learns as its file is written, so that a breakpoint in a loss is met."""

import pytest
from live_runs import QUICK

from mlxe_async.settings import load_settings
from mlxe_async.supervisor import Supervisor


@pytest.mark.parametrize(
    ("kind", "learner", "fast"),
    [("serial", {}, False), ("is", {}, True), ("serial", {"fast": True}, True), ("is", {"fast": "auto"}, True)],
)
def test_updates_are_decided_by_the_kind_of_schedule_where_nothing_is_said(tmp_path, kind, learner, fast):
    tables = {"schedule": {"kind": kind, "executors": 1}, "learner": learner, "stop": {"env_steps": 100}}
    assert load_settings({**QUICK, **tables}).may_be_fast == fast


def test_a_serial_run_says_so(tmp_path):
    import asyncio

    tables = {"schedule": {"kind": "serial", "executors": 1}, "stop": {"env_steps": 300}}
    supervisor = Supervisor(load_settings({**QUICK, **tables}), run_dir=tmp_path)
    lines = []
    supervisor.subscribe(lines.append)
    asyncio.run(supervisor.run())
    (how,) = [line for line in lines if line["event"] == "updates"]
    assert (how["fast"], how["reason"]) == (False, "learner.fast = false")


def test_a_fast_run_says_which_library_multiplies_and_keeps_the_choice(tmp_path):
    import asyncio

    tables = {"schedule": {"kind": "is", "executors": 1}, "stop": {"env_steps": 300}, "learner": {"products": "numpy"}}
    supervisor = Supervisor(load_settings({**QUICK, **tables}), run_dir=tmp_path)
    lines = []
    supervisor.subscribe(lines.append)
    result = asyncio.run(supervisor.run())
    (how,) = [line for line in lines if line["event"] == "updates"]
    assert (how["fast"], how["products"]) == (True, "numpy in 1 thread")
    assert load_settings(result.run_dir / "settings.toml").learner.products == "numpy"
