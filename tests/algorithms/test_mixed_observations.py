"""Observations of several parts: pictures among them go through convolutions, and numbers stand beside these."""

import numpy as np
import pytest
import torch

from mlxe_async.algorithms import REGISTRY, Acting, Clock, load_algorithm
from mlxe_async.fast import updates
from mlxe_async.maths import normaliser
from mlxe_async.networks import unflatten
from mlxe_async.networks.bodies import Normaliser, body
from mlxe_async.networks.mixed import mixed_of, pictures_in
from mlxe_async.networks.pictures import image_of, is_picture
from mlxe_async.parts import laid_out, stored_as
from mlxe_async.rows import MASK, RowLayout, Spaces, standard_columns
from mlxe_async.workers import rehearsal

CONTINUOUS = ("sac", "td3", "ddpg")
SEEING = [name for name in REGISTRY if name not in (*CONTINUOUS, "q_learning", "sarsa")]
EYE, WRIST, GREY = ("eye", (2, 40, 44), "|u1"), ("arm.wrist", (48, 36, 3), "|u1"), ("grey", (40, 37), "|u1")
SPEED, LAMP, MINI = ("speed", (3,), "<f4"), ("lamp", (), "<f4"), ("mini", (2, 3), "|u1")
HEADS = {"policy": (3,), "value": (1,)}
LAYERS = {"common": (16,), "policy": (), "value": (), "activation": "relu"}
SMALL = {"layers": (16,)}
STRIDES = {"nature": [(4, 0), (2, 0), (1, 0)], "small": [(1, 0)], "elu": [(2, 1)] * 4}


def parted(*leaves, **fields):
    parts = laid_out(leaves)
    shape, dtype = stored_as(parts)
    return Spaces(shape, dtype, **{"actions": 3, "parts": parts, **fields})


def observed(spaces, *lead, seed=0):
    rng = np.random.default_rng(seed)
    named = {
        part.name: rng.integers(0, 256, (*lead, *part.shape))
        if part.dtype == "|u1"
        else rng.normal(3, 2, (*lead, *part.shape))
        for part in spaces.parts
    }
    if spaces.masked:
        named[MASK] = np.ones((*lead, 3))
    return spaces.pack(named)


def agent(name, spaces, *, learns=False, **settings):
    kind = load_algorithm(name)
    table = {**kind.defaults_for(spaces, settings), **settings}
    return kind(kind.Settings(**table), spaces, seed=0, learns=learns)


def by_the_book(one, spaces, obs):
    """Each picture / 255 by its own convolutions, channels first; numbers as they are; in the order of the parts."""
    parts, features, name = spaces.split(obs), [], one.settings.body
    activate = torch.nn.functional.elu if name == "elu" else torch.relu
    for part in spaces.parts:
        key = part.name.replace(".", "/")
        x = torch.from_numpy(np.array(parts[part.name])).float()
        if key not in one.see.convolutions:
            features.append(x.reshape(len(obs), -1))
            continue
        x = x * (1 / 255 if parts[part.name].dtype == np.uint8 else 1)
        image, is_last = image_of(tuple(x.shape[1:]))
        x = x.permute(0, 3, 1, 2) if is_last else x.view(-1, *image)
        layers = [layer for layer in one.see.convolutions[key].layers if isinstance(layer, torch.nn.Conv2d)]
        for layer, (stride, padding) in zip(layers, STRIDES[name], strict=True):
            x = activate(torch.nn.functional.conv2d(x, layer.weight, layer.bias, stride, padding))
        features.append(x.flatten(1))
    x = one.common[0](torch.cat(features, -1)).relu()
    return {"actor": one.actor(x).detach().numpy(), "critic": one.critic(x).detach().numpy()}


# -- which parts are pictures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "image", "is_last", "is_one"),
    [
        ((3, 64, 64), (3, 64, 64), False, True),
        ((64, 64, 3), (3, 64, 64), True, True),
        ((210, 160, 3), (3, 210, 160), True, True),
        ((3, 210, 160), (3, 210, 160), False, True),
        ((84, 84), (1, 84, 84), False, True),
        ((40, 35), (1, 40, 35), False, False),
        ((7, 7, 3), (3, 7, 7), True, False),
        ((4, 10, 10), (4, 10, 10), False, False),
        ((64, 64, 64), (64, 64, 64), False, True),
        ((40, 5, 50), (40, 5, 50), False, False),
    ],
)
def test_channels_are_found_first_or_last(shape, image, is_last, is_one):
    assert image_of(shape) == (image, is_last)
    assert is_picture(shape) == is_one


