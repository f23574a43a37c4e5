"""Rescaled values: the formula, in double precision, and the way back."""

import numpy as np
import pytest
import torch

from mlxe_async.maths.rescaling import h, h_inverse

EPSILON = 0.001
RETURNS = np.concatenate([[0.0], *((-(10.0**k), 10.0**k) for k in np.arange(-6, 7.0))])


def plainly(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + EPSILON * x


def plainly_back(y):
    root = (np.sqrt(1 + 4 * EPSILON * (np.abs(y) + 1 + EPSILON)) - 1) / (2 * EPSILON)
    return np.sign(y) * (root**2 - 1)


def test_it_is_the_formula_of_the_paper():
    x = torch.from_numpy(RETURNS)
    np.testing.assert_allclose(h(x), plainly(RETURNS), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(h_inverse(x), plainly_back(RETURNS), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_inverse_leads_back_from_either_side_for_returns_of_any_size(dtype, near):
    x = torch.from_numpy(RETURNS).to(dtype)
    torch.testing.assert_close(h_inverse(h(x)), x, rtol=near, atol=0)
    torch.testing.assert_close(h(h_inverse(x)), x, rtol=near, atol=0)


def test_in_single_precision_small_returns_keep_their_digits():
    x = torch.from_numpy(RETURNS)
    torch.testing.assert_close(h(x.float()).double(), h(x), rtol=1e-6, atol=0)
    torch.testing.assert_close(h_inverse(x.float()).double(), h_inverse(x), rtol=1e-5, atol=0)
