"""What a run shows and records of its progress: display, throughput, metrics.csv."""
