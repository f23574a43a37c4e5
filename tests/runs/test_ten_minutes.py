"""The page from an environment to an exported policy is run as printed, in its order."""

import importlib.util
import re
import shlex
import subprocess
import sys
import time

import pages
import pytest

PAGE = pages.ROOT / "settings" / "own" / "README.md"
LIMIT_S = 600
"Ten minutes."


def typed(words, folder):
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_page_leads_from_an_environment_to_an_exported_policy(tmp_path):
    began, said = time.monotonic(), {}
    (tmp_path / "mlxe_async").symlink_to(pages.ROOT / "mlxe_async")
    has_onnx = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript"))
    for language, text in pages.blocks(PAGE.read_text()):
        if language in ("python", "toml"):
            name = text.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
            if name in ("use.py", "plain.py", "cell.py"):
                said[name] = typed([name], tmp_path)
            continue
        for line in text.splitlines():
            words = shlex.split(re.sub(r"\s+#\s.*", "", line))[1:]
            if "onnx" not in words or has_onnx:
                said[" ".join(words[2:4])] = typed(words, tmp_path)
    assert time.monotonic() - began < LIMIT_S
    assert said["use.py"].split() == ["1", "0"]
    assert "tensor([1])" in said["plain.py"]
    assert "Episode(steps=100" in said["cell.py"]
    assert "env_steps" in said["curve latest"]
    for name in ("network.svg", "policy.pt", "card"):
        assert (tmp_path / name).exists(), name
    assert (tmp_path / "policy.onnx").exists() == bool(has_onnx)
