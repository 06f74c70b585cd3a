"""Readers of recorded workloads: each streams a file row by row in bounded memory."""
