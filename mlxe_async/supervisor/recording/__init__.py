"""Recording in which order an `oa` run happened, and replaying it bit for bit.

Its modules:

    steps, file                                 each choice that could have gone otherwise, and the file of them
    replay, pushes                              repeating a recorded run; one whose executors make gradients
"""
