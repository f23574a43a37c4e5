"""Environments: making, checking and stepping them.

`training.training_task` makes what executors step: a `vector.VectorTask`, a native vector or a pool of EnvPool's.
`probe.probe` is what is asked once before a run starts, `physics` the cart and pole for hundreds of tests at a time.
Nothing an environment raises or returns gets past this package unchecked.

    making, given, sources, installed, listing  from `[task]` to an environment, and where its id is known
    training, vector, native, pools, pooled     how executors step: one by one, a vector as a whole, EnvPool
    checks, conformance, hostile                answers that are checked; what gymnasium asks; text that is safe
    probe, measuring, measured                  trying an environment out; its scales, lengths and costs
    observing, batches                          from observations to arrays that are stored, for all spaces
    atari, cartpole, physics                    Atari's preprocessing; changes of CartPole; its physics
    help, changes, items, metrics, states       further offers of a task: costs, data, metrics, states of wrappers
    recording                                   episodes as video files
"""
