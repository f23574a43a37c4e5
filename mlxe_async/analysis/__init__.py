"""Reading what finished runs left: outcomes and tables. Knows run folders only, nothing of how they came about."""
