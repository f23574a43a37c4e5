"""Runs with `executors = "auto"`: what they are called, and that they keep their number when they go on."""

from resume_tools import run_here, settings

CHOSEN = {"schedule": {"kind": "serial", "executors": "auto"}, "stop": {"env_steps": 40}}


def test_a_run_is_called_by_its_number_and_keeps_it(monkeypatch, tmp_path):
    monkeypatch.setattr("mlxe_async.settings.model.usable_cores", lambda: 4)
    result, _ = run_here(settings(**CHOSEN), tmp_path)
    assert result.run_dir.name.endswith("-test-2e")

    monkeypatch.setattr("mlxe_async.settings.model.usable_cores", lambda: 64)
    longer = settings({"stop.env_steps": 80}, **CHOSEN)
    assert longer.schedule.executors == 62
    again, run = run_here(longer, resume=result.run_dir)
    assert run.supervisor.settings.schedule.executors == 2
    assert again.steps >= 80
    (resumed,) = run.all("run_resume")
    assert not [change for change in resumed["changed"] if "executors" in change]
