"""Plain networks that numpy evaluates: the numbers are torch's, and whatever is not plain is torch's own affair."""

import copy
import io
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from mlxe_async.algorithms import Acting, Algorithm
from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.interface import NoSettings
from mlxe_async.networks import sequential
from mlxe_async.networks.sequential import numpy_of
from mlxe_async.rows import Spaces


@pytest.fixture(autouse=True)
def by_numpy(monkeypatch):
    """Whether numpy had the answer, call by call."""
    answers, evaluated = [], sequential._evaluated

    def noting(*args):
        found = evaluated(*args)
        answers.append(found is not None)
        return found

    monkeypatch.setattr(sequential, "_evaluated", noting)
    return answers


def net(*more, inputs=4, outputs=3):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs), *more)


def placed(module):
    sequential.act_by_numpy([module])
    return module


def observations(*shape):
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape or (5, 4)).astype(np.float32))


def close(found, expected):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    largest = expected.abs().nan_to_num(posinf=0.0).max().item() if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * largest)


def agrees(module, x, answers, *, numpy):
    """A module says what it says where torch evaluates it; `numpy`: who is to have evaluated it."""
    answers.clear()
    with torch.inference_mode():
        found = module(x)
        assert answers == [numpy]
        ours = vars(module).pop("forward")
        close(found, module(x))
        vars(module)["forward"] = ours
    return found


NETS = {
    "tanh": lambda: net(),
    "relu": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
    "relu in place": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)),
    "elu": lambda: nn.Sequential(nn.Linear(4, 8), nn.ELU(0.7), nn.Linear(8, 8), nn.ELU(inplace=True)),
    "sigmoid": lambda: nn.Sequential(nn.Linear(4, 8), nn.Sigmoid()),
    "activation first": lambda: nn.Sequential(nn.Tanh(), nn.Linear(4, 8)),
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2, bias=False)),
    "bare norms": lambda: nn.Sequential(
        nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 8), nn.LayerNorm(8, eps=0.1, bias=False)
    ),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ELU())), nn.Identity(), net(inputs=8)
    ),
    "identity first": lambda: nn.Sequential(nn.Identity(), nn.Tanh(), nn.Identity(), nn.ReLU(), nn.Linear(4, 3)),
    "identity last": lambda: net(nn.Identity(), nn.Sequential()),
}


@pytest.mark.parametrize("shape", [(5, 4), (1, 4), (0, 4), (4,), (2, 3, 4), (2, 0, 4), (2, 1, 3, 4)], ids=str)
@pytest.mark.parametrize("name", NETS)
def test_the_numbers_are_those_of_torch(name, shape, by_numpy):
    module = placed(NETS[name]())
    x = observations(*shape)
    before = x.clone()
    agrees(module, x, by_numpy, numpy=True)
    assert torch.equal(x, before)


def test_pictures_are_flattened(by_numpy):
    module = placed(nn.Sequential(nn.Flatten(), nn.Linear(24, 3), nn.Flatten()))
    for shape in ((5, 2, 3, 4), (0, 2, 3, 4), (1, 24)):
        agrees(module, observations(*shape), by_numpy, numpy=True)
    with torch.inference_mode(), pytest.raises(IndexError):  # as torch tells it
        module(observations(24))


def test_the_numbers_hold_where_they_are_large_small_or_none(by_numpy):
    special = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 90.0, -90.0, 1e4, -1e4, 3e38, -3e38, np.inf, -np.inf, np.nan])
    for layer in (nn.Tanh(), nn.ReLU(), nn.ELU(), nn.Sigmoid()):
        module = nn.Sequential(nn.Linear(1, 1), layer)
        with torch.no_grad():
            module[0].weight.fill_(1.0)
            module[0].bias.fill_(0.0)
            by_numpy.clear()
            with warnings.catch_warnings(), torch.inference_mode(), np.errstate(all="raise"):
                warnings.simplefilter("error")
                found = placed(module)(special[:, None])
            assert by_numpy == [True]
            torch.testing.assert_close(found, layer(special)[:, None], rtol=1e-6, atol=1e-38, equal_nan=True)


