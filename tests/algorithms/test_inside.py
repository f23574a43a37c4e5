"""What an object holds is found however deep it lies, told by its way, and put back after somebody has tried it out."""

import collections
import functools
import random

import numpy as np
import pytest
import torch
from torch import nn

from mlxe_async.algorithms.state import inside
from mlxe_async.algorithms.state.untouched import untouched


class Slotted:
    __slots__ = ("inner", "unset")

    def __init__(self, inner):
        self.inner = inner


def closed(value):
    return lambda: value


@pytest.mark.parametrize(
    ("around", "way"),
    [
        (lambda value: [value], "it.0"),
        (lambda value: (1, value), "it.1"),
        (lambda value: {"a": value}, "it.a"),
        (lambda value: collections.deque([value]), "it.0"),
        (lambda value: {value}, "it.0"),
        (Slotted, "it.inner"),
        (closed, "it.value"),
        (lambda value: functools.partial(print, value, end=""), "it.args.0"),
        (lambda value: Slotted(closed([value])), "it.inner.value.0"),
        (lambda value: nn.Sequential(value), "it.0"),
    ],
)
def test_a_module_is_found_wherever_it_is(around, way):
    module = nn.Linear(2, 2)
    found = dict(inside.walk({"it": around(module)}))
    assert found[way] is module
    assert found[f"{way}.weight"] is module.weight


def test_a_circle_is_walked_once():
    one = [1]
    one.append(one)
    assert len(list(inside.walk({"it": one}))) == 2


def test_the_walk_ends_after_as_many_things_as_were_asked_for():
    assert len(list(inside.walk({"it": list(range(1000))}, most=10))) == 10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (np.zeros(3), np.zeros(4)),
        (torch.zeros(2), torch.tensor([0.0, 1.0])),
        (np.random.default_rng(0), np.random.default_rng(1)),
        (random.Random(0), random.Random(1)),  # noqa: S311 - no secrets here
        (np.random.RandomState(0), np.random.RandomState(1)),
        (len, max),
        ("a", "b"),
        ([1], [1, 2]),
        (closed, Slotted.__init__),
    ],
)
def test_what_differs_has_another_digest(one, other):
    assert inside.digests({"it": one}) == inside.digests({"it": one})
    assert inside.digests({"it": one}) != inside.digests({"it": other})


def test_everything_that_was_changed_in_between_is_as_it_was():
    net = nn.Linear(2, 2)
    net.gain, weight = 1.0, net.weight.detach().clone()
    closure, cell = closed([1]), closed(5)
    held = {
        "net": net,
        "list": [1, 2],
        "deque": collections.deque([1], maxlen=3),
        "set": {1},
        "slot": Slotted(3),
        "array": np.zeros(2),
        "rng": np.random.default_rng(0),
        "closure": closure,
        "cell": cell,
    }
    before, drawn = inside.digests(held), held["rng"].bit_generator.state
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = (random.gauss(0, 1), np.random.normal(), torch.randn(1).item())
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with untouched(held):
        with torch.no_grad():
            net.weight += 1
        net.gain, net.more = 2.0, nn.Linear(1, 1)
        net.register_forward_hook(lambda *_: None)
        held["list"].append(3)
        held["deque"].append(3)
        held["set"].clear()
        held["slot"].inner = held["slot"].unset = 4
        held["array"] += 1
        held["rng"].normal()
        closure().append(2)
        cell.__closure__[0].cell_contents = 6
        random.gauss(0, 1)
        np.random.normal()
        torch.randn(1)
    assert inside.digests(held) == before
    assert torch.equal(net.weight, weight)
    assert held["rng"].bit_generator.state == drawn
    assert (random.gauss(0, 1), np.random.normal(), torch.randn(1).item()) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble, np.uint16])
@pytest.mark.parametrize("shape", [(300, 300), (2, 200, 300), (4, 4), (90_000,)])
@pytest.mark.parametrize("lies", ["rows", "columns", "backwards", "every second", "read-only columns"])
def test_a_copy_lies_by_rows_and_is_apart_from_what_it_is_of(shape, lies, dtype):
    numbers = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    made = {
        "rows": lambda: numbers.copy(),
        "columns": lambda: np.asfortranarray(numbers),
        "backwards": lambda: numbers[::-1].copy()[::-1],
        "every second": lambda: np.repeat(numbers, 2, axis=0)[::2],
        "read-only columns": lambda: np.asfortranarray(numbers),
    }[lies]()
    made.flags.writeable = lies != "read-only columns"
    copy = inside.copy_of(made)
    np.testing.assert_array_equal(copy, numbers)
    assert copy.flags.c_contiguous
    assert copy.flags.writeable
    assert not np.shares_memory(copy, made)


def test_a_tensor_by_columns_is_told_where_it_lies_and_summed_by_its_numbers():
    tensor = torch.arange(90_000.0).reshape(300, 300).T
    assert np.shares_memory(inside.array_of(tensor), tensor.numpy())
    assert inside._sum_of(inside.array_of(tensor)) == inside._sum_of(tensor.contiguous().numpy())
