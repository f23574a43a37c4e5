"""Policies of all kinds of actions: what is drawn, stored, tested and learned, by numpy and by torch alike."""

import numpy as np
import pytest
import torch

from mlxe_async.algorithms import Acting, Clock, impala, load_algorithm
from mlxe_async.parts import laid_out, stored_as
from mlxe_async.rows import MASK, RowLayout, Spaces, standard_columns

NAMES = ("a2c", "impala", "ppo", "reinforce")
LARGE = 3.4e38
BOX = Spaces((4,), action_shape=(2,), action_low=(-2.0, 0.0), action_high=(2.0, 10.0))
OPEN = Spaces((4,), action_shape=(2,), action_low=(-1.0, -LARGE), action_high=(3.0, LARGE))


def masked(**fields):
    parts = laid_out([("near", (4,), "<f4"), (MASK, (sum(fields["action_sizes"]),), "|u1")])
    shape, dtype = stored_as(parts)
    return Spaces(shape, dtype, parts=parts, masked=True, **fields)


KINDS = {
    "one": Spaces((4,), actions=3),
    "several": Spaces((4,), action_shape=(2,), action_kind="multi_discrete", action_sizes=(3, 2)),
    "switches": Spaces((4,), action_shape=(2, 2), action_kind="multi_binary", action_sizes=(2,) * 4),
    "numbers": BOX,
    "open": OPEN,
    "one of some": masked(actions=3, action_sizes=(3,)),
    "several of some": masked(action_shape=(2,), action_kind="multi_discrete", action_sizes=(3, 2)),
}


def agent(name, kind="one", *, learns=False, seed=0, **settings):
    made, small = load_algorithm(name), {"policy": [8], "value": [8]}
    return made(made.Settings(**small, **settings), KINDS[kind], seed=seed, learns=learns)


def observed(spaces, count, seed=0):
    """Observations of which a mask, if there is one, allows the last choice of each part and some others."""
    rng = np.random.default_rng(seed)
    near = rng.normal(size=(count, 4)).astype(np.float32)
    if not spaces.masked:
        return near
    allowed = rng.random((count, sum(spaces.action_sizes))) < 0.4
    allowed[:, np.cumsum(spaces.action_sizes) - 1] = True
    return spaces.pack({"near": near, MASK: allowed})


