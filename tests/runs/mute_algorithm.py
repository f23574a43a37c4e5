"""An algorithm of a user's own that wants rows judged and has no verb for it."""

from mlxe_async.algorithms.mlxe.paper import MLxE


class Mute(MLxE):
    """MLxE that cannot appraise."""

    appraise = None
