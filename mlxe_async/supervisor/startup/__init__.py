"""Everything before the first process plays: probe, sizes, limits of the host, the run's folder."""
