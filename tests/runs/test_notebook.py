"""A run in a cell of a notebook: `await` at top level, in a loop that is running already, with other streams."""

import ast
import asyncio
import importlib.util
import inspect
import io
import os
import signal
import subprocess
import sys
import types

import leaks
import pytest
from live_runs import settings

from mlxe_async.supervisor import Supervisor

CELL = """
supervisor = Supervisor(chosen, run_dir=folder)
first = await supervisor.run()
print(first.reason)
second = await Supervisor(chosen, run_dir=folder).run()
"""
CANCELLED = """
running = asyncio.ensure_future(Supervisor(endless, run_dir=folder).run())
while not list(folder.glob("*/log.jsonl")):
    await asyncio.sleep(0.01)
running.cancel()
try:
    await running
except asyncio.CancelledError:
    print("cancelled")
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1)

NOTEBOOK = """
import sys
import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(source) for source in sys.argv[2:]]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": sys.argv[1]}}).execute()
for cell in notebook.cells:
    for output in cell.outputs:
        print(output.get("text") or output["data"]["text/plain"])
"""
IN_A_KERNEL = """
import os
from pathlib import Path
from mlxe_async import Supervisor, load_settings
chosen = {"task": {"env": "CartPole-v1"}, "stop": {"env_steps": 500}, "algorithm": {"name": "mlxe", "min_updates": 4}}
r = await Supervisor(load_settings(chosen), run_dir="runs").run()
(r.reason, r.exit_code)
"""
WHAT_IS_LEFT = """
children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
memory = [name for fd in Path("/proc/self/fd").iterdir() if fd.exists() and "memfd" in (name := os.readlink(fd))]
(children, memory)
"""


class Stream(io.TextIOBase):
    """As the streams of a kernel: they take text, and there is no file behind them."""

    def __init__(self):
        self.text = ""

    def writable(self):
        return True

    def write(self, text):
        self.text += text
        return len(text)


async def cell(source, names):
    """Run a cell as IPython does: code with `await` at top level is a coroutine, awaited in the running loop."""
    code = compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert code.co_flags & inspect.CO_COROUTINE
    await types.FunctionType(code, names)()


def in_a_kernel(monkeypatch, main):
    """Run a coroutine in a loop as a kernel has it; returns what was written to stdout and to stderr."""
    out, err = Stream(), Stream()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with pytest.raises(io.UnsupportedOperation):
            out.fileno()
        asyncio.run(main)
    return out.text, err.text


@pytest.mark.long
def test_a_cell_awaits_two_runs_and_nothing_of_the_kernel_is_touched(tmp_path, monkeypatch):
    names = {"Supervisor": Supervisor, "chosen": settings(stop={"env_steps": 300}), "folder": tmp_path}

    async def kernel():
        handlers = [signal.getsignal(number) for number in SIGNALS]
        await cell(CELL, names)
        assert [signal.getsignal(number) for number in SIGNALS] == handlers

    with leaks.nothing_left():
        assert in_a_kernel(monkeypatch, kernel()) == ("env_steps\n", "")
    assert names["first"].weights_hash == names["second"].weights_hash


def test_a_cell_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    names = {"Supervisor": Supervisor, "asyncio": asyncio, "folder": tmp_path}
    names["endless"] = settings(stop={"env_steps": 10**6})
    with leaks.nothing_left():
        assert in_a_kernel(monkeypatch, cell(CANCELLED, names)) == ("cancelled\n", "")


@pytest.mark.skipif(
    not (importlib.util.find_spec("ipykernel") and importlib.util.find_spec("nbclient")),
    reason="needs ipykernel and nbclient",
)
def test_a_cell_of_a_real_notebook(tmp_path):
    environment = {
        **os.environ,
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter"),
    }
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK, str(tmp_path), IN_A_KERNEL, WHAT_IS_LEFT],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["('env_steps', 0)", "('', [])"]
