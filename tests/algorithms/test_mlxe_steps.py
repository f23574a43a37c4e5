"""MLxE's update in numbers: hand-made rows, and the step that a plain computation in double precision takes."""

import numpy as np
import pytest
import torch
from plain import Plain, assert_same_way, generator_of, tensor

from mlxe_async.algorithms import Clock
from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings, value_loss
from mlxe_async.rows import Spaces, Symmetry

SIGN, ORDER = np.float32([-1, 1, -1]), np.array([2, 1, 0])
SPACES = Spaces((3,), actions=3, symmetry=Symmetry((-1.0, 1.0, -1.0), (2, 1, 0)))
LENGTH, WINDOW = 26, 3


def agent(learns=True, **changed):
    asked = {"common": (6,), "policy": (5,), "value": (), "discount": 0.8, "n_step": 3, "ratio_clip": 1.3}
    asked |= {"return_scale": 0.5, "entropy": 0.3, "value_coefficient": 0.7, "max_gradient_norm": 0.5, "mirror": False}
    asked |= {"learning_rate": 0.05, "learning_rate_decay": 0.9, "batch": 32}
    algorithm = MLxE(MLxESettings.model_validate(asked | changed), SPACES, seed=3, learns=learns)
    if learns:
        weights = algorithm.weights()
        algorithm.set_weights((2 * weights + np.random.default_rng(0).normal(0, 0.2, weights.shape)).astype(np.float32))
    return algorithm


def segment(seed, mark="terminated", length=LENGTH):
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(length + 1, 3)).astype(np.float32)
    rows = {name: np.zeros(length, np.uint8) for name in ("terminated", "truncated", "cut")}
    rows[mark][-1] = 1
    rows |= {"obs": obs[:-1], "next_obs": obs[1:].copy(), "action": rng.integers(0, 3, length)}
    rows["reward"] = (3 * rng.normal(size=length)).astype(np.float32)
    return rows | {"log_prob": np.log(rng.uniform(0.1, 0.8, length)).astype(np.float32)}


def windows(rows, starts):
    """Samples of WINDOW rows, time first; what lies behind the segment's end is padding."""
    place = np.arange(WINDOW)[:, None] + np.asarray(starts)
    valid = place < len(rows["action"])
    return {name: column[np.minimum(place, len(rows["action"]) - 1)] for name, column in rows.items()} | {
        "valid": valid
    }


def support_of(s):
    return torch.linspace(s.value_low, s.value_high, s.atoms, dtype=torch.float64)


def scaled(outputs, s):
    if s.value_scale == "categorical":
        return (outputs.exp() / outputs.exp().sum(-1, keepdim=True) * support_of(s)).sum(-1)
    return 1 / (1 + (-outputs[..., 0]).exp()) if s.value_scale == "survival" else outputs[..., 0]


def rewards_of(reward, s):
    return np.full(np.shape(reward), 1 - s.discount) if s.value_scale == "survival" else reward * s.return_scale


def ends_of_the_world(rows, s):
    return (rows["terminated"] > 0) | ((rows["truncated"] > 0) & s.faithful_truncation)


def slow_targets(rows, s):
    """partial, coefficient and cut of each row, as sums of at most n_step rewards."""
    length, reward, found = len(rows["reward"]), rewards_of(rows["reward"], s), []
    ended = ends_of_the_world(rows, s)
    for t in range(length):
        count = min(s.n_step, length - t)
        total = sum(s.discount**i * reward[t + i] for i in range(count))
        last = t + count - 1
        found.append((total, 0.0 if ended[last] else s.discount**count, rows["next_obs"][last]))
    return [np.array(column) for column in zip(*found, strict=True)]


def projected(probability, partial, coefficient, s):
    """The share of each atom of partial + coefficient * Z: a hat over each atom, as wide as the gap."""
    support = support_of(s)
    gap = (s.value_high - s.value_low) / (s.atoms - 1)
    moved = (partial[:, None] + coefficient[:, None] * support).clamp(s.value_low, s.value_high)
    hats = (1 - (moved[:, :, None] - support).abs() / gap).clamp(min=0)
    return (probability[:, :, None] * hats).sum(1)


def losses_of(outputs, target, s):
    if s.value_scale == "categorical":
        return -(target * (outputs.exp() / outputs.exp().sum(-1, keepdim=True)).log()).sum(-1)
    if s.value_scale == "survival":
        chance = scaled(outputs, s)
        return -(target * chance.log() + (1 - target) * (1 - chance).log())
    return 0.5 * (outputs[..., 0] - target) ** 2


def single_targets(plain, frozen, rows, ratio, s):
    """Target and weighted advantage of rows that are replayed alone."""
    partial, coefficient, cut = slow_targets(rows, s)
    partial, coefficient = tensor(partial), tensor(coefficient)
    following, value = plain("value", cut, frozen), scaled(plain("value", rows["obs"]), s)
    if s.value_scale == "categorical":
        target = projected(following.exp() / following.exp().sum(-1, keepdim=True), partial, coefficient, s)
        expected = (target * support_of(s)).sum(-1)
    else:
        target = expected = partial + coefficient * scaled(following, s)
    weight = torch.where(ratio > s.ratio_clip, s.ratio_clip, ratio) if s.correction == "clipped" else 1.0
    return target, weight * (expected - value)


def window_targets(plain, frozen, rows, ratio, s):
    """V-trace as the paper's sum over each window; all (WINDOW, M)."""
    value = scaled(plain("value", rows["obs"], frozen), s)
    following = scaled(plain("value", rows["next_obs"], frozen), s)
    reward, ended = tensor(rewards_of(rows["reward"], s)), ends_of_the_world(rows, s)
    target, advantage = value.clone(), torch.zeros_like(value)
    stops = (rows["terminated"] > 0) | (rows["truncated"] > 0)
    for m in range(value.shape[1]):
        for first in reversed(range(WINDOW)):
            factor, t = 1.0, first
            while True:
                discount = 0.0 if ended[t, m] else s.discount
                delta = reward[t, m] + discount * following[t, m] - value[t, m]
                target[first, m] += factor * min(s.ratio_clip, float(ratio[t, m])) * delta
                factor *= discount * min(1.0, float(ratio[t, m]))
                t += 1
                if t == WINDOW or stops[t - 1, m] or not rows["valid"][t, m]:
                    break
            goes_on = first + 1 < WINDOW and rows["valid"][first + 1, m] and not stops[first, m]
            after = target[first + 1, m] if goes_on else following[first, m]
            discount = 0.0 if ended[first, m] else s.discount
            gain = reward[first, m] + discount * after - value[first, m]
            advantage[first, m] = min(s.ratio_clip, float(ratio[first, m])) * gain
    return target, advantage


def total_loss(plain, flat, rows, target, advantage, weight, s):
    log_probs = plain("policy", rows["obs"], flat).log_softmax(-1)
    log_prob = log_probs.gather(-1, torch.as_tensor(rows["action"]).unsqueeze(-1)).squeeze(-1)
    critic = losses_of(plain("value", rows["obs"], flat), target, s)
    chance = -(log_probs.exp() * log_probs).sum(-1)
    losses = -log_prob * advantage + s.value_coefficient * critic - s.entropy * chance
    return [(some * weight).sum() / weight.sum() for some in (losses, critic, chance)]


def explained_of(plain, rows, target, weight, s):
    """1 - Var(target - value) / Var(target), by the rows' weights."""

    def variance(some):
        mean = (some * weight).sum() / weight.sum()
        return ((some - mean) ** 2 * weight).sum() / weight.sum()

    expected = (target * support_of(s)).sum(-1) if s.value_scale == "categorical" else target
    return 1 - variance(expected - scaled(plain("value", rows["obs"]), s)) / variance(expected)


def mirrored(rows, rng):
    flipped = rng.random(rows["action"].shape[-1]) < 0.5
    assert 0 < flipped.sum() < len(flipped)
    return rows | {
        "obs": np.where(flipped[:, None], rows["obs"] * SIGN, rows["obs"]),
        "next_obs": np.where(flipped[:, None], rows["next_obs"] * SIGN, rows["next_obs"]),
        "action": np.where(flipped, ORDER[rows["action"]], rows["action"]),
    }, flipped


OPTIONS = [
    {},
    {"correction": "none", "target": "every_k", "target_every": 2, "max_gradient_norm": 0.0},
    {"target": "per_iteration", "average": 0.3, "faithful_truncation": True},
    {"value_scale": "survival", "max_gradient_norm": 0.1},
    {"value_scale": "survival", "correction": "none"},
    {"value_scale": "categorical", "atoms": 9, "value_low": -4.0, "value_high": 6.0},
    {"correction": "vtrace"},
    {"correction": "vtrace", "value_scale": "survival", "max_gradient_norm": 0.0},
    {"correction": "vtrace", "target": "every_k", "target_every": 2, "faithful_truncation": True},
    {"correction": "vtrace", "target": "per_iteration", "mirror": True},
    {"optimiser": "adam", "mirror": True},
    {"average": 0.3},
]


@pytest.mark.parametrize("settings", OPTIONS)
def test_updates_take_the_steps_of_a_plain_computation(settings):
    algorithm = agent(**settings)
    s, start = algorithm.settings, algorithm.weights()
    plain = Plain(algorithm, eps=1e-7, kind=s.optimiser)
    frozen, average, followed = plain.flat.clone(), plain.flat.clone(), None
    for number in range(4):
        rows = segment(number, mark="truncated" if number % 2 else "terminated")
        given = {"weight": np.random.default_rng(number).uniform(0.2, 1, LENGTH).astype(np.float32)}
        clock = Clock(episodes=number, updates=number, version=number // 2)
        shown, rng = rows, generator_of(algorithm)
        if s.correction == "vtrace":
            batch = windows(rows, np.arange(LENGTH))
            shown = batch | {"terminated": batch["terminated"], "truncated": batch["truncated"]}
        else:
            batch = rows | algorithm.derive(rows)
        if s.mirror:
            shown, flipped = mirrored(shown, rng)
        if s.target == "every_update":
            frozen = plain.flat
        elif number % s.target_every == 0 if s.target == "every_k" else clock.version != followed:
            frozen, followed = plain.flat, clock.version
        log_probs = plain("policy", shown["obs"]).log_softmax(-1)
        log_prob = log_probs.gather(-1, torch.as_tensor(shown["action"]).unsqueeze(-1)).squeeze(-1)
        ratio = (log_prob - tensor(rows["log_prob"] if s.correction != "vtrace" else batch["log_prob"])).exp()
        weight = tensor(given["weight"])
        if s.correction == "vtrace":
            target, advantage = window_targets(plain, frozen, shown, ratio, s)
            weight = weight * tensor(batch["valid"])
        elif s.mirror:
            target, advantage = mirrored_targets(plain, frozen, rows, shown, flipped, ratio, s)
        else:
            target, advantage = single_targets(plain, frozen, rows, ratio, s)
        parts = (shown, target, advantage, weight, s)
        wanted = dict(zip(("loss", "value_loss", "entropy"), total_loss(plain, plain.flat, *parts), strict=True))
        clipped = torch.where(ratio > s.ratio_clip, s.ratio_clip, ratio)
        wanted["effective_share"] = clipped.sum() ** 2 / (clipped**2).sum() / clipped.numel()
        wanted["explained_variance"] = explained_of(plain, shown, target, weight, s)
        rate = 0.05 * 0.9**number
        length = plain.step(lambda flat, parts=parts: total_loss(plain, flat, *parts)[0], rate, s.max_gradient_norm)
        wanted |= {"gradient_norm": length, "learning_rate": rate}
        average = average + (s.average or 1.0) * (plain.flat - average)
        metrics = algorithm.update(batch | given, clock)
        assert metrics == pytest.approx({name: float(one) for name, one in wanted.items()}, rel=2e-3, abs=1e-5)
        assert_same_way(algorithm.weights(), average, start)


def mirrored_targets(plain, frozen, rows, shown, flipped, ratio, s):
    """As `single_targets`, where a mirrored row's successor is mirrored too."""
    partial, coefficient, cut = slow_targets(rows, s)
    cut = np.where(flipped[:, None], cut * SIGN, cut)
    expected = tensor(partial) + tensor(coefficient) * scaled(plain("value", cut, frozen), s)
    weight = torch.where(ratio > s.ratio_clip, s.ratio_clip, ratio)
    return expected, weight * (expected - scaled(plain("value", shown["obs"]), s))


@pytest.mark.parametrize("mark", ["terminated", "truncated", "cut"])
@pytest.mark.parametrize(
    "settings", [{}, {"value_scale": "survival"}, {"faithful_truncation": True}, {"n_step": 1}, {"n_step": 100}]
)
def test_derived_targets_are_the_slow_sums(settings, mark):
    algorithm, rows = agent(learns=False, **settings), segment(1, mark=mark)
    derived = algorithm.derive(rows)
    partial, coefficient, cut = slow_targets(rows, algorithm.settings)
    np.testing.assert_allclose(derived["partial"], partial, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(derived["coefficient"], coefficient, rtol=1e-6)
    np.testing.assert_array_equal(derived["cut_obs"], cut)


@pytest.mark.parametrize("counted", ["n_step", "steps_to_end", "state"])
@pytest.mark.parametrize("faithful", [False, True])
def test_segments_are_derived_together_as_each_alone(counted, faithful):
    spaces = Spaces((3,), actions=3, limits=(2.0, None, 3.0))
    settings = MLxESettings(returns=counted, faithful_truncation=faithful, n_step=4, discount_low=0.4)
    algorithm = MLxE(settings, spaces, seed=1, learns=False)
    parts = [segment(k, mark, n) for k, (mark, n) in enumerate((("terminated", 7), ("truncated", 1), ("cut", 5)))]
    parts += [segment(9, "truncated", 6)]
    together = algorithm.derive_many(
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, np.array([7, 1, 5, 6])
    )
    alone = [algorithm.derive(part) for part in parts]
    for name, column in together.items():
        np.testing.assert_array_equal(column, np.concatenate([part[name] for part in alone]))
    assert not together["coefficient"][:7].all()
    assert (together["coefficient"][7] == 0) == faithful
    assert together["coefficient"][12] > 0


def test_windows_alone_derive_nothing():
    assert agent(learns=False, correction="vtrace").derive(segment(1)) == {}


def test_rows_without_weights_weigh_one():
    results = []
    for more in ({}, {"weight": np.ones(LENGTH, np.float32)}):
        for settings in ({}, {"correction": "vtrace"}):
            algorithm, rows = agent(**settings), segment(1)
            batch = windows(rows, np.arange(LENGTH)) if settings else rows | algorithm.derive(rows)
            algorithm.update(batch | more, Clock())
            results.append(algorithm.weights())
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_array_equal(results[1], results[3])


def test_updates_due_are_the_least_for_new_segments_or_as_many_as_the_memory_has_batches():
    for settings, cases in (
        ({"batch": 10, "min_updates": 2}, {(0, 1): 0, (5, 0): 0, (5, 1): 2, (30, 1): 4, (39, 1): 4, (30, 3): 6}),
        ({"batch": 10, "min_updates": 3, "updates_per": "iteration"}, {(5, 1): 3, (5, 4): 3, (40, 4): 5, (1, 1): 3}),
    ):
        algorithm = agent(learns=False, **settings)
        found = {case: algorithm.updates_due(rows=case[0], new_rows=3, new_segments=case[1]) for case in cases}
        assert found == cases
        assert all(type(one) is int for one in found.values())


def test_updates_due_are_one_for_so_many_new_rows_and_no_row_is_forgotten():
    algorithm = agent(learns=False, train_every=4)
    found = [algorithm.updates_due(rows=50, new_rows=rows, new_segments=1) for rows in (1, 1, 1, 1, 9, 3, 0)]
    assert found == [0, 0, 0, 1, 2, 1, 0]


@pytest.mark.parametrize(("scale", "shape"), [("return", (3,)), ("survival", (3,)), ("categorical", (3, 2))])
def test_the_value_loss_moves_the_value_and_never_the_target(scale, shape):
    value, target = torch.full(shape, 0.25, requires_grad=True), torch.full(shape, 0.75, requires_grad=True)
    value_loss(value, target, scale).sum().backward()
    assert target.grad is None
    assert value.grad is not None
