"""Pure functions on arrays: returns, corrections, priorities."""
