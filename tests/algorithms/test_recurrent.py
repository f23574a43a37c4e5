"""Algorithms with a cell: what executors did with a carried state, the learner finds again from what was stored."""

import numpy as np
import pytest
import torch
from groups import Others
from recurrent_rows import DILATED, SPACES, B, T, made, observation, rollout, shorter

from mlxe_async.algorithms import Acting, Clock
from mlxe_async.algorithms.parts import recurrent
from mlxe_async.maths import together

NAMES = ["a2c", "impala", "ppo", "reinforce"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spaces", [*SPACES])
@pytest.mark.parametrize(
    "settings", [{}, {"cell": "gru", "cells": "apart", "cell_layers": 2}, {**DILATED, "cell_layers": 2}]
)
def test_what_is_published_is_told_before_anything_is_made(name, spaces, settings):
    algorithm = made(name, spaces, learns=False, **settings)
    assert [*type(algorithm).parameters_for(algorithm.settings, algorithm.spaces)] == [*algorithm.parameters]


@pytest.mark.parametrize("spaces", ["one choice", "several", "numbers"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "dilated"])
def test_executors_act_by_numpy_as_the_modules_say(spaces, cell):
    algorithm = made("ppo", spaces, learns=False, cell=cell, cells="apart")
    obs, acting = observation(algorithm.spaces, 4, np.random.default_rng(0)), Acting().start(algorithm.carry, 4)
    module, state = algorithm.module(), None
    for _ in range(5):
        algorithm.act(obs, np.random.default_rng(0), acting)
        assert all(getattr(one, "core", one)._views.steps is not None for one in algorithm.cell.cells)
        with torch.no_grad():
            outputs = module(torch.from_numpy(obs), state)
        state = outputs["memory"]
        np.testing.assert_allclose(acting.carry[recurrent.STATE], state, atol=1e-6)
    by_arrays = algorithm.actor(
        algorithm.cell.apart(algorithm.cell(algorithm.common(algorithm.see(obs)), np.zeros_like(state))[0])[0]
    )
    with torch.no_grad():
        expected = module(torch.from_numpy(obs))["actor"]
    np.testing.assert_allclose(by_arrays, expected, atol=1e-6)


@pytest.mark.parametrize("spaces", [*SPACES])
@pytest.mark.parametrize("settings", [{}, {"cells": "apart", "cell": "gru"}, {"cells": "apart", **DILATED}])
@pytest.mark.parametrize("name", NAMES)
def test_the_learner_finds_the_probabilities_that_executors_had(name, spaces, settings):
    learner, executor = made(name, spaces, **settings), made(name, spaces, learns=False, **settings)
    executor.load(learner.weights())
    batch = shorter(rollout(executor))
    rows = learner.valid_rows(batch)
    actors, _ = learner.features(rows)
    with torch.no_grad():
        policy = learner.distribution(actors, learner.spaces.mask(rows["obs"]))
        np.testing.assert_allclose(policy.log_prob(rows[learner.chosen]), rows["log_prob"], atol=2e-5)


@pytest.mark.parametrize("cell", [{}, DILATED])
@pytest.mark.parametrize("states", ["stored", "recomputed"])
@pytest.mark.parametrize("steps", [1, 5, 8, 24, 100])
def test_pieces_begin_where_executors_were(cell, states, steps):
    settings = cell | {"sequence_steps": steps, "sequence_states": states, "epochs": 2, "minibatch": 16}
    learner, executor = made("ppo", **settings), made("ppo", learns=False, **settings)
    executor.load(learner.weights())
    batch = shorter(rollout(executor))
    seen = []
    for rows in learner.minibatches(batch, 2):
        with torch.no_grad():
            policy, value = learner.judged(rows)
            np.testing.assert_allclose(policy.log_prob(rows["action"]), rows["log_prob"], atol=2e-5)
            np.testing.assert_allclose(value, rows["value"], atol=2e-5)
        seen += rows["log_prob"].tolist()
    assert sorted(seen) == pytest.approx(sorted(2 * batch["log_prob"][batch["valid"].astype(bool)].tolist()))


def test_pieces_of_a_team_count_by_the_rows_in_them_and_are_as_few_as_the_others_have():
    learner, executor = made("ppo", sequence_steps=5), made("ppo", learns=False, sequence_steps=5)
    batch = shorter(rollout(executor))
    others = Others(np.array([140.0, 4.0]))
    with together.learning_in(others):
        found = [rows["valid"].sum(0) for rows in counted_in_turn(recurrent.minibatches(learner, batch, 25, 3))]
    # Of 200 rows in all, some 25 in a minibatch, eight; but the other worker's rows can be cut into four alone.
    assert others.given == [("statistic", [60, 13]), *(("gradient", [one.sum(), 0]) for one in found)]
    assert [len(one) for one in found] == 3 * [4, 3, 3, 3]
    for epoch in range(3):  # the second environment has pieces of 5, 5 and 2 rows, and two without any
        assert sorted(np.concatenate(found[4 * epoch : 4 * epoch + 4])) == [2, 4, 4, *10 * [5]]


def counted_in_turn(minibatches):
    """Minibatches, after each of which a gradient is exchanged."""
    for rows in minibatches:
        together.gradient(np.zeros(1))
        yield rows


def test_stored_states_are_the_behaviours_and_recomputed_ones_those_of_the_present_weights():
    for states in ("stored", "recomputed"):
        learner = made("ppo", sequence_steps=6, sequence_states=states)
        other = type(learner)(learner.settings, learner.spaces, seed=9, learns=False)
        batch = rollout(other)
        (rows,) = (piece for piece in recurrent.minibatches(learner, batch | learner.advantages(batch), 10_000, 1))
        first = rows["step"][0], rows["episode"][0] if "episode" in rows else None
        assert len(first[0]) == 4 * B
        found = {tuple(np.round(one, 4)) for one in rows[recurrent.STATE]}
        if states == "stored":
            assert {tuple(np.round(one, 4)) for one in batch[recurrent.STATE][::6].reshape(-1, 16)} == found
        else:
            by_now = recurrent.states_by_now(learner, batch, 6)
            assert {tuple(np.round(one, 4)) for one in by_now.reshape(-1, 16)} == found
            np.testing.assert_array_equal(by_now[0], batch[recurrent.STATE])


@pytest.mark.parametrize("cell", [{}, DILATED])
@pytest.mark.parametrize("name", NAMES)
def test_values_after_the_last_rows_are_asked_with_the_state_after_them(name, cell):
    learner, executor = made(name, **cell), made(name, learns=False, **cell)
    executor.load(learner.weights())
    batch = shorter(rollout(executor))
    missing = learner_missing(batch)
    value, after = learner.values(batch, missing)
    state = torch.from_numpy(
        np.array(batch[recurrent.STATE] if batch[recurrent.STATE].ndim == 2 else batch[recurrent.STATE][0])
    )
    expected, expected_after = np.zeros((T, B)), []
    with torch.no_grad():
        for t in range(T):
            state = state * ~torch.from_numpy(batch["step"][t] == 0)[:, None]
            features, state = learner.cell(learner.common(learner.see(torch.from_numpy(batch["obs"][t]))), state)
            expected[t] = learner.critic(features)[:, 0]
            following, _ = learner.cell(learner.common(learner.see(torch.from_numpy(batch["next_obs"][t]))), state)
            expected_after += learner.critic(following)[:, 0][torch.from_numpy(missing[t])].tolist()
    valid = batch["valid"].astype(bool)
    np.testing.assert_allclose(value[valid], expected[valid], atol=1e-5)
    np.testing.assert_allclose(after, expected_after, atol=1e-5)


def learner_missing(batch):
    from mlxe_async.maths import rollouts

    return rollouts.unknown(batch)[2]


@pytest.mark.parametrize("spaces", [*SPACES])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("a2c", {"clip": 0.2}),
        ("impala", {"cells": "apart"}),
        ("ppo", {"epochs": 2}),
        ("ppo", {"minibatches": "sequences", "epochs": 2, "cell_layers": 2}),
        ("ppo", {"sequence_states": "recomputed", "reward_scaling": True, "value_epochs": 1}),
        ("reinforce", {"baseline": "mean"}),
        ("reinforce", {"cell": "gru"}),
        ("ppo", {**DILATED, "epochs": 2}),
        ("reinforce", DILATED),
    ],
)
def test_updates_move_the_cell_and_keep_all_finite(name, settings, spaces):
    learner = made(name, spaces, **settings)
    before, batch = learner.weights(), shorter(rollout(learner))
    found = learner.update(batch, Clock())
    assert all(np.isfinite(float(one)) for one in found.values())
    changed = {
        key
        for key, _ in learner.parameters
        if (learner.published(before, key) != learner.published(learner.weights(), key)).any()
    }
    assert {key for key, _ in learner.parameters if key.startswith("cell.")} <= changed


