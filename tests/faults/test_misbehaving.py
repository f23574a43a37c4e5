"""Environments that misbehave on purpose do so where they are told, and nowhere else."""

import numpy as np
import pytest
from misbehaving import FAULTS, ChaosEnv, chaos
from misbehaving.faults import DEADLY, HANGING, PROCESS, RAISED

from mlxe_async.errors import EnvironmentFault
from mlxe_async.tasks.vector import VectorTask
from mlxe_async.testing import whereabouts

ANSWERS = [name for name in FAULTS if name not in {*DEADLY, *HANGING, *PROCESS}]


@pytest.fixture(autouse=True)
def _new_life(monkeypatch):
    monkeypatch.setattr(chaos, "LIFE", chaos._Life())


def played(steps, **kwargs):
    """Steps (from 1) at which a task made of it told of a fault."""
    task = VectorTask({"env": "misbehaving:Chaos-v0", "kwargs": kwargs}, 1)
    faulty, live = [], False
    for step in range(1, steps + 1):
        if not live:
            task.reset(0, seed=step)
        result = task.step(np.array([0]))
        live = bool(result.ok[0]) and not result.ended
        if result.faults:
            faulty.append(step)
            task.rebuild(0)
    return faulty


def test_without_a_fault_it_keeps_the_contract():
    assert played(100) == []


def test_a_fault_comes_once_at_its_step_also_after_the_environment_was_made_anew():
    assert played(100, fault="raise", step=30) == [30]


def test_it_comes_again_as_often_as_it_is_told():
    assert played(100, fault="raise", step=30, every=10, times=3) == [30, 40, 50]


def test_several_come_one_after_the_other():
    assert played(100, fault=["raise", "none", "reward none"], step=30, every=10) == [30, 50]


def test_it_comes_in_one_episode_only():
    assert played(100, fault="raise", step=1, every=1, episode=2, times=0, length=10)[0] == 21


def test_chance_repeats_itself_by_seed():
    first = played(500, fault="raise", probability=0.05, seed=1, times=0)
    chaos.LIFE.__init__()
    again = played(500, fault="raise", probability=0.05, seed=1, times=0)
    chaos.LIFE.__init__()
    other = played(500, fault="raise", probability=0.05, seed=2, times=0)
    assert first == again != other
    assert 10 <= len(first) <= 45


@pytest.mark.parametrize(
    ("role", "comes"), [("x:mlxe-exe-0:1", True), ("x:mlxe-exe-1:1", False), ("x:mlxe-exe-0:2", False)]
)
def test_it_comes_in_its_executor_and_in_its_life_only(monkeypatch, role, comes):
    monkeypatch.setenv("MLXE_ROLE", role)
    assert played(50, fault="raise", step=30, executor=0) == ([30] if comes else [])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("t:mlxe-exe-12:3", ("executor", 12, 3)),
        ("t:mlxe-eval:2", ("evaluator", 0, 2)),
        ("t:mlxe-serial:1", ("serial", 0, 1)),
        ("t:mlxe-probe:1", ("probe", 0, 1)),
        ("", ("outside", 0, 0)),
    ],
)
def test_a_process_knows_where_it_stands(monkeypatch, name, expected):
    monkeypatch.setenv("MLXE_ROLE", name)
    here = whereabouts()
    assert (here.role, here.index, here.epoch) == expected


@pytest.mark.parametrize("name", sorted(RAISED))
def test_what_is_raised_becomes_a_fault(name):
    assert played(20, fault=name, step=10) == [10]


@pytest.mark.parametrize("name", sorted(set(ANSWERS) - set(RAISED) - {"large reward", "out of bounds", "none"}))
def test_a_wrong_answer_is_a_fault_and_an_odd_one_is_none(name):
    odd = {
        "same buffer",
        "out of bytes",
        "float64",
        "big-endian",
        "plain list",
        "huge info",
        "nested info",
        "unpicklable info",
        "reward scalar array",
    }
    expected = [] if name in odd else [10]
    assert played(20, fault=name, step=10, amount=1) == expected


def chaos_task(**kwargs):
    return VectorTask({"env": "misbehaving:Chaos-v0", "kwargs": kwargs}, 1)


def test_a_fault_in_reset():
    task = chaos_task(fault="raise", where="reset", step=2)
    task.reset(0, seed=0)
    with pytest.raises(EnvironmentFault):
        task.reset(0, seed=0)


def test_a_fault_in_making():
    task = chaos_task(fault="raise", where="make", step=2)
    with pytest.raises(EnvironmentFault):
        task.rebuild(0)


@pytest.mark.parametrize("wrong", [{"fault": "nothing of the kind"}, {"where": "nowhere"}, {"space": "round"}])
def test_what_does_not_exist_is_refused(wrong):
    with pytest.raises(ValueError, match="expected one of"):
        ChaosEnv(**wrong)
