"""The program that asks a GPU all at once: what of it can be seen without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def truth(monkeypatch):
    """The program as a module."""
    monkeypatch.syspath_prepend(PROGRAMS)
    import gpu_truth

    yield gpu_truth
    for name in ("gpu", "gpu_truth"):
        sys.modules.pop(name, None)


def asked_within(truth, minutes, takes):
    """Which parts were begun with how many seconds left, where each takes `takes` seconds; and what was kept."""
    clock, begun, kept = [0.0], [], []

    def ask(part, left):
        if left < part.least_s:
            return {"left out": "no time"}
        begun.append(part.name)
        clock[0] += min(takes, part.most_s, left)
        return {"failed": "it broke"} if part.name == "tests" else {"found": 1}

    failed = truth.ask_all(minutes, kept.append, ask, lambda: clock[0])
    return begun, kept, failed, clock[0]


def test_all_parts_end_in_time_however_long_each_takes(truth):
    everything = [part.name for part in truth.parts()]
    begun, kept, failed, took = asked_within(truth, 9.0, takes=1000.0)
    assert took <= 9 * 60
    assert begun == everything[: len(begun)]
    assert len(begun) >= 8
    assert failed == 1
    assert [len(one["parts"]) for one in kept] == [*range(1, len(everything) + 1)]
    assert kept[-1]["parts"][everything[-1]]["left out"] == "no time"
    begun, kept, _, _ = asked_within(truth, 9.0, takes=5.0)
    assert begun == everything
    assert json.loads(json.dumps(kept[-1])) == kept[-1]


def test_two_learners_of_one_seed_are_compared_bit_by_bit(truth, monkeypatch):
    monkeypatch.setattr(truth, "tell_torch", lambda *_: None)
    found = truth.bits("repeatable", "cpu", ["mlxe"], updates=2)
    assert found == {"mlxe": {"after 1": 0.0, "after 2": 0.0, "equal": True}}
    real, calls = truth.learned, []

    def by_chance(*given):
        calls.append(given)
        return [one + 1e-3 * len(calls) for one in real(*given)]

    monkeypatch.setattr(truth, "learned", by_chance)
    found = truth.bits("repeatable", "cpu", ["mlxe"], updates=1)
    assert not found["mlxe"]["equal"]
    assert found["mlxe"]["after 1"] == pytest.approx(1e-3, rel=0.01)


def test_precision_and_cost_are_measured_as_they_would_be_on_a_gpu(truth, monkeypatch):
    told = []
    monkeypatch.setattr(truth, "tell_torch", lambda *given: told.append(given))
    small = truth.made

    def made(case, device, extra):
        return small("mlxe", device, {})

    monkeypatch.setattr(truth, "made", made)
    assert truth.precision("tf32", "cpu") == {"first update, of the weights' norm": 0.0}
    assert truth.cost("tf32", "repeatable", "cpu", repeats=2)["ms"] > 0
    assert told == [("repeatable", "cpu", "tf32")] * 2


def test_each_part_names_work_that_there_is(truth, monkeypatch):
    done = []
    for name in ("own_tests", "bits", "precision", "cost", "rate"):
        monkeypatch.setattr(truth, name, lambda *given, name=name: done.append((name, *given)) or {})
    for part in truth.parts():
        truth.do(part.name)
    assert ("cost", "float32", "as torch has it") in done
    assert ("bits", "repeatable, graphs") in done
    assert ("rate", "is, repeatable") in done
    assert len(done) == len(truth.parts())


@pytest.mark.long
def test_without_a_gpu_it_says_so():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = subprocess.run([sys.executable, PROGRAMS / "gpu_truth.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "expected a GPU" in done.stderr
