"""The proof that twins compute what the algorithms' files say; the manifest is renewed by it alone.

    python tests/fast/proof.py            does every case, and says how far each twin is from its file
    python tests/fast/proof.py --renew    the same, and takes the manifest down anew if all are equal

Each case goes through several updates. Both sides begin each of them in the same state, and take the same steps: at
each step of the optimiser their gradients are compared, then the twin's is taken by both.
"""

import argparse
import json
import sys
from functools import partial

import numpy as np
import torch
from made_rows import SPACES, agent, batch, steps_shown

from mlxe_async.algorithms import REGISTRY, Clock
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.fast import TWINS, manifest, twin_of
from mlxe_async.rows import Spaces, Symmetry

NEAR = 1e-5  # of the gradient's norm
MIRRORED = Spaces((4,), actions=2, symmetry=Symmetry((-1.0, -1.0, 1.0, -1.0), (1, 0)))
PICTURES = Spaces((2, 44, 44), "|u1", actions=3)
BOX = Spaces((3,), action_shape=(2,), action_low=(-3.0, 0.0), action_high=(1.0, 8.0))
SMALL = {"policy": [16], "value": [16]}
LOOKS = [{}, {"common": [8], "policy": [], "value": [], "activation": "relu"}, {"layer_norm": True}]
PPO = [
    *LOOKS,
    *({"minibatches": kind, "minibatch": 16, "epochs": epochs} for kind in ("rows", "sequences") for epochs in (1, 3)),
    *({"minibatches": kind, "normalise": False, "minibatch": 1000} for kind in ("rows", "sequences")),
    {"clip": 0.05, "entropy": 0.3, "value_coefficient": 2.0, "max_gradient_norm": 0},
    {"entropy": 0, "value_coefficient": 0, "discount": 0.5, "gae_lambda": 0.3},
    *({"minibatches": kind, "minibatch": 16, "reward_scaling": True} for kind in ("rows", "sequences")),
    {"max_kl": 1e-3, "learning_rate": 0.01},
    {"minibatches": "sequences", "max_kl": 1e-3, "learning_rate": 0.01, "minibatch": 16},
]
MLxE = [
    *({**look, **scale} for look in LOOKS for scale in ({}, {"value_scale": "survival"}, {"correction": "none"})),
    {"correction": "none", "value_scale": "survival", "entropy": 0, "ratio_clip": 3.0},
    {"ratio_clip": 3.0, "entropy": 0.3, "value_coefficient": 0.1, "max_gradient_norm": 0.5, "optimiser": "adam"},
    {"value_scale": "categorical", "atoms": 11},
    *({"correction": "vtrace", "n_step": 4, **more} for more in ({}, {"target": "every_k", "target_every": 2})),
    {"correction": "vtrace", "n_step": 4, "value_scale": "survival", "faithful_truncation": True, "ratio_clip": 2.0},
    {"target": "every_k", "target_every": 2, "average": 0.1},
    {"target": "per_iteration", "normalise": True, "return_scale": 0.1},
    {"returns": "steps_to_end", "average": 0.5},
]
DQN = [
    {},
    {"value_scale": "survival"},
    {"loss": "square", "double": False, "layer_norm": False, "activation": "tanh"},
    {"average": 0.1, "target_every": 2, "target_rate": 0.5, "max_gradient_norm": 0},
    {"n_step": 1, "double": False, "return_scale": 0.1},
]
CONTINUOUS = [
    {},
    {"layers": [], "n_step": 3, "max_gradient_norm": 0.1},
    {"layers": [8], "activation": "tanh", "normalise": True, "discount": 0.9, "return_scale": 0.1, "target_rate": 0.5},
    {"learning_rate": 0.03, "critic_learning_rate": 0.1},
]
SAC = [{"temperature": 0.2, "temperature_learning_rate": 0.0}, {"temperature": 5.0, "target_entropy": 1.0}]
DDPG = [
    {"critic_decay": 0.1, "noise_first": 0.3, "noise_steps": 250},
    {"noise": "ou"},
]
TD3 = [{"policy_delay": 1, "target_noise": 1.0, "target_noise_clip": 0.3}, {"policy_delay": 3, "target_noise": 0.0}]
CASES = [
    *(("ppo", SPACES, SMALL | case) for case in PPO),
    *(("mlxe", SPACES, SMALL | case) for case in MLxE),
    *(("dqn", SPACES, {"layers": [16, 8]} | case) for case in DQN),
    *((name, MIRRORED, {}) for name in ("mlxe", "dqn")),
    *(
        (name, BOX, {"layers": [16, 12]} | case)
        for name, own in (("sac", SAC), ("td3", TD3 + DDPG[:1]), ("ddpg", DDPG))
        for case in CONTINUOUS + own
    ),
    *(
        (name, PICTURES, {"body": body, "common": [16], "policy": [], "value": [], "normalise": False, **more})
        for body, name, more in (
            ("nature", "ppo", {"minibatch": 16, "epochs": 2}),
            ("nature", "ppo", {"minibatches": "sequences"}),
            ("nature", "mlxe", {}),
            ("small", "ppo", {"minibatch": 16, "epochs": 2, "input_scale": [0.01]}),
            ("small", "ppo", {"activation": "relu", "minibatch": 16}),
            ("elu", "mlxe", {}),
        )
    ),
    *(("dqn", PICTURES, {"layers": [16], "layer_norm": False} | case) for case in ({}, {"n_step": 1, "double": False})),
    *(("dqn", PICTURES, case) for case in ({"body": "elu", "layers": [16]}, {"layers": [16, 8], "average": 0.1})),
]


