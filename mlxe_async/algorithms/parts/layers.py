"""Layers by the settings of built-in algorithms: convolutions, activation, normalisation, first weights.

Nothing here imports torch before a layer is made.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxe_async.networks.mixed import mixed_of, pictures_in
from mlxe_async.networks.seen import Seen, seen_of
from mlxe_async.rows import Spaces

if TYPE_CHECKING:
    from torch import nn

    from mlxe_async.networks.bodies import Body
    from mlxe_async.networks.cells import Cells
    from mlxe_async.networks.dense import Dense


def body_of(spaces: Spaces, s: Any) -> Body:
    """Return what observations go through first, by the settings `body`, `input_scale`, `precision` and `normalise`.

    Raises:
        ValueError: the settings do not fit the observations, by the key.
    """
    from mlxe_async.networks.bodies import Body
    from mlxe_async.networks.convolutions import convolved
    from mlxe_async.networks.dense import orthogonal

    seen = seen_of(spaces, s)
    several = len(s.input_scale) > 1 and not seen.numbers  # each pixel has a factor of its own
    made = {
        one.name: convolved(s.body, one.image, activation_of(s), 1.0 if several else one.scale, s.precision)
        for one in seen.pictures
    }
    for convolutions in made.values():
        orthogonal(convolutions)
    scale = s.input_scale if seen.numbers or several else (1.0,)
    return Body(spaces, made, normalise=getattr(s, "normalise", False), scale=scale)


def layers(
    s: Any,
    below: Body | Cells | Dense,
    sizes: Sequence[int],
    outputs: int | None = None,
    *,
    last: float = 1.0,
    sigma: float | None = None,
) -> Dense:
    """Layers on what lies below them, by the settings `activation`, `layer_norm` and `precision`.

    First weights are uniform by Glorot and Bengio 2010, without biases. Behind convolutions they are orthogonal, times
    the root of 2 before an activation; there the weights of numbers begin as if they were alone, not with a share of
    those of a thousand features.

    Args:
        s: settings.
        below: what they are shown.
        sizes: of hidden layers.
        outputs: of a linear layer at the end, if given.
        last: gain of that layer's first weights.
        sigma: if given, layers are under noise, see `NoisyLinear`, and begin as it says.
    """
    from torch import nn

    from mlxe_async.networks.dense import dense, glorot, orthogonal
    from mlxe_async.networks.noisy import NoisyLinear

    linear = None if sigma is None else functools.partial(NoisyLinear, sigma=sigma)
    made = dense(below.outputs, sizes, outputs, activation_of(s), layer_norm=s.layer_norm, linear=linear)
    made.precision = "bfloat16" if s.precision == "bfloat16" else "float32"
    if not len(made):
        made.widths = below.widths
        return made
    if linear is not None:
        return made
    if s.body == "none":
        glorot(made, last)
        return made
    orthogonal(made, last=None if outputs is None else last)
    if len({is_picture for is_picture, _ in below.widths}) == 2:
        weight: Any = made[0].weight.data
        for is_picture in (True, False):
            columns = [k for k, chosen in enumerate(_each(below.widths)) if chosen == is_picture]
            piece = nn.init.orthogonal_(weight[:, columns], last if len(made) == 1 else 2**0.5)
            weight[:, columns] = piece
    return made


def _each(widths: Sequence[tuple[bool, int]]) -> Iterator[bool]:
    """Yield for each feature whether it is a picture's."""
    return (is_picture for is_picture, width in widths for _ in range(width))


def activation_of(s: Any) -> type[nn.Module]:
    """Return what follows each layer but a last one."""
    from torch import nn

    return nn.Tanh if s.activation == "tanh" else nn.ReLU


def of_pictures(kind: Any, spaces: Spaces, written: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults for tasks that show pictures of bytes: an algorithm's `of_pictures`.

    Numbers beside pictures are normalised where those alone would be.
    """
    body = written.get("body", kind.of_pictures.get("body", "none") if pictures_in(spaces) else "none")
    found = {} if body == "none" or "body" in written else dict(kind.of_pictures)
    mixed, normalise = mixed_of(spaces, body), kind.Settings.model_fields.get("normalise")
    if mixed is not None and mixed.numbers and normalise is not None:
        found["normalise"] = normalise.default
    return found


def words_of(seen: Seen, **sizes: Sequence[int]) -> str:
    """Return what observations go through, such as `4 numbers -> policy 64, 64, 2; value 64, 64, 1`."""
    return f"{seen.words} -> " + "; ".join(f"{name} {', '.join(map(str, one))}" for name, one in sizes.items() if one)


def polyak(target: nn.Module, learned: nn.Module, share: float) -> None:
    """Move a target network by this share of the way to the learned one: Polyak averaging."""
    import torch

    with torch.no_grad():
        torch._foreach_lerp_([*target.parameters()], [*learned.parameters()], share)
