"""Sources of a run's report: files of the run folder, the scheduler, samples of the nodes."""
