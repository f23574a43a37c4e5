"""DQN: its targets in numbers, its exploration, its target network, and that it learns."""

import numpy as np
import pytest
import torch
from plain import flat_of_network
from pydantic import ValidationError

from mlxe_async.algorithms import Acting, Clock
from mlxe_async.algorithms.dqn import DQN, DQNSettings, q_loss, td_target
from mlxe_async.algorithms.parts.replay import tensors_of
from mlxe_async.rows import Spaces, Symmetry

SPACES = Spaces((4,), actions=3)
OBS = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)


def agent(seed=1, spaces=SPACES, learns=True, **settings):
    return DQN(DQNSettings(layers=(32,), **settings), spaces, seed=seed, learns=learns)


def segment(length=20, mark="terminated", seed=0):
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(length + 1, 4)).astype(np.float32)
    rows = {name: np.zeros(length, np.uint8) for name in ("terminated", "truncated", "cut")}
    rows[mark][-1] = 1
    rows |= {"obs": observations[:-1], "next_obs": observations[1:].copy(), "reward": np.ones(length, np.float32)}
    return rows | {"action": rng.integers(0, 3, length)}


def batch(algorithm, **kwargs):
    rows = segment(**kwargs)
    return rows | algorithm.derive(rows) | {"weight": np.ones(len(rows["action"]), np.float32)}


def with_epsilon(algorithm, epsilon):
    algorithm.epsilon.fill_(epsilon)
    return algorithm


def test_huber_is_the_square_near_zero_and_the_line_beyond_one():
    q, target = torch.zeros(5), torch.tensor([0.5, -1.0, 3.0, -10.0, 0.0])
    assert q_loss(q, target, "huber").tolist() == pytest.approx([0.125, 0.5, 2.5, 9.5, 0.0])
    assert q_loss(q, target, "square").tolist() == pytest.approx([0.125, 0.5, 4.5, 50.0, 0.0])
    torch.testing.assert_close(q_loss(q, target, "huber"), torch.nn.functional.huber_loss(q, target, reduction="none"))


def test_the_survival_loss_is_the_cross_entropy_of_a_logit_also_far_out():
    q, target = torch.tensor([0.0, np.log(3.0), 80.0, -80.0]), torch.tensor([0.5, 0.25, 0.0, 1.0])
    # ln 2; sigmoid(ln 3) = 3/4: -1/4 ln 3/4 - 3/4 ln 1/4; and the logit itself where a single one would overflow
    expected = [np.log(2), -0.25 * np.log(0.75) - 0.75 * np.log(0.25), 80.0, 80.0]
    assert q_loss(q, target, "survival").tolist() == pytest.approx(expected)


def test_the_survival_loss_pulls_by_the_difference_of_probabilities_and_never_moves_the_target():
    q, target = torch.tensor([np.log(3.0), -np.log(3.0)], requires_grad=True), torch.tensor([0.5, 0.5])
    target.requires_grad_()
    q_loss(q, target, "survival").sum().backward()
    assert q.grad.tolist() == pytest.approx([0.25, -0.25])  # sigmoid is 3/4 and 1/4
    assert target.grad is None


def test_the_loss_moves_the_value_and_never_the_target():
    q, target = torch.tensor([0.0, 0.0], requires_grad=True), torch.tensor([0.5, 3.0], requires_grad=True)
    q_loss(q, target, "huber").sum().backward()
    assert q.grad.tolist() == [-0.5, -1.0]
    assert target.grad is None


def test_double_dqn_lets_one_network_choose_and_the_other_one_judge():
    judging, choosing = torch.tensor([[5.0, 2.0], [0.0, 7.0]]), torch.tensor([[1.0, 3.0], [0.0, 1.0]])
    partial, coefficient = torch.tensor([1.0, 1.0]), torch.tensor([0.9, 0.0])
    assert td_target(partial, coefficient, judging, judging).tolist() == pytest.approx([1 + 0.9 * 5, 1.0])
    assert td_target(partial, coefficient, judging, choosing).tolist() == pytest.approx([1 + 0.9 * 2, 1.0])


@pytest.mark.parametrize("double", [True, False])
def test_an_update_takes_the_targets_of_the_switch(double):
    algorithm = agent(double=double, target_every=1000, learning_rate=0.1)
    rows = batch(algorithm)
    algorithm.update(rows, Clock(updates=0))
    judging, learned = algorithm.target(rows["cut_obs"]), algorithm.learned(rows["cut_obs"])
    best = (learned if double else judging).argmax(-1)
    assert (learned.argmax(-1) != judging.argmax(-1)).any()
    target = rows["partial"] + rows["coefficient"] * judging[np.arange(len(best)), best]
    q = algorithm.learned(rows["obs"])[np.arange(len(best)), rows["action"]]
    metrics, _ = algorithm.update(rows, Clock(updates=1))
    assert metrics["td_error"] == pytest.approx(np.abs(target - q).mean(), rel=1e-4)


