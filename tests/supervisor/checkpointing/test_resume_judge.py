"""What is refused at once when a run is to go on."""

import pytest

from mlxe_async.errors import SettingsError
from mlxe_async.logs import journal as journal_module
from mlxe_async.logs.events import Warning, Weights  # noqa: A004 - the event
from mlxe_async.logs.journal import Journal
from mlxe_async.settings import load_settings
from mlxe_async.storage.run_folder import RunFolder
from mlxe_async.supervisor.checkpointing.log_end import LogEnd, read_log_end
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint


def test_another_algorithm_is_refused_in_one_sentence(tmp_path):
    old = load_settings({"task": {"env": "CartPole-v1"}, "algorithm": {"name": "mlxe", "batch": 32}})
    new = load_settings({"task": {"env": "CartPole-v1"}}, ["algorithm.name=ppo"])
    with RunFolder.create(tmp_path, "x") as folder:
        point = ResumePoint(folder, old, LogEnd(0, 0, True))
        point.refuse_another_algorithm(old)
        with pytest.raises(SettingsError) as refused:
            point.refuse_another_algorithm(new)
        (line,) = refused.value.problems
        assert line.startswith('--set algorithm.name: algorithm.name: got "ppo", expected "mlxe": ')
        assert f'--set run.init_from="{folder.path}"' in line


def test_the_newest_version_is_known_although_the_log_was_begun_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "ROTATION_CHECK_S", 0.0)
    path = tmp_path / "log.jsonl"
    with Journal(path, "r", most_bytes=700) as journal:
        journal.emit(Weights(7, 0, 0, 0))
        journal.emit(Weights(8, 0, 0, 0))
        journal.emit(Warning("the only line of the new file"))
    assert b"weights" not in path.read_bytes()
    assert read_log_end(path) == LogEnd(3, 8, False)
    path.write_bytes(b"")
    assert read_log_end(path) == LogEnd(2, 8, False)
