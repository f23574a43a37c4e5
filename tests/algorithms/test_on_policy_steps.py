"""A2C, IMPALA and REINFORCE in numbers: the step that a plain computation in double precision takes."""

import itertools

import numpy as np
import pytest
import torch
from plain import Plain, assert_same_way, generator_of, tensor
from test_ppo_steps import advantages, ends_of, rollout

from mlxe_async.algorithms import Clock, a2c, load_algorithm, reinforce
from mlxe_async.maths import together
from mlxe_async.maths.reward_scaling import discounted
from mlxe_async.rows import Spaces

SPACES = Spaces((3,), actions=3)
SHAPED = {"normalise": False, "policy": (5,), "value": (6,), "entropy": 0.05, "discount": 0.9, "value_coefficient": 0.7}
RATES = {"learning_rate": 0.01, "learning_rate_last": 0.002, "anneal_steps": 500_000, "max_gradient_norm": 0.5}
EPS = {"a2c": 1e-5, "impala": 1e-5, "reinforce": 1e-8}


def agent(name, **changed):
    kind = load_algorithm(name)
    algorithm = kind(kind.Settings.model_validate(SHAPED | RATES | changed), SPACES, seed=3, learns=True)
    weights = algorithm.weights()  # larger than fresh ones, so that everything has a slope
    algorithm.set_weights((2 * weights + np.random.default_rng(0).normal(0, 0.2, weights.shape)).astype(np.float32))
    return algorithm


def log_probs_of(plain, rows, flat=None):
    log_probs = plain("policy", rows["obs"], flat).log_softmax(-1)
    return log_probs, log_probs.gather(-1, torch.as_tensor(rows["action"])[..., None])[..., 0]


def entropy_of(log_probs):
    return -(log_probs.exp() * log_probs).sum(-1).mean()


def valid(rows, **columns):
    return {name: np.asarray(column)[rows["valid"]] for name, column in {**rows, **columns}.items()}


def a2c_targets(plain, rows, s):
    advantage, value = advantages(plain, rows, s.discount, s.gae_lambda)
    whole, _ = advantages(plain, rows, s.discount, 1.0)
    return advantage, value + (advantage if s.targets == "gae" else whole)


def impala_targets(plain, rows, s):
    """Eq. 1 as a sum for each row, with what is reached by a row's own episode alone."""
    value, following = (plain("value", rows[name])[..., 0].numpy() for name in ("obs", "next_obs"))
    log_prob = log_probs_of(plain, rows)[1].numpy()
    ratio, ends = np.exp(log_prob - rows["log_prob"]), ends_of(rows)
    discount = s.discount * (1.0 - rows["terminated"])
    delta = np.minimum(s.rho_clip, ratio) * (rows["reward"] + discount * following - value)
    target = np.zeros(value.shape)
    length, width = value.shape
    for t, b in itertools.product(range(length), range(width)):
        target[t, b], factor = value[t, b], 1.0
        for i in range(t, length):
            target[t, b] += factor * delta[i, b]
            factor *= discount[i, b] * s.gae_lambda * min(s.c_clip, ratio[i, b])
            if ends[i, b]:
                break
    after = np.where(ends, following, np.roll(target, -1, axis=0))
    return np.minimum(s.rho_clip, ratio) * (rows["reward"] + discount * after - value), target


TARGETS = {"a2c": a2c_targets, "impala": impala_targets}


