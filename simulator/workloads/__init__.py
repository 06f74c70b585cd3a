"""Where requests come from: arrival processes, length distributions and recorded traces."""
