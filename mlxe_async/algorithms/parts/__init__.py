"""What several papers share: acting, replay, rollouts, exploration, tables, and the keys that they have in common."""
