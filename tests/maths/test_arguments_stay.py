"""Each public function of `maths` leaves its arguments as they are, and says the same when it is asked again."""

import copy
import importlib
import inspect
import pkgutil

import numpy as np
import pytest
import torch

from mlxe_async import maths
from mlxe_async.maths import normaliser
from mlxe_async.maths.delay_compensation import DelayCompensation
from mlxe_async.maths.outliers import Outliers
from mlxe_async.maths.returns import PartialReturn, n_step
from mlxe_async.maths.reward_scaling import RewardScale
from mlxe_async.rows import Symmetry

T, B, K = 5, 3, 4
RNG = np.random.default_rng(0)
IN_PLACE = {"gradients.clip_grad_norm_", "reward_scaling.follow", "generators.set_generator", "together.gradient"}
"""What their docstrings say they change."""
OF_A_GROUP = {f"together.{name}" for name in ("Group", "learning_in", "alone", "learn_from")}
"""They say with which workers a thread learns; `tests/roles/test_team.py` asks them."""


def doubles(*shape):
    return RNG.normal(size=shape)


def singles(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def tensors(*arrays):
    return tuple(torch.tensor(one) for one in arrays)


def flags(*shape, share=0.3):
    return RNG.random(shape) < share


def rollout():
    """Rollouts (T, B) with ends, a gap, and padding."""
    step = np.tile(np.arange(T)[:, None], (1, B))
    step[3:, 1] += 2
    rows = {name: flags(T, B).astype(np.uint8) for name in ("terminated", "truncated", "cut")}
    rows |= {"episode": np.zeros((T, B), np.int64), "step": step, "reward": doubles(T, B)}
    rows |= {"discounted_return": doubles(B)}
    valid = np.ones((T, B), bool)
    valid[-1, 2] = False
    return rows | {"valid": valid}


SHARES = torch.tensor(singles(6, K)).softmax(-1)
WINDOWS = (np.exp(doubles(T, B)), *(doubles(T, B) for _ in range(3)), np.full((T, B), 0.9), 1.0 - flags(T, B))
ADVANTAGE = (doubles(T, B), doubles(T, B), doubles(T, B), flags(T, B), flags(T, B), 0.9, 0.8)
MOMENTS = normaliser.Moments(doubles(K), np.abs(doubles(K)), 7.0)
LENGTHS, ENDED = np.array([2, 3, 1]), np.array([True, False, True])
PIXELS = (np.arange(6) % 2).astype(np.int64)
CALLS = {
    "rescaling.h": [(torch.tensor(doubles(K)),)],
    "rescaling.h_inverse": [(torch.tensor(doubles(K)),)],
    "annealing.linear": [(1.0, 0.0, 10, 3)],
    "baselines.of_others": [(doubles(4), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))],
    "categorical.log_softmax": [(singles(6, K),)],
    "categorical.by_action": [(singles(6, K),), (np.asfortranarray(singles(6, K)),), (singles(1, K),)],
    "categorical.sample": [(np.log(SHARES.numpy()), np.random.default_rng(3))],
    "categorical.of_action": [(singles(6, K), PIXELS)],
    "correction.ratio": [tensors(doubles(6), doubles(6))],
    "correction.clipped": [tensors(np.exp(doubles(6)))],
    "correction.effective_share": [tensors(np.exp(doubles(6)))],
    "correction.approximate_kl": [tensors(doubles(6), doubles(6))],
    "correction.is_beyond": [(0.5, 0.01), (torch.tensor(0.1), 0.2)],
    "correction.kl_coefficient": [(1.0, 0.5, 0.01)],
    "distributional.project": [(SHARES, *tensors(singles(6), singles(6), np.linspace(-1, 1, K, dtype=np.float32)))],
    "distributional.mean": [(SHARES, torch.linspace(-1, 1, K))],
    "generators.generator_words": [(np.random.default_rng(3),)],
    "metrics.as_floats": [({"a": torch.tensor(1.0), "b": 2},)],
    "metrics.spread": [({"a": torch.tensor([3.0, 1.0, 2.0]), "b": 2},)],
    "metrics.means": [([{"a": torch.tensor(1.0)}, {"a": 2.0}],)],
    "metrics.explained_variance": [tensors(doubles(6), doubles(6)), tensors(doubles(6), doubles(6), np.full(6, 1 / 6))],
    "metrics.explained": [(0.3, doubles(6)), (0.3, singles(6)), (0.3, doubles(6), np.full(6, 1 / 6))],
    "normaliser.nothing": [(K,)],
    "normaliser.merge": [(MOMENTS, doubles(6, K)), (MOMENTS, doubles(0, K)), (normaliser.nothing(K), doubles(6, K))],
    "normaliser.joined": [(MOMENTS, MOMENTS), (normaliser.nothing(K), normaliser.nothing(K))],
    "normaliser.normalising": [(doubles(K), np.abs(doubles(K)))],
    "normaliser.normalise": [(doubles(6, K), doubles(K), np.abs(doubles(K))), (singles(6, K), singles(K), np.ones(K))],
    "priorities.td_priority": [(doubles(6),), (singles(6),)],
    "priorities.risk_priority": [(doubles(6),), (np.ones(6),)],
    "priorities.age_priority": [(PIXELS,)],
    "priorities.probabilities": [([np.abs(doubles(6)), np.ones(6)], 0.6)],
    "returns.n_step": [(doubles(T), True, 0.9, 3), (singles(T), False, 0.9, 9)],
    "returns.n_step_many": [(doubles(6), LENGTHS, ENDED, 0.9, 2), (doubles(40), np.array([40]), ENDED[:1], 0.9, 40)],
    "returns.in_turn": [(lambda piece, k: n_step(np.ones(6)[piece], bool(k), 0.9, 2), doubles(6), LENGTHS)],
    "returns.steps_to_end_discount": [(np.arange(1, 6),), (np.arange(1.0, 6.0),)],
    "returns.steps_to_end": [(doubles(T), True), (doubles(T), False)],
    "returns.state_discount": [(doubles(T, 2), (1.0, None)), (np.abs(doubles(T, 1)), (2.0,))],
    "returns.by_state": [(doubles(T), True, np.full(T, 0.9)), (doubles(T), False, np.full(T, 0.9))],
    "returns.generalised_advantage": [ADVANTAGE],
    "returns.normalised": [tensors(doubles(6))],
    "reward_scaling.discounted": [(rollout(), 0.9)],
    "reward_scaling.RewardScale": [(0.9,)],
    "rollouts.ends": [(rollout(),)],
    "rollouts.unknown": [(rollout(),)],
    "rollouts.following": [(doubles(T, B), doubles(2), np.eye(T, B, dtype=bool) & (np.arange(T) < 2)[:, None])],
    "rollouts.columns": [(rollout() | {"discounted_return": doubles(T, B)}, 6), (rollout(), 6, ("discounted_return",))],
    "rollouts.spread": [(rollout(), tensors(doubles(int(rollout()["valid"].sum())))[0], 2.0)],
    "rollouts.pieces": [(9, 4), (30, 7)],
    "rollouts.shuffled": [({"a": torch.arange(9.0), "b": torch.ones(9, 2)}, 4, 2, np.random.default_rng(3))],
    "symmetry.mirror": [
        (doubles(6, 2), doubles(6, 2), PIXELS, flags(6, share=0.5), Symmetry((-1.0, 1.0), (1, 0))),
        (singles(2, 6, 2), singles(2, 6, 2), np.stack([PIXELS, PIXELS]), flags(6), Symmetry((-1.0, 1.0), (1, 0))),
    ],
    "delay_compensation.compensated": [(singles(4), singles(4), singles(4), 0.5)],
    "delay_compensation.DelayCompensation": [(3,)],
    "outliers.Outliers": [(4.0,)],
    "together.are_several": [()],
    "together.gathered": [(doubles(3),)],
    "together.give": [(doubles(3),)],
    "together.give_moments": [(doubles(6),), (singles(6),)],
    "together.gradients_made": [()],
    "together.mean": [(0.5,), (torch.tensor(0.5), 3.0)],
    "together.moments": [(doubles(6),), (singles(6),)],
    "together.most": [(3.0,)],
    "together.total_by_row": [(doubles(3, 2),)],
    "together.parts_of": [(9, 4), (9, 4, 1)],
    "together.shares": [(np.abs(doubles(6)),), tensors(np.abs(doubles(6)))],
    "together.total": [(doubles(2, 3),), (1.0,)],
    "vtrace.vtrace": [WINDOWS, tensors(*WINDOWS), tuple(one.astype(np.float32) for one in WINDOWS)],
    "vtrace.carry_mask": [(flags(T, B, share=0.9), flags(T, B), flags(T, B))],
}
METHODS = {"deviation", "count", "scaled", "state", "restore"}
"""Of `RewardScale`, which has a test of its own below."""