def test_sums_beyond_all_numbers_are_told_by_nobody(by_numpy):
    module = placed(nn.Sequential(nn.Linear(1, 1)))
    with torch.no_grad():
        module[0].weight.fill_(1.0)
        module[0].bias.fill_(3e38)
    agrees(module, torch.tensor([[3e38], [-np.inf]]), by_numpy, numpy=True)


def test_a_norm_of_numbers_far_from_zero_is_no_worse_than_that_of_torch(by_numpy):
    module = placed(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)))
    x = 1000 + observations(7, 64)
    exact = copy.deepcopy(module).double()
    sequential.act_by_torch([exact])
    with torch.inference_mode():
        truth = exact(x.double())
        torchs = nn.Sequential.forward(module, x)
        found = module(x)
    assert by_numpy == [True]
    assert (found - truth).abs().max() <= (torchs - truth).abs().max() + 1e-6


def test_inputs_of_any_layout_are_read_in_place(by_numpy):
    module = placed(net())
    wide = observations(4, 10)
    for x in (wide.t(), observations(10, 8)[::2, ::2], observations(1, 4).expand(5, 4), wide.t()[3:7]):
        agrees(module, x, by_numpy, numpy=True)


def test_what_is_returned_is_the_authors_to_do_with_as_with_any_tensor(by_numpy):
    module, x = placed(net()), observations()
    found = agrees(module, x, by_numpy, numpy=True)
    again = module.forward(x)  # outside of inference mode by torch, with a gradient
    assert again.requires_grad
    assert found.is_inference()
    assert found.is_contiguous()
    with torch.inference_mode():
        first = module(x)
        kept = first.clone()
        module(-x)
        assert torch.equal(first, kept)  # no buffer is used twice
        first.add_(1).clamp_(-1, 1)
        assert not torch.equal(first, kept)


class Derived(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + 1


class DerivedLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class DerivedParameter(nn.Parameter):
    pass


def with_(change, module=None):
    module = net() if module is None else module
    change(module)
    return module


ODD = {
    "a subclass": lambda: Derived(nn.Linear(4, 3)),
    "a subclass within": lambda: nn.Sequential(DerivedLinear(4, 3), nn.Tanh()),
    "a subclass deep within": lambda: net(nn.Sequential(Derived(nn.Tanh()))),
    "dropout": lambda: net(nn.Dropout(0.5)),
    "an unknown layer": lambda: net(nn.GELU()),
    "a convolution": lambda: nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 3)),
    "double precision": lambda: net().double(),
    "half precision": lambda: net().half(),
    "one double layer": lambda: net(nn.Linear(3, 3, dtype=torch.float64)),
    "on no device": lambda: net().to("meta"),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(3), nn.Tanh()),
    "no linear layer": lambda: nn.Sequential(nn.Tanh(), nn.ReLU()),
    "nothing": lambda: nn.Sequential(),
    "a norm over two axes": lambda: nn.Sequential(nn.LayerNorm((3, 4)), nn.Linear(4, 3)),
    "another flattening": lambda: nn.Sequential(nn.Flatten(0), nn.Linear(4, 3)),
    "hook": lambda: with_(lambda m: m.register_forward_hook(lambda *_: None)),
    "hook within": lambda: with_(lambda m: m[1].register_forward_hook(lambda *_: None)),
    "pre-hook within": lambda: with_(lambda m: m[0].register_forward_pre_hook(lambda *_: None)),
    "backward hook within": lambda: with_(lambda m: m[0].register_full_backward_hook(lambda *_: None)),
    "backward pre-hook": lambda: with_(lambda m: m[0].register_full_backward_pre_hook(lambda *_: None)),
    "own forward": lambda: with_(lambda m: setattr(m[0], "forward", lambda x: x)),
    "own forward of the whole": lambda: with_(lambda m: setattr(m, "forward", lambda x: x)),
    "own call": lambda: with_(lambda m: setattr(m[0], "_call_impl", lambda x: x)),
    "one more parameter": lambda: with_(lambda m: m.register_parameter("scale", nn.Parameter(torch.ones(1)))),
    "one more within": lambda: with_(lambda m: m[0].register_parameter("scale", nn.Parameter(torch.ones(1)))),
    "one more buffer": lambda: with_(lambda m: m[1].register_buffer("scale", torch.ones(1))),
    "a hidden weight": lambda: with_(lambda m: vars(m[0]).update(weight=torch.zeros(16, 4))),
    "a weight of its own kind": lambda: with_(lambda m: setattr(m[0], "bias", DerivedParameter(torch.ones(16)))),
    "weight norm": lambda: with_(lambda m: parametrizations.weight_norm(m[0])),
    "spectral norm": lambda: with_(lambda m: parametrizations.spectral_norm(m[2])),
    "pruned": lambda: with_(lambda m: prune.l1_unstructured(m[0], "weight", amount=0.5)),
    "compiled": lambda: with_(lambda m: m.compile(backend="eager")),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_plain_is_left_to_torch(name):
    module = ODD[name]()
    assert numpy_of(module) is None
    before = vars(module).get("forward")
    placed(module)
    assert vars(module).get("forward") is before


