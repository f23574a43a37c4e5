"""The gradient of a loss is the same whichever way it is found, and a changed loss is never passed over."""

import numpy as np
import pytest
import torch

from mlxe_async import differentiation
from mlxe_async.algorithms.a3c import A3C
from mlxe_async.algorithms.dqn import DQN
from mlxe_async.algorithms.ppo import PPO, PPOSettings
from mlxe_async.errors import CompileFailed
from mlxe_async.maths import clipped_surrogate, replayed
from mlxe_async.networks import TorchNetwork
from mlxe_async.rows import Spaces

SPACES = Spaces((4,), actions=3)
SMALL = {"policy": (8,), "value": (8,), "epochs": 2, "minibatch": 8, "normalise": False}


class Changed(PPO):
    """One line is another: the entropy's sign."""

    def _loss(self, logits, value, rows):
        total, measured = super()._loss(logits, value, rows)
        return total + 2 * self.settings.entropy * measured[2] + value.mean(), measured


def agent(kind=PPO, *, threads=1, **settings):
    return kind(PPOSettings(**{**SMALL, **settings}), SPACES, seed=1, learns=True, threads=threads)


def rows():
    known = clipped_surrogate.examples(20, 4, 3)
    return {name: torch.as_tensor(column) for name, column in known.items()}


def gradient(algorithm):
    measured = algorithm._differentiate(rows())
    return algorithm._learned.gradient.clone(), [np.asarray(one) for one in measured]


def without(algorithm, *ways):
    """The same algorithm with some ways barred."""
    if "by hand" in ways:
        algorithm._differentiate._by_hand = None
    if "quick" in ways:
        algorithm._differentiate._quickly = False
        algorithm._differentiate.attach(algorithm._learned, algorithm._quick)
    return algorithm


def pretend_to_compile(monkeypatch, change=lambda found: found):
    """A compiler that gives back what it was given: what is left are the functions that are compiled."""
    monkeypatch.setattr(differentiation, "_prepare_compiler", lambda: None)
    monkeypatch.setattr(differentiation, "cpp_compiler", lambda: "g++")
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *given: change(function(*given)))


def test_every_way_finds_the_same_gradient_and_measures_the_same(monkeypatch):
    pretend_to_compile(monkeypatch)
    ways = [agent(), without(agent(), "by hand"), without(agent(), "by hand", "quick"), agent()]
    assert ways[3].compile() >= 0
    assert [one._differentiate.way for one in ways] == ["by hand", "quick", "autograd", "compiled"]
    expected, known = gradient(ways[2])
    assert expected.norm() > 0.1
    for one in ways:
        found, measured = gradient(one)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        for value, other in zip(measured, known, strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"clip": 0.05, "entropy": 0.3, "value_coefficient": 2.0}, {"entropy": 0.0}])
def test_the_gradient_by_hand_is_that_of_the_loss_as_written(settings):
    by_hand, written = agent(**settings), without(agent(**settings), "by hand", "quick")
    assert by_hand._differentiate.way == "by hand"
    torch.testing.assert_close(gradient(by_hand)[0], gradient(written)[0], rtol=1e-4, atol=1e-5)


def test_a_changed_loss_is_learned_from_as_it_is_written():
    changed = agent(Changed)
    assert changed._differentiate.way == "quick"
    expected = gradient(without(agent(Changed), "quick"))[0]
    torch.testing.assert_close(gradient(changed)[0], expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(gradient(agent())[0], expected, atol=1e-4)


def test_several_threads_leave_it_to_torch():
    kept = torch.get_num_threads()
    try:
        assert agent(threads=2)._differentiate.way == "autograd"
    finally:
        torch.set_num_threads(kept)


def test_what_was_compiled_lasts_beyond_a_step_back(monkeypatch):
    pretend_to_compile(monkeypatch)
    one, other = agent(), agent()
    one.compile()
    for algorithm in (one, other):
        algorithm.set_weights(2 * agent().weights())
    assert one._differentiate.way == "compiled"
    torch.testing.assert_close(gradient(one)[0], gradient(other)[0], rtol=1e-4, atol=1e-5)


def test_a_compiled_gradient_that_differs_is_not_used(monkeypatch):
    pretend_to_compile(monkeypatch, lambda found: (found[0] * 1.1, found[1]))
    algorithm = agent()
    with pytest.raises(CompileFailed, match="differs"):
        algorithm.compile()
    assert algorithm._differentiate.way == "by hand"


def test_a_compiler_that_is_missing_or_fails_is_told_of(monkeypatch):
    def fails(_):
        raise RuntimeError("no space left on device")

    algorithm = agent()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileFailed, match="no-such-compiler"):
        algorithm.compile()
    pretend_to_compile(monkeypatch, fails)
    with pytest.raises(CompileFailed, match="RuntimeError: no space left"):
        algorithm.compile()
    assert algorithm._differentiate.way == "by hand"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when its compiler is imported
