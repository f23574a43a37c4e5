"""Code that several papers share: acting, replay, rollouts, exploration, tables, and their common keys."""
