"""Everything before the first process plays: probe, limits of the host, and what a run goes on from is filled in."""
