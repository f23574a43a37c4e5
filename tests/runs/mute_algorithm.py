"""An algorithm of a user's own that wants rows judged and has no verb for it."""

from mlxe_async.algorithms.a3c import A3C


class Mute(A3C):
    """A3C that cannot appraise."""

    appraise = None