def actor_critic_loss(plain, flat, rows, s):
    log_probs, log_prob = log_probs_of(plain, rows, flat)
    gain = log_prob * tensor(rows["advantage"])
    if getattr(s, "clip", 0):
        ratio = (log_prob - tensor(rows["log_prob"])).exp()
        bounded = torch.where(ratio > 1 + s.clip, 1 + s.clip, torch.where(ratio < 1 - s.clip, 1 - s.clip, ratio))
        gain = torch.stack([ratio * tensor(rows["advantage"]), bounded * tensor(rows["advantage"])]).amin(0)
    error = plain("value", rows["obs"], flat)[:, 0] - tensor(rows["target"])
    losses = 0.5 * error**2
    if s.value_clip:
        losses = torch.where(error.abs() > s.value_clip, s.value_clip * (error.abs() - s.value_clip / 2), losses)
    entropy = entropy_of(log_probs)
    return -gain.mean() + s.value_coefficient * losses.mean() - s.entropy * entropy, (
        -gain.mean(),
        losses.mean(),
        entropy,
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("a2c", {"gae_lambda": 0.6}),
        ("a2c", {"gae_lambda": 1.0, "value_clip": 0.5}),
        ("a2c", {"gae_lambda": 0.6, "targets": "return", "clip": 0.1}),
        ("impala", {}),
        ("impala", {"rho_clip": 1.5, "c_clip": 0.7, "gae_lambda": 0.8, "value_clip": 0.5}),
    ],
)
def test_one_update_takes_the_step_of_a_plain_computation(name, settings):
    algorithm = agent(name, **settings)
    plain, start, s = Plain(algorithm, eps=EPS[name]), algorithm.weights(), algorithm.settings
    for number, reward in enumerate((0.1, 3.0)):  # short gradients, then long ones
        rows = rollout(number, reward=reward)
        advantage, target = TARGETS[name](plain, rows, s)
        flat_rows = valid(rows, advantage=advantage, target=target)
        measured = actor_critic_loss(plain, plain.flat, flat_rows, s)[1]
        value = plain("value", flat_rows["obs"])[:, 0].numpy()
        explained = 1 - (flat_rows["target"] - value).var() / flat_rows["target"].var()
        rate = 0.01 - 0.008 * min(1, 200_000 * number / 500_000)
        length = plain.step(lambda flat, r=flat_rows: actor_critic_loss(plain, flat, r, s)[0], rate, 0.5)
        metrics = algorithm.update(rows, Clock(env_steps=200_000 * number, updates=number))
        assert metrics["learning_rate"] == pytest.approx(rate)
        assert metrics["gradient_norm"] == pytest.approx(length, rel=1e-3)
        for key, expected in zip(("policy_loss", "value_loss", "entropy"), measured, strict=True):
            assert metrics[key] == pytest.approx(float(expected), rel=1e-3, abs=1e-5)
        assert metrics["explained_variance"] == pytest.approx(explained, rel=1e-3, abs=1e-4)
    assert_same_way(algorithm.weights(), plain.flat, start)


def test_on_policy_impala_learns_what_a2c_does_with_the_same_lambda():
    learned = []
    for name in ("a2c", "impala"):
        algorithm = agent(name, gae_lambda=1.0)
        rows = rollout()
        algorithm.load(algorithm.weights())
        log_prob = algorithm.policy(rows["obs"].reshape(-1, 3)).log_prob(rows["action"].reshape(-1))
        rows["log_prob"] = log_prob.reshape(rows["action"].shape)
        algorithm.update(rows, Clock())
        learned.append(algorithm.weights())
    np.testing.assert_allclose(*learned, atol=1e-6)


def test_rmsprop_divides_by_a_root_that_has_its_epsilon_inside():
    algorithm = agent("a2c", optimiser="rmsprop", gae_lambda=0.6)
    plain, before, s, rows = Plain(algorithm, eps=0), algorithm.weights(), algorithm.settings, rollout()
    advantage, target = a2c_targets(plain, rows, s)
    flat_rows = valid(rows, advantage=advantage, target=target)
    leaf = plain.flat.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(actor_critic_loss(plain, leaf, flat_rows, s)[0], leaf)
    gradient = gradient * min(1.0, 0.5 / float(gradient.norm()))
    algorithm.update(rows, Clock())
    expected = plain.flat - 0.01 * gradient / (0.99 + 0.01 * gradient**2 + 1e-5).sqrt()
    assert_same_way(algorithm.weights(), expected, before)


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_targets_and_advantages_have_no_gradient(clip):
    value, target, advantage = (torch.tensor([1.0, 3.0], requires_grad=True) for _ in range(3))
    a2c.value_loss(value, target, clip).backward()
    reinforce.policy_loss(value, advantage).backward()
    a2c.policy_loss(value, torch.zeros(2), advantage, 0.0).backward()
    assert target.grad is None
    assert advantage.grad is None
    assert value.grad is not None


def test_stale_rows_are_sound_for_a_clipped_a2c_alone():
    assert agent("a2c").off_policy == "ignores"
    assert agent("a2c", clip=0.2).off_policy == "corrects"
    assert agent("impala").off_policy == "corrects"


# -- REINFORCE ---------------------------------------------------------------------------------------------------------


def episodes(seed=0, lengths=(7, 4, 9, 5, 3, 6), truncated=(2, 5)):
    """Whole episodes side by side, each from its first row on; some were cut by a time limit."""
    rows = rollout(seed)
    for name in ("terminated", "truncated", "cut"):
        rows[name][:] = 0
    rows["episode"][:] = len(lengths) - np.arange(len(lengths))  # numbers and columns add up to the same
    rows["valid"][:] = True
    for column, length in enumerate(lengths):
        rows["valid"][length:, column] = False
        rows["truncated" if column in truncated else "terminated"][length - 1, column] = 1
    return rows


