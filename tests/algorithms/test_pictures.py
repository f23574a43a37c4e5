"""Networks that look at pictures: acting, learning and evaluating see the same numbers, whatever computes them."""

import numpy as np
import pytest
import torch
from torch import nn

from mlxe_async.algorithms import Acting, Clock, load_algorithm
from mlxe_async.fast.pictures import ByAutograd, PictureGradients
from mlxe_async.networks.convolutions import Pixels, convolved
from mlxe_async.rows import Spaces

SHAPE = (2, 44, 44)  # the smallest pictures that leave more than one place after the last convolution
RNG = np.random.default_rng(0)
LOOK = {"body": "nature", "normalise": False, "common": (16,), "policy": (), "value": (), "activation": "relu"}
LAYERS = {
    "nature": ([(4, 0), (2, 0), (1, 0)], nn.functional.relu),
    "small": ([(1, 0)], nn.functional.relu),
    "elu": ([(2, 1)] * 4, nn.functional.elu),
}


def pictures(*lead, shape=SHAPE, dtype=np.uint8):
    return RNG.integers(0, 256, (*lead, *shape)).astype(dtype)


def agent(name="ppo", shape=SHAPE, learns=False, seed=0, **more):
    kind = load_algorithm(name)
    return kind(kind.Settings(**(LOOK | more)), Spaces(shape, "|u1", 3), seed=seed, learns=learns)


def by_the_book(module, name, seen, scale=1 / 255):
    """The convolutions as the paper has them: pixels by their factor, one layer after the other."""
    layers, activate = LAYERS[name]
    convolutions = [one for one in module.layers if isinstance(one, nn.Conv2d)]
    x = torch.from_numpy(seen).float() * scale
    for one, (stride, padding) in zip(convolutions, layers, strict=True):
        x = activate(nn.functional.conv2d(x, one.weight, one.bias, stride, padding))
    return x.flatten(1).detach().numpy()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    ("name", "image"), [("nature", SHAPE), ("nature", (3, 39, 40)), ("nature", (3, 39, 45)), ("small", (4, 10, 10)),
                        ("elu", (2, 9, 14))]
)  # fmt: skip
def test_convolutions_are_those_of_their_papers(name, image, dtype):
    module, seen = convolved(name, image, scale=1 / 255), pictures(5, shape=image, dtype=dtype)
    expected = by_the_book(module, name, seen)
    np.testing.assert_allclose(module(torch.from_numpy(seen)).detach(), expected, atol=1e-5, rtol=1e-4)
    assert module.outputs == expected.shape[1]


def test_bytes_are_numbers_from_0_to_1_and_floats_are_as_they_are_where_nothing_is_said():
    module, seen = convolved("small", (1, 5, 5)), pictures(3, shape=(1, 5, 5))
    torch.testing.assert_close(module(torch.from_numpy(seen)), module(torch.from_numpy(seen).float() / 255))


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_convolutions_have_the_activation_that_is_asked_for_but_for_those_with_elu(activation):
    for name, image in (("nature", SHAPE), ("small", (4, 10, 10))):
        assert {type(one) for one in convolved(name, image, activation).layers[1::2]} == {activation}
    assert {type(one) for one in convolved("elu", (2, 9, 14), activation).layers[1::2]} == {nn.ELU}


def test_gradients_of_tiles_are_those_of_the_convolution():
    one, plain = Pixels(2, 4, 8, 4, scale=0.5), nn.Conv2d(2, 4, 8, 4)
    plain.load_state_dict(one.state_dict())
    seen, slope = torch.randn(3, 2, 20, 24), torch.randn(3, 4, 4, 5)
    one(seen).backward(slope)
    plain(0.5 * seen).backward(slope)
    for mine, its in zip(one.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-4, atol=1e-4)


def test_executor_learner_and_blocks_of_rows_compute_the_same(monkeypatch):
    monkeypatch.setattr(PictureGradients, "BLOCK", 4)
    algorithm, seen = agent(learns=True), pictures(10)
    tensors = torch.from_numpy(seen)
    whole = {"actor": algorithm.policy(tensors).logits, "critic": algorithm.judged({"obs": tensors})[1][:, None]}
    acting = algorithm.policy(seen).logits
    np.testing.assert_allclose(acting, whole["actor"].detach(), atol=1e-5, rtol=1e-4)
    heads = {"actor": algorithm.actor, "critic": algorithm.critic}

    def evaluated(block, names):
        features = algorithm.common(algorithm.see(block))
        return [heads[name](features) for name in names]

    blocks = PictureGradients(
        ByAutograd(evaluated, algorithm.optimiser.parameters), {name: one.outputs for name, one in heads.items()}
    )
    outputs = blocks.forward(seen[:7], seen[7:])
    for head, output in whole.items():
        np.testing.assert_allclose(outputs[head], output.detach(), atol=1e-5, rtol=1e-4)
    # The gradient by blocks is that of all rows at once; the last three rows have none.
    sum(output[:7].square().sum() for output in whole.values()).backward()
    gradient = algorithm.optimiser.gradient.clone()
    algorithm.optimiser.zero_grad()
    blocks.backward({head: 2 * outputs[head][:7] for head in whole})
    assert gradient.abs().max() > 0
    torch.testing.assert_close(algorithm.optimiser.gradient, gradient, atol=1e-5, rtol=1e-4)


