"""Ways to change what a built-in algorithm learns without an algorithm of one's own: code that somebody's module runs.

Each function is such code, for the algorithm that it is told for. It changes the process in which it is called.
"""

import functools
import importlib
import inspect
import math
import sys
import types

import numpy as np
import torch

from mlxe_async import optimisers
from mlxe_async.algorithms import ddpg, dqn, interface, ppo, sac, td3
from mlxe_async.algorithms.mlxe import critics
from mlxe_async.algorithms.mlxe import paper as mlxe
from mlxe_async.algorithms.parts import continuous, layers, on_policy, policies, value_based
from mlxe_async.maths import annealing, correction, gradients, metrics, returns
from mlxe_async.networks import bodies, convolutions, dense, heads

PPO, DQN, MLxE, SAC, TD3, DDPG = ppo.PPO, dqn.DQN, mlxe.MLxE, sac.SAC, td3.TD3, ddpg.DDPG
ATTACKS = {}


def attack(name):
    def add(function):
        ATTACKS[function.__name__] = (name, function)
        return function

    return add


def times(factor, function):
    """The same function, whose result, or each part of it that is a number, is so many times as large."""

    @functools.wraps(function)
    def changed(*given, **named):
        found = function(*given, **named)
        return tuple(factor * one for one in found) if isinstance(found, tuple) else factor * found

    return changed


def loss_times(factor, loss):
    @functools.wraps(loss)
    def changed(self, rows):
        total, *more = loss(self, rows)
        return (factor * total, *more)

    return changed


def with_column(name, change, columns):
    @functools.wraps(columns)
    def changed(self, batch):
        rows = columns(self, batch)
        return rows | {name: change(rows[name])}

    return changed


# -- wrapping --


@attack("ppo")
def a_loss_is_wrapped():
    PPO.loss = loss_times(30, PPO.loss)
    PPO.update = functools.wraps(PPO.update)(lambda self, batch, clock, old=PPO.update: old(self, batch, clock))


@attack("ppo")
def an_update_is_wrapped_by_the_clock():
    old = PPO.update

    @functools.wraps(old)
    def update(self, batch, clock):
        return old(self, batch | {"reward": (1 - 2 * (clock.updates > 0)) * batch["reward"]}, clock)

    PPO.update = update


@attack("ppo")
def a_pure_function_is_wrapped():
    ppo.value_loss = times(0.1, ppo.value_loss)


@attack("mlxe")
def a_function_is_wrapped_in_a_cache():
    mlxe.policy_loss = functools.wraps(mlxe.policy_loss)(functools.cache(times(5, mlxe.policy_loss)))


@attack("dqn")
def a_function_is_wrapped_in_a_partial():
    dqn.q_loss = functools.partial(lambda old, *given: 5 * old(*given), dqn.q_loss)


@attack("dqn")
def a_function_is_wrapped_in_an_object():
    class Wrapped:
        def __init__(self, old):
            functools.update_wrapper(self, old)

        def __call__(self, *given):
            return 5 * self.__wrapped__(*given)

    dqn.q_loss = Wrapped(dqn.q_loss)


@attack("sac")
def a_static_function_is_wrapped_as_one():
    continuous.critic_loss = sac.critic_loss = staticmethod(times(5, sac.critic_loss))


@attack("ddpg")
def a_method_is_wrapped_as_a_partial_method():
    DDPG.targets = functools.partialmethod(lambda self, factor, rows, old=DDPG.targets: factor * old(self, rows), 5)


@attack("mlxe")
def a_wrapper_says_that_it_wraps_nothing():
    mlxe.value_loss = times(5, mlxe.value_loss)
    del mlxe.value_loss.__wrapped__


# -- what is asked by super, and in which order --


@attack("td3")
def what_a_subclass_asks_by_super_is_changed():
    continuous.Continuous.build = lambda self, own=continuous.Continuous.build: own(self)
    TD3.following_action = times(-0.5, TD3.following_action)


@attack("td3")
def a_method_is_put_below():
    TD3.targets = lambda self, rows: 5 * DDPG.targets(self, rows)