@pytest.mark.skipif(differentiation.cpp_compiler() is None, reason="no C++ compiler")
def test_the_compiler_makes_a_function_for_minibatches_of_any_size(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiled, plain = agent(), agent()
    assert compiled.compile() > 0
    for count in (20, 7):
        some = {name: column[:count] for name, column in rows().items()}
        for algorithm in (compiled, plain):
            algorithm._differentiate(some)
        torch.testing.assert_close(compiled._learned.gradient, plain._learned.gradient, rtol=1e-4, atol=1e-5)
    again = agent()
    again.compile()
    for algorithm in (compiled, again):
        algorithm.set_weights(plain.weights())
        algorithm._differentiate(rows())
    assert torch.equal(compiled._learned.gradient, again._learned.gradient)


# -- replayed rows --


def replaying(kind, **settings):
    fields = {"policy": (8,), "value": (8,)} if issubclass(kind, A3C) else {"layers": (8,)}
    return kind(kind.Settings(**(fields | settings)), SPACES, seed=1, learns=True)


def differentiator(algorithm):
    return algorithm._by_loss if isinstance(algorithm, A3C) else algorithm._differentiate


def replayed_gradient(algorithm):
    known = replayed.examples(algorithm.network.heads, 40)
    measured = differentiator(algorithm)({name: torch.as_tensor(column) for name, column in known.items()})
    return algorithm._learned.gradient.clone(), [float(one) for one in measured]


def by_autograd(algorithm):
    """The same by torch's own network and loss."""
    algorithm._learned = TorchNetwork(algorithm.network, algorithm._learned.flat.numpy())
    ways = differentiator(algorithm)
    ways._by_hand, ways._quickly = None, False
    ways.attach(algorithm._learned, None)
    return algorithm


SCALES = [{}, {"value_scale": "survival"}]
ACTORS = [{**scale, "correction": kind} for scale in SCALES for kind in ("clipped", "none")]
MORE = [{"ratio_clip": 3.0, "entropy": 0.3, "value_coefficient": 0.1}, {"entropy": 0.0}, {"layer_norm": True}]
VALUES = [*SCALES, {"loss": "square"}, {"layer_norm": False, "activation": "tanh"}]


@pytest.mark.parametrize(
    ("kind", "settings"), [*((A3C, settings) for settings in ACTORS + MORE), *((DQN, settings) for settings in VALUES)]
)
def test_the_gradient_of_replayed_rows_by_hand_is_that_of_the_loss_as_written(kind, settings):
    by_hand, written = replaying(kind, **settings), by_autograd(replaying(kind, **settings))
    assert differentiator(by_hand).way == "by hand"
    assert differentiator(written).way == "autograd"
    (found, measured), (expected, known) = replayed_gradient(by_hand), replayed_gradient(written)
    assert expected.norm() > 0.01
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert measured == pytest.approx(known, rel=1e-4, abs=1e-5)


def test_what_no_hand_derived_is_left_to_autograd():
    categorical = replaying(A3C, value_scale="categorical", atoms=11)
    assert differentiator(categorical).way == "quick"
    torch.testing.assert_close(
        replayed_gradient(categorical)[0],
        replayed_gradient(by_autograd(replaying(A3C, value_scale="categorical", atoms=11)))[0],
        rtol=1e-4,
        atol=1e-5,
    )
    assert differentiator(replaying(A3C, correction="vtrace", n_step=3)).way == "quick"
    assert differentiator(replaying(A3C, noisy=True)).way == "autograd"


@pytest.mark.parametrize(("kind", "heads"), [(A3C, 2), (DQN, 1)])
def test_a_changed_loss_on_replayed_rows_is_learned_from_as_it_is_written(kind, heads):
    class Other(kind):
        def _loss(self, *given):
            loss, measured = super()._loss(*given)
            return loss + 0.1 * given[heads - 1].square().mean(), measured

    changed, expected = replaying(Other), replayed_gradient(by_autograd(replaying(Other)))[0]
    assert differentiator(changed).way == "quick"
    torch.testing.assert_close(replayed_gradient(changed)[0], expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(replayed_gradient(replaying(kind))[0], expected, atol=1e-4)
