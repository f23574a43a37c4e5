"""What is kept for learning, in shared memory. Numpy only.

`rollouts` keeps whole rollouts, each learned from once; `rollout_sizes` knows how long they are. `replay` keeps
finished segments of episodes and is drawn from again and again; a row passes `staging` (waits until its segment is
closed), `ingesting` (derived columns are added), `ring` (is stored), `sampling` (is drawn into a plan, by `priorities`
and their `sum_tree`) and `gathering` (is copied into a minibatch). `shape` knows all sizes, `bookkeeping` all counters,
which `committed` changes all at once; `frames` stores each frame of stacked pictures once, `moments` counts mean and
variance of the observations taken in, by `maths.normaliser`.
"""