def returns_to_go(rows, discount, after):
    """Of each row, by a sum; `after` (T, B) counts where an episode was truncated."""
    result = np.zeros(rows["reward"].shape)
    for column in range(result.shape[1]):
        length = int(rows["valid"][:, column].sum())
        for t in range(length):
            result[t, column] = sum(discount ** (i - t) * rows["reward"][i, column] for i in range(t, length))
            if rows["truncated"][length - 1, column]:
                result[t, column] += discount ** (length - t) * after[length - 1, column]
    return result


def baseline_of_others(to_go, rows):
    """Row by row: the mean of the other episodes at the same step, else of all rows of the others."""
    result, (length, width) = np.zeros(to_go.shape), to_go.shape
    for t, b in itertools.product(range(length), range(width)):
        others = [c for c in range(width) if c != b]
        beside = [to_go[t, c] for c in others if rows["valid"][t, c]]
        every = [to_go[i, c] for c in others for i in range(length) if rows["valid"][i, c]]
        result[t, b] = np.mean(beside or every)
    return result


@pytest.mark.parametrize("baseline", ["mean", "learned"])
def test_reinforce_takes_the_step_of_a_plain_computation(baseline):
    more = {} if baseline == "mean" else {"value_coefficient": 0.7}
    settings = {key: value for key, value in SHAPED.items() if key not in ("value", "value_coefficient")} | more
    kind = load_algorithm("reinforce")
    made = kind.Settings.model_validate(settings | RATES | {"baseline": baseline})
    algorithm = kind(made, SPACES, seed=3, learns=True)
    plain, start, s, mean = Plain(algorithm, eps=1e-8), algorithm.weights(), algorithm.settings, 0.0
    for number in range(2):
        rows = episodes(number)
        if baseline == "learned":
            value, after = (plain("value", rows[name])[..., 0].numpy() for name in ("obs", "next_obs"))
        else:
            after = np.full(rows["reward"].shape, mean)
        to_go = returns_to_go(rows, s.discount, after)
        advantage = to_go - (value if baseline == "learned" else baseline_of_others(to_go, rows))
        mean = to_go[rows["valid"]].mean()
        flat_rows = valid(rows, advantage=advantage, target=to_go)

        def loss(flat, rows=flat_rows):
            log_probs, log_prob = log_probs_of(plain, rows, flat)
            shown = (rows["advantage"] - rows["advantage"].mean()) / (rows["advantage"].std() + 1e-8)
            total = -(log_prob * tensor(shown)).mean() - s.entropy * entropy_of(log_probs)
            if baseline == "learned":
                error = plain("value", rows["obs"], flat)[:, 0] - tensor(rows["target"])
                total = total + s.value_coefficient * 0.5 * (error**2).mean()
            return total

        length = plain.step(loss, 0.01, 0.5)
        found = algorithm.update(rows, Clock(updates=number))
        assert found["gradient_norm"] == pytest.approx(length, rel=1e-3)
        assert ("value_loss" in found) == (baseline == "learned")
    assert_same_way(algorithm.weights(), plain.flat, start)


def test_an_episode_is_told_from_those_of_all_other_environments():
    algorithm = agent("reinforce", baseline="mean", value=())
    # Where numbers of episodes and of environments are mixed another way, two of them meet.
    episode, step = np.array([[4, 0, 3, 0], [4, 1, 4, 1]]), np.array([[0, 0, 0, 0], [1, 0, 0, 0]])
    to_go = np.array([[1.0, 2.0, 4.0, 8.0], [16.0, 32.0, 64.0, 128.0]])
    rows = {"episode": episode, "step": step, "valid": np.ones((2, 4), bool)}
    alone = algorithm.compared(rows, to_go, np.zeros(to_go.shape))[1, 0]  # no other episode came as far
    assert alone == pytest.approx(16.0 - to_go[:, 1:].mean())


def test_only_scaled_rewards_have_a_scale_to_be_kept():
    kept = {name: set(agent("a2c", reward_scaling=on).state()) for name, on in (("with", True), ("without", False))}
    assert kept["without"] < kept["with"]


ON_POLICY = ("a2c", "impala", "ppo", "reinforce")


def learner(name, **changed):
    kind = load_algorithm(name)
    return kind(kind.Settings.model_validate(changed), SPACES, seed=3, learns=True)


@pytest.mark.parametrize("name", ON_POLICY)
def test_before_the_first_update_all_is_as_at_the_start_of_the_clock(name):
    fresh = learner(name, learning_rate=0.02, learning_rate_last=0.001, annealed=("entropy",), entropy=0.3)
    assert fresh.now == fresh.annealed(Clock())
    assert (fresh.now["learning_rate"], fresh.now["entropy"]) == (0.02, 0.3)