@attack("sac")
def a_method_is_changed_above():
    continuous.Continuous.judged = times(2, continuous.Continuous.judged)


@attack("ddpg")
def a_class_gets_another_base():
    class Other(continuous.Continuous):
        columns = with_column("partial", lambda one: one + 5, continuous.Continuous.columns)

    DDPG.__bases__ = (Other,)


@attack("sac")
def a_mixin_comes_before_the_bases():
    class Mixin:
        def columns(self, batch):
            rows = super().columns(batch)
            return rows | {"partial": rows["partial"] + 5}

    SAC.__bases__ = (Mixin, *SAC.__bases__)


@attack("dqn")
def the_root_of_all_finds_attributes_otherwise():
    def found(self, name):
        return (lambda q: 2 * q) if name == "value" else object.__getattribute__(self, name)

    interface.Algorithm.__getattribute__ = found


@attack("sac")
def a_cell_of_super_holds_another_class():
    built = continuous.Continuous.build

    def build(self):
        built(self)
        self.see.register_forward_hook(lambda _module, _given, found: -2 * found)

    interface.Algorithm.build, interface.Algorithm.derive_many = build, continuous.Continuous.derive_many
    (cell,) = SAC.build.__closure__
    cell.cell_contents = continuous.Continuous


# -- names that hold something else --


@attack("dqn")
def a_name_of_the_paper_holds_another_function():
    dqn.clip_grad_norm_ = lambda gradient, _most: gradient.mul_(-1).norm()


@attack("dqn")
def a_name_is_swapped_that_is_reached_by_another_way_too():
    value_based.annealing = types.SimpleNamespace(linear=lambda *_given: 0.5)
    gradients.clip_grad_norm_ = dqn.clip_grad_norm_ = lambda gradient, _most: gradient.mul_(-1).norm()


@attack("ppo")
def a_distribution_is_swapped_where_it_is_imported():
    class Flat(policies.Categorical):
        def entropy(self):
            return 50 * super().entropy()

    policies.Categorical = Flat


@attack("sac")
def math_of_a_paper_is_another():
    fake = types.SimpleNamespace(**vars(math))
    fake.log = lambda value: 5 + math.log(value)
    sac.math = continuous.math = fake
    sac.LOG_STD = (-1.0, -0.9)


@attack("ppo")
def numpy_of_a_module_is_another():
    returns.np = types.SimpleNamespace(**{**vars(np), "zeros_like": np.ones_like, "zeros": np.ones, "empty": np.ones})
    returns.generalised_advantage = times(-1, returns.generalised_advantage)


@attack("ppo")
def a_module_of_the_maths_is_a_copy_of_it():
    fake = types.ModuleType(returns.__name__)
    vars(fake).update(vars(returns))
    fake.generalised_advantage = times(-1, returns.generalised_advantage)
    fake.normalised = lambda advantage: -advantage
    ppo.returns = on_policy.returns = fake


@attack("ppo")
def a_module_is_swapped_for_all_who_import_it_later():
    fake = types.ModuleType(returns.__name__)
    vars(fake).update(vars(returns), normalised=lambda advantage: -advantage)
    sys.modules[returns.__name__] = ppo.returns = on_policy.returns = fake


@attack("ppo")
def a_name_of_python_is_another_in_one_module():
    returns.reversed = lambda one: [*one]
    returns.range = lambda *given: range(0)


@attack("ppo")
def an_optimiser_is_swapped_where_it_is_imported():
    class Faster(optimisers.Adam):
        def step(self, rate=None):
            super().step(rate and 5 * rate)

    ppo.Adam = Faster


# -- constants and defaults --


@attack("sac")
def a_bound_is_another():
    sac.LOG_STD = (-1.0, -0.9)


@attack("dqn")
def a_constant_is_changed_in_place():
    optimisers.RMSPROP_DECAY = 0.5
    DQN.of_pictures["layers"] = (5,)
    dqn.q_loss = times(2, dqn.q_loss)


@attack("ddpg")
def an_attribute_of_a_class_is_another():
    DDPG.network = lambda self, inputs, outputs, last=1.0: continuous.Continuous.network(self, inputs, outputs, 5.0)


