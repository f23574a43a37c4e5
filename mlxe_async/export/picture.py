"""A picture of a policy's network: a box for each layer, with its sizes and weights, from left to right.

Layers are found by evaluating the network once, so that it shows what is really done, in its order. Parts that work
side by side, such as an actor and a critic, lie one below the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from mlxe_async.errors import SettingsError
from mlxe_async.networks.bodies import Body
from mlxe_async.networks.dense import Dense
from mlxe_async.rows import MASK

if TYPE_CHECKING:
    from mlxe_async.policy import Policy

FORMATS = (".svg", ".png", ".pdf")
_STREAMS = ("q", "value", "advantage", "actor", "critic")
_COLOURS = {
    "input": "#e8eef7",
    "Conv2d": "#fde7c8",
    "Linear": "#dcefdc",
    "LSTM": "#efdcf0",
    "GRU": "#efdcf0",
    "Normaliser": "#eeeeee",
}
_WIDTH, _HEIGHT, _GAP = 1.9, 0.9, 0.45  # of a box, and between two, in inches
_ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.ELU)


@dataclass
class Layer:
    """One box.

    Args:
        kind: what it is, such as `Linear`.
        stage: the part of the network that it belongs to: `see`, `common`, `cell`, `heads`; or another attribute.
        branch: which of the parts side by side.
        sizes: what goes in and what comes out, in words.
        weights: number of its weights.
        after: activations and the like behind it.
    """

    kind: str
    stage: str
    branch: str
    sizes: str
    weights: int
    after: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        """The text of the box."""
        kind = ", ".join((self.kind, *self.after))
        return "\n".join((kind, self.sizes, *([f"{self.weights:,} weights"] if self.weights else [])))


def layers_of(policy: Policy) -> list[Layer]:
    """Return the layers of a policy's network in the order in which they are evaluated.

    Raises:
        ValueError: it has no torch module.
    """
    module = policy.module().eval()
    found: list[Layer] = []
    hooks = [
        one.register_forward_hook(_noting(name, found)) for name, one in module.named_modules() if not [*one.children()]
    ]
    spaces = policy.spaces
    obs = torch.from_numpy(np.zeros((1, *spaces.observation_shape), spaces.observation_dtype))
    try:
        with torch.no_grad():
            module(obs)
    finally:
        for hook in hooks:
            hook.remove()
    cells = {layer.branch for layer in found if layer.stage == "cell"}
    for layer in found:
        if layer.stage == "cell":
            layer.branch = ("actor", "critic")[int(layer.branch)] if len(cells) > 1 else ""
    return found


def _noting(name: str, found: list[Layer]) -> Any:
    def note(module: nn.Module, given: tuple[Any, ...], answer: Any) -> None:
        stage, branch = _place(name)
        kind = next((one.__name__ for one in (nn.Conv2d, nn.Linear) if isinstance(module, one)), type(module).__name__)
        kind = "noisy Linear" if type(module).__name__ == "NoisyLinear" else kind
        if found and (found[-1].stage, found[-1].branch) == (stage, branch) and isinstance(module, _ACTIVATIONS):
            found[-1].after.append(kind.lower() if kind == "Tanh" else kind)
            return
        if isinstance(module, (nn.Flatten, nn.Identity, nn.Dropout, Body, Dense)):  # of no layers, the last two
            return
        first = answer[0] if isinstance(answer, tuple) else answer
        sequences = isinstance(module, nn.RNNBase)  # of one step
        sizes = " → ".join(_size(one[0] if sequences else one) for one in (given[0], first))
        weights = sum(one.numel() for one in module.parameters())
        found.append(Layer(kind, stage, branch, sizes, weights))

    return note


def _place(name: str) -> tuple[str, str]:
    """Return the stage and the branch of a module's name."""
    top, _, rest = name.partition(".")
    if top == "see" and rest.startswith("convolutions."):
        return top, rest.split(".")[1].replace("/", ".")
    if top == "heads":
        return top, rest.partition(".")[0]
    if top in ("cell", "cells"):
        return "cell", rest.removeprefix("cells.").partition(".")[0]
    return ("streams", top) if top in _STREAMS else (top, "")


def _size(tensor: Any) -> str:
    return " x ".join(map(str, tensor.shape[1:] if tensor.ndim > 1 else tensor.shape)) or "1"