@pytest.mark.parametrize("name", ON_POLICY)
def test_observations_are_counted_after_they_were_learned_from(name):
    """Before the first are counted they are shown as they are; so the first update is that without moments."""
    shown, bare = learner(name), learner(name, normalise=False)
    assert shown.settings.normalise
    rows = episodes() if name == "reinforce" else rollout()
    rows |= {column: 1.5 * rows[column] + 2 for column in ("obs", "next_obs")}
    found, expected = (one.update(rows, Clock()) for one in (shown, bare))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    heir = learner(name)
    heir.load(shown.weights())
    moments = heir.see.normaliser.moments
    assert moments.rows == pytest.approx(rows["valid"].sum(), rel=1e-5)
    np.testing.assert_allclose(moments.mean, rows["obs"][rows["valid"]].mean(0), rtol=1e-5)
    again, plain = (one.update(rows, Clock(updates=1)) for one in (shown, bare))
    assert again != plain


@pytest.mark.parametrize("name", ON_POLICY)
def test_rewards_are_counted_before_they_are_scaled_and_once_for_each_update(name):
    scaled, bare = learner(name, reward_scaling=True), learner(name)
    running = []
    for number in range(3):
        rows = episodes(number) if name == "reinforce" else rollout(number)
        rows["discounted_return"] = np.zeros(rows["reward"].shape[1])
        running.append(discounted(rows, scaled.settings.discount)[rows["valid"]])
        deviation = np.sqrt(np.concatenate(running).var() + 1e-8)
        bare_rows = {name: column for name, column in rows.items() if name != "discounted_return"}
        divided = bare_rows | {"reward": (rows["reward"] / deviation).clip(-10, 10).astype(np.float32)}
        found, expected = (one.update(some, Clock()) for one, some in ((scaled, rows), (bare, divided)))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert scaled.reward_scale.moments.rows == sum(map(len, running))
        assert scaled.reward_scale.deviation == pytest.approx(deviation)
        assert abs(deviation - 1) > 0.05


def test_a_run_goes_on_with_the_mean_return_that_truncated_episodes_are_valued_by():
    kind = load_algorithm("reinforce")
    first, heir = (kind(kind.Settings(baseline="mean"), SPACES, seed=seed, learns=True) for seed in (1, 2))
    first.update(episodes(), Clock())
    heir.set_weights(first.weights())
    heir.restore(first.state())
    assert heir.mean_return == first.mean_return != 0
    for one in (first, heir):
        one.update(episodes(1), Clock(updates=1))
    np.testing.assert_array_equal(first.weights(), heir.weights())


def test_the_mean_return_of_a_team_counts_each_workers_by_its_rows():
    algorithm, rows = learner("reinforce", baseline="mean", discount=1.0), episodes()

    class Team:
        workers = 2

        def give(self, kind, numbers):  # another worker has a mean of 10 in 6 rows, and nothing else to say
            return lambda: [numbers, np.array([60.0, 6.0]) if len(numbers) == 2 else np.zeros_like(numbers)]

    with together.learning_in(Team()):
        algorithm.with_returns(rows)
    to_go = returns_to_go(rows, 1.0, np.zeros(rows["reward"].shape))[rows["valid"]]
    assert len(to_go) == 34
    assert algorithm.mean_return == pytest.approx((to_go.sum() + 60) / (len(to_go) + 6))


@pytest.mark.parametrize("name", ON_POLICY)
def test_what_is_told_of_a_loss_holds_no_graph(name, monkeypatch):
    algorithm, told = learner(name), []
    loss = algorithm.loss

    def heard(rows):
        total, found = loss(rows)
        told.extend(found.values())
        return total, found

    monkeypatch.setattr(algorithm, "loss", heard)
    algorithm.update(episodes() if name == "reinforce" else rollout(), Clock())
    assert len(told) >= 2
    assert not any(one.requires_grad for one in told)


def test_only_whole_episodes_are_learned_from():
    assert not load_algorithm("reinforce").bootstraps
    assert load_algorithm("a2c").bootstraps


# -- what PPO has besides ----------------------------------------------------------------------------------------------


