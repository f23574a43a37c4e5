"""MLxE: its paper, and what no other algorithm uses."""

from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings

__all__ = ["MLxE", "MLxESettings"]
