"""What is refused at once when a run is to go on."""

import pytest

from mlxe_async.errors import SettingsError
from mlxe_async.run_folder import RunFolder
from mlxe_async.settings import load_settings
from mlxe_async.supervisor.resuming import LogEnd, ResumePoint


def test_another_algorithm_is_refused_in_one_sentence(tmp_path):
    old = load_settings({"task": {"env": "CartPole-v1"}, "algorithm": {"name": "a3c", "batch": 32}})
    new = load_settings({"task": {"env": "CartPole-v1"}}, ["algorithm.name=ppo"])
    with RunFolder.create(tmp_path, "x") as folder:
        point = ResumePoint(folder, old, LogEnd(0, 0, True))
        point.refuse_another_algorithm(old)
        with pytest.raises(SettingsError) as refused:
            point.refuse_another_algorithm(new)
        (line,) = refused.value.problems
        assert line.startswith('--set algorithm.name: algorithm.name: got "ppo", expected "a3c": ')
        assert f'--set run.init_from="{folder.path}"' in line
