"""Networks that look at pictures: acting, learning and evaluating see the same numbers, whatever computes them."""

import numpy as np
import pytest
import torch

from mlxe_async.algorithms import Acting, Clock, load_algorithm
from mlxe_async.fast.pictures import PictureGradients
from mlxe_async.networks import Network, parameter_count, unflatten
from mlxe_async.networks.convolutions import PictureActor
from mlxe_async.networks.learning import PictureNetwork
from mlxe_async.networks.plain import PlainNetwork
from mlxe_async.rows import Spaces

SHAPE = (2, 44, 44)  # the smallest pictures that leave more than one place after the last convolution
HEADS = {"policy": (3,), "value": (1,)}


def network(precision="float32", **more):
    return Network(int(np.prod(SHAPE)), (16,), HEADS, "relu", body="nature", image=SHAPE, precision=precision, **more)


def pictures(*lead):
    return np.random.default_rng(0).integers(0, 256, (*lead, *SHAPE), dtype=np.uint8).reshape(*lead, -1)


def by_the_book(net, flat, seen):
    """The network as the paper has it: pixels / 255, channels first, one layer after the other."""
    arrays = unflatten(torch.from_numpy(flat), net.parameters)
    x = torch.from_numpy(seen).view(-1, *net.image).float() / 255
    for index, stride in enumerate((4, 2, 1)):
        weight = arrays[f"body.{index}.weight"].permute(0, 3, 1, 2)
        x = torch.nn.functional.conv2d(x, weight, arrays[f"body.{index}.bias"], stride).relu()
    x = x.permute(0, 2, 3, 1).flatten(1)
    x = (x @ arrays["common.0.weight"] + arrays["common.0.bias"]).relu()
    return {head: (x @ arrays[f"{head}.0.weight"] + arrays[f"{head}.0.bias"]).numpy() for head in HEADS}


GRIDS = {
    "small": ((4, 10, 10), [(1, 0)], torch.nn.functional.relu),
    "elu": ((2, 9, 14), [(2, 1)] * 4, torch.nn.functional.elu),
}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("body", GRIDS)
def test_further_bodies_are_those_of_their_papers(body, dtype):
    image, layers, activate = GRIDS[body]
    more = {"input_scale": (0.5,)} if body == "small" else {}
    net = Network(int(np.prod(image)), (16,), HEADS, "relu", body=body, image=image, **more)
    flat = net.initial(1) + np.float32(0.001)
    seen = np.random.default_rng(0).integers(0, 256, (5, net.inputs)).astype(dtype)
    arrays = unflatten(torch.from_numpy(flat), net.parameters)
    x = torch.from_numpy(seen).view(-1, *image).float() * (0.5 if body == "small" else 1 / 255)
    for index, (stride, padding) in enumerate(layers):
        weight = arrays[f"body.{index}.weight"].permute(0, 3, 1, 2)
        assert weight.shape[2:] == (3, 3)
        x = activate(torch.nn.functional.conv2d(x, weight, arrays[f"body.{index}.bias"], stride, padding))
    x = (x.permute(0, 2, 3, 1).flatten(1) @ arrays["common.0.weight"] + arrays["common.0.bias"]).relu()
    actor, learned, plain = PictureActor(net, flat), PictureNetwork(net, flat), PlainNetwork(net, flat)
    for head in HEADS:
        expected = (x @ arrays[f"{head}.0.weight"] + arrays[f"{head}.0.bias"]).numpy()
        np.testing.assert_allclose(actor(seen, head)[0], expected, atol=1e-5, rtol=1e-4)
        np.testing.assert_allclose(learned(torch.from_numpy(seen), head)[0].detach(), expected, atol=1e-5, rtol=1e-4)
        found = plain(torch.from_numpy(seen).view(-1, *image))[head]
        np.testing.assert_allclose(found.detach(), expected, atol=1e-5, rtol=1e-4)


