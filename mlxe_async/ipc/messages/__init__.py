"""What processes say to each other: frames, the two ends of a channel, and what an answer must hold."""
