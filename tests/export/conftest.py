"""What the libraries open once per process, and keep, is opened before the first test."""

import contextlib

import pytest
from policies_to_export import policy_of

from mlxe_async.errors import SettingsError
from mlxe_async.export import onnx_file, picture


@pytest.fixture(autouse=True, scope="session")
def _libraries_are_warm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("warm")
    policy = policy_of({"env": "CartPole-v1"})
    picture.draw(policy, folder / "network.svg")
    with contextlib.suppress(SettingsError):  # without the extra
        onnx_file.write(policy, folder / "policy.onnx")
