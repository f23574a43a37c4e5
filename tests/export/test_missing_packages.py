"""Without the extra `export` a policy is not converted, and the message says how to get it."""

import sys

import pytest
from policies_to_export import policy_of

from mlxe_async.errors import SettingsError
from mlxe_async.export import onnx_file


def test_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        SettingsError, match=r'needs a package that is not installed: pip install "mlxe_async\[export\]"'
    ):
        onnx_file.write(policy_of({"env": "CartPole-v1"}), tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []
