"""The audit compares what is learned with what is written, ends the run where they differ, and changes nothing."""

import numpy as np
import pytest
import torch
from made_rows import agent, batch
from proof import BOX

from mlxe_async.algorithms import Clock
from mlxe_async.errors import AuditFailed
from mlxe_async.fast import audit, updates
from mlxe_async.fast.audit import Audit
from mlxe_async.fast.rounding import rounded_otherwise

CASES = [
    ("ppo", {"epochs": 2, "minibatch": 16}),
    ("ppo", {"minibatches": "sequences", "epochs": 1, "minibatch": 32}),
    ("mlxe", {"normalise": True, "average": 0.1}),
    ("mlxe", {"correction": "vtrace", "n_step": 4}),
    ("dqn", {"target_every": 2}),
]
CONTINUOUS = [("sac", {"normalise": True}), ("td3", {"max_gradient_norm": 0.1}), ("ddpg", {"n_step": 3, "noise": "ou"})]


def lived(algorithm, number):
    """Rows that the algorithm itself would have stored under its present weights, version 7."""
    rows, vector = batch(algorithm, seed=number), algorithm.weights()
    algorithm.load(vector)
    seen = rows["obs"].reshape(-1, *algorithm.spaces.observation_shape)
    action = rows["action"].reshape(-1)
    known = algorithm.policy(seen).log_prob(action)
    return rows | {"log_prob": known.reshape(rows["action"].shape), "version": np.full(rows["action"].shape, 7)}, vector


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_all_numbers_are_the_same_with_and_without_to_the_last_bit(name, settings):
    one, other = agent(name, **settings), agent(name, **settings)
    looked, plain = Audit(updates(one), 2), updates(other)
    for number in range(6):
        rows, vector = lived(one, number)
        clock = Clock(updates=number, version=number)
        measured, _ = looked.update(rows, clock, (7, vector))
        assert measured == plain.update(rows, clock)[0]
    assert looked.audited == 4  # numbers 1, 2, 4 and 6
    mine, theirs = one.state(), other.state()
    for key, array in theirs.items():
        np.testing.assert_array_equal(mine[key], array, key)


@pytest.mark.parametrize(("name", "settings"), CONTINUOUS)
def test_so_they_are_of_algorithms_with_several_optimisers(name, settings):
    one, other = (agent(name, spaces=BOX, layers=[16, 12], **settings) for _ in range(2))
    looked, plain = Audit(updates(one), 2), updates(other)
    for number in range(6):
        rows, clock = batch(one, seed=number), Clock(updates=number, version=number)
        assert looked.update(rows, clock)[0] == plain.update(rows, clock)[0]
    assert looked.audited == 4  # numbers 1, 2, 4 and 6
    mine, theirs = one.state(), other.state()
    for key, array in theirs.items():
        np.testing.assert_array_equal(mine[key], array, key)


def by(factor, place, member):
    """The same function of a twin, which returns this many times what it did."""
    right = getattr(place, member)

    def wrong(*given):
        found = right(*given)
        return (found[0], factor * found[1]) if isinstance(found, tuple) else factor * found

    return wrong


@pytest.mark.parametrize(
    ("name", "member", "step"),
    [("sac", "judge", 2), ("td3", "judge", 2), ("ddpg", "judge", 2), ("sac", "follow", 1), ("td3", "follow", 1)],
)
def test_another_gradient_of_the_critics_or_by_them_ends_it(name, member, step):
    algorithm = agent(name, spaces=BOX, layers=[16, 12], target_rate=0.5)
    way = updates(algorithm)
    critics = way.twin._critics
    setattr(critics, member, by(1.001 if member == "judge" else 1.01, critics, member))
    for number in range(4):
        way.update(batch(algorithm, seed=number), Clock(updates=number))
    with pytest.raises(AuditFailed, match=f"of update 5: the gradient of its step {step} differs by .* of its norm"):
        Audit(way, 1).update(batch(algorithm, seed=4), Clock(updates=4))


def test_another_step_of_the_temperature_ends_it():
    algorithm = agent("sac", spaces=BOX, layers=[16, 12])
    way = updates(algorithm)
    algorithm.temperature_optimiser.gradient.fill_ = lambda value: None
    with pytest.raises(AuditFailed, match="the gradient of its step 3 differs by"):
        Audit(way, 1).update(batch(algorithm), Clock())


@pytest.mark.parametrize(("name", "settings"), CASES)
@pytest.mark.parametrize("wrong", ["a part of it", "a constant in it"])
def test_a_gradient_that_is_another_ends_it_and_says_by_how_much(name, settings, wrong):
    algorithm = agent(name, **settings)
    way = updates(algorithm)
    right = way.twin._quick.backward

    def backward(found, **how):
        head = next(iter(found))
        changed = found[head] * 1.01 if wrong == "a part of it" else found[head] + np.float32(1e-3)
        right(found | {head: changed if wrong != "a part of it" or len(found) > 1 else changed[:, ::-1]}, **how)

    way.twin._quick.backward = backward
    with pytest.raises(AuditFailed, match=r"audit of update 4: the gradient of its step 1 differs by .* of its norm"):
        Audit(way, 1).update(batch(algorithm), Clock(updates=3))


def test_a_step_that_is_another_ends_it():
    algorithm = agent("dqn")
    way = updates(algorithm)
    right = way.twin.update

    def update(rows, clock):
        found = right(rows, clock)
        algorithm.optimiser.weights.mul_(1.001)
        return found

    way.twin.update = update
    with pytest.raises(AuditFailed, match=r"the change of network.q.0.weight differs by \S+ of its norm"):
        Audit(way, 1).update(batch(algorithm), Clock())


def test_another_number_of_steps_ends_it():
    algorithm = agent("ppo", epochs=8, minibatch=16, max_kl=0.0)
    way = updates(algorithm)
    right, whole = way.twin.update, algorithm.settings

    def half(rows, clock):
        algorithm.settings = whole.model_copy(update={"epochs": 4})
        found = right(rows, clock)
        algorithm.settings = whole
        return found

    way.twin.update = half
    with pytest.raises(AuditFailed, match=r"it made \d+ steps, expected \d+ or so, as it is written"):
        Audit(way, 1).update(batch(algorithm, rows=64), Clock())


def test_another_draw_ends_it():
    """One too many, after the last one that is used: the gradients are right, and the next update's would not be."""
    algorithm = agent("ppo", epochs=2, minibatch=16)
    way = updates(algorithm)
    right = way.twin.update

    def update(rows, clock):
        found = right(rows, clock)
        algorithm.rng.random()
        return found

    way.twin.update = update
    with pytest.raises(AuditFailed, match="rng differs"):
        Audit(way, 1).update(batch(algorithm), Clock())


def test_what_rounding_decides_is_no_difference():
    """Two equally good next actions: which one is judged is a matter of the last place, and of nothing else."""
    algorithm = agent("dqn", layers=[16], learning_rate=1e-9)
    with torch.no_grad():  # both actions are worth the same to the one that chooses, but not to the one that judges
        for network in (algorithm.learned, algorithm.target):
            last = network.q[-1]
            last.weight[1] = last.weight[0]
            last.bias[:] = torch.tensor([3.0, 3.0, -9.0])
        algorithm.target.q[-1].bias[1] += 5
    way = updates(algorithm)
    right = way.twin._quick.outputs

    def outputs(seen, heads):
        (found,) = right(seen, heads)
        return [np.ascontiguousarray(found[:, [0, 1, 2]] + np.array([0, 1e-6, 0], np.float32))]

    way.twin._quick.outputs = outputs
    looked = Audit(way, 1)
    looked.update(batch(algorithm), Clock(updates=1))
    assert looked.audited == 1


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_stored_log_probabilities_of_live_rows_are_those_of_the_learners_network(name, settings):
    algorithm = agent(name, **settings)
    rows, vector = lived(algorithm, 0)
    looked = Audit(updates(algorithm), 1)
    off = rows | {"log_prob": rows["log_prob"] + np.float32(0.05)}
    with pytest.raises(AuditFailed, match=r"audit of rows of version 7: .* stored log-probabilities differ"):
        looked.update(off, Clock(), (7, vector))
    looked.update(off, Clock(), (8, vector))  # rows of another version say nothing about this one
    looked.update(rows, Clock(), (7, vector))


def test_an_algorithm_that_is_done_as_it_is_written_is_not_looked_at():
    looked = Audit(updates(agent("ppo"), fast=False), 1)
    looked.update(batch(agent("ppo")), Clock())
    assert looked.audited == 0


def test_what_does_not_fit_into_memory_is_compared_as_far_as_it_goes(monkeypatch):
    algorithm = agent("ppo", epochs=3, minibatch=16)
    monkeypatch.setattr(audit, "MOST_BYTES", 2 * algorithm.optimiser.gradient.nbytes)
    looked = Audit(updates(algorithm), 1)
    expected = agent("ppo", epochs=3, minibatch=16)
    looked.update(batch(algorithm), Clock())
    updates(expected).update(batch(expected), Clock())
    assert looked.audited == 1
    np.testing.assert_array_equal(algorithm.weights(), expected.weights())


MANY_STEPS = ("ppo", {"epochs": 3, "minibatch": 16})


def test_of_updates_of_many_steps_the_first_are_compared_early_and_all_numbers_stay_the_same(monkeypatch):
    (name, settings), seen = MANY_STEPS, []
    one, other = agent(name, **settings), agent(name, **settings)
    looked, plain, written = Audit(updates(one), 5), updates(other), one.loss
    monkeypatch.setattr(one, "loss", lambda rows: seen.append(number) or written(rows))
    for number in range(5):
        rows, clock = batch(one, seed=number), Clock(updates=number, version=number)
        assert looked.update(rows, clock)[0] == plain.update(rows, clock)[0]
    whole, early = seen.count(0), audit.EARLY_STEPS + 1  # the loss of one more step is asked before it is left out
    assert whole > audit.EARLY_STEPS
    assert [seen.count(number) for number in range(5)] == [whole, early, 0, early, whole]
    mine, theirs = one.state(), other.state()
    for key, array in theirs.items():
        np.testing.assert_array_equal(mine[key], array, key)


def shifted_from(step, optimiser, right):
    """A twin's update whose gradients are too large from one of its steps on."""

    def wrong(rows, clock):
        taken, real = [0], optimiser.step

        def larger(*rate):
            taken[0] += 1
            if taken[0] > step:
                optimiser.gradient.mul_(1.5)
            real(*rate)

        optimiser.step = larger
        try:
            return right(rows, clock)
        finally:
            del optimiser.step

    return wrong


@pytest.mark.parametrize(("step", "noticed_at"), [(0, 2), (1, 2), (5, 6)])
def test_a_wrong_step_is_noticed_early_if_it_is_one_of_the_first_else_when_all_are_compared(step, noticed_at):
    name, settings = MANY_STEPS
    algorithm = agent(name, **settings)
    way = updates(algorithm)
    looked = Audit(way, 6)
    looked.update(batch(algorithm), Clock())
    inner = way.twin.update
    way.twin.update = lambda rows, clock: shifted_from(step, algorithm.optimiser, inner)(rows, clock)
    for number in range(1, noticed_at - 1):
        looked.update(batch(algorithm, seed=number), Clock(updates=number))
    with pytest.raises(AuditFailed, match=f"audit of update {noticed_at}: the gradient of its step {step + 1} "):
        looked.update(batch(algorithm, seed=noticed_at), Clock(updates=noticed_at - 1))


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_rows_may_follow_one_of_several_temperatures_and_no_other(name, settings):
    algorithm = agent(name, **settings)
    rows, vector = lived(algorithm, 0)
    off = rows | {"log_prob": rows["log_prob"] + np.float32(0.05)}
    way = updates(algorithm)
    Audit(way, 1, temperatures=(0.01, 1.0)).update(rows, Clock(), (7, vector))
    with pytest.raises(AuditFailed, match="stored log-probabilities differ"):
        Audit(way, 1, temperatures=(0.01, 1.0)).update(off, Clock(), (7, vector))
    Audit(way, 1, temperatures=()).update(off, Clock(), (7, vector))  # each executor has an epsilon


@pytest.mark.parametrize(("saturation", "scale"), [(2.0, 0.1), (2.0, 0.01), (4.0, 0.1)])
def test_where_all_values_are_alike_and_rounding_is_most_of_an_advantage_it_does_not_end(saturation, scale):
    # As of a policy that never fails: a reward of 1 each step, and values of 50, made of 64 layers' outputs near 1.
    shape = {"common": [64, 64], "policy": [], "value": [], "normalise": False}
    settings = {"minibatches": "sequences", "epochs": 1, "minibatch": 2048, "discount": 0.98, "value_coefficient": 0.02}
    sign = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], 64).astype(np.float32))
    for seed in range(6):
        algorithm = agent("ppo", seed=seed, **shape, **settings)
        with torch.no_grad():
            algorithm.common[2].bias.copy_(saturation * sign)
            algorithm.critic[-1].weight.copy_(50 / 64 / np.tanh(saturation) * sign[None])
        rows = batch(algorithm, rows=4096, seed=seed, scale=scale)
        rows |= {name: np.zeros_like(rows[name]) for name in ("terminated", "truncated")}
        rows |= {"reward": np.ones_like(rows["reward"]), "valid": np.ones_like(rows["valid"])}
        Audit(updates(algorithm), 1).update(rows, Clock())


@pytest.mark.parametrize(("name", "spaces"), [("ppo", None), ("sac", BOX)])
def test_layers_are_rounded_otherwise_for_a_while_and_then_no_more(name, spaces):
    algorithm = agent(name) if spaces is None else agent(name, spaces=spaces, layers=[16, 12])
    seen = torch.zeros((5, algorithm.spaces.observation_shape[0])) + 0.3
    weights = algorithm.weights()
    with rounded_otherwise(algorithm, "float32", np.random.default_rng(0)):
        outputs = algorithm.actor(seen).detach()
    after = algorithm.actor(seen).detach()
    assert len(outputs.unique(dim=0)) == 5  # each row by itself
    assert len(after.unique(dim=0)) == 1
    torch.testing.assert_close(outputs, after, rtol=1e-4, atol=1e-6)
    assert 0 < np.abs(algorithm.weights() - weights).max() < 1e-4
