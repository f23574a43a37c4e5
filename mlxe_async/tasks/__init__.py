"""Environments: making, checking and stepping them.

`vector.VectorTask` is what executors step, `probe.probe` what is asked once before a run starts, `physics` the cart
and pole for hundreds of tests at a time. Nothing an environment raises or returns gets past this package unchecked.
"""
