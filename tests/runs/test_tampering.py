"""A checkpoint that was changed by hand, its checksums made anew, ends in one refusal that names file and key."""

import contextlib
import json
import shutil
from collections import Counter

import pytest
from resume_tools import SAVING, run_here, settings
from tampering import tampered

from mlxe_async.errors import MlxeError
from mlxe_async.ipc.processes.process import Process
from mlxe_async.supervisor.main_loop import MainLoop
from mlxe_async.supervisor.startup import probe, start

pytestmark = pytest.mark.long  # of all, for the runs that they share

SCHEDULE = {"kind": "oa", "executors": 2, "envs_per_executor": 2}
TESTED = {"enabled": True, "rule": "cap", "max_episode_steps": 40, "screen_steps": 10, "episodes": 2, "passes": 100}
FILES = ("supervisor", "learner", "memorizer", "executor-0")


@pytest.fixture(scope="module", params=["oa", pytest.param("is", marks=pytest.mark.slow)])
def saved(request, tmp_path_factory):
    """The folder of a finished run with one whole checkpoint alone, and its settings."""
    schedule = SCHEDULE if request.param == "oa" else {"kind": "is", "executors": 2, "envs_per_executor": 2}
    memory = {"capacity_rows": 2000, "keep_rows": 200}
    chosen = settings(stop={"env_steps": 600}, schedule=schedule, evaluation=TESTED, memory=memory, **SAVING)
    result, _ = run_here(chosen, tmp_path_factory.mktemp("saved"))
    checkpoints = sorted((result.run_dir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    whole = [path for path in checkpoints if (path / "learner.safetensors").exists()]
    for path in checkpoints:
        if path != whole[-1]:
            shutil.rmtree(path)
    return result.run_dir, chosen


@pytest.fixture
def without_processes(monkeypatch, saved):
    """A resumed run does all but start processes: it is probed by what the first run found, and ends at once."""
    facts = json.loads((saved[0] / "run.json").read_text())["facts"]

    @contextlib.asynccontextmanager
    async def known(_nursery, chosen, *_):
        yield probe.judged(chosen, json.loads(json.dumps(facts)))

    async def nothing(*_):
        pass

    async def at_once(_self, _processes, beside):
        for work in beside:
            work.close()

    monkeypatch.setattr(start, "probed", known)
    monkeypatch.setattr(Process, "start", nothing)
    monkeypatch.setattr(MainLoop, "run", at_once)


def gone_on_with(saved, tmp_path, seed, kinds, files):
    """What came of it: the error, None if it was taken; the name of what was changed, and what it was."""
    folder = shutil.copytree(saved[0], tmp_path / f"{seed}")
    (checkpoint,) = (folder / "checkpoints").iterdir()
    name, what = tampered(checkpoint, seed, kinds, [f"{file}.safetensors" for file in files])
    try:
        run_here(saved[1], resume=folder)
    except MlxeError as error:
        return error, name, what
    finally:
        shutil.rmtree(folder)
    return None, name, what


def is_told(error, name, what):
    """Whether the refusal names the file and the key, in one line."""
    file = what.split(": ")[0]
    text = str(error)
    # A tensor is held against what the manifest tells of it before its file is opened.
    named = (file in text and name in text) or f"manifest.json: tensors.{name}: " in text
    return named and len(text.splitlines()) == 1 and text.isprintable()


def test_an_untouched_one_is_taken(saved, without_processes, tmp_path):
    run_here(saved[1], resume=shutil.copytree(saved[0], tmp_path / "copy"))


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_was_changed_is_refused_by_file_and_key_or_does_no_harm(saved, without_processes, tmp_path, count, capsys):
    kinds = ("in_facts", "in_facts", "in_facts", "in_facts", "in_body", "in_arrays", "in_header", "in_weights")
    done = Counter()
    for seed in range(count):
        error, name, what = gone_on_with(saved, tmp_path, seed, kinds, ("supervisor",))
        done["refused" if error else "taken"] += 1
        assert error is None or is_told(error, name, what), f"seed {seed}: {what}: {error!r}"
    with capsys.disabled():
        print(f"\n{count} changed checkpoints: {dict(done)}")
    assert done["refused"] > count / 2


@pytest.mark.slow
def test_what_a_role_is_to_take_up_is_refused_by_file_and_key_or_does_no_harm(saved, tmp_path, capsys):
    done = Counter()
    for seed in range(40):
        error, _, what = gone_on_with(saved, tmp_path, seed, ("in_arrays", "in_header"), FILES[1:])
        done["refused" if error else "taken"] += 1
        if error is not None:
            assert what.split(": ")[0] in str(error), f"seed {seed}: {what}: {error!r}"
    with capsys.disabled():
        print(f"\n40 changed files of roles: {dict(done)}")
    assert done["refused"] > 5