def test_pictures_are_large_parts_of_bytes_and_those_that_a_written_body_can_take():
    depth, grid = ("depth", (1, 48, 48), "<f4"), ("grid", (10, 10, 4), "|u1")
    spaces = parted(SPEED, depth, EYE, WRIST, GREY, grid, MINI)
    assert [part.name for part in pictures_in(spaces)] == ["eye", "arm.wrist", "grey"]
    assert mixed_of(spaces, "nature").pictures == ("depth", "eye", "arm.wrist", "grey")
    assert mixed_of(spaces, "small").pictures == ("depth", "eye", "arm.wrist", "grey", "grid")
    assert mixed_of(spaces, "none") is None
    assert mixed_of(Spaces((3, 64, 64), "|u1", 3), "nature") is None
    assert mixed_of(parted(SPEED), "nature") is None
    with pytest.raises(ValueError, match=r"needs a part that is a picture .* got speed 3 floats; write body = .none."):
        agent("ppo", parted(SPEED), body="nature")


@pytest.mark.parametrize("name", SEEING)
def test_a_picture_among_the_parts_brings_convolutions_where_nobody_says_otherwise(name):
    kind, spaces = load_algorithm(name), parted(SPEED, EYE)
    alone = kind.defaults_for(Spaces((2, 40, 44), "|u1", 3), {})
    found = kind.defaults_for(spaces, {})
    normalise = kind.Settings.model_fields.get("normalise")
    assert found == alone | ({} if normalise is None else {"normalise": normalise.default})
    assert found["body"] == "nature"
    assert kind.defaults_for(spaces, {"body": "none"}) == {}
    assert kind.defaults_for(parted(SPEED, MINI), {}) == {}


def test_numbers_beside_pictures_are_normalised_where_vectors_are():
    ppo, numbers = load_algorithm("ppo"), parted(SPEED, EYE)
    assert ppo.defaults_for(numbers, {})["normalise"] is True
    assert ppo.defaults_for(numbers, {"body": "elu"}) == {"normalise": True}
    assert "normalise" not in ppo.defaults_for(parted(EYE, GREY), {})
    assert len(agent("ppo", numbers, **LAYERS).see.normaliser.mean) == 3
    assert agent("ppo", parted(EYE, GREY), **LAYERS).see.normaliser is None


# -- the same numbers, whatever computes them --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nature", "small", "elu"])
@pytest.mark.parametrize(
    "leaves",
    [(SPEED, LAMP, EYE, WRIST), (EYE, GREY), (EYE, MINI, SPEED, WRIST), (("depth", (1, 40, 40), "<f4"), SPEED)],
)
def test_actor_learner_and_plain_module_compute_the_network_of_the_paper_beside_numbers(name, leaves):
    spaces = parted(*leaves)
    one, obs = agent("ppo", spaces, body=name, normalise=False, **LAYERS), observed(spaces, 5)
    expected, plain, seen = by_the_book(one, spaces, obs), one.module(), torch.from_numpy(obs)
    named = plain({key: torch.from_numpy(np.array(part)) for key, part in spaces.split(obs).items()})
    learned = {"actor": one.policy(seen).logits, "critic": one.judged({"obs": seen})[1][:, None]}
    acted = {"actor": torch.from_numpy(one.policy(obs).logits), "critic": torch.from_numpy(one.value_of(obs))[:, None]}
    for head, numbers in expected.items():
        for found in (acted[head], learned[head], plain(seen)[head], named[head]):
            np.testing.assert_allclose(found.detach(), numbers, atol=1e-4, rtol=1e-4)
        assert np.ptp(numbers) > 0


