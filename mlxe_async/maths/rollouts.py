"""Boundaries of the sequences in a rollout, and the values of what follows them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.maths import together

if TYPE_CHECKING:
    import torch


def ends(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return where nothing flows back from the next row (T, B): ends of episodes, cuts, gaps, and the last valid row.

    Args:
        rows: the columns `terminated`, `truncated`, `cut`, `valid`, `episode` and `step` of time-major rollouts, all
            (T, B). A row that is not valid is padding.
    """
    result: NDArray[np.bool_] = (rows["terminated"] | rows["truncated"] | rows["cut"]).astype(bool)
    episode, step = rows["episode"], rows["step"]
    # An environment that had to be made anew leaves a gap, with no mark on the row before it.
    follows = rows["valid"][1:].astype(bool) & (episode[1:] == episode[:-1]) & (step[1:] == step[:-1] + 1)
    result[:-1] |= ~follows
    result[-1] = True
    return result


def unknown(
    rows: Mapping[str, NDArray[Any]],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """`ends`, which of them are terminated, and after which rows a value counts that no next row has; all (T, B)."""
    stop, ended = ends(rows), rows["terminated"].astype(bool)
    return stop, ended, stop & ~ended & rows["valid"].astype(bool)


def following(value: NDArray[Any], after: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[Any]:
    """The value of what follows each row (T, B): that of the next row, and where that is `missing`, `after` (N,)."""
    result = np.zeros_like(value)
    result[:-1] = value[1:]
    result[missing] = after
    return result


def spread(batch: Mapping[str, NDArray[Any]], column: torch.Tensor, elsewhere: float = 0.0) -> NDArray[Any]:
    """A column (N,) of the valid rows as (T, B), without gradient, in double precision for the sums to come."""
    result = np.full(batch["valid"].shape, elsewhere)
    result[batch["valid"].astype(bool)] = column.numpy(force=True)
    return result


def columns(
    batch: Mapping[str, NDArray[Any]], rows: int, of_environments: Collection[str] = ()
) -> Iterator[dict[str, NDArray[Any]]]:
    """Pieces of rollouts (T, B, ...) of about `rows` valid rows: whole sequences (T, ...) of some environments.

    Where several workers learn together, `rows` are those of all of them. Columns whose names are in `of_environments`
    have one entry for each environment (B, ...).
    """
    _, count = batch["valid"].shape
    parts = together.parts_of(int(batch["valid"].sum()), rows, count)
    for part in np.array_split(np.arange(count), parts):
        some = slice(part[0], part[-1] + 1)
        together.learn_from(batch["valid"][:, some].sum())
        yield {name: column[some if name in of_environments else (slice(None), some)] for name, column in batch.items()}


def shuffled(
    rows: Mapping[str, torch.Tensor], size: int, epochs: int, rng: np.random.Generator
) -> Iterator[dict[str, torch.Tensor]]:
    """Minibatches of about `size` of the rows (N, ...), all of them in a new order for each epoch.

    Where several workers learn together, `size` counts the rows of all of them. Rows are gathered once for each epoch;
    minibatches are views on consecutive pieces.
    """
    import torch

    some = next(iter(rows.values()))
    sizes = pieces(len(some), size)
    for _ in range(epochs):
        order = torch.as_tensor(rng.permutation(len(some)), device=some.device)
        for piece in zip(*[column[order].split(sizes) for column in rows.values()], strict=True):
            together.learn_from(len(piece[0]))
            yield dict(zip(rows, piece, strict=True))


def pieces(rows: int, size: int) -> list[int]:
    """The rows of each of a worker's minibatches, which have about `size` rows, those of all workers together."""
    return [len(part) for part in np.array_split(range(rows), together.parts_of(rows, size))]