@pytest.mark.parametrize("mark", ["terminated", "truncated", "cut"])
def test_only_a_failure_ends_the_future(mark):
    rows = segment(length=5, mark=mark)
    derived = agent(discount=0.9, n_step=1).derive(rows)
    assert derived["coefficient"].tolist() == pytest.approx([0.9] * 4 + [0.0 if mark == "terminated" else 0.9])
    np.testing.assert_array_equal(derived["partial"], rows["reward"])
    np.testing.assert_array_equal(derived["cut_obs"], rows["next_obs"])
    assert {name: column.dtype for name, column in derived.items()} == dict.fromkeys(derived, np.float32)


def test_several_steps_sum_their_rewards_up_to_the_end():
    derived = agent(discount=0.5, n_step=3).derive(segment(length=4))
    assert derived["partial"].tolist() == pytest.approx([1.75, 1.75, 1.5, 1.0])
    assert derived["coefficient"].tolist() == pytest.approx([0.125, 0, 0, 0])


def test_rewards_are_scaled():
    derived = agent(discount=0.5, n_step=3, return_scale=0.1).derive(segment(length=4))
    assert derived["partial"].tolist() == pytest.approx([0.175, 0.175, 0.15, 0.1])


@pytest.mark.parametrize("mark", ["terminated", "truncated"])
def test_survival_counts_steps_to_the_failure_whatever_the_rewards_are(mark):
    """With T steps left the partial sum is 1 - discount^T, and what is beyond counts discount^3, or 0 after the end."""
    rows = segment(length=4, mark=mark)
    rows["reward"] = np.array([3, -7, 0, 50], np.float32)
    derived = agent(discount=0.5, n_step=3, value_scale="survival", return_scale=9.0).derive(rows)
    assert derived["partial"].tolist() == pytest.approx([1 - 0.125, 1 - 0.125, 1 - 0.25, 1 - 0.5])
    after = [0, 0, 0] if mark == "terminated" else [0.125, 0.25, 0.5]
    assert derived["coefficient"].tolist() == pytest.approx([0.125, *after])


def test_a_survival_target_is_a_probability_of_the_best_action():
    """Learned and target network are alike at first: the target is partial + coefficient * max sigmoid(Q)."""
    algorithm = agent(value_scale="survival", discount=0.5, n_step=1)
    rows = batch(algorithm, mark="truncated")
    q, following = algorithm.network(rows["obs"]), algorithm.network(rows["cut_obs"])
    value = 1 / (1 + np.exp(-q[np.arange(len(q)), rows["action"]]))
    target = 0.5 + 0.5 / (1 + np.exp(-following.max(-1)))
    metrics, _ = algorithm.update(rows, Clock())
    loss = -target * np.log(value) - (1 - target) * np.log(1 - value)
    assert metrics["loss"] == pytest.approx(loss.mean(), rel=1e-4)
    assert metrics["value"] == pytest.approx(value.mean(), rel=1e-4)
    assert metrics["td_error"] == pytest.approx(np.abs(target - value).mean(), rel=1e-4)


def test_a_running_average_is_published_and_the_learned_weights_go_their_own_way():
    algorithm, plain = agent(average=0.25), agent()
    rows, average = batch(algorithm), algorithm.weights()[:-1]
    for number in range(3):
        for one in (algorithm, plain):
            one.update(rows, Clock(updates=number))
        average = 0.75 * average + 0.25 * plain.weights()[:-1]
        np.testing.assert_allclose(algorithm.weights()[:-1], average, atol=1e-6)
    others = agent(seed=2).weights()
    algorithm.set_weights(others)  # after a restart the average begins at what is gone on from
    np.testing.assert_array_equal(algorithm.weights(), others)
    for network in (algorithm.learned, algorithm.target):
        for mine, published in zip(network.parameters(), algorithm.network.parameters(), strict=True):
            np.testing.assert_array_equal(mine.detach(), published.detach())


def test_a_softmax_behaviour_draws_in_proportion_to_the_exponentiated_values():
    algorithm = agent(learns=False, behaviour="softmax", temperature=0.5)
    values = np.log([1.0, 2.0, 3.0]).astype(np.float32)
    algorithm.network = lambda obs: np.tile(values, (len(obs), 1))
    expected = np.array([1, 4, 9]) / 14  # exp(ln q / 0.5) = q squared
    acted = algorithm.act(np.repeat(OBS[:1], 20_000, 0), np.random.default_rng(0), Acting())
    np.testing.assert_allclose(np.bincount(acted["action"]) / 20_000, expected, atol=0.015)
    np.testing.assert_allclose(np.exp(acted["log_prob"]), expected[acted["action"]], rtol=1e-5)
    again = algorithm.policy(OBS[:1].repeat(20_000, 0)).log_prob(acted["action"])
    np.testing.assert_array_equal(again, acted["log_prob"])