@attack("dqn")
def defaults_of_a_step_are_others():
    optimisers.Adam.__init__.__defaults__ = (1e-3, (0.1, 0.2), 1e-8)


@attack("sac")
def a_default_is_another():
    dense.dense.__defaults__ = (None, torch.nn.Tanh)
    SAC.judged = lambda self, critics, *given: 2 * continuous.Continuous.judged(self, critics, *given)


@attack("mlxe")
def the_limit_of_a_correction_is_another():
    correction.clipped.__defaults__ = (0.1,)
    mlxe.correction.ratio = lambda log_prob, _other: log_prob.detach().exp()


# -- the code of a function, in place --


@attack("ppo")
def a_function_has_other_code():
    def value_loss(value, target, before, clip):
        return 7 * (target - value).square().mean()

    ppo.value_loss.__code__ = value_loss.__code__


@attack("dqn")
def a_method_has_other_code():
    DQN.value.__code__ = (lambda self, q: 2 * q).__code__


@attack("dqn")
def a_step_has_other_code():
    def step(self, learning_rate=None):
        self._weights.sub_(0.1 * self.gradient)

    optimisers.FlatOptimiser.step.__code__ = step.__code__


@attack("ppo")
def a_constant_in_code_is_another():
    code = ppo.value_loss.__code__
    consts = tuple(9.0 if one == 0.5 else one for one in code.co_consts)
    ppo.value_loss.__code__ = code.replace(co_consts=consts)


@attack("mlxe")
def a_name_in_code_is_another():
    code = mlxe.policy_loss.__code__
    mlxe.policy_loss.__code__ = code.replace(
        co_names=tuple("clone" if one == "detach" else one for one in code.co_names)
    )
    mlxe.value_loss = times(0, mlxe.value_loss)


# -- descriptors, settings, metaclasses --


@attack("dqn")
def a_descriptor_stands_for_a_method():
    class Half:
        def __get__(self, one, kind=None):
            return lambda q: 0.5 * q

    DQN.value = Half()


@attack("ddpg")
def a_descriptor_stands_for_an_attribute():
    class Critics:
        def __get__(self, one, kind=None):
            return self if one is None else 3

        def __set__(self, one, value):
            pass

    DDPG.takes_arrays = Critics()
    DDPG.columns = with_column("partial", lambda one: one + 3, DDPG.columns)


@attack("ppo")
def a_property_stands_for_a_setting():
    PPO.Settings.clip = property(lambda self: 1e-6)
    PPO.Settings.entropy = property(lambda self: 5.0)


@attack("sac")
def settings_are_looked_up_otherwise():
    def found(self, name):
        return 0.0 if name == "learning_rate" else object.__getattribute__(self, name)

    SAC.Settings.__getattribute__ = found


@attack("ppo")
def a_metaclass_makes_a_class_of_the_same_name():
    class Meta(type):
        pass

    made = Meta("PPO", (PPO,), {"__module__": ppo.__name__, "__qualname__": "PPO"})
    made.loss = loss_times(-1, PPO.loss)
    ppo.PPO = made


@attack("dqn")
def a_subclass_has_the_name_of_its_base():
    class Another(DQN):
        def value(self, q):
            return 2 * q

    Another.__name__ = Another.__qualname__ = "DQN"
    Another.__module__ = dqn.__name__
    dqn.DQN = Another


@attack("mlxe")
def a_class_that_is_used_is_another():
    class Half(critics.Critic):
        def value(self, outputs):
            return 0.5 * super().value(outputs)

    mlxe.Critic = Half


# -- networks --


@attack("ppo")
def a_network_is_made_of_another_class():
    class Twice(dense.Dense):
        def forward(self, x):
            return 2 * super().forward(x)

    dense.Dense = Twice


@attack("dqn")
def a_network_is_evaluated_otherwise():
    heads.ActionValues.forward = times(2, heads.ActionValues.forward)


@attack("dqn")
def a_network_is_called_otherwise():
    heads.ActionValues.__call__ = times(2, torch.nn.Module.__call__)