def late(module):
    """Changes after the first use: what -> change, and whether numpy may go on."""
    twice = copy.deepcopy(module)
    return {
        "hook": (lambda: module.register_forward_hook(lambda _m, _x, y: y + 1), True),
        "pre-hook": (lambda: module.register_forward_pre_hook(lambda _m, x: (x[0] + 1,)), True),
        "hook within": (lambda: module[1].register_forward_hook(lambda _m, _x, y: y + 1), False),
        "pre-hook within": (lambda: module[1].register_forward_pre_hook(lambda _m, x: (x[0] + 1,)), False),
        "new hooks": (lambda: with_new_hooks(module[0]), False),
        "own forward": (lambda: setattr(module[1], "forward", lambda x: x + 1), False),
        "own call": (lambda: setattr(module[1], "_call_impl", lambda x: x + 1), False),
        "replaced parameter": (lambda: setattr(module[0], "weight", nn.Parameter(torch.ones(16, 4))), True),
        "replaced bias": (lambda: setattr(module[0], "bias", nn.Parameter(torch.ones(16))), True),
        "no bias": (lambda: setattr(module[0], "bias", None), True),
        "bias of one number": (lambda: setattr(module[0], "bias", nn.Parameter(torch.ones(1))), False),
        "other size": (lambda: put(module, 2, nn.Linear(16, 7)), True),
        "other data": (lambda: setattr(module[0].weight, "data", torch.ones(16, 4)), True),
        "fewer outputs": (lambda: cut(module[2]), True),
        "weight of its own kind": (
            lambda: setattr(module[2], "weight", DerivedParameter(module[2].weight.data)),
            False,
        ),
        "turned data": (lambda: setattr(module[1][0].weight, "data", module[1][0].weight.data.t()), True),
        "in place": (lambda: module[0].weight.data.mul_(2), True),
        "loaded": (lambda: module.load_state_dict({k: v + 1 for k, v in twice.state_dict().items()}), True),
        "vector": (lambda: nn.utils.vector_to_parameters(torch.linspace(-1, 1, 403), module.parameters()), True),
        "shared memory": (module.share_memory, True),
        "more": (lambda: module.append(nn.Sigmoid()), True),
        "dropout": (lambda: module.append(nn.Dropout()).eval(), False),
        "less": (lambda: module.pop(2), True),
        "other activation": (lambda: put(module, 1, nn.ReLU()), True),
        "same layer twice": (lambda: put(module, 1, module[1][0]), True),
        "tied weights": (lambda: setattr(module[1][0], "bias", module[0].bias), True),
        "weight norm": (lambda: parametrizations.weight_norm(module[0]), False),
        "pruned": (lambda: prune.l1_unstructured(module[0], "weight", amount=0.5), False),
        "training": (module.train, True),
        "frozen": (lambda: module.requires_grad_(requires_grad=False), True),
        "another type": (lambda: setattr(module, "__class__", Derived), False),
    }


