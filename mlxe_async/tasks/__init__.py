"""Environments: making, checking and stepping them.

`training.training_task` makes what executors step: a `vector.VectorTask`, a native vector or a pool of EnvPool's.
`probe.probe` is what is asked once before a run starts, `physics` the cart and pole for hundreds of tests at a time.
Nothing an environment raises or returns gets past this package unchecked.
"""