def rows_of(algorithm, length=12, width=4, seed=0):
    """A rollout as the algorithm acts, one episode in each column, which the world ends."""
    spaces, rng = algorithm.spaces, np.random.default_rng(seed)
    layout = RowLayout(standard_columns(spaces)).with_columns(algorithm.extra_columns)
    rows = {c.name: np.zeros((length, width, *c.shape), c.dtype) for c in layout.columns}
    obs = observed(spaces, (length + 1) * width, seed).reshape(length + 1, width, *spaces.observation_shape)
    rows["obs"][:], rows["next_obs"][:] = obs[:-1], obs[1:]
    for t in range(length):
        for name, column in algorithm.act(obs[t], rng, Acting()).items():
            rows[name][t] = column
    rows["reward"][:] = rng.normal(size=(length, width))
    rows["terminated"][-1] = 1
    rows["step"][:] = np.arange(length)[:, None]
    return rows | {"valid": np.ones((length, width), bool)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_is_what_the_learner_says_of_it_and_all_of_it_is_learned(name, kind):
    algorithm = agent(name, kind, learns=True)
    rows = rows_of(algorithm)
    with torch.no_grad():
        known = algorithm.valid_rows(rows)
        policy = algorithm.policy(known["obs"])
        found = policy.log_prob(known[algorithm.chosen]).numpy()
    np.testing.assert_allclose(found, rows["log_prob"].reshape(-1), atol=1e-4)
    chosen = rows[algorithm.chosen].reshape(-1, *KINDS[kind].action_shape)
    seen = rows["obs"].reshape(48, *KINDS[kind].observation_shape)
    again = algorithm.policy(torch.from_numpy(seen)).log_prob(torch.from_numpy(chosen)).detach()
    np.testing.assert_allclose(again, found, atol=1e-4)
    before = algorithm.weights()
    if name == "ppo":
        algorithm = agent(name, kind, learns=True, epochs=1, minibatch=1000)
    metrics = algorithm.update(rows, Clock())
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["entropy"] == pytest.approx(float(policy.entropy().mean()), rel=1e-4)
    assert not np.array_equal(algorithm.weights(), before)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_its_own_weigh_what_they_are_for_impala(kind, monkeypatch):
    algorithm, weights = agent("impala", kind, learns=True), []
    told = impala.vtrace.vtrace
    monkeypatch.setattr(
        impala.vtrace, "vtrace", lambda ratio, *rest, **more: weights.append(ratio) or told(ratio, *rest, **more)
    )
    rows = rows_of(algorithm)
    algorithm.loss(rows)
    rows["valid"][8:, 1] = False
    rows["log_prob"][:] -= np.float32(np.log(2))
    algorithm.loss(rows)
    np.testing.assert_allclose(weights[0], 1.0, atol=1e-3)
    np.testing.assert_allclose(weights[1], np.where(rows["valid"], 2.0, 1.0), atol=2e-3)


@pytest.mark.parametrize("kind", ["one of some", "several of some"])
def test_what_a_mask_forbids_is_never_done_nor_thought_best(kind):
    algorithm, spaces = agent("ppo", kind), KINDS[kind]
    obs = observed(spaces, 500)
    starts = np.cumsum(spaces.action_sizes) - spaces.action_sizes
    for action in (algorithm.act(obs, np.random.default_rng(1), Acting())["action"], algorithm.greedy(obs)):
        for index, start in enumerate(starts):
            assert spaces.mask(obs)[np.arange(500), start + action.reshape(500, -1)[:, index]].all()


@pytest.mark.parametrize("kind", KINDS)
def test_several_versions_do_what_each_does_alone(kind):
    algorithm, obs = agent("a2c", kind, normalise=False), observed(KINDS[kind], 30)
    size = sum(int(np.prod(shape)) for _, shape in algorithm.parameters)
    flats = np.random.default_rng(0).normal(0, 0.5, (3, size)).astype(np.float32)
    together = algorithm.greedy_many(flats, np.stack([obs] * 3))
    for flat, actions in zip(flats, together, strict=True):
        algorithm.load(flat)
        np.testing.assert_allclose(algorithm.greedy(obs), actions, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(together[0], together[1])


def test_numbers_are_in_units_of_their_bounds_and_kept_within_them():
    algorithm = agent("ppo", "numbers", log_std=1.0)
    acted = algorithm.act(np.zeros((4000, 4), np.float32), np.random.default_rng(0), Acting())
    action, raw = acted["action"], acted["raw_action"]
    np.testing.assert_allclose(raw.std(0), np.e, rtol=0.05)
    np.testing.assert_allclose(action, np.clip([0, 5] + [2, 5] * raw, [-2, 0], [2, 10]), rtol=1e-5, atol=1e-5)
    assert (np.abs(raw) > 1).mean() > 0.6


def test_numbers_without_bounds_are_as_they_are():
    algorithm = agent("ppo", "open")
    acted = algorithm.act(np.zeros((500, 4), np.float32), np.random.default_rng(0), Acting())
    np.testing.assert_array_equal(acted["action"][:, 1], acted["raw_action"][:, 1])
    np.testing.assert_allclose(acted["action"][:, 0], np.clip(1 + 2 * acted["raw_action"][:, 0], -1, 3), rtol=1e-5)


def test_deviations_are_learned_numbers_or_what_the_actor_says():
    free, computed = agent("ppo", "numbers", log_std=-0.5), agent("ppo", "numbers", deviation="computed")
    assert dict(free.parameters)["log_std"] == (2,)
    assert dict(computed.parameters)["log_std.2.weight"] == (2, 8)
    obs = observed(BOX, 2)
    np.testing.assert_allclose(free.policy(obs).log_std, -0.5)
    assert np.ptp(computed.policy(obs).log_std[:, 0]) > 0


def test_the_free_deviations_are_handed_out_with_the_network():
    algorithm = agent("ppo", "numbers", log_std=-0.5, normalise=False)
    module, obs = algorithm.module(), observed(BOX, 5)
    with torch.no_grad():
        found = {name: output.numpy(force=True) for name, output in module(torch.as_tensor(obs)).items()}
    np.testing.assert_allclose(found["log_std"], np.full((5, 2), -0.5))
    np.testing.assert_allclose(found["actor"], algorithm.policy(obs).mean, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_it_learns_the_number_that_is_asked_for(name):
    more = {"epochs": 4, "minibatch": 64} if name == "ppo" else {}
    algorithm = agent(name, "numbers", learns=True, learning_rate=0.02, learning_rate_last=0.02, entropy=0.0, **more)
    for number in range(60):
        algorithm.load(algorithm.weights())
        rows = rows_of(algorithm, seed=number, width=8)
        rows["reward"] = -np.abs(rows["action"] - [1.0, 3.0]).sum(-1).astype(np.float32)
        rows["terminated"][:] = 1
        rows["step"][:] = 0
        rows["episode"][:] = np.arange(12)[:, None]
        algorithm.update(rows, Clock())
    algorithm.load(algorithm.weights())
    np.testing.assert_allclose(algorithm.greedy(observed(BOX, 50)).mean(0), [1.0, 3.0], atol=0.7)


# -- what PPO has besides ----------------------------------------------------------------------------------------------


def test_a_clipped_value_gains_nothing_beyond_the_clip_and_pays_in_full_for_mistakes():
    from mlxe_async.algorithms.ppo import value_loss

    value = torch.tensor([2.5, 1.5, 1.05, -1.5], requires_grad=True)
    target, before = torch.tensor([3.0, 0.0, 3.0, -4.0], requires_grad=True), torch.tensor([1.0, 1.0, 1.0, -1.0])
    loss = value_loss(value, target, before, 0.1)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * ((2 - 0.1) ** 2 + 1.5**2 + 1.95**2 + (3 - 0.1) ** 2) / 4)
    assert value.grad.tolist() == pytest.approx([0.0, 1.5 / 4, -1.95 / 4, 0.0])
    assert target.grad is None


def test_the_penalty_grows_where_the_policy_moves_too_far_and_shrinks_where_it_hardly_moves():
    from mlxe_async.maths.correction import kl_coefficient

    assert [kl_coefficient(3.0, kl, 0.01) for kl in (0.0066, 0.0067, 0.0149, 0.0151)] == [1.5, 3.0, 3.0, 6.0]
    assert [kl_coefficient(3.0, kl, 0.01) for kl in (0.01 / 1.5, 0.01 * 1.5)] == [3.0, 3.0]
    moved = {}
    for target in (1e-6, 1.0):
        algorithm = agent("ppo", learns=True, kl_penalty_target=target)
        metrics = algorithm.update(rows_of(algorithm), Clock())
        assert metrics["kl_coefficient"] == 1.0
        moved[target] = algorithm.kl_coefficient
    assert moved == {1e-6: 2.0, 1.0: 0.5}


def test_the_penalty_that_came_out_is_what_a_run_goes_on_with():
    first, heir = (agent("ppo", learns=True, seed=seed, kl_penalty_target=1e-6) for seed in (1, 2))
    first.update(rows_of(first), Clock())
    heir.set_weights(first.weights())
    heir.restore(first.state())
    assert heir.kl_coefficient == 2.0
    rows = rows_of(first, seed=5)
    for one in (first, heir):
        one.update(rows, Clock(updates=1))
    np.testing.assert_array_equal(first.weights(), heir.weights())


def test_a_penalty_keeps_the_policy_nearer():
    rows, moved = rows_of(agent("ppo")), {}
    for coefficient in (0.0, 100.0):
        algorithm = agent("ppo", learns=True, kl_penalty_target=1.0, learning_rate=0.01)
        algorithm.kl_coefficient = coefficient
        moved[coefficient] = algorithm.update(rows, Clock())["approximate_kl"]
    assert moved[100.0] < 0.5 * moved[0.0]


def test_a_critic_with_epochs_of_its_own_moves_the_actor_no_more_than_the_actor_alone():
    rows, learned = rows_of(agent("ppo", normalise=False)), {}
    for own, weight in ((0, 0.0), (0, 0.5), (3, 0.5), (3, 0.0)):
        more = {"value_epochs": own, "value_coefficient": weight, "max_gradient_norm": 0.0, "normalise": False}
        algorithm = agent("ppo", learns=True, epochs=1, minibatch=1000, **more)
        algorithm.update(rows, Clock())
        names = [(name, int(np.prod(shape))) for name, shape in algorithm.parameters]
        ends = np.cumsum([size for _, size in names])
        flat = algorithm.weights()
        learned[own, weight] = {
            head: np.concatenate(
                [flat[e - n : e] for (name, n), e in zip(names, ends, strict=True) if name.startswith(head)]
            )
            for head in ("actor", "critic")
        }
    start = agent("ppo", learns=True, normalise=False).weights()
    assert not np.array_equal(learned[0, 0.0]["actor"], start[: len(learned[0, 0.0]["actor"])])
    for own in ((3, 0.5), (3, 0.0)):
        np.testing.assert_array_equal(learned[own]["actor"], learned[0, 0.0]["actor"])
    assert not np.allclose(learned[3, 0.5]["critic"], learned[3, 0.0]["critic"], atol=1e-4)
    assert not np.allclose(learned[3, 0.5]["critic"], learned[0, 0.5]["critic"], atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_annealed_falls_to_nothing_and_the_rest_stays(name):
    names = ("clip", "entropy") if name == "ppo" else ("entropy",)
    algorithm = agent(name, annealed=names, entropy=0.04, anneal_steps=1000, learning_rate=0.02, learning_rate_last=0.0)
    for steps, left in ((0, 1.0), (250, 0.75), (1000, 0.0), (5000, 0.0)):
        now = algorithm.annealed(Clock(env_steps=steps))
        assert now["entropy"] == pytest.approx(0.04 * left)
        assert now["learning_rate"] == pytest.approx(0.02 * left)
        if name == "ppo":
            assert now["clip"] == pytest.approx(0.2 * left)
    assert agent(name, entropy=0.04).annealed(Clock(env_steps=10**9))["entropy"] == 0.04


# -- scaled rewards ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_with_scaled_rewards_their_size_changes_nothing_and_a_run_goes_on_by_the_same_scale(name):
    learned = []
    for factor in (1.0, 1000.0):
        algorithm = agent(name, learns=True, reward_scaling=True)
        heir = agent(name, learns=True, reward_scaling=True, seed=4)
        for number in range(2):
            rows = rows_of(algorithm, seed=number) | {"discounted_return": np.zeros(4)}
            rows["reward"] = rows["reward"] * np.float32(factor)
            if number:
                heir.set_weights(algorithm.weights())
                heir.restore(algorithm.state())
                heir.update(dict(rows), Clock(updates=1))
            algorithm.update(dict(rows), Clock(updates=number))
        np.testing.assert_array_equal(heir.weights(), algorithm.weights())
        learned.append(algorithm.weights())
    np.testing.assert_allclose(*learned, rtol=1e-3, atol=1e-5)
    assert algorithm.reward_scale.moments.rows == 2 * 48


def test_what_is_carried_is_the_discounted_return():
    algorithm = agent("ppo", reward_scaling=True, discount=0.5)
    acting = Acting().start(algorithm.carry, 2)
    for reward in ([1.0, 2.0], [4.0, 0.0]):
        algorithm.after_step(acting, np.array(reward))
    assert acting.carry["discounted_return"].tolist() == [4.5, 1.0]
    assert agent("ppo").carry == ()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("start", [-5.0, 2.0])
def test_a_deviation_at_its_bound_is_learned_again(name, start):
    """A step beyond it would leave it without a gradient for good."""
    algorithm = agent(name, "numbers", learns=True, log_std=start)
    before = algorithm.log_std.detach().clone()
    algorithm.log_std.data += 0.25 * np.sign(start)
    rows = rows_of(algorithm)
    algorithm.update(rows, Clock())
    assert (algorithm.log_std.detach() - before).abs().max() < 0.1
    assert not torch.equal(algorithm.log_std.detach(), before)


def test_epochs_of_the_critic_alone_leave_all_else_as_it_is():
    rows, learned = rows_of(agent("ppo", normalise=False)), {}
    for own in (0, 4):
        more = {"value_epochs": own, "value_coefficient": 0.5 if own else 0.0, "max_gradient_norm": 0.0}
        one = agent("ppo", learns=True, epochs=4, minibatch=16, normalise=False, common=[8], **more)
        one.update(rows, Clock())
        learned[own] = {
            name: [leaf.detach().numpy().copy() for leaf in getattr(one, name).parameters()]
            for name in ("common", "actor", "critic")
        }
    for name in ("common", "actor"):
        for mine, alone in zip(learned[4][name], learned[0][name], strict=True):
            np.testing.assert_allclose(mine, alone, atol=1e-7)
    assert not all(map(np.array_equal, learned[4]["critic"], learned[0]["critic"]))


def test_a_sequence_of_a_single_row_is_refused():
    fields = {"cell": "lstm", "burn_in": 0, "sequence_steps": 1, "n_step": 1}
    for name in ("dqn", "rainbow"):
        kind = load_algorithm(name)
        with pytest.raises(ValueError, match="sequence_steps: got 1, expected"):
            kind.Settings(**fields)
        kind.Settings(**{**fields, "sequence_steps": 2})
