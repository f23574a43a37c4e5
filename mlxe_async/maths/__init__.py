"""Functions that several papers share, and a few small objects with running moments. One file per idea.

Arrays come in, arrays go out. Time is the first axis. `reward[t]` came after `action[t]`; `ends` marks rows after
which nothing may flow back.

    returns, vtrace, rollouts                   returns and advantages; V-trace; boundaries of sequences
    baselines                                   what returns are compared with where there is no critic
    categorical, distributional                 discrete actions by numpy; values as distributions over atoms
    correction, delay_compensation              ratios for rows, and gradients, of older weights
    priorities, outliers                        which rows are drawn; losses far from their mean
    normaliser, reward_scaling, rescaling       running moments of observations; rewards and values on another scale
    symmetry                                    mirror images of rows
    annealing, generators                       quantities by the run's clock; a generator's state as an array
    gradients, together, metrics                cut gradients; sums over workers; metrics as plain numbers
"""