def put(module, index, layer):
    module[index] = layer


def cut(layer):
    layer.weight.data, layer.bias.data = layer.weight.data[:2], layer.bias.data[:2]


def with_new_hooks(layer):
    layer._forward_hooks = type(layer._forward_hooks)()
    layer.register_forward_hook(lambda _m, _x, y: y + 1)


@pytest.mark.parametrize("name", late(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 4))))
def test_what_changes_after_the_first_use_is_noticed(name, by_numpy):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 3)).eval()
    x = observations()
    before = agrees(placed(module), x, by_numpy, numpy=True).clone()
    change, goes_on = late(module)[name]
    change()
    found = agrees(module, x, by_numpy, numpy=goes_on)
    assert name in ("training", "frozen", "shared memory", "pruned", "weight of its own kind") or not torch.equal(
        found, before
    )


def test_a_network_that_became_double_is_left_to_torch(by_numpy):
    module, x = placed(net()), observations()
    agrees(module, x, by_numpy, numpy=True)
    module.double()
    agrees(module, x.double(), by_numpy, numpy=False)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="same dtype"):
        module(x)
    agrees(module.float(), x, by_numpy, numpy=True)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(5, 4, dtype=torch.float64),
        torch.zeros(5, 4, dtype=torch.int64),
        torch.zeros(5, 3),
        torch.zeros(()),
        np.zeros((5, 4), np.float32),
        None,
    ],
    ids=["double", "whole", "narrow", "scalar", "array", "nothing"],
)
def test_an_input_that_torch_refuses_is_refused_in_its_words(x, by_numpy):
    module = placed(net())
    told = []
    for call in (module, lambda given: nn.Sequential.forward(module, given)):
        with torch.inference_mode(), pytest.raises((RuntimeError, TypeError)) as error:
            call(x)
        told.append((error.type, str(error.value)))
    assert told[0] == told[1]
    assert by_numpy == [False]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_parameter_that_is_gone_is_missed_in_torchs_words(index, name, by_numpy):
    module, x = placed(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))), observations()
    agrees(module, x, by_numpy, numpy=True)
    delattr(module[index], name)
    module[index].register_parameter("other", nn.Parameter(torch.ones(4)))
    with torch.inference_mode(), pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
        module(x)


def test_inputs_by_name_and_too_many_are_torchs_affair(by_numpy):
    module, x = placed(net()), observations()
    with torch.inference_mode():
        close(module(input=x), module(x))
        with pytest.raises(TypeError):
            module(x, x)
    assert by_numpy == [True]


def test_an_input_that_is_to_change_in_place_changes(by_numpy):
    module, x = placed(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3))), observations()
    with torch.inference_mode():
        module(x)
    assert not any(by_numpy)
    assert (x >= 0).all()


def test_with_gradients_torch_evaluates(by_numpy):
    module, x = placed(net()), observations()
    module(x).sum().backward()
    assert module[0].weight.grad.abs().sum() > 0
    with torch.no_grad():
        assert not module(x).is_inference()
    with torch.inference_mode(), torch.inference_mode(False):
        given = x.clone().requires_grad_()
        module(given).sum().backward()
        assert given.grad.abs().sum() > 0
    assert not any(by_numpy)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_derivatives_forwards_are_torchs(by_numpy):
    forward, module, x = torch.autograd.forward_ad, placed(net()), observations()
    with forward.dual_level(), torch.no_grad():
        assert forward.unpack_dual(module(forward.make_dual(x, x))).tangent is not None
    assert by_numpy == [False]


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_who_listens_or_transforms_hears_torch(by_numpy):
    module, x = placed(net()), observations(3, 5, 4)
    with torch.inference_mode():
        expected = nn.Sequential.forward(module, x)
        close(torch.vmap(module)(x), expected)
        close(torch.vmap(lambda one: one[:, :3] + module(x[0]))(x), x[..., :3] + expected[0])
        with Counting() as counting:
            module(x)
        assert counting.seen
        with torch.device("cpu"):
            module(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert module(x).dtype == torch.bfloat16
        assert not any(by_numpy)
        traced = torch.jit.trace(module, x, check_trace=False)
        assert not any(by_numpy)
        close(traced(x), expected)


def test_hooks_of_all_modules_are_called(by_numpy):
    module, x, seen = placed(net()), observations(), []
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ):
        handle = register(lambda module, *_: seen.append(type(module)))
        try:
            with torch.inference_mode():
                module(x)
        finally:
            handle.remove()
        assert sorted(kind.__name__ for kind in seen) == ["Linear", "Linear", "Sequential", "Tanh"]
        seen.clear()
    assert by_numpy == [False, False]
    agrees(module, x, by_numpy, numpy=True)


