"""Progress of a run: its display, its training speed and metrics.csv."""