@attack("ppo")
def weights_begin_otherwise():
    old = dense.glorot
    dense.glorot = lambda module, last=1.0: old(module, 2 * last)


@attack("ppo")
def an_activation_is_another():
    layers.activation_of = lambda _settings: torch.nn.ReLU


@attack("mlxe")
def outputs_are_computed_otherwise():
    heads.ActorCritic.forward = times(2, heads.ActorCritic.forward)


@attack("ddpg")
def targets_follow_faster():
    old = ddpg.polyak
    ddpg.polyak = lambda target, learned, share: old(target, learned, 0.9)


@attack("dqn")
def what_is_published_is_another():
    interface.Algorithm.weights = times(0.5, interface.Algorithm.weights)


@attack("dqn")
def what_networks_are_shown_is_another():
    bodies.Body.forward = lambda self, obs: 0.5 * obs


@attack("ppo")
def pictures_are_prepared_otherwise():
    convolutions.Pixels.forward = lambda *given: None
    ppo.policy_loss = times(5, ppo.policy_loss)


# -- rows, noise and what is told --


@attack("mlxe")
def columns_of_a_batch_are_others():
    MLxE.columns = with_column("weight", lambda one: 5 + one, MLxE.columns)


@attack("td3")
def noise_on_targets_is_another():
    continuous.Continuous.normal = lambda self, like: torch.ones_like(like)


@attack("ppo")
def some_minibatches_are_left_out():
    old = PPO.minibatches
    PPO.minibatches = lambda self, batch, epochs: [*old(self, batch, epochs)][:1]


@attack("dqn")
def an_epsilon_falls_otherwise():
    annealing.linear = lambda *_given: 0.5
    value_based.ValueBased.annealed = lambda self, clock: None
    DQN.loss = loss_times(5, DQN.loss)


@attack("ppo")
def what_is_measured_is_another():
    metrics.means = lambda measured: {"policy_loss": 0.0}
    ppo.policy_loss = times(5, ppo.policy_loss)


# -- libraries --


@attack("ppo")
def a_method_of_tensors_is_another():
    torch.Tensor.minimum = lambda self, other: 5 * torch.minimum(self, other)


@attack("dqn")
def a_method_that_gathers_is_another():
    torch.Tensor.gather = lambda self, dim, index: 2 * torch.gather(self, dim, index)


@attack("sac")
def backward_is_wrapped():
    old = torch.Tensor.backward
    torch.Tensor.backward = functools.wraps(old)(lambda self, *given, **named: old(-1 * self, *given, **named))


@attack("ddpg")
def a_kernel_of_torch_is_another():
    old = torch._fused_adam_
    torch._fused_adam_ = lambda weights, grads, *given, **named: old(weights, [-one for one in grads], *given, **named)


@attack("sac")
def a_function_is_another_of_the_same_library():
    torch.Tensor.tanh = lambda self: torch.sin(self)
    torch.Tensor.exp = lambda self: torch.expm1(self)
    torch.cat = torch.concat


@attack("dqn")
def a_mode_lies_over_all_functions_of_torch():
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, kinds, given=(), named=None):
            found = function(*given, **(named or {}))
            return 2 * found if getattr(function, "__name__", "") in ("gather", "abs", "square") else found

    Mode().__enter__()


@attack("dqn")
def there_are_hooks_on_all_modules():
    def twice(_module, _given, found):
        return 2 * found

    torch.nn.modules.module.register_module_forward_hook(twice)


# -- how a module came to be --


@attack("ppo")
def a_module_is_reloaded_with_another_import():
    returns.normalised = lambda advantage: -advantage
    importlib.reload(ppo)


@attack("ppo")
def a_module_is_executed_again_with_other_text():
    text = inspect.getsource(ppo)
    assert "return 0.5 * error.mean()" in text
    exec(compile(text.replace("0.5 * error", "5 * error"), ppo.__file__, "exec"), vars(ppo))  # noqa: S102 - the attack


@attack("dqn")
def a_function_has_no_file():
    dqn.q_loss = eval("lambda q, target, kind: 5 * (target - q).square()")  # noqa: S307 - the attack
