"""How a process that learns computes on a GPU, by what its run promises."""

from __future__ import annotations

from mlxe_async.gpu import use_kernels
from mlxe_async.settings.model import Settings


def promises_bits(settings: Settings) -> bool:
    """Return whether the run, or a replay of it, is to come to the same bits again."""
    return settings.schedule.reproducible or settings.run.record


def choose_kernels(settings: Settings) -> None:
    """Have torch use the kernels that the settings ask for; to be called before anything is put on a GPU."""
    precision = str(settings.algorithm.table.get("precision", "float32"))
    use_kernels(settings.learner.device, repeatable=promises_bits(settings), precision=precision)
