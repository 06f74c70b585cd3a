"""Published experiments as simulations: their clocks, their inputs, and a function for each."""