def draw(policy: Policy, path: Path) -> str:
    """Draw a policy's network into a file; returns how large the network is, in words.

    Args:
        policy: see `load_policy`.
        path: of the file; its suffix says the format.

    Raises:
        SettingsError: the suffix is none of `FORMATS`, or the policy has no torch module.
        OSError: it cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise SettingsError([f"export --to picture: got {path.name}, expected a file ending in {', '.join(FORMATS)}"])
    try:
        layers = layers_of(policy)
    except ValueError as error:
        raise SettingsError([f"export --to picture: {error}"]) from error
    rows = _rows(policy, layers)
    total = sum(layer.weights for layer in layers)
    title = f"{policy.settings.algorithm.name} on {policy.settings.task.env}: {total:,} weights in {len(layers)} layers"
    _drawn(rows, title, path)
    return f"{total:,} weights in {len(layers)} layers"


_Box = tuple[str, str]
"""Kind and text."""
_Stage = dict[str, list[_Box]]
"""Boxes in a row, for each of the branches that lie one below the other, by name."""


def _rows(policy: Policy, layers: Sequence[Layer]) -> list[_Stage]:
    """Return the stages from left to right; the first has the inputs, the last the actions."""
    spaces = policy.spaces
    shown = [(part.name, part.shape) for part in spaces.parts if part.name != MASK] or [
        ("observation", spaces.observation_shape)
    ]
    stages: list[_Stage] = [
        {name: [("input", f"{name}\n{' x '.join(map(str, shape)) or '1'}")] for name, shape in shown}
    ]
    before = ""
    for layer in layers:
        if layer.stage != before:
            stages.append({})
            before = layer.stage
        row = stages[-1].setdefault(layer.branch, [])
        words = layer.words if row or not layer.branch else f"{layer.branch}: {layer.words}"
        row.append((layer.kind.split()[-1], words))
    return stages


def _drawn(stages: Sequence[_Stage], title: str, path: Path) -> None:
    """Draw the stages side by side; an arrow leads from a branch to that of its name, or else to all of the next."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    step = _WIDTH + _GAP
    columns = sum(max(map(len, stage.values())) for stage in stages)
    width, height = columns * step + _GAP, max(map(len, stages)) * (_HEIGHT + _GAP) + 2 * _GAP
    figure = Figure(figsize=(width, height), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")
    axes.text(_GAP, height - _GAP, title, fontsize=10, va="center")
    left, ends = _GAP, dict[str, _Point]()
    for stage in stages:
        room, starts, last = (height - 1.5 * _GAP) / len(stage), dict[str, _Point](), dict[str, _Point]()
        for place, (name, row) in enumerate(stage.items()):
            middle = height - 1.5 * _GAP - room * (place + 0.5)
            for number, (kind, words) in enumerate(row):
                x = left + number * step
                box = FancyBboxPatch(
                    (x, middle - _HEIGHT / 2),
                    _WIDTH,
                    _HEIGHT,
                    boxstyle="round,pad=0.02",
                    facecolor=_COLOURS.get(kind, "#ffffff"),
                    edgecolor="#555555",
                )
                axes.add_patch(box)
                axes.text(x + _WIDTH / 2, middle, words, ha="center", va="center", fontsize=_fitting(words))
                if number:
                    _arrow(axes, (x - _GAP, middle), (x, middle))
            starts[name], last[name] = (left, middle), (left + (len(row) - 1) * step + _WIDTH, middle)
        for one, end in ends.items():
            for other, start in starts.items():
                is_own = one == other or (one not in starts and other not in ends)
                if is_own or len(ends) == 1 or len(starts) == 1:
                    _arrow(axes, end, start)
        ends, left = last, left + max(map(len, stage.values())) * step
    figure.savefig(path, format=path.suffix[1:].lower())


_Point = tuple[float, float]


def _arrow(axes: Any, begin: _Point, end: _Point) -> None:
    axes.annotate("", xy=end, xytext=begin, arrowprops={"arrowstyle": "->", "color": "#555555", "lw": 0.8})


def _fitting(words: str) -> float:
    """Return a size of letters in which the longest line fits a box."""
    longest = max(map(len, words.splitlines()))
    return float(max(4.0, min(9.0, _WIDTH * 72 / 0.62 / max(1, longest))))