@pytest.mark.parametrize("normalise", [False, True])
def test_a_plain_module_takes_parts_of_bytes_without_pictures_too(normalise):
    spaces = parted(MINI, SPEED, LAMP, (MASK, (3,), "|u1"), masked=True)
    one = agent("ppo", spaces, normalise=normalise)
    obs, plain = observed(spaces, 5), one.module()
    if normalise:
        one.see.count(obs)
        plain = one.module()
    named = {name: torch.from_numpy(np.array(part)) for name, part in spaces.split(obs).items()}
    for seen in (torch.from_numpy(obs), named):
        found = plain(seen)
        np.testing.assert_allclose(found["actor"].detach(), one.policy(obs).logits, atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(found["critic"][:, 0].detach(), one.value_of(obs), atol=1e-4, rtol=1e-4)


def test_several_versions_side_by_side_equal_each_alone():
    spaces = parted(SPEED, EYE, MINI)
    versions = [agent("ppo", spaces, **LAYERS) for _ in range(2)]
    for number, one in enumerate(versions):
        one.see.count(observed(spaces, 9, seed=number))
        one.actor[0].weight.data *= 100 - 200 * number
    obs = observed(spaces, 2, 6)
    together = versions[0].greedy_many(np.stack([one.weights() for one in versions]), obs)
    np.testing.assert_array_equal(together, [one.greedy(seen) for one, seen in zip(versions, obs, strict=True)])
    assert (together[0] != together[1]).any()


def test_a_picture_with_its_channels_last_is_seen_as_the_same_with_its_channels_first():
    first, last = parted(SPEED, ("eye", (3, 40, 44), "|u1")), parted(SPEED, ("eye", (40, 44, 3), "|u1"))
    obs = observed(last, 5)
    parts = last.split(obs)
    moved = first.pack({"speed": parts["speed"], "eye": np.moveaxis(parts["eye"], -1, 1)})
    one, other = (agent("ppo", spaces, normalise=False, **LAYERS) for spaces in (first, last))
    assert one.parameters == other.parameters
    np.testing.assert_allclose(one.policy(moved).logits, other.policy(obs).logits, atol=1e-6)
    one, other = (agent("dqn", spaces, **SMALL) for spaces in (first, last))
    assert one.parameters == other.parameters
    np.testing.assert_allclose(one.network(moved), other.network(obs), atol=1e-6)
    torch.manual_seed(0)
    one, other = body(first), body(last)
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(torch.from_numpy(moved)), other(torch.from_numpy(obs)))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gradient_reaches_each_part(precision):
    spaces = parted(SPEED, LAMP, EYE, WRIST, GREY, MINI)
    one = agent("ppo", spaces, learns=True, precision=precision, **LAYERS)
    one.judged({"obs": torch.from_numpy(observed(spaces, 8))})[1].square().sum().backward()
    for convolutions in one.see.convolutions.values():
        for layer in convolutions.layers[::2][:3]:
            assert layer.weight.grad.abs().sum() > 0
    beside = torch.cat(
        [
            g
            for g, (is_picture, _) in zip(
                one.common[0].weight.grad.split([width for _, width in one.see.widths], 1), one.see.widths, strict=True
            )
            if not is_picture
        ],
        1,
    )
    assert beside.shape == (16, 3 + 1 + 6)
    assert (beside.abs().sum(0) > 0).all()


