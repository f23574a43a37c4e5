"""What is kept for learning, in shared memory. Numpy only."""
