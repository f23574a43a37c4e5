"""What torch's compiler makes of a loss gives the gradient of the loss as it is written."""

import numpy as np
import pytest
import torch
from made_rows import agent, batch

from mlxe_async.algorithms import Clock
from mlxe_async.algorithms.ppo import PPO
from mlxe_async.errors import CompileFailed
from mlxe_async.fast import compiled, updates
from mlxe_async.toolchain import cpp_compiler

SMALL = {"policy": (8,), "value": (8,), "epochs": 2, "minibatch": 8, "normalise": False}


def pretend_to_compile(monkeypatch, change=lambda found: found):
    """A compiler that gives back what it was given: what is left are the functions that are compiled."""
    monkeypatch.setattr(compiled, "_prepare_compiler", lambda: None)
    monkeypatch.setattr(compiled, "cpp_compiler", lambda: "g++")
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *given: change(function(*given)))


def learned(way, count=3):
    for number in range(count):
        way.update(batch(way.algorithm, seed=number), Clock(updates=number))
    return way.algorithm.weights()


@pytest.mark.parametrize("minibatches", ["rows", "sequences"])
def test_compiled_updates_lead_where_the_file_leads_also_after_a_step_back(monkeypatch, minibatches):
    pretend_to_compile(monkeypatch)
    way, plain = (updates(agent("ppo", **SMALL, minibatches=minibatches), fast=fast) for fast in (True, False))
    assert way.compile() >= 0
    np.testing.assert_allclose(learned(way), learned(plain), atol=1e-4)
    for one in (way, plain):
        one.algorithm.set_weights(2 * agent("ppo", **SMALL).weights())
    np.testing.assert_allclose(learned(way), learned(plain), atol=1e-4)


def test_a_compiler_that_is_missing_or_fails_is_told_of(monkeypatch):
    def fails(_):
        raise RuntimeError("no space left on device")

    way, expected = updates(agent("ppo", **SMALL)), updates(agent("ppo", **SMALL))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileFailed, match="no-such-compiler"):
        way.compile()
    pretend_to_compile(monkeypatch, fails)
    with pytest.raises(CompileFailed, match="RuntimeError: no space left"):
        way.compile()
    np.testing.assert_array_equal(learned(way), learned(expected))


def test_what_is_no_built_in_algorithm_is_not_compiled_and_the_reason_is_told():
    class Mine(PPO):
        pass

    with pytest.raises(CompileFailed, match="Mine is not a built-in algorithm"):
        updates(agent("ppo", kind=Mine)).compile()
    with pytest.raises(CompileFailed, match="DQN has no update that can be compiled"):
        updates(agent("dqn")).compile()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when its compiler is imported
@pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
def test_the_compiler_makes_a_function_for_minibatches_of_any_size(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    way, plain = updates(agent("ppo", **SMALL)), updates(agent("ppo", **SMALL), fast=False)
    assert way.compile() > 0
    for rows in (48, 112):
        for one in (way, plain):
            one.update(batch(one.algorithm, rows=rows), Clock())
    np.testing.assert_allclose(way.algorithm.weights(), plain.algorithm.weights(), atol=1e-4)
