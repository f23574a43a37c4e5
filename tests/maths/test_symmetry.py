"""Mirror images of rows."""

import numpy as np
import pytest

from mlxe_async.maths import symmetry
from mlxe_async.rows import Symmetry

MIRROR = Symmetry((-1.0, 1.0, -1.0), (1, 0, 2))


def rows(lead=()):
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, *lead, 6, 3)).astype(np.float32)
    return obs, next_obs, rng.integers(0, 3, (*lead, 6))


@pytest.mark.parametrize("lead", [(), (4,)])
def test_only_the_flipped_samples_are_mirrored(lead):
    flipped = np.array([1, 0, 1, 0, 0, 1], bool)
    obs, next_obs, action = rows(lead)
    results = symmetry.mirror(obs, next_obs, action, flipped, MIRROR)
    for before, after in zip((obs, next_obs), results[:2], strict=True):
        np.testing.assert_array_equal(after[..., ~flipped, :], before[..., ~flipped, :])
        np.testing.assert_array_equal(after[..., flipped, :], before[..., flipped, :] * np.float32([-1, 1, -1]))
        assert after.dtype == np.float32
    np.testing.assert_array_equal(results[2][..., ~flipped], action[..., ~flipped])
    np.testing.assert_array_equal(results[2][..., flipped], np.array([1, 0, 2])[action[..., flipped]])


def test_the_mirror_image_of_the_mirror_image_is_the_original():
    flipped, original = np.ones(6, bool), rows()
    twice = symmetry.mirror(*symmetry.mirror(*original, flipped, MIRROR), flipped, MIRROR)
    for before, after in zip(original, twice, strict=True):
        np.testing.assert_array_equal(after, before)


def test_rows_that_do_not_fit_the_symmetry_are_refused():
    obs, next_obs, action = rows()
    with pytest.raises(ValueError, match="mirror: expected"):
        symmetry.mirror(obs[:, :2], next_obs[:, :2], action, np.ones(6, bool), MIRROR)
    with pytest.raises(ValueError, match="mirror: expected"):
        symmetry.mirror(obs, next_obs, action, np.ones(5, bool), MIRROR)


def test_each_shape_is_looked_at():
    obs, next_obs, action = rows()
    for arrays in ((obs, next_obs[:, :2], action), (obs, next_obs, action[:5]), (obs[:5], next_obs, action)):
        with pytest.raises(ValueError, match="mirror: expected"):
            symmetry.mirror(*arrays, np.ones(6, bool), MIRROR)
