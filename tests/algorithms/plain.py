"""Networks and optimisers written once more, in double precision and by the book: what an update is compared with."""

import numpy as np
import torch

from mlxe_async.maths.generators import set_generator

ADAM = (0.9, 0.999)


class Plain:
    """A learned network of plain layers, of an algorithm's published shape, and its optimiser.

    Args:
        algorithm: whose parameters, and whose settings of the layers.
        eps: Adam's.
        kind: `"adam"`, or `"radam"` for its first five steps, which are plain momentum.
    """

    of_torch = True
    """Whether weights have torch's own shape, outputs first."""
    moved = 1.0
    """Of each weight 1 where it is moved (P,)."""

    def __init__(self, algorithm, eps, kind="adam"):
        self.parameters = named(algorithm)
        flat = algorithm.weights()
        if self.parameters[-1][0] == "epsilon":
            self.parameters, flat = self.parameters[:-1], flat[:-1]
        self.flat = torch.tensor(flat, dtype=torch.float64)
        self.activation = getattr(torch, algorithm.settings.activation)
        self.layer_norm = algorithm.settings.layer_norm
        self.eps, self.kind, self.steps = eps, kind, 0
        self.first, self.second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)

    def moves(self, *heads):
        """Weights (P,) of these heads alone are moved from now on."""
        shapes = [(float(name.partition(".")[0] in heads), int(np.prod(shape))) for name, shape in self.parameters]
        self.moved = torch.cat([torch.full((size,), is_one, dtype=torch.float64) for is_one, size in shapes])

    def arrays(self, flat, noise=None):
        """Weights by name, under noise (name -> epsilon) if there is some."""
        start, found = 0, {}
        for name, shape in self.parameters:
            size = int(np.prod(shape))
            found[name], start = flat[start : start + size].reshape(shape), start + size
        return found if noise is None else found | {n: found[n] + found[f"{n}_sigma"] * e for n, e in noise.items()}

    def __call__(self, head, obs, flat=None, noise=None):
        """Outputs (..., n) of a head, by the learned weights or others (P,)."""
        arrays = self.arrays(self.flat if flat is None else flat, noise)
        if f"{head}.0.weight" not in arrays:
            head = {"policy": "actor", "value": "critic"}.get(head, head)
        x = torch.as_tensor(obs, dtype=torch.float64)
        for chain in ("common", head):
            layers = [name for name in arrays if name.startswith(f"{chain}.") and name.endswith("weight")]
            for k, name in enumerate(layers):
                x = x @ (arrays[name].T if self.of_torch else arrays[name]) + arrays[name.replace("weight", "bias")]
                if chain == "common" or k + 1 < len(layers):
                    if self.layer_norm:
                        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
                    x = self.activation(x)
        return x

    def step(self, loss, rate, longest):
        """One step down the gradient of `loss(weights)`, cut to `longest` if that is not 0; returns its length."""
        leaf = self.flat.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf), leaf)
        gradient = gradient * self.moved
        length = float(gradient.norm())
        if longest and length > longest:
            gradient = gradient * (longest / length)
        self.steps += 1
        self.first = ADAM[0] * self.first + (1 - ADAM[0]) * gradient
        self.second = ADAM[1] * self.second + (1 - ADAM[1]) * gradient**2
        step = self.first / (1 - ADAM[0] ** self.steps)
        if self.kind == "adam":
            step = step / ((self.second / (1 - ADAM[1] ** self.steps)).sqrt() + self.eps)
        self.flat = self.flat - rate * step
        return length


def named(algorithm):
    """Names and shapes of what is published, without the name of the one network."""
    return [(name.removeprefix("network."), shape) for name, shape in algorithm.parameters]


def flat_of_network(network):
    """All weights of a network (P,), copied."""
    return torch.cat([leaf.detach().reshape(-1) for leaf in network.parameters()])


def generator_of(algorithm):
    """A generator that draws what the algorithm will draw next."""
    rng, state = np.random.default_rng(0), algorithm.state()
    set_generator(rng, state["rng" if "rng" in state else "generator"])
    return rng


def tensor(array):
    """The same numbers in double precision."""
    return torch.as_tensor(np.asarray(array), dtype=torch.float64)


def assert_same_way(found, expected, start, near=2e-3):
    """Two vectors of weights differ by less than `near` of the way from where both began."""
    found, expected, start = (np.asarray(flat, np.float64) for flat in (found, expected, start))
    way = np.linalg.norm(expected - start)
    assert way > 0
    assert np.linalg.norm(found - expected) < near * way


def heads_of(**modules):
    """The linear networks among them by the names of heads; lists of several as q1, q2 ..."""
    found = {}
    for name, module in modules.items():
        several = isinstance(module, torch.nn.ModuleList)
        found |= {f"q{k + 1}": one for k, one in enumerate(module)} if several else {name: module}
    return found


def shapes_of(**modules):
    """Names and shapes (in, out) of their parameters, as `Plain` reads them."""
    return tuple(
        (f"{head}.{k}.{name}", tuple(reversed(tensor.shape)))
        for head, one in heads_of(**modules).items()
        for k, layer in enumerate([*one][::2])
        for name, tensor in (("weight", layer.weight), ("bias", layer.bias))
    )


def flat_of(**modules):
    """All their numbers (P,) in that order."""
    layers = [layer for one in heads_of(**modules).values() for layer in [*one][::2]]
    return torch.cat([one.detach().reshape(-1) for layer in layers for one in (layer.weight.T, layer.bias)])