def test_a_policy_without_a_carried_state_begins_an_episode():
    algorithm = made("ppo", learns=False)
    obs = observation(algorithm.spaces, 2, np.random.default_rng(0))
    acting = Acting().start(algorithm.carry, 2)
    np.testing.assert_array_equal(algorithm.policy(obs).log_probs, algorithm.policy(obs, acting).log_probs)
    assert (algorithm.policy(obs, acting).log_probs != algorithm.policy(obs).log_probs).any()


@pytest.mark.parametrize("which", [0, 1])
def test_of_two_cells_the_first_is_the_actors_and_the_second_the_critics(which):
    learner = made("ppo", cells="apart", value_epochs=1)
    batch = shorter(rollout(learner))

    def found():
        rows = learner.with_advantages(batch)
        with torch.no_grad():
            policy, value = learner.judged(rows)
            of_critic = [*learner.values(batch, learner_missing(batch)), value.numpy()]
            return policy.logits.numpy(), of_critic, float(learner.critic_loss(rows))

    logits, values, loss = found()
    with torch.no_grad():
        for weight in learner.cell.cells[which].parameters():
            weight.zero_()
    other_logits, other_values, other_loss = found()
    assert np.array_equal(logits, other_logits) == (which == 1)
    for one, other in zip(values, other_values, strict=True):
        assert np.array_equal(one, other) == (which == 0)
    assert (loss == other_loss) == (which == 0)


def test_pieces_come_in_a_new_order_in_each_epoch():
    learner = made("ppo", sequence_steps=4)
    batch = rollout(learner)
    first, second = (
        rows["log_prob"].sum(0).tolist()
        for rows in recurrent.minibatches(learner, batch | learner.advantages(batch), 10_000, 2)
    )
    assert first != second
    assert sorted(first) == pytest.approx(sorted(second))
