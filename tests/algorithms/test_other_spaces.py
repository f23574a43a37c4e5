"""The built-in algorithms and spaces other than a Box and discrete actions: what they take, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from mlxe_async.algorithms import REGISTRY, Acting, Clock, load_algorithm
from mlxe_async.algorithms.parts.replay import flat_observations
from mlxe_async.algorithms.state import as_written
from mlxe_async.parts import laid_out, stored_as
from mlxe_async.rows import MASK, RowLayout, Spaces, standard_columns

LEAVES = [("near", (2, 2), "<f4"), ("speed", (), "<f4")]
PIXELS = ("pixels", (2, 3), "|u1")
SMALL = {"minibatch": 16, "epochs": 1, "layers": [8], "batch": 16, "common": [8]}
CONTINUOUS = ("sac", "td3", "ddpg")
DISCRETE = ["apex", "c51", "dqn", "mlxe", "rainbow"]
TABULAR = ("q_learning", "sarsa")
SEEING = [name for name in REGISTRY if name not in (*CONTINUOUS, *TABULAR)]


def parted(*more, **fields):
    parts = laid_out([*LEAVES, *more])
    shape, dtype = stored_as(parts)
    return Spaces(shape, dtype, **{"actions": 3, "parts": parts, **fields})


def agent(name, spaces, *, learns=False, **settings):
    kind = load_algorithm(name)
    small = {key: value for key, value in SMALL.items() if key in kind.Settings.model_fields}
    small |= {"layers": [8, 8], "epsilon_exponent": 1.0} if name == "apex" else {}
    return kind(kind.Settings(**{**small, **settings}), spaces, seed=0, learns=learns)


def observed(spaces, count, seed=0):
    rng = np.random.default_rng(seed)
    named = {part.name: rng.normal(size=(count, *part.shape)) for part in spaces.parts}
    named["pixels"] = rng.integers(0, 4, (count, 2, 3))
    return spaces.pack(named)


@pytest.mark.parametrize("name", DISCRETE)
@pytest.mark.parametrize(
    ("taken", "words"),
    [
        (Spaces((4,), action_shape=(1,)), "Box of shape (1,)"),
        (Spaces((4,), action_shape=(2,), action_kind="multi_discrete", action_sizes=(3, 2)), "MultiDiscrete([3 2])"),
        (Spaces((4,), action_shape=(3,), action_kind="multi_binary", action_sizes=(2, 2, 2)), "MultiBinary(3)"),
    ],
)
def test_other_actions_are_refused_by_the_name_of_their_space(name, taken, words):
    with pytest.raises(ValueError, match="discrete actions") as caught:
        agent(name, taken)
    assert str(caught.value) == f"algorithm.name: {name} needs a task with discrete actions, got {words}"


@pytest.mark.parametrize("name", [*DISCRETE, "sac"])
def test_masks_are_refused_with_the_setting_that_makes_them(name):
    with pytest.raises(ValueError, match="masks") as caught:
        agent(name, parted((MASK, (3,), "|u1"), masked=True))
    assert str(caught.value) == f"algorithm.name: {name} knows nothing of masks; set task.action_mask = false"


@pytest.mark.parametrize("name", [*SEEING, "sac"])
def test_parts_are_seen_as_the_vector_that_they_make(name):
    packed = parted(PIXELS)
    flat = Spaces((packed.entries,), actions=3)
    plain = {"normalise": False} if "normalise" in load_algorithm(name).Settings.model_fields else {}
    ours, theirs = (agent(name, spaces, **plain) for spaces in (packed, flat))
    assert ours.parameters == theirs.parameters
    weights = np.random.default_rng(1).normal(0, 0.5, sum(int(np.prod(shape)) for _, shape in ours.parameters))
    if name in ("c51", "dqn", "rainbow"):
        weights[-1] = 0.5  # their epsilon
    for one in (ours, theirs):
        one.load(weights.astype(np.float32))
    obs = observed(packed, 64)
    seen = packed.vector(obs)
    assert seen.shape == (64, 4 + 1 + 6)
    np.testing.assert_array_equal(ours.greedy(obs), theirs.greedy(seen))
    flats = np.stack([weights, -weights]).astype(np.float32)
    many = ours.greedy_many(flats, np.stack([obs, obs]))
    np.testing.assert_array_equal(many, theirs.greedy_many(flats.copy(), np.stack([seen, seen])))
    acts = [one.act(some, np.random.default_rng(2), Acting()) for one, some in ((ours, obs), (theirs, seen))]
    for column in ("action", "log_prob"):
        np.testing.assert_array_equal(acts[0][column], acts[1][column])
        assert len(np.unique(acts[0][column])) > 1


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_an_update_learns_the_same_from_parts_and_from_their_vector(name):
    packed = parted(PIXELS)
    flat = Spaces((packed.entries,), actions=3)
    learned = []
    for spaces in (packed, flat):
        one = agent(name, spaces, learns=True)
        layout = RowLayout(standard_columns(spaces))
        rows = {c.name: np.zeros((8, 4, *c.shape), c.dtype) for c in layout.columns}
        obs = observed(packed, 9 * 4).reshape(9, 4, -1)
        obs = obs if spaces is packed else packed.vector(obs)
        rows["obs"][:], rows["next_obs"][:] = obs[:-1], obs[1:]
        rows["reward"][:] = np.random.default_rng(3).normal(size=(8, 4))
        rows["action"][:] = np.random.default_rng(4).integers(0, 3, (8, 4))
        rows["log_prob"][:] = np.log(1 / 3)
        rows["cut"][-1], rows["last"][-1, -1] = 1, 1
        if name == "ppo":
            batch = {**rows, "valid": np.ones((8, 4), bool)}
        else:
            pieces = [one.derive({key: column[:, env] for key, column in rows.items()}) for env in range(4)]
            batch = {key: column.swapaxes(0, 1).reshape(32, *column.shape[2:]) for key, column in rows.items()}
            batch |= {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}
            batch["weight"] = np.ones(32, np.float32)
        before = one.weights()
        found, _ = as_written.learned(one, batch, Clock(env_steps=32, episodes=1, version=1))
        assert not np.array_equal(before, one.weights())
        assert all(np.isfinite(value) for value in found.values())
        learned.append(one.weights())
    np.testing.assert_array_equal(*learned)


def test_moments_of_bytes_are_refused_where_a_memory_would_keep_them():
    agent("mlxe", parted(), normalise=True)
    agent("ppo", parted(PIXELS), normalise=True)
    for name in ("mlxe", "sac"):
        with pytest.raises(ValueError, match=r"algorithm\.normalise: .* parts of bytes; set it to false"):
            agent(name, parted(PIXELS), normalise=True)
    eye, convolved = ("eye", (2, 36, 36), "|u1"), {"normalise": True, "body": "nature"}
    assert agent("mlxe", parted(eye), **convolved).moment_entries == 5  # the numbers beside a picture
    with pytest.raises(ValueError, match=r"algorithm\.normalise: .* parts of bytes"):
        agent("mlxe", parted(PIXELS, eye), **convolved)


def test_without_parts_observations_are_flattened_without_being_looked_at():
    obs = np.zeros((5, 2, 2), np.uint8)
    flat = flat_observations(obs, Spaces((2, 2), "|u1", actions=2))
    assert flat.dtype == np.uint8
    assert np.shares_memory(flat, obs)
    row = np.zeros((5, 4), np.float32)
    assert flat_observations(row, Spaces((4,), actions=2)) is row