def test_each_input_of_the_small_body_may_have_its_own_factor():
    image, factors = (1, 3, 4), tuple(float(one) for one in range(12))
    net = Network(12, (), {"q": (2,)}, "relu", body="small", image=image, input_scale=factors)
    flat, seen = net.initial(1), np.arange(24, dtype=np.float32).reshape(2, 12)
    alone = Network(12, (), {"q": (2,)}, "relu", body="small", image=image)
    expected = PictureActor(alone, flat)(seen * np.array(factors, np.float32), "q")[0]
    np.testing.assert_allclose(PictureActor(net, flat)(seen, "q")[0], expected, rtol=1e-6)


@pytest.mark.parametrize("body", ["small", "elu"])
def test_a_grid_whose_kinds_of_things_come_last_is_refused_with_the_line_to_write(body):
    with pytest.raises(ValueError, match="channels_first = true"):
        Network(400, (), {"q": (2,)}, body=body, image=(10, 10, 4))


@pytest.mark.parametrize(("dtype", "width"), [(np.uint8, 40), (np.uint8, 45), (np.float32, 40)])
def test_pictures_of_any_size_and_type_are_convolved_as_in_the_paper(dtype, width):
    shape = (3, 39, width)  # pixels at the edges belong to no tile
    net = Network(int(np.prod(shape)), (16,), HEADS, "relu", body="nature", image=shape)
    seen = np.random.default_rng(0).integers(0, 256, (5, net.inputs)).astype(dtype)
    flat = net.initial(1)
    expected, actor = by_the_book(net, flat, seen), PictureActor(net, flat)
    for head in HEADS:
        np.testing.assert_allclose(actor(seen, head)[0], expected[head], atol=1e-5, rtol=1e-4)


def test_actor_learner_and_blocks_of_rows_compute_the_network_of_the_paper(monkeypatch):
    monkeypatch.setattr(PictureGradients, "BLOCK", 4)
    net = network()
    flat = net.initial(1)
    flat += np.float32(0.001)  # biases too
    seen = pictures(10)
    expected = by_the_book(net, flat, seen)
    learned = PictureNetwork(net, flat)
    whole = dict(zip(HEADS, learned(torch.from_numpy(seen), *HEADS), strict=True))
    blocks = PictureGradients(learned)
    outputs = blocks.forward(seen[:7], seen[7:])
    actor = PictureActor(net, flat)
    for head in HEADS:
        np.testing.assert_allclose(actor(seen, head)[0], expected[head], atol=1e-5, rtol=1e-4)
        np.testing.assert_allclose(whole[head].detach(), expected[head], atol=1e-5, rtol=1e-4)
        np.testing.assert_allclose(outputs[head], expected[head], atol=1e-5, rtol=1e-4)
    # The gradient by blocks is that of all rows at once; the last three rows have none.
    sum(output[:7].square().sum() for output in whole.values()).backward()
    gradient = learned.gradient.clone()
    learned.gradient.zero_()
    blocks.backward({head: 2 * outputs[head][:7] for head in HEADS})
    assert gradient.abs().max() > 0
    torch.testing.assert_close(learned.gradient, gradient, atol=1e-5, rtol=1e-4)


def test_several_versions_side_by_side_equal_each_alone():
    net = network()
    flats = np.stack([net.initial(seed) for seed in range(2)])
    seen = pictures(2, 3)
    together = PictureActor(net, flats)(seen, "policy")[0]
    alone = [PictureActor(net, flat)(one, "policy")[0] for flat, one in zip(flats, seen, strict=True)]
    np.testing.assert_array_equal(together, np.stack(alone))
    algorithm = load_algorithm("ppo")
    fields = {"body": "nature", "normalise": False, "common": (16,), "policy": (), "value": (), "activation": "relu"}
    tested = algorithm(algorithm.Settings(**fields), Spaces(SHAPE, "|u1", 3), seed=0, learns=False)
    np.testing.assert_array_equal(tested.greedy_many(flats, seen.reshape(2, 3, *SHAPE)), together.argmax(-1))