def ppo_loss(plain, flat, rows, s, now):
    """Total loss of flat rows, and what is told of it; `now` is clip, entropy and the penalty's coefficient."""
    clip, entropy, coefficient = now
    log_probs, log_prob = log_probs_of(plain, rows, flat)
    moved = log_prob - tensor(rows["log_prob"])
    ratio, gain = moved.exp(), tensor((rows["advantage"] - rows["advantage"].mean()) / (rows["advantage"].std() + 1e-8))
    bounded = torch.where(ratio > 1 + clip, 1 + clip, torch.where(ratio < 1 - clip, 1 - clip, ratio))
    actor = -torch.stack([ratio * gain, bounded * gain]).amin(0).mean()
    kl, chance = (moved.exp() - 1 - moved).mean(), entropy_of(log_probs)
    critic = clipped_value_loss(plain, flat, rows, s)
    weight = 0.0 if s.value_epochs else s.value_coefficient
    clipped = ((ratio > 1 + clip) | (ratio < 1 - clip)).double().mean()
    return actor + weight * critic - entropy * chance + coefficient * kl, (actor, critic, chance, kl, clipped)


def clipped_value_loss(plain, flat, rows, s):
    value, before, target = plain("value", rows["obs"], flat)[:, 0], tensor(rows["value"]), tensor(rows["target"])
    near = before + torch.where(
        value - before > s.value_clip,
        s.value_clip,
        torch.where(value - before < -s.value_clip, -s.value_clip, value - before),
    )
    return 0.5 * torch.stack([(target - value) ** 2, (target - near) ** 2]).amax(0).mean()


def shuffled(rows, size, epochs, rng):
    count = len(rows["reward"])
    for _ in range(epochs):
        for part in np.array_split(rng.permutation(count), max(1, round(count / size))):
            yield {name: column[part] for name, column in rows.items()}


@pytest.mark.parametrize("own_epochs", [0, 2])
def test_ppo_with_a_penalty_a_clipped_value_and_a_clock_takes_the_steps_of_a_plain_computation(own_epochs):
    more = {"clip": 0.1, "value_clip": 0.3, "kl_penalty_target": 0.02, "value_epochs": own_epochs, "epochs": 2}
    more |= {"minibatch": 16, "gae_lambda": 0.6, "annealed": ("clip", "entropy")}
    algorithm = agent("ppo", **more)
    plain, start, s, coefficient = Plain(algorithm, eps=1e-5), algorithm.weights(), algorithm.settings, 1.0
    critic = Plain(algorithm, eps=1e-5)
    critic.moves("critic")
    if own_epochs:
        plain.moves("common", "actor")
    for number, reward in enumerate((0.1, 3.0)):
        rows, rng, left = rollout(number, reward=reward), generator_of(algorithm), 1 - 0.4 * number
        rate, now = 0.01 - 0.008 * 0.4 * number, (0.1 * left, 0.05 * left, coefficient)
        told = []
        for some in shuffled(with_values(plain, rows, s), 16, 2, rng):
            told.append([float(one) for one in ppo_loss(plain, plain.flat, some, s, now)[1]])
            plain.step(lambda flat, r=some, n=now: ppo_loss(plain, flat, r, s, n)[0], rate, 0.5)
        for some in shuffled(with_values(plain, rows, s), 16, own_epochs, rng):
            critic.flat = plain.flat
            critic.step(lambda flat, r=some: s.value_coefficient * clipped_value_loss(plain, flat, r, s), rate, 0.5)
            plain.flat = critic.flat
        found = algorithm.update(rows, Clock(env_steps=200_000 * number, updates=number))
        names = ("policy_loss", "value_loss", "entropy", "approximate_kl", "clipped_share")
        for name, expected in zip(names, np.mean(told, 0), strict=True):
            assert found[name] == pytest.approx(expected, rel=2e-3, abs=1e-4)
        assert found["kl_coefficient"] == coefficient
        assert found["learning_rate"] == pytest.approx(rate)
        kl = np.mean(told, 0)[3]
        coefficient = coefficient / 2 if kl < 0.02 / 1.5 else 2 * coefficient if kl > 0.02 * 1.5 else coefficient
        assert algorithm.kl_coefficient == coefficient
    assert_same_way(algorithm.weights(), plain.flat, start)


def with_values(plain, rows, s):
    advantage, value = advantages(plain, rows, s.discount, s.gae_lambda)
    return valid(rows, advantage=advantage, value=value, target=advantage + value)


def test_a_critic_of_its_own_learns_where_the_policy_has_moved_too_far_to():
    still, moved = (agent("ppo", max_kl=1e-9, value_epochs=epochs) for epochs in (0, 1))
    before = still.weights()
    for one in (still, moved):
        one.update(rollout(0), Clock())
    np.testing.assert_array_equal(still.weights(), before)
    assert (moved.weights() != before).any()
