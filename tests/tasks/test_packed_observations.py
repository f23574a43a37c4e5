"""Observations of any space as they are stored: taken apart and joined again, by numpy and by torch."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from many_spaces import Drawn, drawn_space, leaves_of, numbers_of

from mlxe_async.errors import TaskError
from mlxe_async.rows import Spaces, standard_columns
from mlxe_async.tasks.vector import VectorTask

DRAWS = 150


def task(count=1, **kwargs):
    switches = {key: kwargs.pop(key) for key in ("observe", "action_mask", "shaped_reward") if key in kwargs}
    Drawn.made.clear()
    return VectorTask({"env": "many_spaces:Drawn", "kwargs": kwargs, **switches}, count)


def started(count=1, **kwargs):
    vector = task(count, **kwargs)
    first = np.stack([vector.reset(env, seed=env) for env in range(count)])
    return vector, first


def nested():
    return spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 3, 3), np.uint8),
            "pos": spaces.Dict({"x": spaces.Box(-1, 1, ()), "heading": spaces.Discrete(4)}),
            "bag": spaces.Tuple((spaces.MultiBinary(3), spaces.MultiDiscrete([2, 3]))),
        }
    )


def plain(spaces_, obs):
    return {name: np.asarray(part) for name, part in spaces_.split(obs).items()}


def test_the_parts_of_any_space_come_back_as_they_were_shown_and_torch_finds_the_same():
    rng, kinds = np.random.default_rng(1), set()
    for draw in range(DRAWS):
        space = drawn_space(rng)
        vector, first = started(2, observation=space)
        found = vector.spaces
        steps = [first, *(vector.step(np.zeros(2, np.int64)).next_obs for _ in range(3))]
        stored = np.stack(steps)
        assert stored.shape == (4, 2, *found.observation_shape)
        assert stored.dtype == found.observation_dtype
        assert found == Spaces.from_json(json.loads(json.dumps(found.to_json())))
        parts = plain(found, stored)
        for env in range(2):
            for when in range(4):
                leaves = leaves_of(space, Drawn.made[env].shown[when])
                assert set(leaves) == set(parts)
                for name, (leaf, value) in leaves.items():
                    expected = numbers_of(leaf, value)
                    if not found.parts:
                        expected = expected.reshape(found.observation_shape)
                    assert parts[name].dtype == expected.dtype
                    np.testing.assert_array_equal(parts[name][when, env], expected, err_msg=f"draw {draw}: {name}")
        np.testing.assert_array_equal(found.pack(parts), stored)
        assert found.pack(parts).tobytes() == stored.tobytes()
        seen, tensor = found.vector(stored), torch.from_numpy(stored)
        assert (seen.dtype, seen.shape) == (np.float32, (4, 2, found.entries))
        joined = [parts[part.name].reshape(4, 2, -1) for part in found.parts] or [stored.reshape(4, 2, -1)]
        np.testing.assert_array_equal(seen, np.concatenate(joined, -1))
        np.testing.assert_array_equal(found.vector(tensor).numpy(), seen)
        for name, part in found.split(tensor).items():
            np.testing.assert_array_equal(part.numpy(), parts[name])
        assert found.mask(stored) is None
        kinds.add((bool(found.parts), found.observation_dtype))
        vector.close()
    assert kinds == {(False, "<f4"), (False, "|u1"), (True, "<f4"), (True, "|u1")}


def test_floats_alone_are_stored_as_floats_and_a_picture_keeps_its_bytes():
    vector, _ = started(observation=spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(-1, 1, (2, 2))}))
    assert vector.spaces.observation_shape == (7,)
    assert vector.spaces.observation_dtype == "<f4"
    assert [(p.name, p.shape, p.dtype, p.offset) for p in vector.spaces.parts] == [
        ("a", (2, 2), "<f4", 0),
        ("b", (3,), "<f4", 4),
    ]
    vector, _ = started(observation=nested())
    numbers = 3 + 5 + 4 + 1
    assert vector.spaces.observation_dtype == "|u1"
    assert vector.spaces.observation_shape == (4 * numbers + 36,)
    assert [(p.name, p.shape, p.dtype, p.offset) for p in vector.spaces.parts] == [
        ("bag.0", (3,), "<f4", 0),
        ("bag.1", (5,), "<f4", 12),
        ("pos.heading", (4,), "<f4", 32),
        ("pos.x", (), "<f4", 48),
        ("image", (4, 3, 3), "|u1", 52),
    ]
    assert vector.spaces.entries == numbers + 36
    columns = {column.name: column for column in standard_columns(vector.spaces)}
    assert columns["next_obs"].row_bytes == 88


def test_bytes_are_padded_to_whole_floats_and_what_is_padded_belongs_to_no_part():
    vector, first = started(observation=spaces.Tuple((spaces.Box(0, 255, (5,), np.uint8), spaces.Discrete(2))))
    assert vector.spaces.observation_shape == (8 + 8,)
    assert vector.spaces.vector(first).shape == (1, 7)
    assert not first[0, -3:].any()


def test_parts_are_views_also_through_axes_and_steps_of_every_kind():
    vector, _ = started(observation=nested())
    known = vector.spaces
    stored = np.zeros((6, 5, *known.observation_shape), np.uint8)
    for some in (stored, stored[::2], stored[:, 1:4], stored.transpose(1, 0, 2), stored[0, 0]):
        known.split(some)["pos.x"][...] = 0.5
        known.split(some)["image"][...] = 7
        assert (known.vector(some)[..., -36:] == 7).all()
        assert (known.split(some)["pos.x"] == 0.5).all()
        tensor = torch.from_numpy(np.ascontiguousarray(some))
        assert known.split(tensor)["pos.x"].untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        some[...] = 0
    # The last axis in steps cannot be seen as floats in place.
    rng = np.random.default_rng(0)
    named = {part.name: rng.integers(0, 2, (3, *part.shape)) for part in known.parts}
    packed = known.pack(named)
    spread = np.repeat(packed, 2, axis=-1)[..., ::2]
    shifted = torch.from_numpy(np.pad(packed, ((0, 0), (1, 0))))[:, 1:]
    for name in named:
        np.testing.assert_array_equal(known.split(spread)[name], named[name])
        np.testing.assert_array_equal(known.split(shifted)[name].numpy(), named[name])
    assert known.vector(packed[:0]).shape == (0, known.entries)


def test_a_vector_of_floats_alone_costs_no_copy():
    vector, first = started(observation=spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (2,))}))
    assert vector.spaces.vector(first) is first
    assert np.shares_memory(vector.spaces.split(first)["b"], first)


def test_packing_wants_every_part_in_its_shape():
    vector, first = started(observation=nested())
    known, parts = vector.spaces, plain(vector.spaces, first)
    with pytest.raises(ValueError, match=r"expected bag\.0, .*image, got bag\.0"):
        known.pack({"bag.0": parts["bag.0"]})
    with pytest.raises(ValueError, match=r"expected image of shape \(1, 4, 3, 3\), got \(1, 3, 4, 3\)"):
        known.pack({**parts, "image": parts["image"].swapaxes(1, 2)})
    with pytest.raises(ValueError, match="expected observation, got pixels"):
        Spaces((4,), actions=2).pack({"pixels": np.zeros(4)})
    box = Spaces((2, 2), actions=2)
    assert box.split(box.pack({"observation": np.ones((3, 2, 2))}))["observation"].shape == (3, 2, 2)
    assert box.vector(np.ones((3, 2, 2))).dtype == np.float32


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (nested(), lambda o: {**o, "pos": {"x": np.nan, "heading": 1}}, "observation.pos.x: expected finite numbers"),
        (nested(), lambda o: {**o, "pos": {"x": 1e300, "heading": 1}}, "observation.pos.x: expected finite numbers"),
        (spaces.Tuple((spaces.Box(-1, 1, (2,)),)), lambda o: (np.array([0, np.inf]),), "observation.0: expected f"),
        (nested(), lambda o: {**o, "pos": {"x": 1, "heading": 4}}, "pos.heading: expected from 0 to 3, got 4"),
        (nested(), lambda o: {**o, "pos": {"x": 1}}, "observation.pos: expected an entry 'heading', got {'x': 1}"),
        (nested(), lambda o: {"pos": o["pos"], "bag": o["bag"]}, "observation: expected an entry 'image'"),
        (nested(), lambda o: None, "observation: expected an entry 'bag', got None"),
        (nested(), lambda o: {**o, "bag": o["bag"][:1]}, "observation.bag: expected an entry 1, got"),
        (nested(), lambda o: {**o, "bag": ([0, 2, 0], [0, 0])}, "observation.bag.0: expected 0 and 1 only"),
        (nested(), lambda o: {**o, "bag": ([0, 1, 0], [0, 3])}, "observation.bag.1: expected an entry of Multi"),
        (nested(), lambda o: {**o, "image": o["image"][:2]}, "observation.image: expected shape (4, 3, 3)"),
        (nested(), lambda o: {**o, "image": o["image"] - 300.0}, "image: expected whole numbers from 0 to 255"),
        (spaces.Discrete(3, start=2), lambda o: 1, "observation: expected from 2 to 4, got 1"),
        (spaces.Discrete(3), lambda o: 0.5, "observation: expected a whole number, got 0.5"),
        (spaces.Discrete(3), lambda o: np.zeros(1, np.int64), "observation: expected a whole number, got an array"),
        (spaces.MultiBinary((2, 2)), lambda o: np.zeros(4, np.int8), "expected whole numbers of shape (2, 2)"),
    ],
)  # fmt: skip
def test_a_leaf_that_is_wrong_is_a_fault_that_names_it(space, value, words):
    vector, _ = started(2, observation=space, wrong=value)
    Drawn.made[0].wrong = None
    step = vector.step(np.zeros(2, np.int64))
    assert step.ok.tolist() == [True, False]
    (fault,) = step.faults
    assert words in fault.detail
    assert "environment 1 (many_spaces:Drawn) at step 1 of the episode with seed 1" in fault.detail
    assert not step.next_obs[1].any()
    expected = vector.spaces.split(step.next_obs[0])
    for name, (leaf, shown) in leaves_of(space, Drawn.made[0].shown[1]).items():
        np.testing.assert_array_equal(expected[name].ravel(), numbers_of(leaf, shown).ravel())


class Moody(dict):
    def get(self, key, default=None):
        raise KeyboardInterrupt("never")


def test_a_mapping_of_the_environments_own_may_raise_what_it_likes():
    vector, _ = started(observation=nested(), wrong=Moody)
    (fault,) = vector.step(np.zeros(1, np.int64)).faults
    assert "asking the observation for 'bag' raised KeyboardInterrupt: never" in fault.detail


def test_parts_out_of_their_bounds_are_counted_and_types_that_differ_are_noted():
    def outside(shown):
        return {**shown, "pos": {"x": np.float64(3), "heading": 0}}

    vector, _ = started(observation=nested(), wrong=outside, wrong_at=16)
    for _ in range(20):
        assert vector.step(np.zeros(1, np.int64)).ok.all()
    assert vector.out_of_bounds == 1
    ((kind, sentence),) = vector.take_notes()
    assert kind == "bounds"
    assert "observation.pos.x is 3, expected -1 to 1, the bounds of the space; it is learned from as it is" in sentence
    vector, _ = started(observation=nested(), wrong=lambda o: {**o, "image": o["image"].astype(int)})
    vector.step(np.zeros(1, np.int64))
    ((kind, sentence),) = vector.take_notes()
    assert kind == "dtype"
    assert "observation.image comes as int64, and the space says uint8: it is cast" in sentence


def test_a_later_step_never_changes_what_an_earlier_one_gave():
    vector, first = started(observation=nested())
    kept = [first.copy()]
    steps = [first]
    for _ in range(20):
        steps.append(vector.step(np.zeros(1, np.int64)).next_obs)
        kept.append(steps[-1].copy())
    np.testing.assert_array_equal(np.stack(steps), np.stack(kept))
    assert len({step.tobytes() for step in steps}) == 21


def test_observations_and_actions_in_words():
    vector, _ = started(observation=nested(), action=spaces.MultiDiscrete([3, 2]))
    assert vector.spaces.observation_words == (
        "bag.0 3 floats, bag.1 5 floats, pos.heading 4 floats, pos.x 1 float, image 4 x 3 x 3 bytes"
    )
    assert vector.spaces.action_words == "one of 3 and one of 2"
    assert vector.spaces.action_name == "MultiDiscrete([3 2])"
    assert Spaces((4,), actions=2).observation_words == "4 floats"
    assert Spaces((4,), actions=2).action_words == "one of 2"
    assert Spaces((1,), action_shape=(1,)).action_words == "1 float"
    pressed = Spaces((1,), action_shape=(3,), action_kind="multi_binary", action_sizes=(2,) * 3)
    assert (pressed.action_words, pressed.action_name) == ("3 switches", "MultiBinary(3)")


def test_what_older_runs_wrote_of_their_spaces_is_read():
    for known in (Spaces((4,), actions=2), Spaces((4,), action_shape=(2,), action_low=(-1, -1), action_high=(1, 1))):
        told = known.to_json()
        for new in ("parts", "action_kind", "action_sizes", "masked"):
            del told[new]
        assert Spaces.from_json(told) == known
    assert Spaces((4,), actions=3).action_sizes == (3,)
    assert Spaces((4,), action_shape=(2,)).action_kind == "box"


# -- actions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "kind", "sizes"),
    [
        (spaces.MultiDiscrete([3, 2], start=[5, -1]), "multi_discrete", (3, 2)),
        (spaces.MultiDiscrete([[3, 2], [1, 4]], dtype=np.int32), "multi_discrete", (3, 2, 1, 4)),
        (spaces.MultiBinary(3), "multi_binary", (2, 2, 2)),
        (spaces.MultiBinary((2, 2)), "multi_binary", (2, 2, 2, 2)),
    ],
)
def test_actions_of_several_choices_are_columns_of_integers_from_0_and_members_of_the_space(space, kind, sizes):
    vector, _ = started(2, action=space)
    known = vector.spaces
    assert (known.actions, known.action_kind, known.action_sizes) == (None, kind, sizes)
    column = next(column for column in standard_columns(known) if column.name == "action")
    assert (column.dtype, column.shape) == ("<i8", space.shape)
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = np.stack([rng.integers(0, sizes).reshape(space.shape) for _ in range(2)])
        before = actions.copy()
        assert vector.step(actions).ok.all()
        for env in range(2):
            given = Drawn.made[env].given[-1]
            assert space.contains(given)
            np.testing.assert_array_equal(given - getattr(space, "start", 0), before[env])
            given[...] = 99
        np.testing.assert_array_equal(actions, before)


# -- masks -------------------------------------------------------------------------------------------------------------


def test_a_mask_travels_with_the_observation_and_is_no_part_of_the_vector():
    def mask(count):
        return np.array([1, count % 2, 0], np.int8)

    vector, first = started(action_mask=True, mask=mask)
    known = vector.spaces
    assert known.masked
    assert [part.name for part in known.parts] == ["observation", "action_mask"]
    assert (known.observation_dtype, known.observation_shape, known.entries) == ("|u1", (16,), 3)
    stored = np.stack([first, *(vector.step(np.zeros(1, np.int64)).next_obs for _ in range(3))])
    expected = [[True, False, False], [True, True, False]] * 2
    assert known.mask(stored)[:, 0].tolist() == expected
    assert known.mask(torch.from_numpy(stored))[:, 0].tolist() == expected
    assert known.mask(stored).dtype == np.bool_
    assert known.mask(torch.from_numpy(stored)).dtype == torch.bool
    np.testing.assert_array_equal(known.vector(stored)[:, 0], np.stack(Drawn.made[0].shown))
    np.testing.assert_array_equal(known.pack(plain(known, stored)), stored)
    assert known.observation_words == "observation 3 floats, action_mask 3 bytes"


def test_a_mask_goes_with_observations_of_every_kind():
    rng = np.random.default_rng(3)
    for _ in range(40):
        space = drawn_space(rng)
        vector, first = started(observation=space, action_mask=True, mask=np.array([0, 1, 1]))
        assert vector.spaces.mask(first).tolist() == [[False, True, True]]
        leaves = leaves_of(space, Drawn.made[0].shown[0])
        parts = vector.spaces.split(first[0])
        assert set(parts) == {*leaves, "action_mask"}
        for name, (leaf, value) in leaves.items():
            np.testing.assert_array_equal(parts[name], numbers_of(leaf, value).reshape(parts[name].shape))
        assert vector.spaces.entries == sum(math.prod(part.shape) for part in vector.spaces.parts) - 3
        vector.close()


@pytest.mark.parametrize(
    "mask", [([1, 0, 1], [0, 1]), (np.array([1, 0, 1]), np.array([0, 1], bool)), np.array([1, 0, 1, 0, 1.0])]
)
def test_masks_of_several_choices_are_one_array_or_one_of_each(mask):
    vector, first = started(action=spaces.MultiDiscrete([3, 2]), action_mask=True, mask=mask)
    assert vector.spaces.mask(first).tolist() == [[True, False, True, False, True]]


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (None, 'info["action_mask"]: expected 3 of 0 or 1, got None (NoneType)'),
        ([1, 1], 'info["action_mask"]: expected 3 of 0 or 1, got [1, 1] (list)'),
        (np.ones((1, 3)), "expected 3 of 0 or 1, got an array of shape (1, 3)"),
        ([1, 2, 0], "expected 3 of 0 or 1, got [1, 2, 0]"),
        ("yes", "expected 3 of 0 or 1, got 'yes'"),
        ([[1], [2, 3], 0], "expected 3 of 0 or 1, got [[1], [2, 3], 0]"),
        ([0, 0, 0], 'info["action_mask"]: expected at least one allowed choice, got none'),
    ],
)
def test_a_mask_that_is_missing_or_of_another_form_is_a_fault_of_the_environment(mask, words):
    vector, _ = started(action_mask=True, mask=lambda count: mask if count == 2 else [1, 1, 1])
    assert vector.step(np.zeros(1, np.int64)).ok.all()
    (fault,) = vector.step(np.zeros(1, np.int64)).faults
    assert words in fault.detail
    assert "environment 0 (many_spaces:Drawn) at step 2" in fault.detail


def test_an_entry_of_which_nothing_is_allowed_is_named():
    vector, _ = started(action=spaces.MultiDiscrete([3, 2]), action_mask=True, mask=lambda n: ([0, 0, 1], [1 - n, 0]))
    (fault,) = vector.step(np.zeros((1, 2), np.int64)).faults
    assert "expected at least one allowed choice of entry 1, got none" in fault.detail


@pytest.mark.parametrize("last", [None, [0, 0, 0]])
def test_the_last_observation_of_an_episode_may_lack_a_mask_and_allows_all(last):
    vector, _ = started(action_mask=True, end_at=2, mask=lambda count: last if count == 2 else [1, 0, 0])
    assert vector.spaces.mask(vector.step(np.zeros(1, np.int64)).next_obs).tolist() == [[True, False, False]]
    step = vector.step(np.zeros(1, np.int64))
    assert step.terminated.all()
    assert step.ok.all()
    assert vector.spaces.mask(step.next_obs).all()


def test_a_dict_may_show_its_mask_itself():
    space = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(3)})
    shown = {"wrong": lambda o: {**o, "action_mask": [0, 1, 0]}, "wrong_at": 0}
    vector, first = started(observation=space, action_mask=True, **shown)
    assert vector.spaces.mask(first).tolist() == [[False, True, False]]
    assert vector.spaces.entries == 2
    vector, first = started(observation=space, **shown)
    assert vector.spaces.mask(first) is None
    assert vector.spaces.split(first)["action_mask"].tolist() == [[0, 1, 0]]


# -- aids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}), ["a", "b", "features"]),
        (spaces.Discrete(5), []),
    ],
)
def test_features_stand_behind_all_parts(space, names):
    vector = VectorTask(
        {"env": "many_spaces:Helped", "kwargs": {"observation": space}, "features": True, "mirror": True}, 1
    )
    first = vector.reset(0, seed=0)[None]
    stored = np.stack([first, vector.step(np.zeros(1, np.int64)).next_obs])
    known = vector.spaces
    assert [part.name for part in known.parts] == names
    assert known.fits_together
    assert stored.shape == (2, 1, 6)
    assert known.entries == 6
    np.testing.assert_allclose(stored[..., 5], stored[..., :5].sum(-1), rtol=1e-6)
    assert len(known.symmetry.observation_sign) == 6
    if names:
        assert known.split(stored)["features"].shape == (2, 1, 1)
    assert Spaces.from_json(known.to_json()) == known


def test_features_of_bytes_are_refused():
    task = {"env": "many_spaces:Helped", "kwargs": {"observation": nested()}, "features": True}
    with pytest.raises(TaskError, match="features: is for observations that are vectors of floats"):
        VectorTask(task, 1)
