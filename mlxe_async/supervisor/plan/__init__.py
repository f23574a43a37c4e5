"""Facts of a run that all other wings share: who holds what, what is counted and told, and what it ran on."""
