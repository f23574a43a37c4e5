"""Observations of a whole vector are stored as those of single environments are, whatever their space."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from many_spaces import drawn_space

from mlxe_async.errors import TaskError
from mlxe_async.rows import MASK
from mlxe_async.tasks.batches import Batches
from mlxe_async.tasks.checks import Broken
from mlxe_async.tasks.observing import packing_of

DICT = spaces.Dict({"speed": spaces.Box(-1, 1, (2,), np.float64), "image": spaces.Box(0, 255, (4, 5), np.uint8)})


def side_by_side(space, members):
    """Members of a space as a vector of environments shows them."""
    if isinstance(space, spaces.Dict):
        return {key: side_by_side(part, [one[key] for one in members]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(side_by_side(part, [one[i] for one in members]) for i, part in enumerate(space.spaces))
    return np.array(members)


def test_a_batch_is_stored_as_its_members_are():
    rng, compared = np.random.default_rng(0), 0
    for number in range(150):
        space = drawn_space(rng)
        space.seed(number)
        mask = (2, 3) if number % 2 else ()
        try:
            one = packing_of("env", space, (), mask)
        except TaskError:
            continue
        if one is None or one.shows_mask:
            continue
        members = [space.sample() for _ in range(3)]
        masks = [np.array([1, 0, *rng.permutation([1, 1, 0])], np.int8) for _ in members]
        expected = [
            one.take(obs, {MASK: found}, over=False)[0].copy() for obs, found in zip(members, masks, strict=True)
        ]
        got = Batches(one).take(side_by_side(space, members), {MASK: np.array(masks)}, 3, None)
        assert got.dtype == expected[0].dtype
        np.testing.assert_array_equal(got, expected)
        compared += 1
    assert compared > 60


def shown(rows=3):
    return side_by_side(DICT, [DICT.sample() for _ in range(rows)])


def batches(space=DICT, mask=()):
    return Batches(packing_of("env", space, (), mask))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"speed": np.full((3, 2), np.nan)}, r"observation.speed of environment 0: expected finite"),
        ({"speed": np.full((3, 2), 1e300)}, r"observation.speed of environment 0: expected finite"),
        ({"speed": np.zeros((2, 2))}, r"observation.speed: expected shape \(3, 2\)"),
        ({"image": np.full((3, 4, 5), 300)}, r"observation.image: expected whole numbers from 0 to 255"),
        ({"image": None}, r"expected an entry 'image'"),
    ],
)
def test_what_the_space_does_not_say_is_told_with_its_part(wrong, words):
    with pytest.raises(Broken, match=words):
        batches().take({**shown(), **wrong}, {}, 3, None)


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (spaces.Discrete(3), np.array([0, 3, 1]), "environment 1: expected an entry of its space, got "),
        (spaces.Discrete(3), np.array([0.0, 1.0, 1.0]), "expected whole numbers of 3 environments"),
        (spaces.MultiDiscrete([2, 2]), np.array([[0, 1], [1, 1], [0, -1]]), "environment 2: expected an entry"),
        (spaces.MultiBinary(2), np.array([[0, 1], [1, 2], [0, 0]]), "expected 0 and 1 only"),
    ],
)
def test_integers_outside_their_space_are_told(space, value, words):
    with pytest.raises(Broken, match=words):
        batches(space).take(value, {}, 3, None)


def test_a_mask_must_allow_something_but_where_the_episode_ended():
    space = spaces.Dict({**DICT.spaces, MASK: spaces.MultiBinary(2)})
    packing = packing_of("env", space, (), (2,))
    obs = {**shown(), MASK: np.array([[1, 0], [0, 0], [1, 1]], bool)}
    with pytest.raises(Broken, match="environment 1: expected at least one allowed choice"):
        Batches(packing).take(obs, {}, 3, None)
    stored = Batches(packing).take(obs, {}, 3, np.array([False, True, False]))
    part = packing.mask[0]
    assert stored[:, part.offset : part.offset + 2].tolist() == [[1, 0], [1, 1], [1, 1]]
    for wrong in (np.zeros((3, 3)), None, np.full((3, 2), 2)):
        with pytest.raises(Broken, match="action_mask: expected 2 of 0 or 1"):
            Batches(packing).take({**obs, MASK: wrong}, {}, 3, None)


def test_vectors_of_gymnasium_show_batches_of_this_form():
    space = spaces.Dict({"a": spaces.Discrete(4), "b": spaces.Box(0, 1, (2,), np.float32)})
    stored = batches(space).take(batch_space(space, 5).sample(), {}, 5, None)
    assert stored.shape == (5, 6)
    assert (stored[:, :4].sum(1) == 1).all()
