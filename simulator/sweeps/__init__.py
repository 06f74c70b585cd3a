"""Sweeps: one scenario under many values of its keys, resumable, on every processor or on a cluster."""
