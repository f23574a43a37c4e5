"""What processes say to each other: frames, the two ends of a channel, and what an answer must hold.

Its modules:

    frames, channel, loop_channel               bytes of a message; the child's end, and the supervisor's
    answers, remote_error                       what an answer must hold; what a verb raised in a child
"""