def test_epsilon_travels_with_the_weights_under_one_version():
    algorithm, actor = agent(epsilon_first=1.0, epsilon_last=0.1, epsilon_steps=1000), agent(learns=False)
    assert algorithm.weights()[-1] == 1
    for steps, epsilon in [(0, 1.0), (500, 0.55), (10**6, 0.1)]:
        algorithm.update(batch(algorithm), Clock(env_steps=steps))
        actor.load(algorithm.weights())
        assert actor.epsilon.item() == pytest.approx(epsilon)
    assert algorithm.parameters[-1] == ("epsilon", (1,))
    assert algorithm.weights().shape == (sum(int(np.prod(shape)) for _, shape in algorithm.parameters),)


def test_a_restarted_learner_publishes_the_epsilon_it_was_given():
    algorithm, heir = agent(epsilon_steps=100), agent(seed=2)
    algorithm.update(batch(algorithm), Clock(env_steps=60))
    heir.set_weights(algorithm.weights())
    np.testing.assert_array_equal(heir.weights(), algorithm.weights())


def test_the_stored_log_probability_is_that_of_the_mixture():
    algorithm = with_epsilon(agent(learns=False), 0.3)
    acted = algorithm.act(OBS, np.random.default_rng(0), Acting())
    best = acted["action"] == algorithm.greedy(OBS)
    np.testing.assert_allclose(np.exp(acted["log_prob"]), np.where(best, 0.8, 0.1), rtol=1e-5)
    np.testing.assert_array_equal(algorithm.policy(OBS).log_prob(acted["action"]), acted["log_prob"])
    every = [np.exp(algorithm.policy(OBS).log_prob(np.full(len(OBS), a))) for a in range(3)]
    np.testing.assert_allclose(np.sum(every, 0), 1, rtol=1e-5)


def test_actions_come_with_the_frequency_of_the_mixture():
    algorithm = with_epsilon(agent(learns=False), 0.6)
    many = np.repeat(OBS[:1], 20_000, 0)
    action = algorithm.act(many, np.random.default_rng(0), Acting())["action"]
    assert (action == algorithm.greedy(OBS[:1])[0]).mean() == pytest.approx(0.6, abs=0.015)


def test_without_epsilon_it_acts_greedily_and_log_probabilities_stay_finite():
    algorithm = with_epsilon(agent(learns=False), 0.0)
    acted = algorithm.act(OBS, np.random.default_rng(0), Acting())
    np.testing.assert_array_equal(acted["action"], algorithm.greedy(OBS))
    assert not acted["log_prob"].any()
    assert np.isfinite(algorithm.policy(OBS).log_prob((acted["action"] + 1) % 3)).all()


def test_many_versions_act_like_each_alone_also_when_they_change():
    algorithm = agent(learns=False)
    for count in (2, 3):
        flats = np.stack([agent(seed, learns=False).weights() for seed in range(count)])
        together = algorithm.greedy_many(flats, np.broadcast_to(OBS, (count, *OBS.shape)))
        for flat, actions in zip(flats, together, strict=True):
            algorithm.load(flat)
            np.testing.assert_array_equal(algorithm.greedy(OBS), actions)


def test_the_target_network_is_replaced_every_so_many_updates_and_still_meanwhile():
    algorithm = agent(target_every=3)
    rows = batch(algorithm)
    for number in range(7):
        target, learned = (flat_of_network(net) for net in (algorithm.target, algorithm.learned))
        algorithm.update(rows, Clock(updates=number))
        now = flat_of_network(algorithm.target)
        torch.testing.assert_close(now, learned if number % 3 == 0 else target, rtol=0, atol=0)


def test_the_target_network_can_move_a_part_of_the_way():
    algorithm = agent(target_every=1, target_rate=0.25)
    rows = batch(algorithm)
    for number in range(2):
        target, learned = (flat_of_network(net) for net in (algorithm.target, algorithm.learned))
        algorithm.update(rows, Clock(updates=number))
        torch.testing.assert_close(flat_of_network(algorithm.target), 0.75 * target + 0.25 * learned)


