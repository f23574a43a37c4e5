"""What was measured, as plain numbers."""

import numpy as np
import pytest
import torch

from mlxe_async.maths import metrics
from mlxe_async.maths.metrics import as_floats, means


def test_tensors_and_numbers_become_floats_in_their_order():
    found = as_floats({"b": torch.tensor(2.5), "a": 3, "c": torch.tensor(1.0, dtype=torch.float64, requires_grad=True)})
    assert list(found.items()) == [("b", 2.5), ("a", 3.0), ("c", 1.0)]
    assert all(type(value) is float for value in found.values())
    assert as_floats({}) == {}


def test_the_mean_is_over_the_minibatches_that_have_it():
    found = means([{"loss": torch.tensor(1.0), "once": 7}, {"loss": 4.0}])
    assert found == {"loss": pytest.approx(2.5), "once": 7.0}
    assert means([]) == {}


@pytest.mark.parametrize("weighted", [False, True])
def test_explained_variance_is_1_of_a_perfect_critic_and_0_of_one_that_says_the_mean(weighted):
    rng = np.random.default_rng(0)
    target = (3 + 2 * rng.normal(size=200)).astype(np.float32)
    weight = rng.uniform(0.1, 1, 200).astype(np.float32) if weighted else np.ones(200, np.float32)
    weight /= weight.sum()
    mean = float(target @ weight)
    for value, expected in ((target, 1.0), (target + 5, 1.0), (mean, 0.0), (2 * mean - target, -3.0)):
        error = (target - value).astype(np.float32)
        tensors = [torch.from_numpy(one) for one in (error, target, weight)]
        found = metrics.explained_variance(*tensors[: 3 if weighted else 2])
        unexplained = float((error - error @ weight) ** 2 @ weight)
        by_arrays = metrics.explained(unexplained, target, *([weight] if weighted else []))
        assert found.item() == pytest.approx(expected, abs=1e-4)
        assert by_arrays == pytest.approx(expected, abs=1e-4)


def test_explained_variance_is_a_number_where_all_targets_are_alike():
    alike = torch.full((8,), 100.0)
    error = torch.tensor([1.0, -1.0] * 4)
    assert metrics.explained_variance(error, alike).item() == pytest.approx(1 - 1 / (1e-6 * 1e4), rel=1e-3)
    assert metrics.explained_variance(error, 0 * alike).item() == pytest.approx(1 - 1 / 1e-12, rel=1e-3)
    assert metrics.explained_variance(0 * error, 0 * alike).item() == 1
    assert metrics.explained(1.0, 0 * alike.numpy()) == pytest.approx(1 - 1 / 1e-12, rel=1e-3)
    assert metrics.explained(1.0, alike.numpy()) == pytest.approx(1 - 1 / (1e-6 * 1e4), rel=1e-3)


def test_a_tensor_of_several_numbers_is_told_by_its_quantiles():
    found = metrics.spread({"loss": torch.tensor(2.0), "gain": torch.arange(101.0).reshape(1, 101), "rate": 0.5})
    gains = {"gain.min": 0.0, "gain.p10": 10.0, "gain.p50": 50.0, "gain.p90": 90.0, "gain.max": 100.0}
    assert {name: float(value) for name, value in found.items()} == pytest.approx({"loss": 2.0, **gains, "rate": 0.5})
    pair = metrics.spread({"gain": torch.tensor([3.0, 1.0], requires_grad=True)})
    assert {name: float(value) for name, value in pair.items()} == pytest.approx(
        {"gain.min": 1.0, "gain.p10": 1.2, "gain.p50": 2.0, "gain.p90": 2.8, "gain.max": 3.0}
    )
    assert not any(value.requires_grad for value in pair.values())
    assert float(metrics.spread({"large": torch.arange(3_000_000.0)})["large.p50"]) == pytest.approx(1.5e6, rel=1e-3)


@pytest.mark.parametrize("one", [torch.ones(1), torch.ones(1, 1), np.ones(1), np.float32(1)])
def test_one_number_is_one_number_whatever_it_is_wrapped_in(one):
    assert as_floats({"a": torch.tensor(2.0), "b": one}) == {"a": 2.0, "b": 1.0}


def test_several_numbers_are_told_by_the_metrics_name():
    with pytest.raises(ValueError, match=r"metric 'b': expected one number, got a Tensor \(2,\)"):
        as_floats({"a": torch.tensor(2.0), "b": torch.ones(2)})
