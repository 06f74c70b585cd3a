"""Speed and scale, always as ratios measured in one run, since machines drift."""
