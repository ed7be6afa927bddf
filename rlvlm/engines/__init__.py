"""Engines: what trains a policy, and what samples from it."""