def test_a_type_that_somebody_patched_is_torchs(by_numpy, monkeypatch):
    module, x = placed(net()), observations()
    before = agrees(module, x, by_numpy, numpy=True)
    for kind, name in ((nn.Linear, "forward"), (nn.Tanh, "forward"), (nn.Sequential, "forward"), (nn.Tanh, "__call__")):
        torchs = getattr(kind, name)
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, lambda self, x, torchs=torchs: torchs(self, x) + 1, raising=False)
            assert not torch.equal(agrees(module, x, by_numpy, numpy=False), before)
    agrees(module, x, by_numpy, numpy=True)


def test_other_weights_for_one_call_are_used(by_numpy):
    module, x = placed(net()), observations()
    others = {name: torch.randn_like(value) for name, value in module.state_dict().items()}
    with torch.inference_mode():
        found = torch.func.functional_call(module, others, x)
        fresh = net()
        fresh.load_state_dict(others)
        close(found, fresh(x))
        by_numpy.clear()
        several = {name: torch.stack([value, 2 * value]) for name, value in others.items()}
        both = torch.vmap(lambda weights: torch.func.functional_call(module, weights, x))(several)
        close(both[0], fresh(x))
        assert by_numpy == [False]
    agrees(module, x, by_numpy, numpy=True)


def test_a_compiler_sees_torchs_code(by_numpy):
    module, x = placed(net()), observations()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    with torch.inference_mode():
        close(compiled(x), nn.Sequential.forward(module, x))
        function = torch.compile(lambda given: module(given) + 1, backend="eager", fullgraph=True)
        close(function(x), nn.Sequential.forward(module, x) + 1)
        assert by_numpy == []
        module[0].weight.mul_(2)
        close(compiled(x), nn.Sequential.forward(module, x))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_exports_a_network_finds_torchs_code(by_numpy):
    module, x = placed(net()), observations()
    expected = nn.Sequential.forward(module, x)
    for made in (
        torch.export.export(module, (x,)).module(),
        torch.jit.script(module),
        torch.fx.symbolic_trace(module),
    ):
        close(made(x), expected)
    assert not any(by_numpy)


def test_copies_are_evaluated_by_their_own_weights(by_numpy):
    module, x = placed(net()), observations()
    agrees(module, x, by_numpy, numpy=True)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    pickled = pickle.loads(pickle.dumps(module))  # noqa: S301 - this test's own
    stored = [pickled, torch.load(file, weights_only=False)]
    copied = copy.deepcopy(copy.deepcopy(module))
    for one in (*stored, copied):
        with torch.inference_mode():
            one[0].weight.mul_(3)
            by_numpy.clear()
            close(one(x), nn.Sequential.forward(one, x))
            assert any(by_numpy) == (one is copied)
            assert not torch.equal(one(x), module(x))
            close(module(x), nn.Sequential.forward(module, x))
    copied.__class__ = Derived
    agrees(copied, x, by_numpy, numpy=False)
    part = module[:2]
    assert type(part) is nn.Sequential
    with torch.inference_mode():
        close(part(x), nn.Sequential.forward(part, x))


