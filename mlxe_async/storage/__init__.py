"""Files on disk: the run's folder, checkpoints, arrays, crash reports, and what may be written into them."""