def test_each_input_of_the_small_body_may_have_its_own_factor():
    image, factors = (1, 3, 4), tuple(float(one) for one in range(12))
    look = {"body": "small", "common": (8,)}
    scaled, plain = (agent("ppo", image, **look, **more) for more in ({"input_scale": factors}, {}))
    assert scaled.parameters == plain.parameters
    seen = pictures(2, shape=image)
    moved = (seen * np.reshape(factors, image)).astype(np.float32)
    found = scaled.policy(seen).logits
    np.testing.assert_allclose(found, plain.policy(moved).logits, rtol=1e-5, atol=1e-6)


def test_one_factor_of_the_small_body_is_that_of_all_pixels():
    seen = pictures(2, shape=(1, 3, 4))
    scaled, plain = (
        agent("ppo", (1, 3, 4), body="small", common=(8,), **more) for more in ({"input_scale": (0.5,)}, {})
    )
    np.testing.assert_allclose(
        scaled.policy(seen).logits, plain.policy((0.5 * seen).astype(np.float32)).logits, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("body", ["small", "elu"])
def test_a_grid_whose_kinds_of_things_come_last_is_refused_with_the_line_to_write(body):
    with pytest.raises(ValueError, match="channels_first = true"):
        agent("ppo", (10, 10, 4), body=body)


def test_several_versions_side_by_side_equal_each_alone():
    versions = [agent(seed=seed) for seed in range(2)]
    for one in versions:
        one.actor[0].weight.data *= 100
    seen = pictures(2, 3)
    together = agent().greedy_many(np.stack([one.weights() for one in versions]), seen)
    np.testing.assert_array_equal(together, [one.greedy(obs) for one, obs in zip(versions, seen, strict=True)])


def test_bfloat16_is_coarser_and_keeps_weights_and_outputs_in_float32():
    exact, coarse = (agent(learns=True, precision=precision) for precision in ("float32", "bfloat16"))
    seen = pictures(8)
    one, other = exact.value_of(seen), coarse.value_of(seen)
    assert 0 < np.abs(one - other).max() < 0.05 * np.abs(one).max() + 0.02
    acted, learned = coarse.policy(seen).logits, coarse.policy(torch.from_numpy(seen)).logits
    assert acted.dtype == np.float32
    np.testing.assert_allclose(acted, learned.detach(), atol=1e-6)
    coarse.judged({"obs": torch.from_numpy(seen)})[1].sum().backward()
    assert coarse.optimiser.weights.dtype == coarse.optimiser.gradient.dtype == torch.float32
    assert torch.isfinite(coarse.optimiser.gradient).all()
    assert coarse.optimiser.gradient.abs().max() > 0


def test_first_weights_are_orthogonal():
    algorithm = agent()
    first = algorithm.see.convolutions["observation"].layers[0].weight.detach().reshape(32, -1)
    torch.testing.assert_close(first @ first.T, 2 * torch.eye(32), atol=1e-5, rtol=1e-5)
    policy = algorithm.actor[0].weight.detach()
    torch.testing.assert_close(policy @ policy.T, 1e-4 * torch.eye(3), atol=1e-8, rtol=1e-5)
    assert not any(one.detach().any() for name, one in algorithm.see.named_parameters() if name.endswith("bias"))


@pytest.mark.parametrize("shape", [(4,), (20, 84), (1, 20, 20)])
def test_what_is_no_picture_is_refused(shape):
    with pytest.raises(ValueError, match=r"algorithm\.body"):
        agent("ppo", shape)


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


@pytest.mark.parametrize("epochs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_ppo_learns_which_picture_is_which(epochs):
    algorithm = load_algorithm("ppo")
    settings = algorithm.Settings(**LOOK, epochs=epochs, minibatch=32, learning_rate=3e-3, learning_rate_last=3e-3)
    learner = algorithm(settings, Spaces(SHAPE, "|u1", 2), seed=0, learns=True)
    rng = np.random.default_rng(0)
    pair = rng.integers(0, 256, (2, *SHAPE)).astype(np.uint8)

    def share_right(count=64):
        which = rng.integers(0, 2, count)
        chosen = learner.act(pair[which], rng, Acting())
        return which, chosen, (chosen["action"] == which).astype(np.float32)

    before = share_right()[2].mean()
    steps, envs = 4, 16
    for _ in range(16):
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


def test_pictures_of_floats_are_as_they_are_unless_a_factor_is_written():
    """Bytes are brought to 0 ... 1; floats may be there already."""
    kind = load_algorithm("ppo")
    of_bytes, floats = (Spaces(SHAPE, dtype, 3) for dtype in ("|u1", "<f4"))
    agents = {
        "bytes": kind(kind.Settings(**LOOK), of_bytes, seed=0, learns=False),
        "floats": kind(kind.Settings(**LOOK), floats, seed=0, learns=False),
        "factor": kind(kind.Settings(**LOOK, input_scale=(0.5,)), floats, seed=0, learns=False),
    }
    seen = pictures(4)
    known = agents["bytes"].see(torch.from_numpy(seen))
    shown = torch.from_numpy(seen.astype(np.float32) / 255)
    torch.testing.assert_close(agents["floats"].see(shown), known)
    torch.testing.assert_close(agents["factor"].see(2 * shown), known)
    with pytest.raises(ValueError, match="pixels are brought to 0"):
        kind(kind.Settings(**LOOK, input_scale=(0.5,)), of_bytes, seed=0, learns=False)
