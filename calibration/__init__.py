"""Measuring, importing and fitting the profiles that drive the simulator's clock."""