def test_a_network_may_be_used_by_several_threads_at_once(by_numpy):
    module, start, found = placed(net()), threading.Barrier(4), {}
    inputs = [observations(k + 1, 4) for k in range(4)]

    def call(k):
        start.wait(10)
        with torch.inference_mode():
            found[k] = [module(inputs[k]) for _ in range(50)]

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    with torch.inference_mode():
        for k, x in enumerate(inputs):
            assert len(found[k]) == 50
            for one in found[k]:
                close(one, nn.Sequential.forward(module, x))
    assert by_numpy == [True] * 200


# -- an executor's modules --


class Branches(nn.Module):
    """A module of the author's own, with a plain network, and parts that are none."""

    def __init__(self):
        super().__init__()
        self.body = net(outputs=8)
        self.heads = nn.ModuleList([nn.Linear(8, 2), nn.Sequential(nn.Linear(8, 1), nn.Dropout())])

    def forward(self, x):
        return self.heads[0](self.body(x))


class Own(Algorithm):
    def build(self):
        self.actor, self.other = net(outputs=2), {"branches": [Branches()]}
        self.again = self.actor

    def policy(self, obs, acting=None):
        return Categorical(self.actor(obs) + self.other["branches"][0](obs))

    def update(self, batch, clock):
        return {}


def made(learns):
    return Own(NoSettings(), Spaces((4,), actions=2), seed=0, learns=learns)


def test_an_executor_acts_by_numpy_and_a_learner_by_torch(by_numpy):
    executor, learner, obs = made(learns=False), made(learns=True), observations(6, 4).numpy()
    learner.actor[0].weight.data.mul_(2)
    executor.load(learner.weights())
    acts = []
    for one in (executor, learner):
        acts.append(one.act(obs, np.random.default_rng(0), Acting()))
        np.testing.assert_array_equal(one.greedy(obs), executor.greedy(obs))
    assert by_numpy.count(True) == len(by_numpy) == 2 + 2 * 3  # two networks: act, and greedy three times
    np.testing.assert_array_equal(acts[0]["action"], acts[1]["action"])
    np.testing.assert_allclose(acts[0]["log_prob"], acts[1]["log_prob"], rtol=1e-6, atol=1e-6)
    assert "forward" not in vars(learner.actor)
    assert type(executor.actor) is nn.Sequential
    assert [name for name, _ in executor.parameters] == [name for name, _ in learner.parameters]
    assert executor.state().keys() == made(learns=False).state().keys()


def test_newly_loaded_weights_act_at_once(by_numpy):
    executor, obs = made(learns=False), observations(6, 4).numpy()
    for scale in (1, 2, 3):
        flat = made(learns=True).weights() * scale
        executor.load(flat)
        learner = made(learns=True)
        learner.load(flat)
        logits = [one.act(obs, np.random.default_rng(0), Acting())["log_prob"] for one in (executor, learner)]
        np.testing.assert_allclose(*logits, rtol=1e-6, atol=1e-6)
    assert by_numpy
    assert all(by_numpy)


def test_a_module_that_is_handed_out_is_torchs_alone(by_numpy):
    executor = made(learns=False)
    whole = executor.module()
    assert not any("forward" in vars(part) for part in whole.modules())
    assert "forward" in vars(executor.actor)
    with torch.inference_mode():
        close(whole.actor(observations()), nn.Sequential.forward(executor.actor, observations()))
    assert by_numpy == []


def test_a_network_in_place_of_another_acts_in_its_place(by_numpy):
    executor, obs = made(learns=False), observations(6, 4).numpy()
    executor.greedy(obs)
    executor.actor = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    with torch.inference_mode():
        expected = executor.policy(torch.from_numpy(obs)).logits.argmax(-1).numpy()
    by_numpy.clear()
    np.testing.assert_array_equal(executor.greedy(obs), expected)
    assert by_numpy == [True]  # the other module's


def test_a_torch_that_does_not_tell_what_goes_on_evaluates_everything(monkeypatch):
    assert numpy_of(net()) is not None
    monkeypatch.setattr(sequential, "_FOUND", (*sequential._FOUND[:-1], None))
    assert numpy_of(net()) is None
