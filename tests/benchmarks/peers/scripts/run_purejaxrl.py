"""PPO as PureJaxRL has it: environments, network and steps of the optimiser as one program that XLA compiles.

PureJaxRL is a collection of single files, not a package. This is one in its manner, written for this row: CartPole in
JAX by gymnasium's equations, each sample learned from once. Compiling is before the first update, and not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import measuring
import optax

DISCOUNT, GAE_LAMBDA, CLIP, ENTROPY, LONGEST = 0.98, 0.95, 0.2, 0.005, 0.5
VALUE_COEFFICIENT = 0.02
"""As in `settings/fast.toml`, all of them."""
UPDATES_AT_ONCE = 4


class Shape(NamedTuple):
    """Environments, steps of each in a rollout, minibatches, and whether actor and critic share their layers."""

    envs: int
    steps: int
    minibatches: int
    shared: bool


# The first is as ours: 1,024 environments in all, 80 steps, 2,048 rows in a minibatch, one network.
CONFIGURATIONS = {
    "shared-1024x80-m40": Shape(1024, 80, 40, True),
    "shared-1024x80-m1": Shape(1024, 80, 1, True),
    "shared-2048x16-m16": Shape(2048, 16, 16, True),
    "apart-1024x80-m40": Shape(1024, 80, 40, False),
    "apart-2048x16-m4": Shape(2048, 16, 4, False),
}


class World(NamedTuple):
    """CartPoles: state (B, 4) and steps of the episode (B,)."""

    state: jax.Array
    steps: jax.Array


def begun(key: jax.Array, count: int) -> World:
    """Fresh episodes."""
    return World(jax.random.uniform(key, (count, 4), minval=-0.05, maxval=0.05), jnp.zeros(count, jnp.int32))


def stepped(key: jax.Array, world: World, action: jax.Array) -> tuple[World, jax.Array]:
    """One step of all; those that ended (B,) begin anew in it. The reward is 1."""
    x, speed, angle, turning = world.state.T
    force = jnp.where(action == 1, 10.0, -10.0)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    push = (force + 0.05 * turning**2 * sin) / 1.1
    spin = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    gain = push - 0.05 * spin * cos / 1.1
    state = jnp.stack([x + 0.02 * speed, speed + 0.02 * gain, angle + 0.02 * turning, turning + 0.02 * spin], 1)
    steps = world.steps + 1
    ended = (jnp.abs(state[:, 0]) > 2.4) | (jnp.abs(state[:, 2]) > 0.2095) | (steps >= 500)
    fresh = begun(key, len(action))
    return World(jnp.where(ended[:, None], fresh.state, state), jnp.where(ended, fresh.steps, steps)), ended


def layers(key: jax.Array, sizes: list[int], last: float) -> list[tuple[jax.Array, jax.Array]]:
    """Orthogonal weights and no biases."""
    gains = [2**0.5] * (len(sizes) - 2) + [last]
    keys = jax.random.split(key, len(gains))
    made = jax.nn.initializers.orthogonal
    return [
        (made(gain)(one, (fan_in, fan_out)), jnp.zeros(fan_out))
        for one, gain, fan_in, fan_out in zip(keys, gains, sizes, sizes[1:], strict=False)
    ]


def through(network: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    """Layers with tanh between them."""
    for weight, bias in network[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = network[-1]
    return x @ weight + bias


def judged(weights: Any, obs: jax.Array, shared: bool) -> tuple[jax.Array, jax.Array]:
    """Logarithms of the probabilities (..., 2) and values (...,)."""
    if shared:
        found = through(weights["both"], obs)
        return jax.nn.log_softmax(found[..., :2]), found[..., 2]
    return jax.nn.log_softmax(through(weights["actor"], obs)), through(weights["critic"], obs)[..., 0]


def loss(weights: Any, rows: dict[str, jax.Array], shared: bool) -> jax.Array:
    """The clipped objective, half the squared error of values, and the entropy."""
    logs, value = judged(weights, rows["obs"], shared)
    ratio = jnp.exp(jnp.take_along_axis(logs, rows["action"][:, None], 1)[:, 0] - rows["log_prob"])
    advantage = rows["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gained = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    entropy = -(jnp.exp(logs) * logs).sum(-1).mean()
    error = 0.5 * jnp.square(value - rows["wanted"]).mean()
    return -gained + VALUE_COEFFICIENT * error - ENTROPY * entropy


def trainer(shape: Shape, seed: int) -> tuple[Any, Callable[[Any], Any]]:
    """The first state, and what does some updates."""
    key, world_key, first, second = jax.random.split(jax.random.PRNGKey(seed), 4)
    if shape.shared:
        weights: Any = {"both": layers(first, [4, 64, 64, 3], 0.1)}
    else:
        weights = {"actor": layers(first, [4, 64, 64, 2], 0.01), "critic": layers(second, [4, 64, 64, 1], 1.0)}
    optimiser = optax.chain(optax.clip_by_global_norm(LONGEST), optax.adam(1e-3, eps=1e-5))

    def play(weights: Any, carried: tuple[World, jax.Array], _: None) -> Any:
        world, key = carried
        key, drawing, beginning = jax.random.split(key, 3)
        logs, value = judged(weights, world.state, shape.shared)
        action = jax.random.categorical(drawing, logs)
        log_prob = jnp.take_along_axis(logs, action[:, None], 1)[:, 0]
        following, ended = stepped(beginning, world, action)
        return (following, key), {
            "obs": world.state,
            "action": action,
            "log_prob": log_prob,
            "value": value,
            "going": 1.0 - ended,
        }

    def back(carried: tuple[jax.Array, jax.Array], row: dict[str, jax.Array]) -> Any:
        advantage, following = carried
        error = 1.0 + DISCOUNT * following * row["going"] - row["value"]
        advantage = error + DISCOUNT * GAE_LAMBDA * row["going"] * advantage
        return (advantage, row["value"]), advantage

    def step(carried: Any, rows: dict[str, jax.Array]) -> Any:
        weights, moments = carried
        found, slope = jax.value_and_grad(loss)(weights, rows, shape.shared)
        change, moments = optimiser.update(slope, moments, weights)
        return (optax.apply_updates(weights, change), moments), found

    def update(state: Any, _: None) -> Any:
        weights, moments, world, key = state
        (world, key), rows = jax.lax.scan(partial(play, weights), (world, key), None, shape.steps)
        _, value = judged(weights, world.state, shape.shared)
        _, advantage = jax.lax.scan(back, (jnp.zeros_like(value), value), rows, reverse=True)
        rows = {**rows, "advantage": advantage, "wanted": advantage + rows["value"]}
        key, shuffling = jax.random.split(key)
        order = jax.random.permutation(shuffling, shape.envs * shape.steps)
        flat = {name: column.reshape(len(order), *column.shape[2:])[order] for name, column in rows.items()}
        dealt = {name: column.reshape(shape.minibatches, -1, *column.shape[1:]) for name, column in flat.items()}
        (weights, moments), found = jax.lax.scan(step, (weights, moments), dealt)
        length = 1 / jnp.maximum(1e-6, 1 - rows["going"].mean())
        return (weights, moments, world, key), (found.mean(), length)

    state = (weights, optimiser.init(weights), begun(world_key, shape.envs), key)
    return state, jax.jit(lambda state: jax.lax.scan(update, state, None, UPDATES_AT_ONCE))


def main() -> None:
    given, name = measuring.asked(CONFIGURATIONS, {"native": ""})
    shape = CONFIGURATIONS[name]
    state, train = trainer(shape, given.seed)
    began = time.perf_counter()
    compiled = train.lower(state).compile()
    compiling = time.perf_counter() - began
    stopwatch, rounds, over = measuring.Stopwatch(given.seconds, given.warm_up), 0, False
    length = 0.0
    while not over:
        state, (_, lengths) = jax.block_until_ready(compiled(state))
        length, rounds = float(lengths[-1]), rounds + 1
        over = stopwatch.learned(rounds * UPDATES_AT_ONCE * shape.envs * shape.steps)
    said = (
        f"PPO, 1 pass, {shape.envs} envs x {shape.steps} steps, {shape.minibatches} minibatches, MLP 64,64 "
        f"{'shared' if shape.shared else 'twice'}, jax {jax.__version__} on all cores"
    )
    found = stopwatch.result() | {"compiling_seconds": compiling, "episode_length": length}
    measuring.tell("purejaxrl", "jax", said, found, row=given.row, config=name)


if __name__ == "__main__":
    main()
