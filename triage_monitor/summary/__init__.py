"""The algebra: gaps and advantages of one update -> a fixed-size, mergeable StepSummary."""
