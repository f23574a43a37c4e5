"""What a critic's outputs mean, for learners and for those who judge stored rows."""

import numpy as np
import pytest
import torch

from mlxe_async.algorithms.mlxe.critics import Critic, CriticFields


@pytest.mark.parametrize("scale", ["return", "survival", "categorical"])
def test_numpy_and_torch_read_the_same_values_in_single_precision(scale):
    critic = Critic(CriticFields(value_scale=scale, atoms=5, value_low=-2.0, value_high=6.0))
    outputs = np.random.default_rng(0).normal(0, 3, (20, critic.outputs)).astype(np.float32)
    judged = critic.appraised(outputs)
    learned = torch.as_tensor(outputs) if scale == "categorical" else torch.as_tensor(outputs[:, 0])
    np.testing.assert_allclose(judged, critic.value(learned), rtol=1e-4, atol=1e-6)
    assert judged.dtype == np.float32
    assert judged.shape == (20,)


def test_atoms_are_equally_far_apart_from_the_lowest_to_the_highest():
    critic = Critic(CriticFields(value_scale="categorical", atoms=5, value_low=-2.0, value_high=6.0))
    assert critic.support.tolist() == [-2.0, 0.0, 2.0, 4.0, 6.0]
    outputs = np.log(np.array([[0.5, 0.125, 0.125, 0.125, 0.125]], np.float32))
    assert critic.appraised(outputs).tolist() == pytest.approx([0.5 * -2 + 0.125 * 12])


def test_targets_in_numbers_and_their_means():
    partial, coefficient = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0])
    plain, survival = Critic(CriticFields()), Critic(CriticFields(value_scale="survival"))
    target, mean = plain.target(partial, coefficient, torch.tensor([4.0, 9.0]))
    assert target.tolist() == mean.tolist() == [3.0, 2.0]
    target, mean = survival.target(partial, coefficient, torch.tensor([np.log(3.0), 9.0]))
    assert target.tolist() == mean.tolist() == pytest.approx([1.375, 2.0])
    atoms = Critic(CriticFields(value_scale="categorical", atoms=5, value_low=-2.0, value_high=6.0))
    logits = torch.tensor([[0.0, 0.0, 50.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0, 0.0]])
    target, mean = atoms.target(partial, coefficient, logits)
    np.testing.assert_allclose(target, [[0, 0, 1, 0, 0], [0, 0, 1, 0, 0]], atol=1e-6)  # 1 + 0.5 * 2, and 2
    assert mean.tolist() == pytest.approx([2.0, 2.0])