def public():
    """Functions and classes of the modules of `maths` that are made there, by name."""
    found = {}
    for one in pkgutil.iter_modules(maths.__path__):
        module = importlib.import_module(f"{maths.__name__}.{one.name}")
        for name, value in vars(module).items():
            made_here = getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
            if made_here and callable(value) and not (inspect.isclass(value) and issubclass(value, tuple)):
                found[f"{one.name}.{name}"] = value
    return found


def listed(found):
    """What a function gave, iterators run through."""
    return list(found) if inspect.isgenerator(found) else found


def assert_same(one, other, where=""):
    """The same numbers to the last bit, and nothing else either."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other, err_msg=where)
        assert one.dtype == other.dtype, where
    elif isinstance(one, np.random.Generator):
        assert one.bit_generator.state == other.bit_generator.state, where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            assert_same(one[name], other[name], f"{where}[{name!r}]")
    elif isinstance(one, list | tuple | PartialReturn):
        assert len(one) == len(other), where
        for index, (mine, its) in enumerate(zip(one, other, strict=True)):
            assert_same(mine, its, f"{where}[{index}]")
    elif isinstance(one, RewardScale | DelayCompensation | Outliers):
        assert_same(vars(one), vars(other), where)
    elif callable(one):
        assert one is other or one.__qualname__ == other.__qualname__, where
    else:
        assert one == other, where


def draws(arguments):
    return any(isinstance(one, np.random.Generator) for one in arguments)


def test_each_public_function_is_asked():
    assert public().keys() == CALLS.keys() | IN_PLACE | OF_A_GROUP
    members = {name for name in vars(RewardScale) if not name.startswith("_")}
    assert members == METHODS


@pytest.mark.parametrize(("name", "which"), [(name, i) for name, calls in CALLS.items() for i in range(len(calls))])
def test_a_function_changes_no_argument_and_says_the_same_again(name, which):
    function, given = public()[name], CALLS[name][which]
    again, kept = copy.deepcopy(given), copy.deepcopy(given)
    first = listed(function(*given))
    told = copy.deepcopy(first)
    if draws(given):  # a generator goes on by itself: another one from the same state
        unchanged = [(a, b) for a, b in zip(given, kept, strict=True) if not isinstance(a, np.random.Generator)]
        for mine, its in unchanged:
            assert_same(mine, its, name)
        second = listed(function(*again))
    else:
        assert_same(given, kept, name)
        second = listed(function(*given))
    assert_same(second, told, name)
    assert_same(first, told, f"what {name} gave before")


def written_on(found):
    """Write to each array of a result that can be written to."""
    if isinstance(found, torch.Tensor):
        if found.numel() and found.dtype != torch.bool:
            found.add_(1)
    elif isinstance(found, np.ndarray):
        if found.size and found.flags.writeable and found.dtype.kind in "fiu":
            found += 1
    elif isinstance(found, dict):
        for one in found.values():
            written_on(one)
    elif isinstance(found, list | tuple):
        for one in found:
            written_on(one)


VIEWS = {"rollouts.columns", "normaliser.merge", "normaliser.joined", "metrics.spread"}
"""These hand out parts of what they were given, or that itself where nothing is to be added."""


@pytest.mark.parametrize("name", sorted(CALLS.keys() - VIEWS))
def test_what_is_written_to_a_result_does_not_reach_an_argument(name):
    for given in CALLS[name]:
        if draws(given):
            continue
        kept = copy.deepcopy(given)
        written_on(listed(public()[name](*given)))
        assert_same(given, kept, name)


def test_a_reward_scale_changes_no_rows_and_counts_alike_each_time():
    batch, reward, found = rollout(), doubles(T, B), []
    kept = copy.deepcopy((batch, reward))
    for _ in range(2):
        scale = RewardScale(0.9)
        scale.count(batch)
        state = scale.state()
        other = RewardScale(0.9)
        other.restore(state)
        before = copy.deepcopy(state)
        other.count(batch)
        assert_same(state, before)
        found.append((scale.scaled(reward), scale.deviation, other.scaled(reward)))
        assert_same((batch, reward), kept)
    assert_same(*found)


def test_a_reward_scale_goes_on_from_a_state_whose_memory_is_written_to():
    first, other = RewardScale(0.9), RewardScale(0.9)
    first.count(rollout())
    state = {name: array.copy() for name, array in first.state().items()}
    other.restore(state)
    for array in state.values():
        array[...] = 100.0
    assert other.deviation == first.deviation


def test_those_that_change_an_argument_change_no_other():
    gradient = torch.ones(4)
    from mlxe_async.maths import generators, gradients, reward_scaling

    gradients.clip_grad_norm_(gradient, 1.0)
    assert gradient.tolist() == [0.5] * 4
    reward, carry = doubles(3), {"discounted_return": np.ones(3)}
    kept = reward.copy()
    reward_scaling.follow(carry, reward, 0.5)
    np.testing.assert_array_equal(reward, kept)
    np.testing.assert_array_equal(carry["discounted_return"], 0.5 + reward)
    words = generators.generator_words(np.random.default_rng(5))
    kept, rng = words.copy(), np.random.default_rng(0)
    generators.set_generator(rng, words)
    rng.random(9)
    np.testing.assert_array_equal(words, kept)