def update(algorithm, way, rows, clock, look):
    """What an update measured, and how many steps all its optimisers made."""
    seen = []

    def looked(gradient):
        look(gradient, len(seen))
        seen.append(gradient)

    with steps_shown(algorithm, looked):
        metrics, _ = way(rows, clock)
    return metrics, len(seen)


def take(taken, gradient, _step):
    """Remember the gradient of a step."""
    taken.append(gradient.clone())


def follow(taken, apart, own, step):
    """Note how far the gradient of a step is from the one that was taken, and go on with that one."""
    apart.append(float((taken[step] - own).norm() / own.norm().clamp(min=1e-12)))
    own.copy_(taken[step])


def distance(name, spaces, settings, *, updates=3, sizes=(1.0, 0.1, 10.0)):
    """The largest distance of the twin's gradients from the file's own, of their norm; raises where more differs."""
    farthest = 0.0
    for scale in sizes:
        fast, written = (agent(name, spaces=spaces, **settings) for _ in range(2))
        twin = twin_of(name, fast)
        for number in range(updates):
            rows = batch(written, rows=40, seed=number, scale=scale)
            clock = Clock(env_steps=100 * number, episodes=number, updates=number, version=number)
            taken, apart = [], []
            measured, steps = update(fast, twin.update, rows, clock, partial(take, taken))
            expected, own_steps = update(written, partial(learned, written), rows, clock, partial(follow, taken, apart))
            assert steps == own_steps, f"{steps} steps, not {own_steps}"
            assert list(measured) == list(expected)
            for metric, value in expected.items():
                assert abs(measured[metric] - value) <= 1e-3 * (1 + abs(value)), (metric, measured[metric], value)
            mine, own = fast.state(), written.state()
            assert mine.keys() == own.keys()
            for key, array in own.items():
                np.testing.assert_array_equal(mine[key], array, key)
            farthest = max([farthest, *apart])
    return farthest


def everything(tell=print):
    """Whether all twins are equal to their files."""
    torch.set_num_threads(1)
    equal = True
    for name, spaces, settings in CASES:
        found = distance(name, spaces, settings)
        equal &= found <= NEAR
        tell(f"{name:4} {found:9.1e} {'' if found <= NEAR else 'DIFFERS '}{settings}")
    return equal


def present():
    """The manifest of the algorithms with twins as their files are now."""
    return manifest.taken_down({name: REGISTRY[name] for name in TWINS})


def without_texts(found):
    """A manifest without the digests of whole files, which change with a comment."""
    modules = found["modules"].items()
    return found | {"modules": {name: {k: v for k, v in one.items() if k != manifest.TEXT} for name, one in modules}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renew", action="store_true", help="take the manifest down anew if all twins are equal")
    arguments = parser.parse_args()
    found = present()
    proven = arguments.renew and manifest.KEPT.exists() and without_texts(found) == without_texts(manifest.kept())
    if not proven and not everything():
        return 1
    if arguments.renew:
        manifest.KEPT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"{sum(map(len, found['modules'].values()))} digests of {len(found['modules'])} modules taken down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
