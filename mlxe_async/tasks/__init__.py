"""Environments: making, stepping and checking them."""