def test_bfloat16_is_coarser_and_keeps_weights_and_outputs_in_float32():
    flat, seen = network().initial(1), pictures(8)
    exact = PictureActor(network(), flat)(seen, "value")[0]
    coarse = PictureActor(network("bfloat16"), flat)(seen, "value")[0]
    assert coarse.dtype == np.float32
    assert 0 < np.abs(coarse - exact).max() < 0.05 * np.abs(exact).max() + 0.02
    learned = PictureNetwork(network("bfloat16"), flat)
    learned(torch.from_numpy(seen), "value")[0].sum().backward()
    assert learned.flat.dtype == learned.gradient.dtype == torch.float32
    assert torch.isfinite(learned.gradient).all()
    assert learned.gradient.abs().max() > 0


def test_initial_weights_are_orthogonal():
    net = network()
    flat = net.initial(3, {"policy": 0.01})
    assert flat.size == parameter_count(net.parameters)
    arrays = unflatten(flat, net.parameters)
    first = arrays["body.0.weight"].reshape(32, -1)
    np.testing.assert_allclose(first @ first.T, 2 * np.eye(32), atol=1e-5)
    policy = arrays["policy.0.weight"]
    np.testing.assert_allclose(policy.T @ policy, 1e-4 * np.eye(3), atol=1e-8)
    assert not arrays["body.0.bias"].any()


@pytest.mark.parametrize("shape", [(4,), (20, 84), (1, 20, 20)])
def test_what_is_no_picture_is_refused(shape):
    algorithm = load_algorithm("ppo")
    with pytest.raises(ValueError, match=r"algorithm\.body"):
        algorithm(algorithm.Settings(body="nature", normalise=False), Spaces(shape, "|u1", 3), seed=0, learns=False)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"precision": "bfloat16"}, "body"),
        ({"body": "nature", "normalise": True}, r"algorithm\.normalise: .* needs normalise = false"),
        ({"body": "nature", "normalise": False, "layer_norm": True}, "layer_norm"),
        ({"body": "nature", "normalise": False, "input_scale": (0.5,)}, r"algorithm\.input_scale"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_reason(fields, word):
    algorithm = load_algorithm("ppo")
    with pytest.raises(ValueError, match=word):
        algorithm(algorithm.Settings(**fields), Spaces(SHAPE, "|u1", 3), seed=0, learns=False)


@pytest.mark.parametrize("epochs", [1, 2])
def test_ppo_learns_which_picture_is_which(epochs):
    algorithm = load_algorithm("ppo")
    fields = {"body": "nature", "normalise": False, "common": (16,), "policy": (), "value": (), "activation": "relu"}
    settings = algorithm.Settings(**fields, epochs=epochs, minibatch=32, learning_rate=3e-3, learning_rate_last=3e-3)
    learner = algorithm(settings, Spaces(SHAPE, "|u1", 2), seed=0, learns=True)
    rng, pair = np.random.default_rng(0), pictures(2).reshape(2, *SHAPE)

    def share_right(count=64):
        which = rng.integers(0, 2, count)
        chosen = learner.act(pair[which], rng, Acting())
        return which, chosen, (chosen["action"] == which).astype(np.float32)

    before = share_right()[2].mean()
    steps, envs = 4, 16
    for _ in range(12):
        which, chosen, right = share_right(steps * envs)
        flags = dict.fromkeys(("terminated", "valid"), np.ones((steps, envs), bool))
        flags |= dict.fromkeys(("truncated", "cut"), np.zeros((steps, envs), bool))
        counts = {"episode": np.arange(steps)[:, None].repeat(envs, 1), "step": np.zeros((steps, envs), np.int64)}
        obs = pair[which].reshape(steps, envs, *SHAPE)
        known = {"action": chosen["action"], "log_prob": chosen["log_prob"], "reward": right}
        known = {name: column.reshape(steps, envs) for name, column in known.items()}
        learner.update({"obs": obs, "next_obs": obs, **known, **flags, **counts}, Clock())
        learner.load(learner.weights())
    assert before < 0.8
    assert share_right()[2].mean() > 0.9