def test_updates_are_due_by_new_rows_and_none_is_lost_in_rounding():
    algorithm = agent(start_rows=100, train_every=4)
    assert algorithm.updates_due(rows=99, new_rows=99, new_segments=3) == 0
    assert sum(algorithm.updates_due(rows=100 + n, new_rows=1, new_segments=1) for n in range(40)) == 10
    small = agent(start_rows=100)  # a memory that holds fewer rows than were asked for still begins
    assert [small.updates_due(rows=50, new_rows=50, new_segments=1) for _ in range(3)] == [0, 25, 25]


def test_updates_can_be_due_by_finished_episodes_instead():
    algorithm = agent(start_rows=100, min_updates=64)
    assert algorithm.updates_due(rows=99, new_rows=99, new_segments=3) == 0
    assert algorithm.updates_due(rows=150, new_rows=51, new_segments=2) == 128
    assert algorithm.updates_due(rows=160, new_rows=10, new_segments=0) == 0


def test_importance_weights_of_zero_remove_rows():
    results = []
    for reward in (1.0, 100.0):
        algorithm = agent()
        rows = batch(algorithm)
        rows["weight"][:5], rows["partial"][:5] = 0, reward
        algorithm.update(rows, Clock())
        results.append(algorithm.weights())
    np.testing.assert_array_equal(*results)


def test_half_of_a_batch_is_mirrored_only_if_the_task_declares_it():
    mirrored = Spaces((4,), actions=2, symmetry=Symmetry((-1.0,) * 4, (1, 0)))
    algorithm = agent(spaces=mirrored)
    rows = batch(algorithm, length=400) | {"action": np.zeros(400, np.int64)}
    tensors = tensors_of(algorithm, rows)
    flipped = tensors["action"].numpy() == 1
    assert 100 < flipped.sum() < 300
    sign = np.where(flipped, -1, 1)[:, None]
    for name in ("obs", "cut_obs"):
        np.testing.assert_array_equal(tensors[name].numpy(), rows[name] * sign)
    assert not tensors_of(agent(spaces=mirrored, mirror=False), rows)["action"].any()


def test_the_learning_rate_falls_with_environment_steps():
    algorithm = agent(learning_rate=1e-3, learning_rate_last=1e-4, anneal_steps=1000)
    rates = []
    for steps in (0, 500, 5000):
        algorithm.update(batch(algorithm), Clock(env_steps=steps))
        rates.append(algorithm.optimiser.learning_rate)
    assert rates == pytest.approx([1e-3, 5.5e-4, 1e-4])


@pytest.mark.long
@pytest.mark.parametrize("double", [True, False])
def test_it_learns_the_values_of_a_chain(double):
    """Walking right along five places is worth discount^(steps left - 1); left is one step further away."""
    algorithm = DQN(
        DQNSettings(layers=(32,), discount=0.9, double=double, target_every=20, learning_rate=5e-3),
        Spaces((5,), actions=2),
        seed=1,
        learns=True,
    )
    places, place, action = np.eye(5, dtype=np.float32), np.repeat(np.arange(4), 2), np.tile([0, 1], 4)
    following = np.maximum(0, place + np.where(action == 1, 1, -1))
    rows = {"obs": places[place], "action": action, "cut_obs": places[following]}
    rows |= {"partial": (following == 4).astype(np.float32), "coefficient": 0.9 * (following != 4)}
    for number in range(600):
        algorithm.update(rows, Clock(updates=number))
    algorithm.load(algorithm.weights())
    q = algorithm.network(places[:4])
    np.testing.assert_allclose(q[:, 1], 0.9 ** np.arange(3, -1, -1), atol=0.05)
    np.testing.assert_allclose(q[:, 0], 0.9 * np.array([0.729, 0.729, 0.81, 0.9]), atol=0.05)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"epsilon_last": 1.5}, {"loss": "cubic"}, {"layer": [64]}])
def test_settings_that_cannot_be_meant_are_refused_naming_the_key(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        DQNSettings(**wrong)


def test_tasks_with_array_actions_are_refused_by_name():
    with pytest.raises(ValueError, match="discrete actions"):
        agent(spaces=Spaces((4,), action_shape=(1,)))


def test_every_setting_says_what_raising_it_does():
    assert all((field.description or "").endswith(".") for field in DQNSettings.model_fields.values())


def test_the_error_of_a_row_is_its_target_minus_its_value():
    algorithm = agent(double=False, n_step=1, mirror=False)
    rows = tensors_of(algorithm, batch(algorithm))
    _, error, found = algorithm.loss(rows)
    with torch.no_grad():
        following = algorithm.target(rows["cut_obs"]).max(-1).values
        value = algorithm.learned(rows["obs"]).gather(-1, rows["action"][:, None])[:, 0]
    torch.testing.assert_close(error, rows["partial"] + rows["coefficient"] * following - value)
    torch.testing.assert_close(found["td_error"], error.abs().mean())