def test_weights_of_numbers_beside_pictures_begin_as_if_they_were_alone():
    one = agent("ppo", parted(SPEED, EYE, MINI), **LAYERS)
    weight, widths = one.common[0].weight.detach(), [width for _, width in one.see.widths]
    speed, eye, mini = weight.split(widths, 1)
    numbers = torch.cat([speed, mini], 1)
    torch.testing.assert_close(numbers.T @ numbers, 2 * torch.eye(9), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(eye @ eye.T, 2 * torch.eye(16), atol=1e-5, rtol=1e-5)


# -- bytes stay bytes, and moments are of numbers alone ----------------------------------------------------------------


def test_a_picture_of_two_axes_alone_has_one_channel():
    ours, theirs = (agent("mlxe", Spaces(shape, "|u1", 3), **LAYERS) for shape in ((40, 44), (1, 40, 44)))
    assert ours.parameters == theirs.parameters
    obs = np.random.default_rng(0).integers(0, 256, (4, 40, 44), np.uint8)
    np.testing.assert_array_equal(ours.network.scores(obs), theirs.network.scores(obs[:, None]))


def batch_of(one, spaces, steps=8, envs=4):
    """Rows as the learner gets them: rollouts, windows or single rows."""
    layout = RowLayout(standard_columns(spaces)).with_columns(one.extra_columns)
    rows = {column.name: np.zeros((steps, envs, *column.shape), column.dtype) for column in layout.columns}
    obs = observed(spaces, steps + 1, envs)
    rows["obs"][:], rows["next_obs"][:] = obs[:-1], obs[1:]
    rng = np.random.default_rng(0)
    rows["reward"][:], rows["log_prob"][:] = rng.normal(size=(steps, envs)), np.log(1 / 3)
    rows["action"][:] = rng.integers(0, 3, (steps, envs))
    rows["cut"][-1], rows["last"][-1, -1] = 1, 1
    return {**rows, "valid": np.ones((steps, envs), bool)}


def test_an_update_counts_numbers_and_what_acts_and_is_handed_out_is_shown_them_normalised():
    spaces = parted(SPEED, EYE, MINI)
    one = agent("ppo", spaces, learns=True, minibatch=32, epochs=1, **LAYERS)
    batch = batch_of(one, spaces)
    one.update(batch, Clock(env_steps=32))
    parts = spaces.split(batch["obs"])
    numbers = np.concatenate([parts["speed"].reshape(32, -1), parts["mini"].reshape(32, -1)], 1)
    moments = one.see.normaliser.moments
    np.testing.assert_allclose(moments.mean, numbers.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, numbers.var(0), rtol=1e-5)
    one.load(one.weights())
    obs = torch.from_numpy(batch["obs"][0])
    expected = normaliser.normalise(numbers[:4], numbers.mean(0), numbers.var(0))
    np.testing.assert_allclose(numbers_in(one, one.see(obs)), expected, atol=1e-5)
    handed = one.module()(obs)
    np.testing.assert_allclose(handed["actor"].detach(), one.policy(batch["obs"][0]).logits, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(handed["critic"][:, 0].detach(), one.value_of(batch["obs"][0]), atol=1e-5, rtol=1e-4)


def numbers_in(one, features):
    """What of features (B, n) are numbers."""
    pieces = features.split([width for _, width in one.see.widths], -1)
    return torch.cat(
        [piece for piece, (is_picture, _) in zip(pieces, one.see.widths, strict=True) if not is_picture], -1
    ).detach()


def test_a_state_is_gone_on_from_bit_for_bit():
    spaces = parted(SPEED, EYE)
    one, other = (agent("ppo", spaces, learns=True, minibatch=32, epochs=1, **LAYERS) for _ in range(2))
    batch = batch_of(one, spaces)
    one.update(batch, Clock(env_steps=32))
    other.restore(one.state())
    for again in (one, other):
        again.update(batch, Clock(env_steps=64))
    np.testing.assert_array_equal(one.weights(), other.weights())


def test_a_body_of_ones_own_normalises_numbers_alone():
    spaces = parted(SPEED, EYE, MINI, LAMP)
    torch.manual_seed(0)
    plain, normalising = body(spaces), body(spaces, normalise=True)
    assert (plain.outputs, plain.numbers, plain.normaliser) == (normalising.outputs, 10, None)
    assert isinstance(normalising.normaliser, Normaliser)
    assert body(Spaces((2, 40, 44), "|u1", 3), normalise=True).normaliser is None
    obs = torch.from_numpy(observed(spaces, 50))
    normalising.count(obs)
    plain.load_state_dict(normalising.state_dict(), strict=False)
    before, after = plain(obs), normalising(obs)
    is_number = torch.zeros(plain.outputs, dtype=torch.bool)
    is_number[[0, 1, 2, 3, *range(-6, 0)]] = True
    torch.testing.assert_close(after[:, ~is_number], before[:, ~is_number])
    torch.testing.assert_close(after[:, is_number].std(0, correction=0), torch.ones(10), atol=1e-3, rtol=1e-3)
    assert before[:, is_number].std(0).max() > 10
    after.sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in normalising.parameters())


# -- who learns, who refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEEING)
def test_an_update_changes_the_convolutions_of_each_picture_and_the_weights_of_the_numbers(name):
    spaces = parted(SPEED, EYE, GREY)
    of_kind = {"replay": {"batch": 16}, "rollouts": {}}[load_algorithm(name).memory]
    of_kind |= {"common": (16,)} if "common" in load_algorithm(name).Settings.model_fields else SMALL
    one = agent(name, spaces, learns=True, **of_kind)
    batch = rehearsal.batch_of(one, rehearsal.made_up_rows(one, observed(spaces, 16), spaces, Acting()))
    before = unflatten(one.weights(), one.parameters)
    one.update(batch, Clock(env_steps=32, episodes=1, version=1))
    after = unflatten(one.weights(), one.parameters)
    for eye in (EYE, GREY):
        first = next(key for key in before if key.endswith(f"see.convolutions.{eye[0]}.layers.0.weight"))
        assert not np.array_equal(before[first], after[first])
    first = next(key for key in before if "see." not in key and key.endswith("0.weight"))
    assert (before[first][:, :3] != after[first][:, :3]).any(0).all()  # of the three numbers, which come first


@pytest.mark.parametrize("name", ["ppo", "dqn", "mlxe"])
def test_no_twin_knows_such_networks_and_one_line_says_so(name):
    found = updates(agent(name, parted(SPEED, EYE), learns=True))
    assert (found.twin, found.reason) == (None, "parts of its observations are pictures")


@pytest.mark.parametrize("name", CONTINUOUS)
def test_algorithms_without_convolutions_refuse_pictures_with_what_to_write(name):
    box = {"actions": None, "action_shape": (1,), "action_low": (-1.0,), "action_high": (1.0,)}
    agent(name, parted(SPEED, MINI, **box))
    told = {
        parted(SPEED, ("arm.x", (), "<f4"), EYE, WRIST, **box): (
            'eye 2 x 40 x 44 bytes, arm.wrist 48 x 36 x 3 bytes; leave it out by observe = ["speed"] of [task]'
        ),
        parted(EYE, **box): "eye 2 x 40 x 44 bytes; show numbers by a wrapper",
        Spaces((3, 64, 64), "|u1", **box): "observation 3 x 64 x 64 bytes; show numbers by a wrapper",
    }
    for spaces, words in told.items():
        with pytest.raises(ValueError, match="convolutions") as caught:
            agent(name, spaces)
        assert str(caught.value) == (
            f"algorithm.name: {name} has no convolutions for pictures, got {words}, or take an algorithm that has, "
            'such as "ppo"'
        )


@pytest.mark.parametrize(
    ("spaces", "settings", "message"),
    [
        (parted(EYE, GREY), {"normalise": True}, "algorithm.normalise: body = .nature. needs normalise = false"),
        (Spaces((2, 40, 44), "|u1", 3), {"normalise": True}, "algorithm.normalise: body = .nature. needs"),
        (Spaces((2, 40, 44), "|u1", 3), {"input_scale": (0.5,)}, "algorithm.input_scale: body = .nature. needs"),
        (parted(SPEED, EYE), {"input_scale": (0.5, 1.0)}, "algorithm.input_scale: expected 1 or 3 factors, got 2"),
        (parted(SPEED, MINI), {"body": "nature"}, "algorithm.body = .nature.: needs a part that is a picture"),
        (parted(SPEED, EYE), {"layer_norm": True}, "needs layer_norm = false"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_key(spaces, settings, message):
    with pytest.raises(ValueError, match=message):
        agent("ppo", spaces, **settings)


def test_factors_are_those_of_the_numbers():
    spaces = parted(SPEED, EYE)
    obs, factors = observed(spaces, 5), (0.5, 2.0, 4.0)
    scaled, plain = (agent("dqn", spaces, **more) for more in ({"input_scale": factors}, {}))
    parts = spaces.split(obs)
    moved = spaces.pack({"speed": parts["speed"] * np.array(factors), "eye": parts["eye"]})
    np.testing.assert_allclose(scaled.network(obs), plain.network(moved), atol=1e-6)


def test_the_network_is_told_in_words():
    assert agent("ppo", parted(SPEED, EYE, GREY), **LAYERS).words == (
        "eye by 3 convolutions (128 features) beside grey by 3 convolutions (64 features) beside 3 numbers -> "
        "common 16; policy 3; value 1"
    )
    assert agent("dqn", Spaces((4,), actions=2)).words == "4 numbers -> q 128, 128, 2"
    assert agent("dqn", Spaces((4, 84, 84), "|u1", actions=2)).words == (
        "the picture by 3 convolutions (3,136 features) -> q 512, 2"
    )


@pytest.mark.parametrize("answer", ["eye", pytest.param("speed", marks=pytest.mark.long)])
def test_ppo_learns_what_only_the_picture_or_only_the_numbers_say(answer):
    spaces, wide = parted(SPEED, EYE, actions=2), {**LAYERS, "common": (64,)}
    learner = agent("ppo", spaces, learns=True, epochs=2, minibatch=32, learning_rate=3e-3, **wide)
    rng, pair = np.random.default_rng(0), spaces.split(observed(spaces, 2))

    def share_right(steps, envs):
        which = {name: rng.integers(0, 2, (steps, envs)) for name in ("eye", "speed")}
        obs = spaces.pack({name: pair[name][which[name]] for name in which}).reshape(steps * envs, -1)
        chosen = {name: column.reshape(steps, envs) for name, column in learner.act(obs, rng, Acting()).items()}
        right = (chosen["action"] == which[answer]).astype(np.float32)
        return chosen | {"obs": obs.reshape(steps, envs, -1), "reward": right}

    before, right = share_right(1, 64)["reward"].mean(), []
    while len(right) < 24 and max(right, default=0.0) <= 0.95:
        rows = share_right(4, 16)
        flags = dict.fromkeys(("terminated", "valid"), np.ones((4, 16), bool))
        flags |= dict.fromkeys(("truncated", "cut"), np.zeros((4, 16), bool))
        counts = {"episode": np.arange(4)[:, None].repeat(16, 1), "step": np.zeros((4, 16), np.int64)}
        learner.update({**rows, "next_obs": rows["obs"], **flags, **counts}, Clock())
        learner.load(learner.weights())
        right.append(share_right(1, 256)["reward"].mean())
    assert before < 0.8
    assert right[-1] > 0.95
