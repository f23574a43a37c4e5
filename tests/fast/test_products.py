"""Which library multiplies: the choice changes who does it, and no number by more than rounding."""

import numpy as np
import pytest
import torch
from made_rows import SPACES, agent, batch

from mlxe_async.algorithms import Clock
from mlxe_async.fast import products, updates
from mlxe_async.rows import Spaces

BOX = Spaces((3,), action_shape=(2,), action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
TWINS = [("sac", BOX, {"layers": [16, 12]}), ("ppo", SPACES, {"policy": [16], "value": [16]}), ("dqn", SPACES, {})]


@pytest.fixture(autouse=True)
def as_before():
    yield
    products.multiply_by("auto")


@pytest.fixture
def on(monkeypatch):
    """Have products be chosen as on a processor of a maker, with a number of threads."""

    def on(maker, threads=1):
        monkeypatch.setattr(products, "is_numpy_faster", lambda: maker == "AMD with AVX-512")
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        products.multiply_by("auto")

    return on


def learned_by(library, name, spaces, settings):
    """Weights after three updates, and what the way of updates says of itself."""
    algorithm = agent(name, spaces=spaces, **settings)
    way = updates(algorithm, products=library)
    assert way.twin is not None
    for number in range(3):
        way.update(batch(algorithm, rows=64, seed=number), Clock(updates=number, env_steps=100 + number))
    return algorithm.weights(), way.products


@pytest.mark.parametrize(("name", "spaces", "settings"), TWINS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_weights_are_the_same_but_for_rounding(name, spaces, settings, library):
    weights, _ = learned_by(library, name, spaces, settings)
    expected, _ = learned_by("auto", name, spaces, settings)
    np.testing.assert_allclose(weights, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "spaces", "settings"), TWINS)
def test_numpy_does_without_torchs_products(monkeypatch, name, spaces, settings):
    for product in ("mm", "bmm"):
        monkeypatch.setattr(torch, product, None)
    _, told = learned_by("numpy", name, spaces, settings)
    assert told == "numpy in 1 thread"


def test_a_library_that_was_chosen_multiplies_whatever_the_shape():
    for library, by in (("torch", "bmm"), ("numpy", "matmul")):
        products.multiply_by(library)
        for outputs in (1, 64):
            left, right, out = torch.randn(2, 64, 64), torch.randn(2, 64, outputs), torch.empty(2, 64, outputs)
            chosen = products.product(left, right, out)
            assert chosen.func.__name__ == by
            chosen()
            torch.testing.assert_close(out, left @ right)


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "by"),
    [(64, 64, 64, "bmm"), (64, 5, 64, "bmm"), (64, 64, 5, "matmul"), (5, 64, 64, "matmul"), (64, 1, 64, "mul")],
)
def test_the_choice_follows_from_the_shape(on, rows, inputs, outputs, by):
    on("Intel")
    left, right = torch.randn(2, rows, inputs), torch.randn(2, inputs, outputs)
    out = torch.empty(2, rows, outputs)
    for _ in range(2):
        chosen = products.product(left, right, out)
        assert chosen.func.__name__ == by
        chosen()
        torch.testing.assert_close(out, left @ right)


def test_on_amd_with_avx512_numpy_multiplies_alone_unless_threads_share_a_product(on):
    for threads, by in ((1, "matmul"), (2, "bmm")):
        on("AMD with AVX-512", threads)
        left, right, out = torch.randn(2, 64, 64), torch.randn(2, 64, 64), torch.empty(2, 64, 64)
        assert products.product(left, right, out).func.__name__ == by
        assert products.by_torch(auto=True) is (by == "bmm")
        assert (
            products.told()
            == {1: "numpy in 1 thread", 2: "numpy for small and thin ones, else torch in 2 threads"}[threads]
        )


@pytest.mark.parametrize(
    ("told", "is_faster"),
    [
        ("vendor_id\t: AuthenticAMD\nflags\t: avx2 avx512f avx512dq\n", True),
        ("vendor_id\t: AuthenticAMD\nflags\t: avx avx2\n", False),
        ("vendor_id\t: GenuineIntel\nflags\t: avx2 avx512f\n", False),
        (None, False),
    ],
)
def test_maker_and_features_are_read_where_the_kernel_tells_them(monkeypatch, tmp_path, told, is_faster):
    if told is not None:
        (tmp_path / "cpuinfo").write_text(told)
    monkeypatch.setattr(products, "Path", lambda _place: tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert products.is_numpy_faster.__wrapped__() is is_faster
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not products.is_numpy_faster.__wrapped__()  # such a torch multiplies by what numpy has


@pytest.mark.parametrize(("threads", "words"), [(1, "torch in 1 thread"), (2, "torch in 2 threads")])
def test_threads_are_told(on, threads, words):
    on("Intel", threads)
    products.by_torch(auto=True)
    assert products.told() == f"numpy for small and thin ones, else {words}"
    products.multiply_by("torch")
    assert products.told() == ""
    products.by_torch(auto=False)
    assert products.told() == words


def test_of_products_that_there_are_not_nothing_is_told():
    assert updates(agent("dqn"), fast=False).products == ""
    algorithm = agent("dqn", spaces=Spaces((2, 44, 44), "|u1", actions=3), body="small")
    way = updates(algorithm, products="numpy")
    way.update(batch(algorithm, rows=8), Clock(updates=1, env_steps=100))
    assert way.twin is not None
    assert way.products == ""  # torch's convolutions alone
