"""Networks of DQN, C51, Rainbow and Ape-X: how many layers lie where, the modules, and what they will hold.

Features of observations go through common layers, perhaps a recurrent cell, and then through each stream. A network of
one stream without a cell has no common layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlxe_async.algorithms.parts import recurrent
from mlxe_async.algorithms.parts.layers import body_of, layers
from mlxe_async.networks import Parameters
from mlxe_async.networks.seen import dense_parameters, seen_of
from mlxe_async.rows import Spaces

if TYPE_CHECKING:
    from mlxe_async.networks.heads import ActionValues

Sizes = tuple[int, ...]


def has_cell(s: Any) -> bool:
    """Return whether the settings of an algorithm ask for a recurrent cell; of some they cannot."""
    return getattr(s, "cell", "none") != "none"


def common_of(s: Any, *, dueling: bool) -> Sizes:
    """Sizes of the hidden layers that streams share, or that lie below a cell: all but the last."""
    return tuple(s.layers[:-1]) if dueling or has_cell(s) else ()


def streams_of(actions: int, *, dueling: bool) -> dict[str, int]:
    """Each stream, and how many values it ends in."""
    return {"value": 1, "advantage": actions} if dueling else {"q": actions}


def sizes_of(s: Any, heads: Mapping[str, Sizes]) -> dict[str, tuple[Any, ...]]:
    """Sizes of all layers in words, given those of each stream."""
    cell = recurrent.sizes_of(s) if has_cell(s) else ()
    return {"common": common_of(s, dueling=len(heads) > 1), "cell": cell, **heads}


def streams(
    s: Any, spaces: Spaces, actions: int, *, dueling: bool, sigma: float | None = None, atoms: int = 0
) -> ActionValues:
    """Values of all actions; of a dueling network in two streams, which share all layers but the last hidden one.

    A recurrent cell, if there is one, lies before the last hidden layer.

    Args:
        s: settings of the layers.
        spaces: of the task.
        actions: how many there are.
        dueling: whether there are two streams.
        sigma: of the noise of layers, if there is some.
        atoms: outputs of each action; 0: one.
    """
    from mlxe_async.networks.heads import ActionValues, RecurrentActionValues

    see, common = body_of(spaces, s), common_of(s, dueling=dueling)
    shared = layers(s, see, common, sigma=sigma) if dueling or has_cell(s) else None
    cell = recurrent.cells_of(s, shared) if shared is not None and has_cell(s) else None
    below = see if shared is None else cell or shared
    heads = {
        name: layers(s, below, s.layers[len(common) :], n * (atoms or 1), sigma=sigma)
        for name, n in streams_of(actions, dueling=dueling).items()
    }
    if shared is not None and cell is not None:
        return RecurrentActionValues(see, shared, cell, **heads, atoms=atoms)
    return ActionValues(see, shared, **heads, atoms=atoms)


def parameters_of(name: str, s: Any, spaces: Spaces, heads: Mapping[str, Sizes], *, noisy: bool) -> Parameters:
    """Names and shapes of what `streams` makes, as an attribute of this name, given the sizes of each stream."""
    seen, common, norm = seen_of(spaces, s), common_of(s, dueling=len(heads) > 1), s.layer_norm
    found = [*seen.parameters(f"{name}.see")]
    found += dense_parameters(f"{name}.common", seen.outputs, common, noisy=noisy, layer_norm=norm)
    below = common[-1] if common else seen.outputs
    width = s.cell_size if has_cell(s) else below
    for stream, sizes in heads.items():
        found += dense_parameters(f"{name}.{stream}", width, sizes[:-1], sizes[-1], noisy=noisy, layer_norm=norm)
    return (*found, *(recurrent.parameters_of(s, below, f"{name}.cell") if has_cell(s) else ()))
