"""The projection of distributions onto their atoms, against the loop that the paper writes."""

import numpy as np
import pytest
import torch

from mlxe_async.maths import distributional

SUPPORT = torch.tensor([-1.0, 0.0, 1.0, 2.0, 3.0])


def project(probability, partial, coefficient, support=SUPPORT):
    arrays = (torch.tensor([probability]), torch.tensor([partial]), torch.tensor([coefficient]), support)
    return distributional.project(*arrays)[0].tolist()


def test_mass_between_two_atoms_is_shared_by_nearness():
    assert project([0, 1.0, 0, 0, 0], 0.25, 0.5) == pytest.approx([0, 0.75, 0.25, 0, 0])


def test_mass_upon_an_atom_stays_whole():
    assert project([0.1, 0.2, 0.3, 0.2, 0.2], 0.0, 1.0) == pytest.approx([0.1, 0.2, 0.3, 0.2, 0.2])
    assert project([0, 0, 1.0, 0, 0], 1.0, 1.0) == pytest.approx([0, 0, 0, 1, 0])


def test_mass_beyond_the_ends_goes_to_the_end_atoms():
    assert project([0.25, 0, 0.5, 0, 0.25], 2.0, 1.0) == pytest.approx([0, 0, 0.25, 0, 0.75])
    assert project([0.5, 0.5, 0, 0, 0], -9.0, 1.0) == pytest.approx([1, 0, 0, 0, 0])


def test_after_the_end_of_the_world_only_the_rewards_are_left():
    assert project([0.2] * 5, 1.5, 0.0) == pytest.approx([0, 0, 0.5, 0.5, 0])


def slow(probability, partial, coefficient, support):
    """Bellemare et al. 2017, algorithm 1, with the mass of whole numbers kept."""
    gap = support[1] - support[0]
    result = np.zeros_like(probability)
    for row, (p, r, d) in enumerate(zip(probability, partial, coefficient, strict=True)):
        for j, z in enumerate(support):
            place = (np.clip(r + d * z, support[0], support[-1]) - support[0]) / gap
            low, high = int(np.floor(place + 1e-12)), int(np.ceil(place - 1e-12))
            if low == high:
                result[row, low] += p[j]
            else:
                result[row, low] += p[j] * (high - place)
                result[row, high] += p[j] * (place - low)
    return result


def test_it_is_the_loop_of_the_paper_and_keeps_mass_and_mean():
    rng = np.random.default_rng(0)
    support = np.linspace(-10, 100, 51)
    probability = rng.dirichlet(np.ones(51), 200)
    partial, coefficient = rng.uniform(-20, 120, 200), rng.choice([0.0, 0.5, 0.99, 1.0], 200)
    partial[:50], coefficient[:50] = np.round(partial[:50] / 2.2) * 2.2, 1.0  # whole numbers of atoms
    arrays = (torch.tensor(array) for array in (probability, partial, coefficient, support))
    result = distributional.project(*arrays).numpy()
    np.testing.assert_allclose(result, slow(probability, partial, coefficient, support), atol=1e-10)
    np.testing.assert_allclose(result.sum(1), 1)
    inside = (partial - 10 * coefficient > -10) & (partial + 100 * coefficient < 100)
    assert inside.sum() > 10
    wanted = partial + coefficient * (probability @ support)
    np.testing.assert_allclose((result @ support)[inside], wanted[inside])


def test_single_precision_never_leaves_the_atoms():
    support = torch.linspace(-0.3, 0.7, 51)
    result = distributional.project(torch.full((1, 51), 1 / 51), torch.tensor([0.0]), torch.tensor([1.0]), support)
    assert result.sum() == pytest.approx(1)
    torch.testing.assert_close(result, torch.full((1, 51), 1 / 51), atol=1e-5, rtol=0)


def test_the_mean_weighs_the_atoms():
    mean = distributional.mean(torch.tensor([[0.5, 0, 0, 0, 0.5], [0, 0, 0, 1.0, 0]]), SUPPORT)
    assert mean.tolist() == [1.0, 2.0]


def test_numbers_that_do_not_belong_to_the_rows_are_refused():
    with pytest.raises(ValueError, match="project: expected probabilities"):
        distributional.project(torch.ones(2, 5), torch.ones(2, 1), torch.ones(2), SUPPORT)


@pytest.mark.parametrize(
    ("probability", "partial", "coefficient"), [((5,), (5,), (5,)), ((2, 5), (3,), (3,)), ((2, 5), (2,), (1,))]
)
def test_each_shape_is_looked_at(probability, partial, coefficient):
    with pytest.raises(ValueError, match="project: expected probabilities"):
        distributional.project(torch.ones(probability), torch.ones(partial), torch.ones(coefficient), SUPPORT)
