"""ServeTwin's simulator: workloads, schedulers and a calibrated clock."""
