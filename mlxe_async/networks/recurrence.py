"""Recurrent layers over whole sequences by numpy, with gradients by hand: without a call of torch's for each episode.

States begin anew in the middle of a sequence. A call of `nn.LSTM` costs as much as some 30 steps here, there and back,
and each step of `nn.GRU` as much as three. Gradients are those of backpropagation through time, Werbos 1990; all that
does not need the gradient of a later step is computed for all steps at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mlxe_async.rows import Array


def recurrent(kind: str, shown: torch.Tensor, states: torch.Tensor, first: Array, *weights: Any) -> tuple[Any, ...]:
    """Go through sequences by one layer.

    Args:
        kind: `"LSTM"` or `"GRU"`.
        shown: what the gates are given by inputs (T, B, k H).
        states: (n, B, H) before the first step: h, and for LSTM c.
        first: the steps (T, B) before which states are 0.
        weights: of h (k H, H), and its bias (k H,).

    Returns:
        The states (T, B, H) after each step, h and for LSTM c.
    """
    begins = [np.flatnonzero(row) if row.any() else None for row in first]
    if kind == "LSTM":
        found: tuple[Any, ...] = _LSTM.apply(shown, weights[1], weights[0], *states, begins)  # type: ignore[no-untyped-call] # torch's own
        return found
    return (_GRU.apply(shown, weights[1], weights[0], states[0], begins),)  # type: ignore[no-untyped-call] # torch's own


_QUIET = np.errstate(over="ignore", invalid="ignore")  # as torch is; what is not finite is found where losses are


class _LSTM(Function):
    """Hochreiter and Schmidhuber 1997, with forget gates; gates i, f, g, o as torch has them."""

    @staticmethod
    @_QUIET
    def forward(ctx: Any, shown: Any, bias: Any, weight: Any, h: Any, c: Any, begins: Any) -> Any:
        """Return h and c (T, B, H) after each step."""
        x, w = shown.numpy(force=True), weight.numpy(force=True).copy()
        (steps, envs, _), size = x.shape, w.shape[1]
        half = np.full(4 * size, 0.5, x.dtype)  # the logistic function of x is (1 + tanh(x / 2)) / 2
        half[2 * size : 3 * size] = 1
        up, columns = 1 - half, np.ascontiguousarray(w.T) * half
        gates = (x + bias.numpy(force=True)) * half
        hs, cs = (np.empty((steps + 1, envs, size), x.dtype) for _ in range(2))
        hs[0], cs[0] = h.numpy(force=True), c.numpy(force=True)
        squashed, product = np.empty((steps, envs, size), x.dtype), np.empty((envs, 4 * size), x.dtype)
        for t in range(steps):
            h, c, gate, now = hs[t], cs[t], gates[t], cs[t + 1]
            if begins[t] is not None:
                h, c = _begun(h, begins[t]), _begun(c, begins[t])
            np.dot(h, columns, out=product)
            gate += product
            np.tanh(gate, out=gate)
            gate *= half
            gate += up
            np.multiply(gate[:, size : 2 * size], c, out=now)
            now += gate[:, :size] * gate[:, 2 * size : 3 * size]
            np.tanh(now, out=squashed[t])
            np.multiply(gate[:, 3 * size :], squashed[t], out=hs[t + 1])
        ctx.kept = gates, hs, cs, squashed, w, begins
        ctx.set_materialize_grads(False)
        return torch.from_numpy(hs[1:]), torch.from_numpy(cs[1:])

    @staticmethod
    @once_differentiable
    @_QUIET
    def backward(ctx: Any, of_h: Any, of_c: Any) -> Any:
        """Gradients of what was given."""
        gates, hs, cs, squashed, w, begins = ctx.kept
        steps, envs, size = squashed.shape
        i, f, g, o = (gates[..., k * size : (k + 1) * size] for k in range(4))
        before, remembered = _before(hs, begins), _before(cs, begins)
        # Of each gate: what its input changes in c, of the last in h.
        changes = np.empty((steps, envs, 4, size), gates.dtype)
        changes[..., 0, :], changes[..., 1, :] = g * i * (1 - i), remembered * f * (1 - f)
        changes[..., 2, :], changes[..., 3, :] = i * (1 - g * g), squashed * o * (1 - o)
        through = o * (1 - squashed * squashed)
        on_h, on_c = (None if one is None else one.numpy(force=True) for one in (of_h, of_c))
        dh, dc = np.zeros((envs, size), gates.dtype), np.zeros((envs, size), gates.dtype)
        for t in reversed(range(steps)):
            if on_h is not None:
                dh += on_h[t]
            dc += dh * through[t]
            if on_c is not None:
                dc += on_c[t]
            change = changes[t]  # in place: from now on the gradient of the gates
            change[:, :3] *= dc[:, None]
            change[:, 3] *= dh
            dc *= f[t]
            np.dot(change.reshape(envs, 4 * size), w, out=dh)
            if begins[t] is not None:
                dh[begins[t]] = dc[begins[t]] = 0
        flat = changes.reshape(steps * envs, 4 * size)
        of_weight = flat.T @ before.reshape(steps * envs, size)
        found = (changes.reshape(steps, envs, 4 * size), flat.sum(0), of_weight, dh, dc)
        return *map(torch.from_numpy, found), None


class _GRU(Function):
    """Cho et al. 2014; gates r, z, n as torch has them."""

    @staticmethod
    @_QUIET
    def forward(ctx: Any, shown: Any, bias: Any, weight: Any, h: Any, begins: Any) -> Any:
        """Return h (T, B, H) after each step."""
        x, w, more = shown.numpy(force=True), weight.numpy(force=True).copy(), bias.numpy(force=True)
        (steps, envs, _), size = x.shape, w.shape[1]
        columns, half = np.ascontiguousarray(w.T), x.dtype.type(0.5)
        gates, hs = x.copy(), np.empty((steps + 1, envs, size), x.dtype)
        hs[0], recalled = h.numpy(force=True), np.empty(x.shape, x.dtype)
        for t in range(steps):
            h, gate, recall, now = hs[t], gates[t], recalled[t], hs[t + 1]
            if begins[t] is not None:
                h = _begun(h, begins[t])
            np.dot(h, columns, out=recall)
            recall += more
            both, new = gate[:, : 2 * size], gate[:, 2 * size :]
            both += recall[:, : 2 * size]
            both *= half
            np.tanh(both, out=both)
            both += 1
            both *= half
            new += both[:, :size] * recall[:, 2 * size :]
            np.tanh(new, out=new)
            np.subtract(h, new, out=now)
            now *= both[:, size:]
            now += new
        ctx.kept = gates, hs, recalled[..., 2 * size :], w, begins
        return torch.from_numpy(hs[1:])

    @staticmethod
    @once_differentiable
    @_QUIET
    def backward(ctx: Any, of_h: Any) -> Any:
        """Gradients of what was given."""
        gates, hs, recalled, w, begins = ctx.kept
        steps, envs, size = recalled.shape
        r, z, n = (gates[..., k * size : (k + 1) * size] for k in range(3))
        before, on_h = _before(hs, begins), of_h.numpy(force=True)
        # Of each gate: what its input changes in h; and of the last, what h changes by its weights.
        changes, last = np.empty((steps, envs, 3, size), gates.dtype), (1 - z) * (1 - n * n)
        changes[..., 0, :], changes[..., 1, :] = last * recalled * r * (1 - r), (before - n) * z * (1 - z)
        changes[..., 2, :] = last * r
        dh = np.zeros((envs, size), gates.dtype)
        for t in reversed(range(steps)):
            dh += on_h[t]
            change = changes[t]  # in place, as of an LSTM
            change *= dh[:, None]
            last[t] *= dh
            dh *= z[t]
            dh += np.dot(change.reshape(envs, 3 * size), w)
            if begins[t] is not None:
                dh[begins[t]] = 0
        flat = changes.reshape(steps * envs, 3 * size)
        of_weight, of_bias = flat.T @ before.reshape(steps * envs, size), flat.sum(0)
        changes[..., 2, :] = last
        found = (changes.reshape(steps, envs, 3 * size), of_bias, of_weight, dh)
        return *map(torch.from_numpy, found), None


def _begun(state: Array, which: Array) -> Array:
    """A state (B, H), zero of those that begin."""
    found = state.copy()
    found[which] = 0
    return found


def _before(states: Array, begins: list[Array | None]) -> Array:
    """The states (T, B, H) before each step, of those (T + 1, B, H) before the first and after each."""
    found = states[:-1].copy()
    for t, which in enumerate(begins):
        if which is not None:
            found[t, which] = 0
    return found
