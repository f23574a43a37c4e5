"""MLxE: its paper, and what no other algorithm uses.

Its modules:

    paper                                       the algorithm
    returns, critics, exploration, fields       its returns, the meaning of its critics, exploration, keys
"""

from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings

__all__ = ["MLxE", "MLxESettings"]
